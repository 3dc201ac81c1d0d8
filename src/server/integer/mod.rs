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

/// Text made on the stack of integers and a few bytes, one piece after the other. There is room for two integers and a separator.
#[derive(Debug, Clone)]
pub struct Digits {
    bytes: [u8; 48],
    length: usize,
}

impl Digits {
    pub const fn new() -> Self {
        Self { bytes: [0; 48], length: 0 }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    pub fn text(mut self, text: &[u8]) -> Self {
        let end = self.length + text.len();
        self.bytes[self.length..end].copy_from_slice(text);
        self.length = end;
        self
    }

    pub fn integer(self, value: i64) -> Self {
        self.text(itoa::Buffer::new().format(value).as_bytes())
    }

    /// Milliseconds, which are not negative, as seconds in the shortest decimal form.
    pub fn seconds(self, millis: i64) -> Self {
        let digit = |value: i64| b'0' + (value % 10) as u8;
        let places = [b'.', digit(millis / 100), digit(millis / 10), digit(millis)];
        // Zeros at the end are left out, and so is a point that no digit follows.
        let last = places.iter().rposition(|&place| place != b'0').unwrap_or(0);
        self.integer(millis / 1000).text(if last == 0 { &[] } else { &places[..=last] })
    }

    pub fn base_36(self, mut value: u64) -> Self {
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
        self.text(&text[first..])
    }
}

#[cfg(test)]
mod tests;
