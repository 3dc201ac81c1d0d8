//! What a configuration says, as it is written: read from a file here, from a message of an xDS server in `xds.rs`. What
//! it means, and whether it can be, is `load.rs`.
//!
//! A file is taken as Envoy's rate limit service takes it: its own keys anywhere, even where they mean nothing, and no
//! unknown key at all. The keys that only this service has are taken where they mean something, and nowhere else.

use std::collections::BTreeMap;

use super::sources::Source;
use super::yaml::{self, Kind, Node, Refusal, Scalar};
use crate::limit::Calendar;
use crate::messages::{ListValue, NullValue, Struct, Value, ValueKind};

/// One file, or one resource of the xDS server.
#[derive(Debug, Default)]
pub struct Definition {
    /// What errors call it.
    pub name: String,
    pub domain: String,
    pub hash_tag: Option<HashTag>,
    /// The key of a hash in Redis, of limits in place of those here.
    pub overrides: String,
    /// By key of a descriptor: where a request of HTTP has its value.
    pub http: BTreeMap<String, Source>,
    pub descriptors: Vec<Descriptor>,
}

/// What is put into the braces of a key, so that in a cluster keys share a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HashTag {
    /// The domain: one slot for all of it.
    Domain,
    /// The value of the entry with this key.
    Entry(String),
}

#[derive(Debug, Default)]
pub struct Descriptor {
    /// In the file, from 1; 0 without one.
    pub line: usize,
    pub key: String,
    pub value: String,
    pub limit: Option<Limit>,
    pub descriptors: Vec<Self>,
    pub shadow_mode: bool,
    pub quota_mode: bool,
    pub detailed_metric: bool,
    pub value_to_metric: bool,
    pub share_threshold: bool,
    pub metadata: Option<Struct>,
}

#[derive(Debug, Default)]
pub struct Limit {
    pub line: usize,
    pub rate: Rate,
    pub unlimited: bool,
    pub name: String,
    pub replaces: Vec<String>,
    /// From here on the keys of this service.
    pub algorithm: Option<String>,
    pub burst: Option<u32>,
    /// Further rates, all of which have to have room.
    pub rates: Vec<Rate>,
    pub concurrency: Option<Held>,
    pub reserve: Option<Held>,
    pub calendar: Option<Calendar>,
    pub block: Option<Held>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rate {
    pub unit: String,
    pub requests_per_unit: u32,
    pub unit_multiplier: Option<u32>,
}

/// Places that are held (`concurrency`), units that a check reserves until the hits of the same request are known, or a block
/// of units that a process reserves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Held {
    /// `limit`, `estimate`, or `units`.
    pub units: u32,
    /// Or `within`.
    pub lease: String,
    pub holder: String,
}

/// The keys that Envoy's own rate limit service knows: of a file, of a descriptor, its flags, of a limit. It takes each of
/// them in every map.
const KEYS: [&[&str]; 4] = [
    &["domain", "descriptors"],
    &["key", "value", "rate_limit", "metadata"],
    &["shadow_mode", "quota_mode", "detailed_metric", "value_to_metric", "share_threshold"],
    &["unit", "requests_per_unit", "unlimited", "name", "replaces"],
];

/// The keys of this service, by the map that they stand in.
const OWN_KEYS: [(&str, &[&str]); 7] = [
    ("", &["hash_tag", "http", "overrides"]),
    ("rate_limit", &["algorithm", "block", "burst", "calendar", "concurrency", "rates", "reserve", "unit_multiplier"]),
    ("rates", &["unit_multiplier"]),
    ("concurrency", &["limit", "lease", "holder"]),
    ("reserve", &["estimate", "lease", "holder"]),
    ("calendar", &["zone", "starts"]),
    ("block", &["units", "within"]),
];

/// A map of fixed keys.
trait Fields: Default {
    /// Takes a value, or passes over what means nothing here.
    fn set(&mut self, key: &str, value: &Node) -> Result<(), Refusal>;

