use super::*;
use crate::cases::{self, text, texts};

fn forwarded<'a>(lines: impl Iterator<Item = &'a [u8]>) -> HeaderMap {
    lines.map(|line| (HeaderName::from_static("x-forwarded-for"), HeaderValue::from_bytes(line).unwrap())).collect()
}

#[test]
fn cases_of_addresses() {
    let file = cases::read("keys");
    let cases = cases::list(&file, "addresses", &["peer", "forwarded", "trusted", "ipv6_prefix", "identity"]);
    for case in cases {
        let mut by = ByAddress::default();
        if let Some(trusted) = case.get("trusted") {
            by = by.trusted_proxies(texts(trusted)).unwrap();
        }
        if let Some(bits) = case.get("ipv6_prefix") {
            by = by.ipv6_prefix(bits.as_u64().unwrap().try_into().unwrap()).unwrap();
        }
        let peer = case["peer"].as_str().map(|peer| peer.parse().unwrap());
        let lines = case.get("forwarded").map(texts).unwrap_or_default();
        let lines = forwarded(lines.iter().map(String::as_bytes));
        let identity = peer.and_then(|peer| by.identity(peer, &lines));
        assert_eq!(identity.as_deref(), case["identity"].as_str(), "{case}");
    }
    for case in cases::list(&file, "invalid", &["trusted", "ipv6_prefix"]) {
        let by = ByAddress::default();
        match case.get("trusted") {
            Some(trusted) => assert!(by.trusted_proxies(texts(trusted)).is_err(), "{case}"),
            None => {
                let bits = u8::try_from(case["ipv6_prefix"].as_u64().unwrap()).unwrap();
                assert!(by.ipv6_prefix(bits).is_err(), "{case}");
            }
        }
    }
}

#[test]
fn what_names_no_address_counts_by_its_proxy() {
    let by = ByAddress::default().trusted_proxies(["10.0.0.0/8"]).unwrap();
    let peer = "10.0.0.1".parse().unwrap();
    let identity = |by: &ByAddress, lines: &[&[u8]]| by.identity(peer, &forwarded(lines.iter().copied()));
    let or_proxy = by.clone().or_proxy();
    for (lines, proxy) in [
        (&[&b"unknown, 10.0.0.2"[..]][..], "10.0.0.2"),
        (&[b"198.51.100.1, unknown"], "10.0.0.1"),
        (&[b"198.51.100.1, \xff", b"10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        (&[b"198.51.100.1,"], "10.0.0.1"),
    ] {
        assert_eq!(identity(&by, lines), None, "{lines:?}");
        assert_eq!(identity(&or_proxy, lines).as_deref(), Some(proxy), "{lines:?}");
    }
    // What a client has written before its own address is nobody's.
    for by in [by, or_proxy] {
        assert_eq!(identity(&by, &[b"\xff, 198.51.100.1, 10.0.0.2"]).as_deref(), Some("198.51.100.1"));
    }
}

#[test]
fn cases_of_keys() {
    let file = cases::read("keys");
    let known = ["rule", "prefix", "identity", "policy", "key"];
    for case in cases::list(&file, "keys", &known).iter().chain(cases::list(&file, "calendar", &known)) {
        let rule = cases::rule(&case["rule"]).unwrap();
        let head = head(case.get("prefix").map_or("rl:", text).as_bytes(), &rule.policy());
        let identity = match &case["identity"] {
            serde_json::Value::Array(parts) => {
                let part = |part: &serde_json::Value| text(&part[0]).repeat(part[1].as_u64().unwrap() as usize);
                parts.iter().map(part).collect()
            }
            identity => text(identity).to_owned(),
        };
        let key = key(&head, identity.as_bytes());
        assert_eq!(String::from_utf8(key).unwrap(), text(&case["key"]), "{case}");
    }
}
