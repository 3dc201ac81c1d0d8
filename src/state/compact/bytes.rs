//! Bytes being put together.

use std::ops::Deref;

/// Enough for what an ordinary call writes: filler, a block head, an entry, a footer.
const SHORT: usize = 96;

/// Bytes that need no allocation while they are few.
#[derive(Debug, Clone)]
pub enum Bytes {
    Short { bytes: [u8; SHORT], len: usize },
    Long(Vec<u8>),
}

impl Bytes {
    pub fn with_capacity(capacity: usize) -> Self {
        if capacity <= SHORT {
            Self::Short { bytes: [0; SHORT], len: 0 }
        } else {
            Self::Long(Vec::with_capacity(capacity))
        }
    }

    #[inline]
    pub fn push(&mut self, byte: u8) {
        if let Self::Short { bytes, len } = self
            && let Some(place) = bytes.get_mut(*len)
        {
            *place = byte;
            *len = len.wrapping_add(1);
            return;
        }
        self.extend(&[byte]);
    }

    #[inline]
    pub fn extend(&mut self, more: &[u8]) {
        if let Self::Short { bytes, len } = self {
            let longer = len.saturating_add(more.len());
            if let Some(room) = bytes.get_mut(*len..longer) {
                room.copy_from_slice(more);
                *len = longer;
                return;
            }
            let mut long = Vec::with_capacity(longer.saturating_mul(2));
            long.extend_from_slice(self);
            *self = Self::Long(long);
        }
        if let Self::Long(bytes) = self {
            bytes.extend_from_slice(more);
        }
    }

    pub fn truncate(&mut self, length: usize) {
        match self {
            Self::Short { len, .. } => *len = length.min(*len),
            Self::Long(bytes) => bytes.truncate(length),
        }
    }

    #[inline]
    pub fn push_varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.push(value as u8);
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Short { bytes, len } => bytes.get(..*len).unwrap_or_default(),
            Self::Long(bytes) => bytes,
        }
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Bytes {}