    fn add(&mut self, node: &Node) -> Result<(), Refusal> {
        // Everything but a string has been refused as a key by then.
        node.pairs()?.iter().try_for_each(|(key, value)| self.set(name_of(key), value))
    }

    fn read(node: &Node) -> Result<Self, Refusal> {
        let mut fields = Self::default();
        fields.add(node)?;
        Ok(fields)
    }
}

/// By key: the field, and what reads it. `else` takes the keys that are not named.
macro_rules! fields {
    ($of:ty { $($($key:literal)|+ => $field:ident: $read:expr,)* $(else => $other:expr)? }) => {
        impl Fields for $of {
            fn set(&mut self, key: &str, value: &Node) -> Result<(), Refusal> {
                match key {
                    $($($key)|+ => self.$field = $read(value)?,)*
                    _ => { $($other(self, key, value)?;)? }
                }
                Ok(())
            }
        }
    };
}

fields!(Definition {
    "domain" => domain: string,
    "descriptors" => descriptors: list(Descriptor::with_line),
    "overrides" => overrides: string,
    "http" => http: sources,
    "hash_tag" => hash_tag: hash_tag,
});

fields!(Descriptor {
    "key" => key: string,
    "value" => value: string,
    "descriptors" => descriptors: list(Descriptor::with_line),
    "shadow_mode" => shadow_mode: boolean,
    "quota_mode" => quota_mode: boolean,
    "detailed_metric" => detailed_metric: boolean,
    "value_to_metric" => value_to_metric: boolean,
    "share_threshold" => share_threshold: boolean,
    "metadata" => metadata: metadata,
    else => Descriptor::set_limit
});

fields!(Limit {
    "unlimited" => unlimited: boolean,
    "name" => name: string,
    "replaces" => replaces: list(replaced),
    "algorithm" => algorithm: some(string),
    "burst" => burst: some(number),
    "rates" => rates: list(Rate::read),
    "concurrency" => concurrency: some(Held::read),
    "reserve" => reserve: some(Held::read),
    "calendar" => calendar: some(Calendar::read),
    "block" => block: some(Held::read),
    else => |limit: &mut Limit, key, value| limit.rate.set(key, value)
});

fields!(Rate {
    "unit" => unit: string,
    "requests_per_unit" => requests_per_unit: number,
    "unit_multiplier" => unit_multiplier: some(number),
});

fields!(Held {
    "limit" | "estimate" | "units" => units: number,
    "lease" | "within" => lease: string,
    "holder" => holder: string,
});

fields!(Calendar {
    "zone" => zone: string,
    "starts" => starts: some(number),
});

impl Definition {
    pub fn parse(name: &str, text: &str) -> Result<Self, String> {
        let read = || {
            let Some(root) = yaml::parse(text)?.filter(|root| !root.is_null()) else { return Ok(Self::default()) };
            check_keys(&root, "")?;
            <Self as Fields>::read(&root)
        };
        match read() {
            Ok(definition) => Ok(Self { name: name.to_owned(), ..definition }),
            Err(Refusal { line, reason }) => Err(format!("{name}:{line}: {reason}")),
        }
    }
}

impl Descriptor {
    fn with_line(node: &Node) -> Result<Self, Refusal> {
        Ok(Self { line: node.line, ..Self::read(node)? })
    }

    fn set_limit(&mut self, key: &str, value: &Node) -> Result<(), Refusal> {
        if key != "rate_limit" {
            return Ok(());
        }
        if is_absent(value) {
            self.limit = None;
            return Ok(());
        }
        // Where it is given twice, the keys of both count.
        let limit = self.limit.get_or_insert_default();
        limit.line = value.line;
        // Written as NULL it is an empty one, which is refused later for want of a unit.
        if value.is_null() { Ok(()) } else { limit.add(value) }
    }
}

