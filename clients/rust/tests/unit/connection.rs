use super::slot;

#[test]
fn keys_lie_in_the_slots_that_the_server_names() {
    // As CLUSTER KEYSLOT says.
    for (key, expected) in [("foo", 12182), ("123456789", 12739), ("{foo}bar", 12182), ("a{foo}{b}", 12182)] {
        assert_eq!(slot(key.as_bytes()), expected, "{key}");
    }
    for untagged in ["{}foo", "foo{}", "a{b"] {
        assert_eq!(slot(untagged.as_bytes()), crc16::State::<crc16::XMODEM>::calculate(untagged.as_bytes()) % 16384);
    }
}
