//! The generator of state at the keys: values, logs and types that the module would not write, and some that look as if it
//! had.

use super::calls::{Case, Generator, Kind, Words};
use crate::support::call::held;
use crate::support::compact::{self, Entry};
use crate::support::{grammar, holds};

impl Generator {
    /// A command of the server that writes or removes a key that the calls of a case read.
    pub fn plant(&mut self, case: &Case) -> Words {
        if self.rng.u32(..12) == 0 {
            return self.hold_of(&case.key);
        }
        // Sometimes at a key that only RL.RESET reads.
        let state = match self.rng.u32(..8) {
            0 => &case.key,
            _ => &case.state[self.rng.usize(..case.state.len())],
        };
        let window = &case.quotas[self.rng.usize(..case.quotas.len() / 2) * 2];
        let window = grammar::window(window).unwrap_or(60_000);
        let words = |words: &[&[u8]]| -> Words { words.iter().map(|word| word.to_vec()).collect() };
        match self.rng.u32(..20) {
            0..3 => {
                let value = self.value(case.kind);
                words(&[b"SET", state, &value])
            }
            3..5 => {
                let (value, at) = (self.value(case.kind), self.future().to_string());
                words(&[b"SET", state, &value, b"PXAT", at.as_bytes()])
            }
            5..11 if case.kind == Kind::Throttle => {
                let value = self.arrival();
                words(&[b"SET", state, &value])
            }
            5..8 if case.kind == Kind::Sliding => {
                let log = self.compact_log(window);
                words(&[b"SET", state, &log])
            }
            5..11 => {
                let mut add = words(&[b"ZADD", state]);
                for _ in 0..self.rng.u32(1..12) {
                    add.extend([self.score(window), self.member()]);
                }
                add
            }
            11 if self.rng.u32(..20) == 0 => {
                // More members that are expired or ahead of the clock than one call may remove.
                let mut add = words(&[b"ZADD", state]);
                let ahead = self.rng.bool();
                for index in 0..self.rng.i64(900..2_600) {
                    let score = if ahead {
                        self.moment.now + window + 1 + index
                    } else {
                        (self.moment.now - window - index).max(0)
                    };
                    add.extend([score.to_string().into_bytes(), format!("many-{index}").into_bytes()]);
                }
                add
            }
            12 => self.pick_plant(state),
            13 => words(&[b"PERSIST", state]),
            14 => {
                let at = self.future().to_string();
                words(&[b"PEXPIREAT", state, at.as_bytes()])
            }
            15 if self.rng.u32(..50) == 0 => words(&[b"SETRANGE", state, b"1000000", b"9"]),
            15 => {
                // Into a log that the module has written there, if any.
                let (offset, bytes) = (self.rng.u32(..300).to_string(), self.random_bytes(4));
                words(&[b"SETRANGE", state, offset.as_bytes(), &bytes])
            }
            16 => {
                /// Keeps a percentage of the log that the module has written there, if any.
                const CUT: &[u8] = b"local log = redis.call('GET', KEYS[1]) or ''
                    redis.call('SET', KEYS[1], string.sub(log, 1, #log * ARGV[1] / 100), 'KEEPTTL')";
                if self.rng.bool() {
                    words(&[b"APPEND", state, b"0"])
                } else {
                    words(&[b"EVAL", CUT, b"1", state, self.rng.u32(..100).to_string().as_bytes()])
                }
            }
            _ => words(&[b"DEL", state]),
        }
    }

    /// What is written down about a holder, or looks like it, or a value of another type.
    fn hold_of(&mut self, key: &[u8]) -> Words {
        let place = held(key);
        match self.rng.u32(..10) {
            0 => return self.pick_plant(&place),
            1 => return vec![b"ZADD".to_vec(), place, self.score(60_000), self.random_bytes(12)],
            2 => return vec![b"PERSIST".to_vec(), place],
            _ => {}
        }
        let (holder, is_settled) = (self.pick(&[b"a", b"b", b"Aa", b"BB", b"C#"]), self.rng.bool());
        let units = if self.rng.u32(..8) == 0 { self.rng.i64(0..1 << 54) } else { self.rng.i64(0..9) };
        let at = self.moment.now - self.rng.i64(-2..9);
        let ends: Vec<i64> = (0..self.rng.i64(0..8).min(2)).map(|more| at + 60_000 + more).collect();
        let (mut note, score) = if is_settled {
            (holds::settlement(&holder), (-1 - units).to_string())
        } else {
            (holds::note(units, at, &ends, &holder), format!("{:.0}", holds::score(&holder)))
        };
        if self.rng.u32(..6) == 0 {
            let place = self.rng.usize(..note.len());
            note[place] = self.rng.u8(..);
        }
        let until = match self.rng.u32(..6) {
            0 => self.score(60_000),
            _ => (self.moment.now + self.rng.i64(-9..5_000)).to_string().into_bytes(),
        };
        vec![b"ZADD".to_vec(), place, until, [b"e", &holder[..]].concat(), score.into_bytes(), note]
    }

    /// A compact log as the module would write it, with stamps at the edges of a window and of another clock; or one that it
    /// would not write, with a footer that is still sound.
    fn compact_log(&mut self, window: i64) -> Vec<u8> {
        let count = match self.rng.u32(..16) {
            0 => self.rng.usize(1..3_000),
            1..6 => self.rng.usize(1..300),
            _ => self.rng.usize(1..12),
        };
        let heaviest = [1, 1, 3, 65_536][self.rng.usize(..4)];
        let spread = window.min([10, 10_000, i64::MAX][self.rng.usize(..3)]);
        let newest = self.moment.now + self.rng.i64(-spread..=spread) + [0, 0, 0, -window, window][self.rng.usize(..5)];
        let mut entries: Vec<Entry> = (0..count)
            .map(|_| Entry {
                stamp: (newest - self.rng.i64(0..=2 * spread)).max(0) as u64,
                weight: self.rng.u64(1..=heaviest),
            })
            .collect();
        entries.sort_by_key(|entry| entry.stamp);
        // After a step back of the clock, entries can be later than now, dead ones as well.
        let dead = match self.rng.u32(..4) {
            0 => self.rng.usize(..count),
            1 => entries.partition_point(|entry| entry.stamp < self.moment.now as u64).min(count - 1),
            _ => 0,
        };
        // Sometimes the units reach the most that a log holds.
        let units: u64 = entries.iter().map(|entry| entry.weight).sum();
        let origin = if self.rng.u32(..8) == 0 { (1 << 53) - units - self.rng.u64(..8) } else { 0 };
        let mut log = compact::write(&entries, dead, origin, self.rng.usize(..30));
        for _ in 0..self.rng.u32(..4).saturating_sub(1) {
            let (place, near_the_end) =
                (self.rng.usize(..log.len()), log.len() - self.rng.usize(1..=log.len().min(30)));
            match self.rng.u32(..8) {
                0 => log.truncate(place.max(4)),
                1 => log.extend(self.random_bytes(20)),
                2 => log[3] = self.rng.u8(..),
                3 => self.rng.fill(&mut log[place.max(4)..]),
                4 | 5 => log[near_the_end] = self.rng.u8(..),
                _ => log[place] ^= 1 << self.rng.u32(..8),
            }
        }
        if self.rng.bool() {
            compact::seal(&mut log);
        }
        log
    }

    /// A value of a type that no command takes.
    fn pick_plant(&mut self, state: &[u8]) -> Words {
        let makers: [&[&[u8]]; 6] = [
            &[b"RPUSH", b"", b"1"],
            &[b"SADD", b"", b"1", b"2"],
            &[b"HSET", b"", b"1", b"2"],
            &[b"XADD", b"", b"*", b"1", b"2"],
            &[b"PFADD", b"", b"1"],
            &[b"SETBIT", b"", b"70", b"1"],
        ];
        let mut words: Words = makers[self.rng.usize(..makers.len())].iter().map(|word| word.to_vec()).collect();
        words[1] = state.to_vec();
        words
    }

    fn value(&mut self, kind: Kind) -> Vec<u8> {
        if kind == Kind::Throttle { self.arrival() } else { self.counter_value() }
    }

    /// An arrival time, usually near the clock.
    fn arrival(&mut self) -> Vec<u8> {
        let now = self.moment.now * 1_000_000;
        match self.rng.u32(..10) {
            0 => self.counter_value(),
            1 => self.pick(&[b"9223372036854775807", b"9223372036854775806", b"-1", b"0", b"-9223372036854775808"]),
            2 => format!(" {now}").into_bytes(),
            3 => format!("{now}\n").into_bytes(),
            4 => (now + self.rng.i64(-5..5)).to_string().into_bytes(),
            5 => (now + self.rng.i64(0..i64::MAX - now)).to_string().into_bytes(),
            6 => (now - self.rng.i64(0..now)).to_string().into_bytes(),
            _ => (now + self.rng.i64(-5_000_000_000..120_000_000_000)).to_string().into_bytes(),
        }
    }

    fn counter_value(&mut self) -> Vec<u8> {
        match self.rng.u32(..4) {
            0 => self.hostile(),
            1 => self.rng.i64(-3..40).to_string().into_bytes(),
            2 => self.pick(&[
                b"9223372036854775807",
                b"9223372036854775806",
                b"-9223372036854775808",
                b"-1",
                b"99",
                b"9",
            ]),
            _ => self.rng.i64(..).to_string().into_bytes(),
        }
    }

    fn score(&mut self, window: i64) -> Vec<u8> {
        let (now, half) = (self.moment.now, self.rng.u32(..2) * 5);
        let around =
            |at: i64, rng: &mut fastrand::Rng| format!("{}.{half}", (at + rng.i64(-1..=1)).max(0)).into_bytes();
        match self.rng.u32(..8) {
            0 => {
                self.pick(&[b"inf", b"-inf", b"1e308", b"-1e308", b"5e-324", b"-5e-324", b"0", b"-0.0", b"-0.5", b"-1"])
            }
            1 => self.pick(&[b"9007199254740992", b"9223372036854775807", b"18446744073709551616", b"4.5e15", b"1.5"]),
            2 => around(now - window, &mut self.rng),
            3 => around(now + window, &mut self.rng),
            4 => {
                let bits = f64::from_bits(self.rng.u64(..));
                format!("{:e}", if bits.is_nan() { 0.0 } else { bits }).into_bytes()
            }
            _ => around(now - self.rng.i64(0..2 * window), &mut self.rng),
        }
    }

    fn member(&mut self) -> Vec<u8> {
        match self.rng.u32(..5) {
            // As the script writes it.
            0 => format!("{}-0.{}", self.moment.now, self.rng.u32(..)).into_bytes(),
            // As the module would write it now.
            1 | 2 => {
                let suffix = char::from_digit(self.rng.u32(..36), 36).expect("a digit");
                format!("{}-{suffix}", self.moment.now).into_bytes()
            }
            3 if self.rng.u32(..50) == 0 => vec![b'm'; 5_000],
            _ => self.random_bytes(12),
        }
    }

    fn future(&mut self) -> i64 {
        self.moment.now
            + match self.rng.u32(..4) {
                0 => self.rng.i64(1..3),
                1 => self.rng.i64(1..200_000),
                2 => 4_294_967_294_000,
                _ => self.rng.i64(1..10_000_000_000_000),
            }
    }
}