/// Refuses unknown keys, and values that no key takes, in the map and all that is in it.
fn check_keys(node: &Node, within: &str) -> Result<(), Refusal> {
    // Of a key given twice only the last counts.
    let mut last = BTreeMap::new();
    for (key, value) in node.pairs()? {
        let Kind::Scalar { text, scalar: Scalar::Text } = &key.kind else {
            let wanted = "a key must be a string (yes, no, on, off, y or n without quotes is a boolean in YAML 1.1)";
            return Err(key.refuse(wanted));
        };
        last.insert(text.clone(), (key.line, value));
    }
    for (key, (line, value)) in last {
        let known = KEYS.iter().any(|keys| keys.contains(&key.as_str()));
        let mut places = OWN_KEYS.iter().filter(|(_, keys)| keys.contains(&key.as_str()));
        if !known && !places.clone().any(|(place, _)| *place == within) {
            let reason = match places.next() {
                Some(("", _)) => format!("'{key}' belongs beside 'domain'"),
                Some((place, _)) => format!("'{key}' belongs into '{place}'"),
                None => format!("unknown key '{key}'{}", suggestion(&key)),
            };
            return Err(Refusal::new(line, reason));
        }
        // These have keys of their own; what cannot be is seen when they are read.
        if key == "metadata" || key == "http" {
            continue;
        }
        match &value.kind {
            Kind::Map(_) => check_keys(&value, &key)?,
            Kind::List(items) => {
                for item in items {
                    if !matches!(item.kind, Kind::Map(_)) {
                        return Err(item.refuse(&format!("the list of '{key}' takes maps")));
                    }
                    check_keys(item, &key)?;
                }
            }
            Kind::Scalar { text, scalar: Scalar::Float(_) | Scalar::Large(_) } => {
                return Err(Refusal::new(value.line, format!("'{key}' cannot be the number {text}")));
            }
            Kind::Scalar { .. } => {}
        }
    }
    Ok(())
}

fn suggestion(key: &str) -> String {
    let plain = |key: &str| key.replace(['_', '-'], "").to_ascii_lowercase();
    let known = KEYS.iter().chain(OWN_KEYS.iter().map(|(_, keys)| keys)).copied().flatten();
    let meant = known.into_iter().find(|known| plain(known) == plain(key));
    meant.map(|known| format!(" (did you mean '{known}'?)")).unwrap_or_default()
}

/// The name that a key means for a map of fixed keys.
fn name_of(key: &Node) -> &str {
    match &key.kind {
        Kind::Scalar { text, .. } => text,
        _ => "",
    }
}

/// Whether the value is written as nothing at all, `~` or `null`.
fn is_absent(node: &Node) -> bool {
    matches!(&node.kind, Kind::Scalar { text, scalar: Scalar::Null } if matches!(text.as_str(), "" | "~" | "null"))
}

/// Every scalar is taken as a string, as it is written.
fn string(node: &Node) -> Result<String, Refusal> {
    match &node.kind {
        Kind::Scalar { scalar: Scalar::Null, .. } => Ok(String::new()),
        Kind::Scalar { text, .. } => Ok(text.clone()),
        _ => Err(node.refuse("a string is needed here")),
    }
}

fn boolean(node: &Node) -> Result<bool, Refusal> {
    match &node.kind {
        Kind::Scalar { scalar: Scalar::Null, .. } => Ok(false),
        Kind::Scalar { scalar: Scalar::Bool(value), .. } => Ok(*value),
        _ => Err(node.refuse("true or false is needed here")),
    }
}

fn number(node: &Node) -> Result<u32, Refusal> {
    let number = match &node.kind {
        Kind::Scalar { scalar: Scalar::Null, .. } => Some(0),
        Kind::Scalar { scalar: Scalar::Int(value), .. } => u32::try_from(*value).ok(),
        _ => None,
    };
    number.ok_or_else(|| node.refuse("an integer from 0 to 4294967295 is needed here"))
}

fn list<T>(read: impl Fn(&Node) -> Result<T, Refusal>) -> impl Fn(&Node) -> Result<Vec<T>, Refusal> {
    move |node| match &node.kind {
        Kind::List(items) => items.iter().map(|item| read(item)).collect(),
        Kind::Scalar { scalar: Scalar::Null, .. } => Ok(Vec::new()),
        _ => Err(node.refuse("a list is needed here")),
    }
}

