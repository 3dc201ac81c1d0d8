use super::*;
use proptest::prelude::*;

fn millis(text: &str) -> Option<i64> {
    parse_window(text.as_bytes()).map(Window::millis)
}

#[test]
fn a_window_is_read_to_the_millisecond() {
    for (text, expected) in [
        ("1", 1_000),
        ("60", 60_000),
        ("0.001", 1),
        ("0.1", 100),
        ("0.10", 100),
        ("1.5", 1_500),
        ("1.050", 1_050),
        ("2147483647", 2_147_483_647_000),
        ("2147483647.000", 2_147_483_647_000),
    ] {
        assert_eq!(millis(text), Some(expected), "{text}");
    }
}

#[test]
fn anything_else_is_not_a_window() {
    for text in [
        "",
        "0",
        "0.000",
        "-1",
        "-0.5",
        "+1",
        " 1",
        "1 ",
        "1.",
        ".5",
        ".",
        "1.0001",
        "1e3",
        "0x10",
        "01",
        "1,5",
        "1.5.5",
        "inf",
        "nan",
        "2147483647.001",
        "2147483648",
        "9223372036854775807",
        "99999999999999999999",
        "1\0",
    ] {
        assert_eq!(millis(text), None, "{text:?}");
    }
}

proptest! {
    #[test]
    fn every_window_is_read_back(value in 1i64..=2_147_483_647_000) {
        let text = format!("{}.{:03}", value / 1000, value % 1000);
        prop_assert_eq!(millis(&text), Some(value));
    }

    #[test]
    fn any_bytes_are_read_without_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..24)) {
        let _ = parse_window(&bytes);
    }
}
