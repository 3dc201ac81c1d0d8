//! What is asked: the questions to the server's own commands before and after a probed call, their answers, and whether a
//! call has changed what it may not.

use super::calls::Call;
use crate::support::model::{self, Found};
use crate::support::wire::{Reply, Wire, pack};

/// Appends the questions about the keys of a call.
pub fn ask(bytes: &mut Vec<u8>, call: &Call) {
    // First the types: an expired key goes now.
    for key in &call.state {
        for question in [&b"TYPE"[..], b"PEXPIRETIME", b"GET"] {
            pack(bytes, &[question, key]);
        }
        if call.needs_members() {
            pack(bytes, &[b"ZRANGE".as_ref(), key, b"0", b"-1", b"WITHSCORES"]);
        }
    }
    let mut digest = vec![&b"DEBUG"[..], b"DIGEST-VALUE"];
    digest.extend(call.state.iter().map(|key| &key[..]));
    pack(bytes, &digest);
    pack(bytes, &["DBSIZE"]);
}

/// The answers to the questions around a call.
#[derive(Debug)]
pub struct Seen {
    pub keys: Vec<Found>,
    pub digest: Reply,
    pub size: i64,
}

impl Seen {
    /// Takes the answers in the order of the questions.
    pub fn hear(wire: &mut Wire, call: &Call) -> Self {
        let mut keys = Vec::new();
        for _ in &call.state {
            let Reply::Status(kind) = wire.receive() else { panic!("TYPE has no such reply") };
            let (expires, mut value) = (integer(wire), wire.receive());
            if call.needs_members() {
                let members = wire.receive();
                value = if kind == "zset" { members } else { value };
            }
            keys.push(Found { kind, expires, value });
        }
        Self { keys, digest: wire.receive(), size: integer(wire) }
    }

    pub fn unchanged(&self, after: &Self) -> Result<(), String> {
        let expiries = |seen: &Self| seen.keys.iter().map(|key| key.expires).collect::<Vec<_>>();
        if expiries(self) == expiries(after) && self.digest == after.digest && self.size == after.size {
            Ok(())
        } else {
            Err(format!("something has changed that should not, now {after:?}"))
        }
    }

    /// Whether there are as many keys as before beside the first of the call.
    pub fn same_others(&self, after: &Self) -> Result<(), String> {
        let others = |seen: &Self| seen.size - i64::from(seen.keys[0].kind != "none");
        if others(self) == others(after) { Ok(()) } else { Err("there are other keys than before".to_owned()) }
    }

    /// Whether just these keys hold these integers now, and the others are as they were.
    pub fn written(&self, written: &[Option<model::Standing>], after: &Self) -> Result<(), String> {
        if written.iter().all(Option::is_none) {
            return self.unchanged(after);
        }
        for (index, (standing, key)) in written.iter().zip(&after.keys).enumerate() {
            let as_it_should = match standing {
                Some(standing) => (standing.expires, Ok(Some(standing.value))) == (key.expires, key.integer()),
                None => self.keys[index].expires == key.expires,
            };
            if !as_it_should {
                return Err(format!("key {index} is left as {key:?}, not {standing:?}"));
            }
        }
        let created = written.iter().zip(&self.keys).filter(|(standing, key)| standing.is_some() && key.kind == "none");
        if after.size == self.size + created.count() as i64 {
            Ok(())
        } else {
            Err("there are other keys than before".to_owned())
        }
    }
}

fn integer(wire: &mut Wire) -> i64 {
    match wire.receive() {
        Reply::Integer(integer) => integer,
        reply => panic!("{reply:?} is no integer"),
    }
}
