//! What the server replies, read as what was expected.

use redis::Value;

use crate::error::Error;

fn in_place_of(value: &Value, expected: &str) -> Error {
    Error::Unexpected(format!("{value:?} in place of {expected}"))
}

pub(crate) fn integer(value: &Value) -> Result<i64, Error> {
    match value {
        Value::Int(integer) => Ok(*integer),
        other => Err(in_place_of(other, "an integer")),
    }
}

pub(crate) fn array(value: &Value) -> Result<&[Value], Error> {
    match value {
        Value::Array(elements) => Ok(elements),
        other => Err(in_place_of(other, "an array")),
    }
}

/// An array of `N` elements.
pub(crate) fn elements<const N: usize>(value: &Value) -> Result<&[Value; N], Error> {
    let all = array(value)?;
    all.try_into().map_err(|_| Error::Unexpected(format!("{} elements in place of {N}", all.len())))
}

/// An array of `N` integers.
pub(crate) fn integers<const N: usize>(value: &Value) -> Result<[i64; N], Error> {
    let mut integers = [0; N];
    for (integer_, element) in integers.iter_mut().zip(elements::<N>(value)?) {
        *integer_ = integer(element)?;
    }
    Ok(integers)
}

/// The fields of FULL, in the order of the server.
pub(crate) const FIELDS: [&str; 10] = [
    "allowed",
    "limit",
    "used",
    "remaining",
    "retry-after-ms",
    "next-after-ms",
    "reset-after-ms",
    "window-ms",
    "at-ms",
    "wait-ms",
];

/// The position of a name among the [`FIELDS`].
pub(crate) fn position(name: &[u8]) -> Option<usize> {
    FIELDS.iter().position(|known| known.as_bytes() == name)
}

/// What a map has under the names of [`FIELDS`]: a map over RESP3, a flat array over RESP2. Other fields are ignored.
pub(crate) fn fields(value: &Value) -> Result<[Option<&Value>; FIELDS.len()], Error> {
    let mut found = [None; FIELDS.len()];
    let mut see = |name: &Value, value| {
        let position = match name {
            Value::BulkString(name) => position(name),
            Value::SimpleString(name) => position(name.as_bytes()),
            // As `wire` reads them.
            Value::Int(position) => usize::try_from(*position).ok(),
            _ => None,
        };
        if let Some(found) = position.and_then(|position| found.get_mut(position)) {
            *found = Some(value);
        }
    };
    match value {
        Value::Map(fields) => fields.iter().for_each(|(name, value)| see(name, value)),
        Value::Array(words) if words.len().is_multiple_of(2) => {
            words.as_chunks().0.iter().for_each(|[name, value]| see(name, value));
        }
        other => return Err(in_place_of(other, "fields")),
    }
    Ok(found)
}
