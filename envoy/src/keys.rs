//! The keys of limits in Redis.

use std::fmt::Write as _;

use percent_encoding::percent_encode_byte;
use ring::digest::{SHA256, digest};

use crate::limit::{Found, Kind, Reserve};
use crate::messages::RateLimitDescriptor;

/// The key of a limit, and whose place or reservation it is. The key is prefix, domain, entries and windows. What clients send is
/// escaped, so that two descriptors never share a key, and no text can choose the slot of a cluster. Where it is long, a
/// hash stands for it: a value of megabytes would take the connection from all others, and memory of Redis.
pub fn key_of(prefix: &str, domain: &str, descriptor: &RateLimitDescriptor, found: &Found) -> (Vec<u8>, String) {
    let names_holder = match (&found.limit.rule, &found.limit.reserve) {
        (Some(Kind::Concurrency { holder, .. }), _) | (_, Some(Reserve { holder, .. })) => Some(holder),
        _ => None,
    };
    let mut key = String::with_capacity(96);
    key.push_str(prefix);
    if let Some(tag) = &found.hash_tag {
        key.push('{');
        escape(&mut key, tag);
        shorten(&mut key, prefix.len() + 1);
        key.push('}');
    }
    let start = key.len();
    escape(&mut key, domain);
    let mut holder = String::new();
    for (index, entry) in descriptor.entries.iter().enumerate() {
        if names_holder == Some(&entry.key) {
            holder.clone_from(&entry.value);
            continue;
        }
        key.push('|');
        escape(&mut key, &entry.key);
        key.push('=');
        let shared = found.shared.get(index).and_then(Option::as_deref);
        escape(&mut key, shared.unwrap_or(&entry.value));
    }
    shorten(&mut key, start);
    shorten(&mut holder, 0);
    key.push_str(&found.limit.suffix);
    (key.into_bytes(), holder)
}

/// Longer than this, the text of a request is shortened to its beginning and a hash.
const LONGEST: usize = 512;
/// How much of its beginning stays, to tell it by.
const BEGINNING: usize = 64;

/// Shortens the text from this position on. What it becomes is not the text of any other request: there, a percent sign
/// is followed by digits.
fn shorten(text: &mut String, start: usize) {
    if text.len() - start <= LONGEST {
        return;
    }
    let hash = digest(&SHA256, &text.as_bytes()[start..]);
    let end = (start + BEGINNING..).find(|end| text.is_char_boundary(*end)).unwrap_or(start);
    text.truncate(end);
    text.push_str("%sha256:");
    for byte in hash.as_ref() {
        let _ = write!(text, "{byte:02x}");
    }
}

/// Percent signs, and what separates the parts of a key or means something to a cluster.
pub fn escape(key: &mut String, text: &str) {
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| matches!(byte, b'%' | b'|' | b'=' | b'{' | b'}')) {
        key.push_str(&rest[..at]);
        key.push_str(percent_encode_byte(rest.as_bytes()[at]));
        rest = &rest[at + 1..];
    }
    key.push_str(rest);
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::messages::Entry;
    use crate::testing::descriptor;

    fn key(domain: &str, entries: &[(String, String)]) -> Vec<u8> {
        let mut asked = descriptor("");
        asked.entries.clear();
        asked.entries.extend(entries.iter().map(|(key, value)| Entry { key: key.clone(), value: value.clone() }));
        key_of("p:", domain, &asked, &Found { hash_tag: Some(domain.to_owned()), ..Found::default() }).0
    }

    #[test]
    fn what_separates_parts_is_escaped() {
        let mut escaped = String::new();
        escape(&mut escaped, "%a|ü={t}%");
        assert_eq!(escaped, "%25a%7Cü%3D%7Bt%7D%25");
    }

    #[test]
    fn a_long_key_is_its_beginning_and_a_hash() {
        let entries = |value: &str| [("k".to_owned(), value.to_owned())];
        let (long, other) = (key("d", &entries(&"%".repeat(500_000))), key("d", &entries(&"%".repeat(500_001))));
        assert!(long.starts_with(b"p:{d}d|k=%25%25") && long.len() < 200, "{}", String::from_utf8_lossy(&long));
        assert_ne!(long, other);
    }

    proptest! {
        #[test]
        fn two_requests_never_share_a_key(
            one in ("[ab|={}%]{0,3}", vec(("[ab|={}%]{0,3}", "[ab|={}%]{0,3}"), 1..3)),
            other in ("[ab|={}%]{0,3}", vec(("[ab|={}%]{0,3}", "[ab|={}%]{0,3}"), 1..3)),
        ) {
            let (one_key, other_key) = (key(&one.0, &one.1), key(&other.0, &other.1));
            prop_assert_eq!(one == other, one_key == other_key);
            // The only braces are those around the tag.
            prop_assert_eq!(one_key.iter().filter(|byte| matches!(byte, b'{' | b'}')).count(), 2);
        }
    }
}
