//! A request as it comes in, by gRPC and as JSON.

use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use prost::Message;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::messages::{Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, UInt64Value};

/// Its text may be any bytes. A client writes them into a header, and Envoy passes them
/// on: if the call failed for want of text, it would let the client through.
#[derive(Message, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
pub struct RawRequest {
    #[prost(bytes = "vec", tag = "1")]
    #[serde(deserialize_with = "text")]
    domain: Vec<u8>,
    #[prost(message, repeated, tag = "2")]
    #[serde(deserialize_with = "or_default")]
    descriptors: Vec<RawDescriptor>,
    #[prost(uint32, tag = "3")]
    #[serde(alias = "hits_addend", deserialize_with = "integer")]
    hits_addend: u32,
}

#[derive(Message, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct RawDescriptor {
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "or_default")]
    entries: Vec<RawEntry>,
    #[prost(message, optional, tag = "2")]
    limit: Option<RawLimit>,
    #[prost(message, optional, tag = "3")]
    #[serde(alias = "hits_addend", deserialize_with = "hits")]
    hits_addend: Option<UInt64Value>,
    #[prost(bool, tag = "4")]
    #[serde(alias = "is_negative_hits", deserialize_with = "or_default")]
    is_negative_hits: bool,
}

#[derive(Message, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawEntry {
    #[prost(bytes = "vec", tag = "1")]
    #[serde(deserialize_with = "text")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    #[serde(deserialize_with = "text")]
    value: Vec<u8>,
}

#[derive(Message, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct RawLimit {
    #[prost(uint32, tag = "1")]
    #[serde(alias = "requests_per_unit", deserialize_with = "integer")]
    requests_per_unit: u32,
    #[prost(int32, tag = "2")]
    #[serde(deserialize_with = "unit")]
    unit: i32,
}

impl From<RawRequest> for RateLimitRequest {
    fn from(RawRequest { domain, descriptors, hits_addend }: RawRequest) -> Self {
        let text =
            |bytes| String::from_utf8(bytes).unwrap_or_else(|bad| String::from_utf8_lossy(bad.as_bytes()).into());
        let descriptors = descriptors.into_iter().map(|descriptor| {
            let RawDescriptor { entries, limit, hits_addend, is_negative_hits } = descriptor;
            let entries = entries.into_iter().map(|entry| Entry { key: text(entry.key), value: text(entry.value) });
            let limit = limit.map(|RawLimit { requests_per_unit, unit }| RateLimitOverride { requests_per_unit, unit });
            RateLimitDescriptor { entries: entries.collect(), limit, hits_addend, is_negative_hits }
        });
        Self { domain: text(domain), descriptors: descriptors.collect(), hits_addend }
    }
}

/// `null` is what is not said.
fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    or_default(deserializer).map(String::into_bytes)
}

/// A number, or the same as a string; 5.0 and 1e3 are integers there.
fn integer<'de, T: Default + TryFrom<u64>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    let whole = |value: &f64| value.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(value);
    let number = match Value::deserialize(deserializer)? {
        Value::Null => return Ok(T::default()),
        Value::Number(number) => number.as_u64().or_else(|| number.as_f64().filter(whole).map(|value| value as u64)),
        Value::String(text) => text.parse().ok(),
        _ => None,
    };
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| D::Error::custom("not an integer, or too large a one"))
}

fn hits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<UInt64Value>, D::Error> {
    let number = Option::<Value>::deserialize(deserializer)?;
    let number = number.map(|number| integer(number).map_err(D::Error::custom)).transpose()?;
    Ok(number.map(|value| UInt64Value { value }))
}

fn unit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Some(0),
        Value::String(name) => RateLimitUnit::from_str_name(&name).map(Into::into),
        number => number.as_i64().and_then(|number| i32::try_from(number).ok()),
    }
    .ok_or_else(|| D::Error::custom("not a unit"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{descriptor, hits};

    #[test]
    fn a_message_is_read_as_it_is_and_what_is_no_text_becomes_text() {
        let limit = RateLimitOverride { requests_per_unit: 5, unit: 4 };
        let brings = RateLimitDescriptor { limit: Some(limit), is_negative_hits: true, ..descriptor("c=d") };
        let sent = RateLimitRequest {
            domain: "d".to_owned(),
            descriptors: vec![hits("a=~é~,~b=", 1 << 63), brings],
            hits_addend: 7,
        };
        let mut message = sent.encode_to_vec();
        let read = |message: &[u8]| RateLimitRequest::from(RawRequest::decode(message).unwrap());
        assert_eq!(read(&message), sent);
        message.iter_mut().filter(|byte| **byte == b'~').for_each(|byte| *byte = 0xff);
        let read = read(&message);
        let entries = read.descriptors[0].entries.iter().map(|entry| (entry.key.as_str(), entry.value.as_str()));
        assert!(entries.eq([("a", "\u{fffd}é\u{fffd}"), ("\u{fffd}b", "")]));
    }
}
