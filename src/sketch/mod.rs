//! The most frequent of any number of keys, counted in memory that does not grow.
//!
//! The algorithm is Space-Saving (A. Metwally, D. Agrawal, A. El Abbadi, "Efficient Computation of Frequent and Top-k
//! Elements in Data Streams", 2005). There is a fixed number of counters, and each counts one key. A key that has a
//! counter increments it. A key without a counter takes over the lowest one and increments it from its value. That value is
//! the *error* of the key: it may have been seen that often before, or not at all.
//!
//! After *N* keys in *K* counters, with the *count* and the *error* of a key that has a counter:
//!
//! * The counts add up to *N*, so the lowest of them is at most *N* / *K*.
//! * The key was seen at most *count* times, and at least *count* - *error* times. No error is above the lowest count.
//! * A key without a counter was seen at most as often as the lowest count. So each key that was seen more than *N* / *K*
//!   times has a counter.
//!
//! Counts only go up. So the lowest counter is looked for from where the last one was found, and only at the end are all
//! counters gone through again.
//!
//! A caller that chooses the keys must not be able to choose which of them share a chain, so keys are hashed with a random
//! seed. Two keys of the same length and hash are counted as one: a chance of 1 in 2^64 for two keys.

#![forbid(unsafe_code)]

use std::array;
use std::cmp::Reverse;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::mem;

use foldhash::SharedSeed;
use foldhash::fast::FoldHasher;

/// The bytes of a key that are kept, to be shown. Keys are identified by their length and a hash of all their bytes.
pub const KEPT: usize = 256;

/// The number of counters.
pub const COUNTERS: usize = 128;

/// `K` is [`COUNTERS`] except in tests, and less than 255: the index of a counter is one byte, and 255 stands for none.
pub struct Sketch<const K: usize = COUNTERS> {
    /// Of the hash.
    seed: (u64, SharedSeed),
    counters: [Counter; K],
    /// No count is lower, and none before the counter of the index `next` is as low.
    lowest: u64,
    next: usize,
    /// The first counter of each chain. A counter is in the chain that the last byte of its key's hash names.
    chains: [u8; 256],
}

/// In place of an index, at the end of a chain.
const NONE: u8 = u8::MAX;

struct Counter {
    count: u64,
    error: u64,
    hash: u64,
    /// The length of the key, which may be more than is kept.
    length: usize,
    /// The next counter of its chain.
    next: u8,
    bytes: [u8; KEPT],
}

/// A key that has a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counted<'a> {
    /// The key, or its first [`KEPT`] bytes.
    pub key: &'a [u8],
    /// The number of bytes of the key that are not kept.
    pub cut: usize,
    /// The key was seen at most this often.
    pub count: u64,
    /// It was seen at least `count - error` times.
    pub error: u64,
}

impl<const K: usize> Sketch<K> {
    pub fn new() -> Self {
        const { assert!(0 < K && K < NONE as usize) };
        let random = RandomState::new();
        let unused = || Counter { count: 0, error: 0, hash: 0, length: 0, next: NONE, bytes: [0; KEPT] };
        Self {
            seed: (random.hash_one(0), SharedSeed::from_u64(random.hash_one(1))),
            counters: array::from_fn(|_| unused()),
            lowest: 0,
            next: 0,
            chains: [NONE; 256],
        }
    }

    /// Counts a key once.
    pub fn count(&mut self, key: &[u8]) {
        let mut hasher = FoldHasher::with_seed(self.seed.0, &self.seed.1);
        hasher.write(key);
        let hash = hasher.finish();
        // Every index is in range, so the steps below never return early.
        match self.find(hash, key.len()) {
            Some(counter) => counter.count = counter.count.saturating_add(1),
            None => {
                self.take_over(hash, key);
            }
        }
    }

    /// The keys that have counters, by descending count, then by error, then by their bytes.
    pub fn entries(&self) -> Vec<Counted<'_>> {
        let counted = self.counters.iter().filter(|counter| counter.count > 0);
        let mut entries: Vec<_> = counted.map(Counter::counted).collect();
        entries.sort_unstable_by_key(|entry| (Reverse(entry.count), entry.error, entry.key, entry.cut));
        entries
    }

    /// The counter of a key.
    fn find(&mut self, hash: u64, length: usize) -> Option<&mut Counter> {
        let mut index = *self.chains.get(chain_of(hash))?;
        loop {
            let counter = self.counters.get(usize::from(index))?; // `None` at the end of the chain.
            if counter.hash == hash && counter.length == length {
                return self.counters.get_mut(usize::from(index));
            }
            index = counter.next;
        }
    }

    /// Gives the lowest counter to a key without one, and increments it.
    fn take_over(&mut self, hash: u64, key: &[u8]) -> Option<()> {
        let counters = self.counters.iter().enumerate();
        let as_low = counters.clone().skip(self.next).find(|(_, counter)| counter.count == self.lowest);
        let (index, counter) = as_low.or_else(|| counters.min_by_key(|(_, counter)| counter.count))?;
        (self.lowest, self.next) = (counter.count, index.saturating_add(1));
        let raised = self.lowest.checked_add(1)?; // At its maximum it stays as it is.
        self.leave_chain(index as u8);
        let chain = self.chains.get_mut(chain_of(hash))?;
        let counter = self.counters.get_mut(index)?;
        counter.error = counter.count;
        counter.count = raised;
        counter.hash = hash;
        counter.length = key.len();
        counter.next = mem::replace(chain, index as u8);
        let kept = kept_of(key);
        counter.bytes.get_mut(..kept.len())?.copy_from_slice(kept);
        Some(())
    }

    /// Takes a counter out of the chain of its key. An unused counter is not in a chain.
    fn leave_chain(&mut self, index: u8) -> Option<()> {
        let counter = self.counters.get(usize::from(index))?;
        let (chain, next) = (chain_of(counter.hash), counter.next);
        let first = self.chains.get_mut(chain)?;
        if *first == index {
            *first = next;
            return Some(());
        }
        let mut before = *first;
        loop {
            let link = &mut self.counters.get_mut(usize::from(before))?.next;
            if *link == index {
                *link = next;
                return Some(());
            }
            before = *link;
        }
    }
}

impl Counter {
    fn kept(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or(&self.bytes)
    }

    fn counted(&self) -> Counted<'_> {
        let key = self.kept();
        Counted { key, cut: self.length.saturating_sub(key.len()), count: self.count, error: self.error }
    }
}

/// What is kept of a key.
fn kept_of(key: &[u8]) -> &[u8] {
    key.get(..KEPT).unwrap_or(key)
}

fn chain_of(hash: u64) -> usize {
    usize::from(hash as u8)
}

#[cfg(test)]
mod tests;
