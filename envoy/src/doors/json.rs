//! Requests and answers as JSON, by the mapping of Protocol Buffers: names in camelCase (or as they are in the message),
//! 64-bit numbers as strings, nothing that has its default.

use std::fmt;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{Entry, RateLimitOverride};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{DescriptorStatus, RateLimit};
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::envoy::r#type::v3::RateLimitUnit;
use envoy_types::pb::google::protobuf::value::Kind;
use envoy_types::pb::google::protobuf::{Struct, UInt64Value, Value as ProtoValue};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

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

/// A name, or the number behind it.
struct Unit(i32);

impl<'de> Deserialize<'de> for Integer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl Visitor<'_> for Read {
            type Value = Integer;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer of 64 bits without a sign")
            }

            fn visit_u64<E: de::Error>(self, value: u64) -> Result<Integer, E> {
                Ok(Integer(value))
            }

            fn visit_f64<E: de::Error>(self, value: f64) -> Result<Integer, E> {
                // 5.0 and 1e3 are integers there.
                let whole = value.fract() == 0.0 && (0.0..9_007_199_254_740_992.0).contains(&value);
                if whole { Ok(Integer(value as u64)) } else { Err(E::custom("not an integer")) }
            }

            fn visit_str<E: de::Error>(self, value: &str) -> Result<Integer, E> {
                value.parse().map(Integer).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Read)
    }
}

impl<'de> Deserialize<'de> for Unit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(name) => RateLimitUnit::from_str_name(&name)
                .map(|unit| Self(unit.into()))
                .ok_or_else(|| de::Error::custom(format!("no unit '{name}'"))),
            Value::Number(number) => number
                .as_i64()
                .and_then(|number| i32::try_from(number).ok())
                .map(Self)
                .ok_or_else(|| de::Error::custom("not a number of a unit")),
            _ => Err(de::Error::custom("a unit is a name")),
        }
    }
}

/// Reads a request.
///
/// # Errors
/// If it is not JSON, or not a request.
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
                unit: limit.unit.map_or(0, |Unit(unit)| unit),
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

/// The answer's text.
pub fn response(response: &RateLimitResponse) -> String {
    let mut fields = Map::new();
    fields.insert("overallCode".to_owned(), json!(response.overall_code().as_str_name()));
    if !response.statuses.is_empty() {
        fields.insert("statuses".to_owned(), response.statuses.iter().map(status).collect());
    }
    if !response.response_headers_to_add.is_empty() {
        let headers = response.response_headers_to_add.iter();
        let headers = headers.map(|header| json!({"key": header.key, "value": header.value}));
        fields.insert("responseHeadersToAdd".to_owned(), headers.collect());
    }
    if let Some(metadata) = &response.dynamic_metadata {
        fields.insert("dynamicMetadata".to_owned(), structure(metadata));
    }
    Value::Object(fields).to_string()
}

fn status(status: &DescriptorStatus) -> Value {
    let mut fields = Map::new();
    fields.insert("code".to_owned(), json!(status.code().as_str_name()));
    if let Some(limit) = &status.current_limit {
        fields.insert("currentLimit".to_owned(), limit_of(limit));
    }
    if status.limit_remaining != 0 {
        fields.insert("limitRemaining".to_owned(), json!(status.limit_remaining));
    }
    if let Some(reset) = &status.duration_until_reset {
        fields.insert("durationUntilReset".to_owned(), json!(format!("{}s", reset.seconds)));
    }
    Value::Object(fields)
}

fn limit_of(limit: &RateLimit) -> Value {
    let mut fields = Map::new();
    if !limit.name.is_empty() {
        fields.insert("name".to_owned(), json!(limit.name));
    }
    if limit.requests_per_unit != 0 {
        fields.insert("requestsPerUnit".to_owned(), json!(limit.requests_per_unit));
    }
    if limit.unit != 0 {
        fields.insert("unit".to_owned(), json!(limit.unit().as_str_name()));
    }
    Value::Object(fields)
}

fn structure(from: &Struct) -> Value {
    Value::Object(from.fields.iter().map(|(name, value)| (name.clone(), plain(value))).collect())
}

fn plain(value: &ProtoValue) -> Value {
    match &value.kind {
        None | Some(Kind::NullValue(_)) => Value::Null,
        Some(Kind::NumberValue(number)) if number.fract() == 0.0 && number.abs() < 9e15 => json!(*number as i64),
        Some(Kind::NumberValue(number)) => json!(number),
        Some(Kind::StringValue(text)) => json!(text),
        Some(Kind::BoolValue(value)) => json!(value),
        Some(Kind::StructValue(fields)) => structure(fields),
        Some(Kind::ListValue(list)) => list.values.iter().map(plain).collect(),
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
