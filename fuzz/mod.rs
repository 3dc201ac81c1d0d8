//! What the fuzz targets run: the parts of the module that need no server. Each takes the bytes of the fuzzer as a script of
//! what to do. A panic is a finding; so is a result that differs from the models of tests/support/.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::arithmetic_side_effects
)]

mod compact;

pub use crate::command::fuzzing::{all_keys, words};
pub use compact::compact;

/// The bytes of the fuzzer, read from the front. Where they end, everything is 0.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn take(&mut self, most: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(most.min(self.0.len()));
        self.0 = rest;
        taken
    }

    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or(0)
    }

    /// One of this many choices.
    pub fn choice(&mut self, choices: u8) -> u8 {
        self.byte() % choices
    }

    /// An integer of any size. Small ones take a single byte, so the fuzzer finds them first.
    pub fn integer(&mut self) -> u64 {
        match self.byte() {
            small @ 0..=199 => u64::from(small),
            200..=219 => 1 << (self.byte() % 64),
            220..=239 => (1_u64 << (self.byte() % 64)) - 1,
            _ => self.take(8).iter().fold(0, |integer, &byte| integer << 8 | u64::from(byte)),
        }
    }
}
