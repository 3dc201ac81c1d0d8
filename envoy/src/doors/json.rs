//! Requests and answers as JSON, by the mapping of Protocol Buffers: names in camelCase (or as they are in the message),
//! 64-bit numbers as strings, nothing that has its default.

use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use serde::{Deserialize, Deserializer, de};
use serde_json::{Value, json};

use crate::messages::{
    DescriptorStatus, Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest, RateLimitResponse, Shown,
    Struct, UInt64Value, Value as ProtoValue, ValueKind,
};

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct JsonRequest {
    domain: Option<String>,
    descriptors: Option<Vec<JsonDescriptor>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Integer>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct JsonDescriptor {
    entries: Option<Vec<JsonEntry>>,
    limit: Option<JsonLimit>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Integer>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: Option<bool>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
struct JsonEntry {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default, rename_all = "camelCase")]
struct JsonLimit {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: Option<Integer>,
    unit: Option<Unit>,
}

/// A number, or the same as a string.
struct Integer(u64);

#[derive(Deserialize)]
#[serde(untagged)]
enum Unit {
    Name(String),
    Number(i32),
}

impl<'de> Deserialize<'de> for Integer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // 5.0 and 1e3 are integers there.
        let whole = |value: &f64| value.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(value);
        let number = match Value::deserialize(deserializer)? {
            Value::Number(number) => {
                number.as_u64().or_else(|| number.as_f64().filter(whole).map(|value| value as u64))
            }
            Value::String(text) => text.parse().ok(),
            _ => None,
        };
        number.map(Self).ok_or_else(|| de::Error::custom("not an integer of 64 bits without a sign"))
    }
}

pub fn request(body: &[u8]) -> Result<RateLimitRequest, String> {
    // serde takes a list for a structure.
    if !body.trim_ascii_start().starts_with(b"{") {
        return Err("not an object".to_owned());
    }
    let request: JsonRequest = serde_json::from_slice(body).map_err(|error| error.to_string())?;
    let small = |number: Option<Integer>| {
        u32::try_from(number.map_or(0, |Integer(number)| number)).map_err(|_| "a number is too large".to_owned())
    };
    let descriptors = request.descriptors.unwrap_or_default().into_iter().map(|descriptor| {
        let limit = descriptor.limit.map(|limit| {
            Ok::<_, String>(RateLimitOverride {
                requests_per_unit: small(limit.requests_per_unit)?,
                unit: match limit.unit {
                    None => 0,
                    Some(Unit::Number(number)) => number,
                    Some(Unit::Name(name)) => RateLimitUnit::from_str_name(&name).ok_or("not a unit")?.into(),
                },
            })
        });
        let entries = descriptor.entries.unwrap_or_default().into_iter();
        Ok(RateLimitDescriptor {
            entries: entries
                .map(|entry| Entry { key: entry.key.unwrap_or_default(), value: entry.value.unwrap_or_default() })
                .collect(),
            limit: limit.transpose()?,
            hits_addend: descriptor.hits_addend.map(|Integer(value)| UInt64Value { value }),
            is_negative_hits: descriptor.is_negative_hits.unwrap_or_default(),
        })
    });
    Ok(RateLimitRequest {
        domain: request.domain.unwrap_or_default(),
        descriptors: descriptors.collect::<Result<_, String>>()?,
        hits_addend: small(request.hits_addend)?,
    })
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

    #[test]
    fn both_spellings_of_names_and_numbers_are_read() {
        let body = br#"{"domain":"d","hits_addend":"2","descriptors":[{"entries":[{"key":"k","value":"v"}],
            "hitsAddend":"18446744073709551615","limit":{"requestsPerUnit":5.0,"unit":"DAY"},"is_negative_hits":true}]}"#;
        let request = request(body).unwrap();
        assert_eq!(request.hits_addend, 2);
        let descriptor = &request.descriptors[0];
        assert_eq!(descriptor.hits_addend.as_ref().unwrap().value, u64::MAX);
        assert_eq!(descriptor.limit.as_ref().unwrap().requests_per_unit, 5);
        assert!(descriptor.is_negative_hits);
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
