//! Requests and answers as JSON, by the mapping of Protocol Buffers: names in camelCase (or as they are in the message),
//! 64-bit numbers as strings, nothing that has its default.

use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use serde_json::{Value, json};

use super::grpc::RawRequest;
use crate::messages::{
    DescriptorStatus, RateLimitRequest, RateLimitResponse, Shown, Struct, UInt64Value, Value as ProtoValue, ValueKind,
};

pub fn request(body: &[u8]) -> Result<RateLimitRequest, String> {
    // serde takes a list for a structure.
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err("not an object".to_owned());
    }
    serde_json::from_slice::<RawRequest>(body).map(Into::into).map_err(|error| error.to_string())
}

/// `null` is what is not said.
pub fn or_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

pub fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u8>, D::Error> {
    or_default(deserializer).map(String::into_bytes)
}

/// A number, or the same as a string; 5.0 and 1e3 are integers there.
pub fn integer<'de, T: Default + TryFrom<u64>, D: Deserializer<'de>>(deserializer: D) -> Result<T, D::Error> {
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

pub fn hits<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<UInt64Value>, D::Error> {
    let number = Option::<Value>::deserialize(deserializer)?;
    let number = number.map(|number| integer(number).map_err(D::Error::custom)).transpose()?;
    Ok(number.map(|value| UInt64Value { value }))
}

pub fn unit<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i32, D::Error> {
    match Value::deserialize(deserializer)? {
        Value::Null => Some(0),
        Value::String(name) => RateLimitUnit::from_str_name(&name).map(Into::into),
        number => number.as_i64().and_then(|number| i32::try_from(number).ok()),
    }
    .ok_or_else(|| D::Error::custom("not a unit"))
}

pub fn response(response: &RateLimitResponse) -> String {
    let headers = response.response_headers_to_add.iter();
    let fields = [
        ("overallCode", json!(response.overall_code().as_str_name())),
        ("statuses", response.statuses.iter().map(status).collect()),
        ("responseHeadersToAdd", headers.map(|header| json!({"key": header.key, "value": header.value})).collect()),
        ("dynamicMetadata", json!(response.dynamic_metadata.as_ref().map(structure))),
    ];
    object(fields).to_string()
}

/// The fields that do not have their defaults.
fn object<const N: usize>(fields: [(&str, Value); N]) -> Value {
    let defaults = [Value::Null, json!(0), json!(""), json!([])];
    let set = fields.into_iter().filter(|(_, value)| !defaults.contains(value));
    Value::Object(set.map(|(name, value)| (name.to_owned(), value)).collect())
}

fn status(status: &DescriptorStatus) -> Value {
    object([
        ("code", json!(status.code().as_str_name())),
        ("currentLimit", json!(status.current_limit.as_ref().map(limit_of))),
        ("limitRemaining", json!(status.limit_remaining)),
        ("durationUntilReset", json!(status.duration_until_reset.as_ref().map(|reset| format!("{}s", reset.seconds)))),
    ])
}

fn limit_of(limit: &Shown) -> Value {
    object([
        ("name", json!(limit.name)),
        ("requestsPerUnit", json!(limit.requests_per_unit)),
        ("unit", json!((limit.unit != 0).then(|| limit.unit().as_str_name()))),
    ])
}

fn structure(from: &Struct) -> Value {
    Value::Object(from.fields.iter().map(|(name, value)| (name.clone(), plain(value))).collect())
}

fn plain(value: &ProtoValue) -> Value {
    match &value.kind {
        None | Some(ValueKind::NullValue(_)) => Value::Null,
        Some(ValueKind::NumberValue(number)) if number.fract() == 0.0 && number.abs() < 9e15 => json!(*number as i64),
        Some(ValueKind::NumberValue(number)) => json!(number),
        Some(ValueKind::StringValue(text)) => json!(text),
        Some(ValueKind::BoolValue(value)) => json!(value),
        Some(ValueKind::StructValue(fields)) => structure(fields),
        Some(ValueKind::ListValue(list)) => list.values.iter().map(plain).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{RateLimitDescriptor, RateLimitOverride};

    #[test]
    fn both_spellings_of_names_and_numbers_are_read() {
        let body = br#"{"domain":"d","hits_addend":"2","descriptors":[{"entries":[{"key":"k","value":"v"}],
            "hitsAddend":"18446744073709551615","limit":{"requestsPerUnit":5.0,"unit":"DAY"},"is_negative_hits":true},
            {"entries":null,"limit":{"requests_per_unit":null,"unit":4},"hits_addend":null,"isNegativeHits":null}]}"#;
        let request = super::request(body).unwrap();
        assert_eq!(request.hits_addend, 2);
        let descriptor = &request.descriptors[0];
        assert_eq!(descriptor.hits_addend.as_ref().unwrap().value, u64::MAX);
        assert_eq!(descriptor.limit.as_ref().unwrap().requests_per_unit, 5);
        assert!(descriptor.is_negative_hits);
        let limit = Some(RateLimitOverride { requests_per_unit: 0, unit: descriptor.limit.as_ref().unwrap().unit });
        assert_eq!(request.descriptors[1], RateLimitDescriptor { limit, ..RateLimitDescriptor::default() });
    }

    #[test]
    fn what_is_no_request_is_refused() {
        for body in
            ["", "[]", "{\"domain\":5}", "{\"unknown\":1}", "{\"hitsAddend\":-1}", "{\"hitsAddend\":4294967296}"]
        {
            assert!(request(body.as_bytes()).is_err(), "{body}");
        }
        assert!(request(b"{\"domain\":null}").is_ok());
    }
}
