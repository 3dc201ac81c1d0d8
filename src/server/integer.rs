//! Integers as the server reads and writes them in strings.

/// Reads a whole string as a signed 64-bit integer by the server's own rule: plain digits with an optional minus; no
/// spaces, no plus sign, no leading zeros, no `-0`.
pub fn parse_i64(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        _ => (false, text),
    };
    match digits {
        [] => return None,
        [b'0'] => return (!negative).then_some(0),
        [b'0', ..] => return None,
        _ => {}
    }
    // Counted downwards, because the smallest integer has no positive counterpart.
    let mut value: i64 = 0;
    for &byte in digits {
        if !byte.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_sub(i64::from(byte & 0x0f))?;
    }
    if negative { Some(value) } else { value.checked_neg() }
}

/// Text put together on the stack from integers and single bytes. What does not fit is cut off; no caller comes
/// near the end.
#[derive(Debug, Clone)]
pub struct Digits {
    bytes: [u8; Self::CAPACITY],
    start: usize,
}

impl Digits {
    /// Two integers of 20 characters and what stands between them.
    const CAPACITY: usize = 48;

    /// The decimal form of an integer.
    pub fn of(value: i64) -> Self {
        let mut digits = Self { bytes: [0; Self::CAPACITY], start: Self::CAPACITY };
        digits.push_integer(value);
        digits
    }

    /// `left`, the separator, and `right` in base 36.
    pub fn joined(left: i64, separator: u8, right: u64) -> Self {
        let mut digits = Self { bytes: [0; Self::CAPACITY], start: Self::CAPACITY };
        digits.push_unsigned::<36>(right);
        digits.push(separator);
        digits.push_integer(left);
        digits
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(self.start..).unwrap_or_default()
    }

    // Text grows towards the front: the last digit of a number is known first.
    fn push(&mut self, byte: u8) {
        if let Some(next) = self.start.checked_sub(1)
            && let Some(place) = self.bytes.get_mut(next)
        {
            *place = byte;
            self.start = next;
        }
    }

    // The base is a constant, so that the divisions become multiplications.
    fn push_unsigned<const BASE: u64>(&mut self, mut value: u64) {
        const SYMBOLS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
        loop {
            self.push(SYMBOLS[(value % BASE) as usize]);
            value /= BASE;
            if value == 0 {
                break;
            }
        }
    }

    fn push_integer(&mut self, value: i64) {
        self.push_unsigned::<10>(value.unsigned_abs());
        if value < 0 {
            self.push(b'-');
        }
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

    proptest! {
        #[test]
        fn every_integer_survives_the_way_out_and_back(value in any::<i64>()) {
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
