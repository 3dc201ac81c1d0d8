//! What the server replies, read as what was expected.

use redis::Value;

use crate::error::Error;

/// An error that says what stands in place of what was expected.
fn in_place_of(value: &Value, expected: &str) -> Error {
    let text = |text: &[u8]| format!("{:?}", text.escape_ascii().to_string());
    let what = match value {
        Value::BulkString(bytes) => text(bytes),
        Value::SimpleString(words) => text(words.as_bytes()),
        Value::ServerError(error) => format!("the error {error}"),
        other => format!("{other:?}"),
    };
    Error::Unexpected(format!("{what} in place of {expected}"))
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

/// Calls a function with each field of a map: a map over RESP3, a flat array over RESP2.
pub(crate) fn each_field<'a>(value: &'a Value, mut see: impl FnMut(&'a [u8], &'a Value)) -> Result<(), Error> {
    let mut see = |name: &'a Value, value| match name {
        Value::BulkString(name) => see(name, value),
        Value::SimpleString(name) => see(name.as_bytes(), value),
        _ => {}
    };
    match value {
        Value::Map(fields) => fields.iter().for_each(|(name, value)| see(name, value)),
        Value::Array(words) if words.len().is_multiple_of(2) => {
            words.as_chunks().0.iter().for_each(|[name, value]| see(name, value));
        }
        other => return Err(in_place_of(other, "fields")),
    }
    Ok(())
}

/// All texts in a reply.
pub(crate) fn texts(value: &Value) -> Vec<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok().into_iter().collect(),
        Value::Array(elements) => elements.iter().flat_map(texts).collect(),
        Value::Map(fields) => fields.iter().flat_map(|(name, value)| [texts(name), texts(value)].concat()).collect(),
        _ => Vec::new(),
    }
}
