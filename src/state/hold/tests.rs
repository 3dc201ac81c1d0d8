use super::note::digits;

#[test]
fn numbers_have_sixteen_digits() {
    for (number, text) in [(0, b"0000000000000000"), (1_800, b"0000000000001800"), ((1 << 53) - 1, b"9007199254740991")]
    {
        assert_eq!(&digits(number), text);
    }
}