/// The name of a limit that is replaced; of several the last.
fn replaced(node: &Node) -> Result<String, Refusal> {
    let pairs = node.pairs()?;
    pairs.iter().rfind(|(key, _)| name_of(key) == "name").map_or(Ok(String::new()), |(_, name)| string(name))
}

fn some<T>(read: impl Fn(&Node) -> Result<T, Refusal>) -> impl Fn(&Node) -> Result<Option<T>, Refusal> {
    move |node| read(node).map(Some)
}

fn hash_tag(node: &Node) -> Result<Option<HashTag>, Refusal> {
    Ok(match &node.kind {
        Kind::Scalar { scalar: Scalar::Bool(true), .. } => Some(HashTag::Domain),
        Kind::Scalar { scalar: Scalar::Bool(false) | Scalar::Null, .. } => None,
        _ => Some(HashTag::Entry(string(node)?)),
    })
}

/// Where a request of HTTP has the values of keys.
fn sources(node: &Node) -> Result<BTreeMap<String, Source>, Refusal> {
    let mut sources = BTreeMap::new();
    if node.is_null() {
        return Ok(sources);
    }
    for (key, value) in node.pairs()? {
        let refuse = || {
            let reason = "a value is {header: NAME}, {query: NAME} or {address: true}, where NAME is not empty";
            Refusal::new(value.line, reason.to_owned())
        };
        let pairs = value.pairs().map_err(|_| refuse())?;
        let [(kind, place)] = pairs.as_slice() else { return Err(refuse()) };
        let source = match name_of(kind) {
            "header" => Source::header(&string(place)?),
            "query" => Some(Source::Query(string(place)?)).filter(|source| *source != Source::Query(String::new())),
            "address" => boolean(place)?.then_some(Source::Address),
            _ => None,
        };
        sources.insert(string(&key)?, source.ok_or_else(refuse)?);
    }
    Ok(sources)
}

/// Metadata, as the JSON-like structure that Envoy gets it in. None where there is nothing in it.
fn metadata(node: &Node) -> Result<Option<Struct>, Refusal> {
    let fields = if node.is_null() { Struct::default() } else { structure(node, "")? };
    Ok(Some(fields).filter(|fields| !fields.fields.is_empty()))
}

/// `null`: what a null as a key is called.
fn structure(node: &Node, null: &str) -> Result<Struct, Refusal> {
    let mut fields = Struct::default();
    for (key, value) in node.pairs()? {
        let name = match &key.kind {
            Kind::Scalar { scalar: Scalar::Null, .. } => null.to_owned(),
            Kind::Scalar { scalar: Scalar::Bool(value), .. } if !null.is_empty() => value.to_string(),
            Kind::Scalar { scalar: Scalar::Int(value), .. } if !null.is_empty() => value.to_string(),
            Kind::Scalar { text, .. } => text.clone(),
            _ => return Err(key.refuse("a key must be a string")),
        };
        fields.fields.insert(name, json(&value)?);
    }
    Ok(fields)
}

fn json(node: &Node) -> Result<Value, Refusal> {
    let kind = match &node.kind {
        Kind::Scalar { text, scalar } => match *scalar {
            Scalar::Null => ValueKind::NullValue(NullValue::NullValue.into()),
            Scalar::Bool(value) => ValueKind::BoolValue(value),
            Scalar::Int(value) => ValueKind::NumberValue(value as f64),
            Scalar::Large(value) => ValueKind::NumberValue(value as f64),
            Scalar::Float(value) => ValueKind::NumberValue(value),
            Scalar::Text | Scalar::Merge => ValueKind::StringValue(text.clone()),
        },
        Kind::List(_) => ValueKind::ListValue(ListValue { values: list(json)(node)? }),
        Kind::Map(_) => ValueKind::StructValue(structure(node, "<nil>")?),
    };
    Ok(Value { kind: Some(kind) })
}
