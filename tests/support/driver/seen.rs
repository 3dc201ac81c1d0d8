//! The state around a checked call: questions to the server's own commands before and after it, and their answers.

use super::Moment;
use super::calls::Call;
use crate::support::model::{Space, Storage, Stored, Value};
use crate::support::wire::{Reply, Wire, pack};

/// Appends the questions about the keys of a call.
pub fn ask(bytes: &mut Vec<u8>, call: &Call) {
    for key in &call.state {
        // First the type: an expired key goes now.
        for question in [&b"TYPE"[..], b"PEXPIRETIME", b"GET"] {
            pack(bytes, &[question, key]);
        }
        pack(bytes, &[b"ZRANGE".as_ref(), key, b"0", b"-1", b"WITHSCORES"]);
    }
    let mut digests = vec![&b"DEBUG"[..], b"DIGEST-VALUE"];
    digests.extend(call.state.iter().map(|key| &key[..]));
    pack(bytes, &digests);
    pack(bytes, &["DBSIZE"]);
}

/// The answers.
#[derive(Debug)]
pub struct Seen {
    /// In the order of the call's keys.
    pub keys: Vec<Option<Stored>>,
    pub digests: Vec<Reply>,
    pub size: i64,
}

impl Seen {
    /// Takes the answers in the order of the questions.
    pub fn hear(wire: &mut Wire, call: &Call) -> Self {
        let keys = call.state.iter().map(|_| stored(wire)).collect();
        let Reply::Array(digests) = wire.receive() else { panic!("DEBUG DIGEST-VALUE has no such reply") };
        Self { keys, digests, size: integer(wire) }
    }

    pub fn space(&self, call: &Call, moment: Moment) -> Space {
        let mut space = Space::new(if moment.compact { Storage::Compact } else { Storage::Sorted });
        let there = call.state.iter().zip(&self.keys).filter_map(|(key, stored)| Some((key.clone(), stored.clone()?)));
        space.keys.extend(there);
        space
    }

    pub fn unchanged(&self, after: &Self) -> Result<(), String> {
        let expiries =
            |seen: &Self| -> Vec<_> { seen.keys.iter().map(|key| key.as_ref().map(|stored| stored.expires)).collect() };
        if expiries(self) == expiries(after) && self.digests == after.digests && self.size == after.size {
            Ok(())
        } else {
            Err(format!("something has changed that should not, now {after:?}"))
        }
    }

    /// Keys in the server besides those of the call.
    pub fn others(&self) -> i64 {
        self.size - self.keys.iter().flatten().count() as i64
    }
}

fn stored(wire: &mut Wire) -> Option<Stored> {
    let Reply::Status(kind) = wire.receive() else { panic!("TYPE has no such reply") };
    let (expires, string, members) = (integer(wire), wire.receive(), wire.receive());
    let value = match (&*kind, string, members) {
        ("none", ..) => return None,
        ("string", Reply::Bulk(Some(bytes)), _) => Value::of_string(&bytes),
        ("zset", _, Reply::Array(parts)) => {
            let word = |part: &Reply| match part {
                Reply::Bulk(Some(word)) => word.clone(),
                part => panic!("{part:?} is neither a member nor a score"),
            };
            let score = |part: &Reply| String::from_utf8_lossy(&word(part)).parse().expect("a score");
            Value::Set(parts.chunks(2).map(|pair| (word(&pair[0]), score(&pair[1]))).collect())
        }
        _ => Value::Other,
    };
    Some(Stored { value, expires: (expires >= 0).then_some((expires, expires)) })
}

fn integer(wire: &mut Wire) -> i64 {
    match wire.receive() {
        Reply::Integer(integer) => integer,
        reply => panic!("{reply:?} is not an integer"),
    }
}
