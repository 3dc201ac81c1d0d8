//! The dynamic metadata of an answer, where RESPONSE_DYNAMIC_METADATA asks for it: the request, and what the
//! configuration says about the limits that it passed.

use std::collections::HashMap;

use crate::messages::{ListValue, RateLimitDescriptor, RateLimitRequest, Struct, Value, ValueKind};

fn value(kind: ValueKind) -> Value {
    Value { kind: Some(kind) }
}

fn list(values: Vec<Value>) -> Value {
    value(ValueKind::ListValue(ListValue { values }))
}

/// `passed`: the positions of the descriptors that passed. `metadata`: by descriptor.
pub fn dynamic_metadata(request: &RateLimitRequest, passed: &[usize], metadata: &[Option<&Struct>]) -> Struct {
    let descriptors = request.descriptors.iter().map(descriptor).collect();
    let mut fields = HashMap::from([
        ("domain".to_owned(), value(ValueKind::StringValue(request.domain.clone()))),
        ("descriptors".to_owned(), list(descriptors)),
    ]);
    if request.hits_addend != 0 {
        fields.insert("hitsAddend".to_owned(), value(ValueKind::NumberValue(request.hits_addend.into())));
    }
    let mut merged = Struct::default();
    passed.iter().filter_map(|index| metadata[*index]).for_each(|metadata| merge(&mut merged, metadata));
    if !merged.fields.is_empty() {
        fields.insert("metadata".to_owned(), value(ValueKind::StructValue(merged)));
    }
    Struct { fields }
}

fn descriptor(descriptor: &RateLimitDescriptor) -> Value {
    let entries = descriptor.entries.iter();
    let entries = entries.map(|entry| value(ValueKind::StringValue(format!("{}={}", entry.key, entry.value))));
    let mut fields = HashMap::from([("entries".to_owned(), list(entries.collect()))]);
    if let Some(limit) = &descriptor.limit {
        let requests = (limit.requests_per_unit != 0).then(|| format!("requests_per_unit:{}", limit.requests_per_unit));
        let unit = (limit.unit != 0).then(|| format!("unit:{}", limit.unit().as_str_name()));
        let parts: Vec<_> = requests.into_iter().chain(unit).collect();
        fields.insert("limit".to_owned(), value(ValueKind::StringValue(parts.join(" "))));
    }
    if let Some(hits) = &descriptor.hits_addend {
        fields.insert("hitsAddend".to_owned(), value(ValueKind::NumberValue(hits.value as f64)));
    }
    value(ValueKind::StructValue(Struct { fields }))
}

/// Adds what is not there yet. Two structures of one name become one.
fn merge(into: &mut Struct, from: &Struct) {
    for (name, value) in &from.fields {
        match (into.fields.get_mut(name).map(|there| &mut there.kind), &value.kind) {
            (None, _) => drop(into.fields.insert(name.clone(), value.clone())),
            (Some(Some(ValueKind::StructValue(there))), Some(ValueKind::StructValue(more))) => merge(there, more),
            (Some(_), _) => {}
        }
    }
}
