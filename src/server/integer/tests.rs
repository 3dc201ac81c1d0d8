use super::*;
use proptest::prelude::*;

#[test]
fn only_the_servers_own_form_is_an_integer() {
    for bad in [
        "",
        "-",
        "+1",
        " 1",
        "1 ",
        "01",
        "-0",
        "00",
        "1.0",
        "1e3",
        "0x1",
        "1\0",
        "9223372036854775808",
        "-9223372036854775809",
        "99999999999999999999999",
    ] {
        assert_eq!(parse_i64(bad.as_bytes()), None, "{bad:?}");
    }
    assert_eq!(parse_i64(b"9223372036854775807"), Some(i64::MAX));
    assert_eq!(parse_i64(b"-9223372036854775808"), Some(i64::MIN));
    assert_eq!(parse_i64(b"0"), Some(0));
}

#[test]
fn joined_text_reads_left_to_right() {
    assert_eq!(Digits::new().integer(1_700_000_100_000).text(b"-").base_36(0).as_bytes(), b"1700000100000-0");
    assert_eq!(
        Digits::new().integer(i64::MIN).text(b"-").base_36(u64::MAX).as_bytes(),
        b"-9223372036854775808-3w5e11264sgsf"
    );
    assert_eq!(Digits::new().integer(7).text(b":").base_36(35).as_bytes(), b"7:z");
}

#[test]
fn seconds_have_no_more_places_than_they_need() {
    for (millis, text) in
        [(60_000, ":60s"), (250, ":0.25s"), (1, ":0.001s"), (1_500, ":1.5s"), (10_050, ":10.05s"), (20, ":0.02s")]
    {
        assert_eq!(Digits::new().text(b":").seconds(millis).text(b"s").as_bytes(), text.as_bytes());
    }
}

proptest! {
    #[test]
    fn every_integer_is_written_and_read_back(value in any::<i64>()) {
        let digits = Digits::new().integer(value);
        prop_assert_eq!(digits.as_bytes().to_vec(), value.to_string().into_bytes());
        prop_assert_eq!(parse_i64(digits.as_bytes()), Some(value));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..30)) {
        if let Some(value) = parse_i64(&bytes) {
            prop_assert_eq!(value.to_string().into_bytes(), bytes);
        }
    }
}
