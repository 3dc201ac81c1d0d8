//! Replies as a server sends them, and as the model makes them.

use redis::Value as Heard;

use super::{NAMES, Reply};

impl Reply {
    pub(super) fn integers(integers: &[i64]) -> Self {
        Self::Array(integers.iter().copied().map(Self::Integer).collect())
    }

    /// A reply of a server. RESP2 has no maps: there a flat array is one.
    pub fn read(heard: &Result<Heard, String>, resp3: bool) -> Self {
        match heard {
            Ok(value) => Self::of(value, resp3).unwrap_or_else(|| Self::Error(format!("of no such form: {value:?}"))),
            Err(line) => Self::Error(line.clone()),
        }
    }

    pub(super) fn of(value: &Heard, resp3: bool) -> Option<Self> {
        match value {
            Heard::Int(integer) => Some(Self::Integer(*integer)),
            Heard::Array(words) if !resp3 && matches!(words[..], [Heard::BulkString(_), ..]) => {
                Self::map(words.chunks_exact(2).map(|pair| (&pair[0], &pair[1])))
            }
            Heard::Array(parts) => {
                parts.iter().map(|part| Self::of(part, resp3)).collect::<Option<_>>().map(Self::Array)
            }
            Heard::Map(pairs) if resp3 => Self::map(pairs.iter().map(|(name, value)| (name, value))),
            _ => None,
        }
    }

    pub(super) fn map<'a>(pairs: impl Iterator<Item = (&'a Heard, &'a Heard)>) -> Option<Self> {
        let value = |(index, (name, value)): (usize, (&Heard, &Heard))| match (name, value) {
            (Heard::BulkString(name), Heard::Int(value))
                if NAMES.get(index).copied().unwrap_or("wait-ms").as_bytes() == name =>
            {
                Some(*value)
            }
            _ => None,
        };
        let mut values = pairs.enumerate().map(value).collect::<Option<Vec<i64>>>()?;
        let wait = if values.len() > NAMES.len() { values.pop() } else { None };
        values.try_into().ok().map(|values| Self::Map(values, wait))
    }

    /// Whether a server may reply this.
    pub fn is(&self, told: &Self) -> bool {
        match (self, told) {
            (Self::Within(least, most), Self::Integer(told)) => (least..=most).contains(&told),
            _ => self == told,
        }
    }

    /// The waits in a reply.
    pub fn waits(&self) -> Vec<i64> {
        match self {
            Self::Map([_, _, _, _, retry, next, reset, ..], _) => vec![*retry, *next, *reset],
            Self::Array(parts) => match &parts[..] {
                [Self::Integer(_), _, _, Self::Integer(wait), ..] => vec![*wait],
                parts => parts.iter().flat_map(Self::waits).collect(),
            },
            _ => Vec::new(),
        }
    }
}
