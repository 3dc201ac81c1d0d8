//! Reservations that are not settled yet: under which holder a request has reserved units.
//!
//! A request is settled by its id, and clients and retries repeat ids. A second reservation under one holder would count
//! nothing, so each gets a holder of its own, the id with a suffix, which is kept until the settlement asks for it. Where
//! that comes to another process, or was not kept, it counts as one of its own, and what was reserved is given back when its
//! lease is over.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use crate::redis::Hold;

/// How many reservations are kept, of less than two hundred bytes each.
const MOST: usize = 100_000;
/// How many characters of an id a holder has, to tell it by.
const BEGINNING: usize = 50;

#[derive(Debug, Default)]
pub struct Reservations {
    next: AtomicU64,
    /// Their keys are random: no client can make two ids that share a hash.
    hashers: [RandomState; 2],
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    /// By the place of key and id, and by number: since when units are reserved, and when that ends.
    kept: BTreeMap<(u128, u64), (SystemTime, Instant)>,
    /// In the order in which they end.
    ends: BTreeSet<(Instant, u128, u64)>,
}

impl Reservations {
    /// A holder that no other reservation has.
    pub fn make(&self, id: &str, lease: Duration) -> Hold {
        self.hold(id, self.next.fetch_add(1, Relaxed), lease, SystemTime::now())
    }

    fn hold(&self, id: &str, number: u64, lease: Duration, at: SystemTime) -> Hold {
        let beginning: String = id.chars().take(BEGINNING).collect();
        let of_process = self.hashers[0].hash_one(0);
        let holder = format!("{beginning}#{of_process:016x}{number:016x}");
        Hold { id: id.to_owned(), number, holder, lease, at }
    }

    /// Units of the key are reserved, since this time.
    pub fn keep(&self, key: &[u8], hold: &Hold, at: SystemTime) {
        let (place, now) = (self.place(key, &hold.id), Instant::now());
        let mut open = self.open.lock();
        open.forget(now);
        let Some(ends) = now.checked_add(hold.lease).filter(|_| open.kept.len() < MOST) else { return };
        open.kept.insert((place, hold.number), (at, ends));
        open.ends.insert((ends, place, hold.number));
    }

    /// The holder of the oldest reservation of this id that has not ended; else a new one.
    pub fn take(&self, key: &[u8], id: &str, lease: Duration) -> Hold {
        let place = self.place(key, id);
        let mut open = self.open.lock();
        open.forget(Instant::now());
        let oldest = open.kept.range((place, 0)..=(place, u64::MAX)).next();
        let Some((&(_, number), &(at, ends))) = oldest else { return self.make(id, lease) };
        open.kept.remove(&(place, number));
        open.ends.remove(&(ends, place, number));
        self.hold(id, number, lease, at)
    }

    fn place(&self, key: &[u8], id: &str) -> u128 {
        let [high, low] = self.hashers.each_ref().map(|hasher| hasher.hash_one((key, id)));
        u128::from(high) << 64 | u128::from(low)
    }
}

impl Open {
    /// Those that have ended.
    fn forget(&mut self, now: Instant) {
        while let Some((_, place, number)) = self.ends.first().copied().filter(|(ends, ..)| *ends <= now) {
            self.ends.pop_first();
            self.kept.remove(&(place, number));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(60);

    #[test]
    fn each_reservation_has_a_holder_of_its_own() {
        let (one, other) = (Reservations::default(), Reservations::default());
        let at = SystemTime::now();
        let made = [one.make("id", LEASE), one.make("id", LEASE), other.make("id", LEASE)];
        assert!(made[0].holder.starts_with("id#") && made[0].holder != made[1].holder);
        assert!(made[0].holder != made[2].holder && made[1].holder != made[2].holder);
        for hold in &made[..2] {
            one.keep(b"k", hold, at);
        }
        assert_ne!(one.take(b"other", "id", LEASE).holder, made[0].holder);
        for expected in &made[..2] {
            let hold = one.take(b"k", "id", LEASE);
            assert_eq!((hold.holder, hold.at), (expected.holder.clone(), at));
        }
        let unknown = one.take(b"k", "id", LEASE);
        assert!(made.iter().all(|hold| hold.holder != unknown.holder));
        assert_eq!(one.open.lock().kept.len(), 0);
        // What a client sends is cut to what a holder may have.
        assert!(one.make(&"ü".repeat(400), LEASE).holder.len() <= 256);
    }

    #[test]
    fn those_that_have_ended_are_forgotten_and_the_others_bounded() {
        let reservations = Reservations::default();
        let at = SystemTime::now();
        let short = reservations.make("short", Duration::ZERO);
        reservations.keep(b"k", &short, at);
        assert_ne!(reservations.take(b"k", "short", LEASE).holder, short.holder);
        // Where all places are taken, looking for one that has ended takes no longer than elsewhere.
        for number in 0..4 * MOST {
            let lease = if number % 2 == 0 { Duration::ZERO } else { LEASE };
            reservations.keep(b"k", &reservations.make(&number.to_string(), lease), at);
        }
        let open = reservations.open.lock();
        assert_eq!((open.kept.len(), open.ends.len()), (MOST, MOST));
    }
}
