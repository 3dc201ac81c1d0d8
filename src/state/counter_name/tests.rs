use super::*;
use proptest::prelude::*;

/// The bytes that decide a key's slot, written as the cluster specification has it.
fn hashed(key: &[u8]) -> &[u8] {
    if let Some(open) = key.iter().position(|&byte| byte == b'{')
        && let Some(length) = key[open + 1..].iter().position(|&byte| byte == b'}')
        && length > 0
    {
        return &key[open + 1..open + 1 + length];
    }
    key
}

fn named(key: &[u8]) -> Option<Vec<u8>> {
    braces(key).map(|(open, close)| [open, key, close, b":28333335"].concat())
}

#[test]
fn a_key_keeps_its_own_tag_and_a_plain_one_becomes_a_tag() {
    for (key, name) in [
        ("login", "{login}:28333335"),
        ("{user7}:login", "{user7}:login:28333335"),
        ("a{b", "{a{b}:28333335"),
        ("}{x}", "}{x}:28333335"),
    ] {
        assert_eq!(named(key.as_bytes()).as_deref(), Some(name.as_bytes()), "{key}");
    }
    for key in ["", "a}b", "x{}y", "{}", "}", "{}{a}"] {
        assert_eq!(named(key.as_bytes()), None, "{key}");
    }
}

proptest! {
    #[test]
    fn a_name_always_hashes_as_its_key(key in proptest::collection::vec(prop_oneof![Just(b'{'), Just(b'}'), any::<u8>()], 0..12)) {
        if let Some(name) = named(&key) {
            prop_assert_eq!(hashed(&name), hashed(&key));
        }
    }

    #[test]
    fn a_key_is_refused_only_if_neither_form_works(key in proptest::collection::vec(prop_oneof![Just(b'{'), Just(b'}'), Just(b'a')], 0..8)) {
        let works = |open: &[u8], close: &[u8]| hashed(&[open, &key, close, b":1"].concat()) == hashed(&key);
        prop_assert_eq!(named(&key).is_some(), works(b"", b"") || works(b"{", b"}"));
    }
}
