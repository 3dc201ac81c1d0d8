//! Integers as the server reads and writes them in strings.

/// Reads a whole string as a signed 64-bit integer by the server's own rule: plain digits with an optional minus; no
/// spaces, no plus sign, no leading zeros, no `-0`.
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    match split_i64(text)? {
        (value, []) => Some(value),
        _ => None,
    }
}

/// Reads an integer by the same rule from the start of a string. Returns the rest, too.
pub fn split_i64(text: &[u8]) -> Option<(i64, &[u8])> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    let (mut value, mut length) = (0_u64, 0);
    while let Some(byte) = digits.get(length)
        && byte.is_ascii_digit()
    {
        value = value.wrapping_mul(10).wrapping_add(u64::from(byte & 0x0f));
        length += 1;
    }
    // The most digits of which any number fits into a u64.
    const MOST: usize = 19;
    let leading_zero = length > 1 && digits.first() == Some(&b'0');
    if length == 0 || length > MOST || leading_zero || (negative && value == 0) {
        return None;
    }
    let value = if negative { 0_i64.checked_sub_unsigned(value) } else { i64::try_from(value).ok() };
    Some((value?, digits.get(length..)?))
}

/// Text made on the stack of integers and single bytes. There is room for the longest of its forms.
#[derive(Debug, Clone)]
pub struct Digits {
    bytes: [u8; Self::CAPACITY],
    length: usize,
}

impl Digits {
    /// Two integers of 20 characters and a separator.
    const CAPACITY: usize = 48;

    const NONE: Self = Self { bytes: [0; Self::CAPACITY], length: 0 };

    /// A few bytes as they are.
    pub fn text(text: &[u8]) -> Self {
        let mut digits = Self::NONE;
        digits.push(text);
        digits
    }

    /// The decimal form of an integer.
    pub fn of(value: i64) -> Self {
        let mut digits = Self::NONE;
        digits.push_integer(value);
        digits
    }

    /// A few bytes, then the decimal form of an integer.
    pub fn prefixed(prefix: &[u8], value: i64) -> Self {
        let mut digits = Self::NONE;
        digits.push(prefix);
        digits.push_integer(value);
        digits
    }

    /// A few bytes, then an integer, with zeros before it if it has fewer than `digits`.
    pub fn padded(prefix: &[u8], value: i64, digits: usize) -> Self {
        let mut padded = Self::NONE;
        padded.push(prefix);
        let text = Self::of(value);
        (text.length..digits).for_each(|_| padded.push(b"0"));
        padded.push(text.as_bytes());
        padded
    }

    /// `left`, the separator, and `right` in base 36.
    pub fn joined(left: i64, separator: u8, right: u64) -> Self {
        let mut digits = Self::NONE;
        digits.push_integer(left);
        digits.push(&[separator]);
        digits.push_base_36(right);
        digits
    }

    /// A byte, then milliseconds, which are not negative, as seconds in the shortest decimal form, then the unit.
    pub fn prefixed_seconds(prefix: u8, millis: i64, unit: u8) -> Self {
        let mut digits = Self::prefixed(&[prefix], millis / 1000);
        let digit = |value: i64| b'0' + (value % 10) as u8;
        let places = [b'.', digit(millis / 100), digit(millis / 10), digit(millis)];
        // Zeros at the end are left out, and so is a point that no digit follows.
        let last = places.iter().rposition(|&place| place != b'0').unwrap_or(0);
        digits.push(if last == 0 { &[] } else { &places[..=last] });
        digits.push(&[unit]);
        digits
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn push(&mut self, text: &[u8]) {
        let end = self.length + text.len();
        self.bytes[self.length..end].copy_from_slice(text);
        self.length = end;
    }

    fn push_integer(&mut self, integer: i64) {
        self.push(itoa::Buffer::new().format(integer).as_bytes());
    }

    fn push_base_36(&mut self, mut value: u64) {
        const SYMBOLS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        let mut text = [0; 13]; // 36^13 is more than 2^64.
        let mut first = text.len();
        loop {
            first -= 1;
            text[first] = SYMBOLS[(value % 36) as usize];
            value /= 36;
            if value == 0 {
                break;
            }
        }
        self.push(&text[first..]);
    }
}

#[cfg(test)]
mod tests {
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
        assert_eq!(Digits::joined(1_700_000_100_000, b'-', 0).as_bytes(), b"1700000100000-0");
        assert_eq!(Digits::joined(i64::MIN, b'-', u64::MAX).as_bytes(), b"-9223372036854775808-3w5e11264sgsf");
        assert_eq!(Digits::joined(7, b':', 35).as_bytes(), b"7:z");
    }

    #[test]
    fn short_integers_are_padded_with_zeros() {
        assert_eq!(Digits::padded(b"h", 1800, 16).as_bytes(), b"h0000000000001800");
        assert_eq!(Digits::padded(b"", 9_007_199_254_740_991, 16).as_bytes(), b"9007199254740991");
        assert_eq!(Digits::padded(b"", 12_345, 4).as_bytes(), b"12345");
    }

    #[test]
    fn seconds_have_no_more_places_than_they_need() {
        for (millis, text) in
            [(60_000, ":60s"), (250, ":0.25s"), (1, ":0.001s"), (1_500, ":1.5s"), (10_050, ":10.05s"), (20, ":0.02s")]
        {
            assert_eq!(Digits::prefixed_seconds(b':', millis, b's').as_bytes(), text.as_bytes());
        }
    }

    proptest! {
        #[test]
        fn every_integer_is_written_and_read_back(value in any::<i64>()) {
            let digits = Digits::of(value);
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
}
