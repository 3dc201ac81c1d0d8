//! Requests and answers as JSON, by the mapping of Protocol Buffers: names in camelCase (or as they are in the message),
//! 64-bit numbers as strings, nothing that has its default.

use serde_json::{Value, json};

use super::raw::RawRequest;
use crate::messages::{
    DescriptorStatus, RateLimitRequest, RateLimitResponse, Shown, Struct, Value as ProtoValue, ValueKind,
};

pub fn request(body: &[u8]) -> Result<RateLimitRequest, String> {
    // serde takes a list for a structure.
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err("not an object".to_owned());
    }
    serde_json::from_slice::<RawRequest>(body).map(Into::into).map_err(|error| error.to_string())
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
