//! A seeded client that sends what no sane client would, plants hostile state at the keys, and knows the one right
//! answer to each call.
//!
//! The server's clock is frozen and moved between batches, so everything follows from the seed. A call that is
//! *probed* has questions to the server's own commands in front and behind: from those before, its exact reply follows;
//! those after say that a refused call changed nothing, and what an answered one left. A call that is not probed must
//! have one of the replies that are possible for its arguments.
//!
//! New logs are sorted sets for a while, then compact, then now this and now that, and so on.

use std::fmt;

use super::compact::{self, Entry};
use super::grammar::{self, Request, Verdict, verdict};
use super::model::{self, Found, Log};
use super::wire::{Reply, Wire, pack};
use super::{Client, Server};

#[allow(unused_imports)] // The benchmark prunes nothing.
pub use super::model::PRUNED_AT_MOST;

/// Cases in a batch. A case is some hostile state and a few calls on it.
const BATCH: usize = 64;
/// Batches from one FLUSHALL to the next. Counters of past windows would fill the memory otherwise.
const EPOCH: u64 = 16;

pub struct Driver<'a> {
    server: &'a Server,
    wire: Wire,
    rng: fastrand::Rng,
    seed: u64,
    now: i64,
    /// One call in so many is probed.
    probe_every: u32,
    batches: u64,
    /// Whether new logs are compact.
    compact: bool,
    pub totals: Totals,
}

/// What has been sent and what came back.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    pub calls: u64,
    pub probed: u64,
    pub plants: u64,
    pub sliding: Outcomes,
    pub fixed: Outcomes,
    pub throttle: Outcomes,
    pub peek: Outcomes,
    /// Those of RL.SLIDING and RL.PEEK, probed, that were answered from a compact log.
    pub compact: Outcomes,
    /// Refused for a compact log that is damaged or of another version.
    pub flawed: u64,
    pub resets: u64,
    pub reset_keys: u64,
    pub refused: u64,
    /// Those of the refused that the server refused by itself.
    pub uncalled: u64,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Outcomes {
    pub allowed: u64,
    pub denied: u64,
}

impl Outcomes {
    fn count(&mut self, allowed: bool) {
        *if allowed { &mut self.allowed } else { &mut self.denied } += 1;
    }
}

impl fmt::Display for Outcomes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} / {}", self.allowed, self.denied)
    }
}

type Words = Vec<Vec<u8>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sliding,
    Fixed,
    Throttle,
}

/// What the calls of a case have in common.
struct Case {
    kind: Kind,
    key: Vec<u8>,
    /// `windowSec limit ...`
    quotas: Words,
    /// `max_burst count period`
    rate: Words,
    /// Where the state lies.
    state: Vec<Vec<u8>>,
}

struct Call {
    words: Words,
    verdict: Verdict,
    /// Where the state of the call lies. What a refused call could be about.
    state: Vec<Vec<u8>>,
    probed: bool,
}

enum Sent {
    Plant,
    Call(Call),
}

impl<'a> Driver<'a> {
    /// Drives a server whose clock stands at `now`.
    pub fn new(server: &'a Server, now: i64, seed: u64, probe_every: u32) -> Self {
        let (wire, rng) = (Wire::open(server.port), fastrand::Rng::with_seed(seed));
        let totals = Totals::default();
        let mut driver = Self { server, wire, rng, seed, now, probe_every, batches: 0, compact: false, totals };
        // Keys go when they are touched, not in between: a key that vanishes by itself is no change by a call.
        driver.command(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
        driver
    }

    /// Makes at least so many calls more.
    pub fn run(&mut self, calls: u64) {
        let until = self.totals.calls + calls;
        while self.totals.calls < until {
            self.batch();
        }
    }

    /// Empties the server and begins a new connection without buffers, for memory to be compared.
    pub fn clear(&mut self) {
        self.flush();
        // The server's own logs of slow calls and, in Valkey, of large ones.
        for log in [
            &["SLOWLOG", "RESET"][..],
            &["COMMANDLOG", "RESET", "large-request"],
            &["COMMANDLOG", "RESET", "large-reply"],
        ] {
            let mut bytes = Vec::new();
            pack(&mut bytes, log);
            self.wire.send(&bytes);
            self.wire.receive(); // Some servers do not know it.
        }
        self.wire = Wire::open(self.server.port);
    }

    fn flush(&mut self) {
        self.command(&["FLUSHALL", "SYNC"]);
    }

    fn command(&mut self, words: &[&str]) {
        let mut bytes = Vec::new();
        pack(&mut bytes, words);
        self.wire.send(&bytes);
        assert_eq!(self.wire.receive(), Reply::Status("OK".to_owned()));
    }

    /// The module's own totals must be those that were seen from here, and no panic among them.
    pub fn compare_totals(&self, client: &mut Client) {
        let seed = self.seed;
        let field = |client: &mut Client, name: &str| -> u64 {
            client.info_field("rl", &format!("rl_{name}")).parse().expect("a number")
        };
        let totals = self.totals;
        for (name, seen) in [
            ("sliding_allowed", totals.sliding.allowed),
            ("sliding_denied", totals.sliding.denied),
            ("fixed_allowed", totals.fixed.allowed),
            ("fixed_denied", totals.fixed.denied),
            ("throttle_allowed", totals.throttle.allowed),
            ("throttle_denied", totals.throttle.denied),
            ("peek_allowed", totals.peek.allowed),
            ("peek_denied", totals.peek.denied),
            ("reset_keys", totals.reset_keys),
            ("errors", totals.refused - totals.uncalled),
            ("panics", 0),
        ] {
            assert_eq!(field(client, name), seen, "seed {seed}: {name}");
        }
    }

    fn batch(&mut self) {
        if self.batches.is_multiple_of(EPOCH) {
            self.flush();
        }
        self.compact = match self.batches / EPOCH % 3 {
            0 => false,
            1 => true,
            _ => self.rng.bool(), // Both kinds of key are in use.
        };
        self.command(&["CONFIG", "SET", "rl.sliding-storage", if self.compact { "compact" } else { "zset" }]);
        self.batches += 1;
        if self.rng.bool() {
            let step = match self.rng.u32(..10) {
                0..5 => self.rng.i64(1..5),
                5..8 => self.rng.i64(5..2_000),
                8 => self.rng.i64(2_000..200_000),
                _ => -self.rng.i64(1..100_000),
            };
            self.now += step;
            self.server.set_time(self.now);
        }
        let mut bytes = Vec::new();
        let mut sent = Vec::new();
        for _ in 0..BATCH {
            self.case(&mut bytes, &mut sent);
        }
        self.wire.send(&bytes);
        for item in sent {
            match item {
                Sent::Plant => {
                    self.totals.plants += 1;
                    self.wire.receive(); // Some are refused, which is as well.
                }
                Sent::Call(call) => self.judge(&call),
            }
        }
    }

    // ---- What is sent -----------------------------------------------------------------------------------------

    fn case(&mut self, bytes: &mut Vec<u8>, sent: &mut Vec<Sent>) {
        let case = self.draw();
        if self.rng.u32(..3) == 0 {
            for _ in 0..self.rng.u32(1..4) {
                let words = self.plant(&case);
                pack(bytes, &words);
                sent.push(Sent::Plant);
            }
        }
        for _ in 0..self.rng.u32(1..5) {
            let call = self.call(&case);
            if call.probed {
                self.ask(bytes, &call);
                pack(bytes, &call.words);
                self.ask(bytes, &call);
            } else {
                pack(bytes, &call.words);
            }
            sent.push(Sent::Call(call));
        }
    }

    fn draw(&mut self) -> Case {
        let kind = match self.rng.u32(..5) {
            0..2 => Kind::Sliding,
            2..4 => Kind::Fixed,
            _ => Kind::Throttle,
        };
        let mut key = self.key();
        if kind == Kind::Throttle && self.rng.u32(..8) != 0 {
            key.insert(0, b't'); // A string of its own, mostly.
        }
        let quotas = self.quotas();
        let rate = self.rate();
        let windows = quotas.iter().step_by(2).filter_map(|word| grammar::window(word));
        let state = match kind {
            Kind::Fixed => self.counters(&key, windows),
            _ => vec![],
        };
        let state = if state.is_empty() { vec![key.clone()] } else { state };
        Case { kind, key, quotas, rate, state }
    }

    /// The keys of some windows' counters. Long windows can share one.
    fn counters(&self, key: &[u8], windows: impl Iterator<Item = i64>) -> Vec<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        for window in windows {
            let name = [key, format!(":{}", self.now.div_euclid(window)).as_bytes()].concat();
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    fn call(&mut self, case: &Case) -> Call {
        let (name, algorithm) = match (case.kind, self.rng.u32(..24)) {
            (_, 0) => ("RL.RESET", ""),
            (_, 1) => ("RL.PEEK", "FIXED"),
            (_, 2) => ("RL.PEEK", "SLIDING"),
            (Kind::Sliding, 3..8) => ("RL.PEEK", "SLIDING"),
            (Kind::Fixed, 3..8) => ("RL.PEEK", "FIXED"),
            (Kind::Sliding, _) => ("RL.SLIDING", ""),
            (Kind::Fixed, _) => ("RL.FIXED", ""),
            (Kind::Throttle, _) => ("RL.THROTTLE", ""),
        };
        let mut words = vec![self.any_case(name), case.key.clone()];
        if name == "RL.PEEK" {
            words.push(self.any_case(algorithm));
        }
        match name {
            "RL.RESET" => words.extend(case.quotas.iter().step_by(2).take(self.rng.usize(..4)).cloned()),
            "RL.THROTTLE" => {
                words.extend(case.rate.iter().cloned());
                if self.rng.bool() {
                    words.push(self.quantity());
                }
            }
            _ => {
                words.extend(case.quotas.iter().cloned());
                words.extend(self.options());
            }
        }
        if self.rng.u32(..12) == 0 {
            self.mangle(&mut words);
        }
        let verdict = verdict(&words);
        let state = match &verdict {
            Verdict::Uncalled(_) | Verdict::Refused(_) => case.state.clone(),
            Verdict::Request(request) if !request.sliding => {
                self.counters(&words[1], request.quotas.iter().map(|quota| quota.window))
            }
            Verdict::Reset(windows) => {
                [vec![words[1].clone()], self.counters(&words[1], windows.iter().copied())].concat()
            }
            Verdict::Request(_) | Verdict::Throttle(_) => vec![words[1].clone()],
        };
        // By way of a script, which hears the same. (Not for counters: Lua's numbers round a planted 2^63-2.)
        let by_script = match &verdict {
            Verdict::Uncalled(_) => false,
            Verdict::Request(request) => request.sliding,
            _ => true,
        };
        if by_script && self.rng.u32(..16) == 0 {
            words.splice(0..0, ["EVAL", "return redis.pcall(unpack(ARGV))", "0"].map(Into::into));
        }
        Call { words, verdict, state, probed: self.rng.u32(..self.probe_every) == 0 }
    }

    /// Does to a call what slips of the pen do.
    fn mangle(&mut self, words: &mut Words) {
        for _ in 0..self.rng.u32(1..4) {
            let at = self.rng.usize(1..=words.len());
            match self.rng.u32(..8) {
                0 => words.truncate(at),
                1 if at < words.len() => drop(words.remove(at)),
                2 if at < words.len() => words.insert(at, words[at].clone()),
                3 if at < words.len() => {
                    let other = self.rng.usize(1..words.len());
                    words.swap(at, other);
                }
                4 if at < words.len() => words[at] = self.hostile(),
                5 => words.insert(at, self.hostile()),
                6 => words.push(self.hostile()),
                _ => {
                    let keyword = ["COST", "FULL", "SLIDING", "FIXED", "COST 2", "FULLY", "LIMIT"];
                    let keyword = keyword[self.rng.usize(..keyword.len())];
                    words.insert(at, self.any_case(keyword));
                }
            }
        }
    }

    fn any_case(&mut self, word: &str) -> Vec<u8> {
        match self.rng.u32(..8) {
            0 => word.to_lowercase().into_bytes(),
            1 => word.bytes().map(|byte| if self.rng.bool() { byte.to_ascii_lowercase() } else { byte }).collect(),
            _ => word.as_bytes().to_vec(),
        }
    }

    /// `windowSec limit [windowSec limit ...]`
    fn quotas(&mut self) -> Words {
        let count = match self.rng.u32(..16) {
            0..9 => 1,
            9..15 => self.rng.usize(2..5),
            _ => self.rng.usize(5..21),
        };
        let mut windows: Words = (0..count).map(|_| self.sane_window()).collect();
        if self.rng.u32(..16) != 0 {
            windows.sort_by_key(|word| grammar::window(word));
            windows.dedup_by_key(|word| grammar::window(word));
        }
        let mut words: Words = windows.into_iter().flat_map(|window| [window, self.sane_limit()]).collect();
        if self.rng.u32(..6) == 0 {
            let at = self.rng.usize(..words.len());
            words[at] = self.hostile();
        }
        words
    }

    /// `[COST n] [FULL]`, in any order.
    fn options(&mut self) -> Words {
        let mut words = Words::new();
        if self.rng.u32(..5) < 2 {
            let cost = match self.rng.u32(..100) {
                0..3 => self.rng.u32(1..=3000).to_string().into_bytes(),
                3..6 => self.hostile(),
                6 => self.pick(&[b"0", b"65537", b"65536", b"-1", b"FULL", b"1"]),
                _ => self.rng.u32(1..6).to_string().into_bytes(),
            };
            words.extend([self.any_case("COST"), cost]);
        }
        if self.rng.u32(..5) < 2 {
            let at = if self.rng.bool() { 0 } else { words.len() };
            words.insert(at, self.any_case("FULL"));
        }
        words
    }

    /// `max_burst count period`
    fn rate(&mut self) -> Words {
        let mut words: Words = match self.rng.u32(..6) {
            0 => [self.rng.u32(..40), self.rng.u32(1..2000), self.rng.u32(1..4)]
                .map(|word| word.to_string().into())
                .into(),
            1 => vec![
                self.pick(&[b"0", b"999999", b"9007199254740990", b"9007199254740991", b"4611686018", b"4611686017"]),
                self.pick(&[b"1", b"1000000", b"1000000000", b"1000000001", b"9007199254740991", b"9007199254740992"]),
                self.pick(&[b"1", b"31536000", b"2147483647", b"2147483648", b"0"]),
            ],
            _ => vec![
                self.pick(&[b"0", b"4", b"15"]),
                self.pick(&[b"1", b"30", b"100"]),
                self.pick(&[b"1", b"60", b"3600"]),
            ],
        };
        if self.rng.u32(..8) == 0 {
            let at = self.rng.usize(..words.len());
            words[at] = self.hostile();
        }
        words
    }

    fn quantity(&mut self) -> Vec<u8> {
        match self.rng.u32(..10) {
            0 => self.hostile(),
            1 => self.pick(&[b"9007199254740991", b"9007199254740992", b"-1", b"16", b"17", b"1000000"]),
            _ => self.rng.u32(..7).to_string().into_bytes(),
        }
    }

    fn key(&mut self) -> Vec<u8> {
        match self.rng.u32(..2000) {
            0 => vec![b'x'; 1 << 20],
            1..10 => vec![self.rng.u8(..); 10_000],
            10..400 => self.pick(&[b"", b"\0", b"a\0b", b"\xff\xfe\x80", b"{tag}k", b"a}b", b"x{}y", b"*\r\n$-1\r\n"]),
            _ => format!("k{}", self.rng.u32(..6)).into_bytes(),
        }
    }

    fn sane_window(&mut self) -> Vec<u8> {
        match self.rng.u32(..8) {
            0 => format!("{}.{:03}", self.rng.u32(..100), self.rng.u32(1..1000)).into_bytes(),
            1 => self.rng.u32(1..=2_147_483_647).to_string().into_bytes(),
            2 => self.pick(&[b"0.001", b"0.25", b"2147483647", b"2147483646.999", b"2147483647.000", b"1.0"]),
            _ => self.pick(&[b"1", b"60", b"60", b"3600", b"86400"]),
        }
    }

    fn sane_limit(&mut self) -> Vec<u8> {
        match self.rng.u32(..8) {
            0 => self.pick(&[b"0", b"9007199254740991", b"9007199254740990", b"3000", b"5000"]),
            1 => self.rng.u64(..1 << 53).to_string().into_bytes(),
            _ => self.rng.u32(..40).to_string().into_bytes(),
        }
    }

    /// A word that looks like something.
    fn hostile(&mut self) -> Vec<u8> {
        match self.rng.u32(..10) {
            0 => self.random_bytes(20),
            1 => self.rng.i64(..).to_string().into_bytes(),
            2 => format!("{}.{}", self.rng.u32(..100), self.rng.u32(..20_000)).into_bytes(),
            3 => format!("{:e}", f64::from_bits(self.rng.u64(..))).into_bytes(),
            4 => self.pick(&[b"nan", b"NaN", b"inf", b"-inf", b"1e308", b"-1e308", b"", b"-0", b"0", b"0.0", b"\0"]),
            5 => {
                self.pick(&[b"60\0", b"\x0060", b" 60", b"60 ", b"+60", b"060", b"60.", b".5", b"6_0", b"0x3c", b"60s"])
            }
            6 => (1_u64 << self.rng.u32(..64)).wrapping_sub(self.rng.u64(..2)).to_string().into_bytes(),
            7 => self.pick(&[b"2147483648", b"2147483647.001", b"9223372036854775807", b"9223372036854775808"]),
            8 => self.pick(&[
                b"-9223372036854775808",
                b"18446744073709551616",
                b"0.0001",
                b"1.2345",
                b"-1",
                b"9007199254740992",
            ]),
            _ if self.rng.u32(..50) == 0 => vec![self.rng.u8(b'0'..=b'9'); 100_000],
            _ => "٣".repeat(self.rng.usize(1..4)).into_bytes(),
        }
    }

    fn random_bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.rng.usize(..most)).map(|_| self.rng.u8(..)).collect()
    }

    fn pick(&mut self, from: &[&[u8]]) -> Vec<u8> {
        from[self.rng.usize(..from.len())].to_vec()
    }

    /// Something that is not what the module would have written, or looks as if it were.
    fn plant(&mut self, case: &Case) -> Words {
        // Now and then where a sliding log or a throttle would not look, but RL.RESET does.
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
                // So many expired, or ahead of the clock, that no call may remove them all.
                let mut add = words(&[b"ZADD", state]);
                let ahead = self.rng.bool();
                for index in 0..self.rng.i64(900..2_600) {
                    let score = if ahead { self.now + window + 1 + index } else { (self.now - window - index).max(0) };
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
                // Into whatever log the module has written there.
                let (offset, bytes) = (self.rng.u32(..300).to_string(), self.random_bytes(4));
                words(&[b"SETRANGE", state, offset.as_bytes(), &bytes])
            }
            16 => {
                /// Keeps so many percent of whatever log the module has written there.
                const CUT: &[u8] = b"local log = redis.call('GET', KEYS[1]) or ''
                    redis.call('SET', KEYS[1], string.sub(log, 1, #log * ARGV[1] / 100), 'KEEPTTL')";
                match self.rng.bool() {
                    true => words(&[b"APPEND", state, b"0"]),
                    false => words(&[b"EVAL", CUT, b"1", state, self.rng.u32(..100).to_string().as_bytes()]),
                }
            }
            _ => words(&[b"DEL", state]),
        }
    }

    /// A compact log as the module would write it, with stamps at the edges of a window and such of another clock; and
    /// as it would not, with a footer that fits all the same.
    fn compact_log(&mut self, window: i64) -> Vec<u8> {
        let count = match self.rng.u32(..16) {
            0 => self.rng.usize(1..3_000),
            1..6 => self.rng.usize(1..300),
            _ => self.rng.usize(1..12),
        };
        let heaviest = [1, 1, 3, 65_536][self.rng.usize(..4)];
        let spread = window.min([10, 10_000, i64::MAX][self.rng.usize(..3)]);
        let newest = self.now + self.rng.i64(-spread..=spread) + [0, 0, 0, -window, window][self.rng.usize(..5)];
        let mut entries: Vec<Entry> = (0..count)
            .map(|_| Entry {
                stamp: (newest - self.rng.i64(0..=2 * spread)).max(0) as u64,
                weight: self.rng.u64(1..=heaviest),
            })
            .collect();
        entries.sort_by_key(|entry| entry.stamp);
        // Where the clock was stepped back, some that are dead or live are later than the new one.
        let dead = match self.rng.u32(..4) {
            0 => self.rng.usize(..count),
            1 => entries.partition_point(|entry| entry.stamp < self.now as u64).min(count - 1),
            _ => 0,
        };
        // Now and then units run up to the most that a log holds.
        let units: u64 = entries.iter().map(|entry| entry.weight).sum();
        let origin = if self.rng.u32(..8) == 0 { (1 << 48) - units - self.rng.u64(..8) } else { 0 };
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

    /// A value of a type that neither command takes.
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

    /// An arrival time, mostly near the clock.
    fn arrival(&mut self) -> Vec<u8> {
        let now = self.now * 1_000_000;
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
        let (now, half) = (self.now, self.rng.u32(..2) * 5);
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
            // The script's own.
            0 => format!("{}-0.{}", self.now, self.rng.u32(..)).into_bytes(),
            // What the module is about to write.
            1 | 2 => {
                let suffix = char::from_digit(self.rng.u32(..36), 36).expect("a digit");
                format!("{}-{suffix}", self.now).into_bytes()
            }
            3 if self.rng.u32(..50) == 0 => vec![b'm'; 5_000],
            _ => self.random_bytes(12),
        }
    }

    fn future(&mut self) -> i64 {
        self.now
            + match self.rng.u32(..4) {
                0 => self.rng.i64(1..3),
                1 => self.rng.i64(1..200_000),
                2 => 4_294_967_294_000,
                _ => self.rng.i64(1..10_000_000_000_000),
            }
    }

    // ---- What is asked of the server's own commands -------------------------------------------------------------

    fn ask(&self, bytes: &mut Vec<u8>, call: &Call) {
        // First the types: an expired key goes now.
        for key in &call.state {
            for question in [&b"TYPE"[..], b"PEXPIRETIME", b"GET"] {
                pack(bytes, &[question, key]);
            }
            if call.is_sliding() {
                pack(bytes, &[b"ZRANGE".as_ref(), key, b"0", b"-1", b"WITHSCORES"]);
            }
        }
        let mut digest = vec![&b"DEBUG"[..], b"DIGEST-VALUE"];
        digest.extend(call.state.iter().map(|key| &key[..]));
        pack(bytes, &digest);
        pack(bytes, &["DBSIZE"]);
    }

    fn hear(&mut self, call: &Call) -> Seen {
        let mut keys = Vec::new();
        for _ in &call.state {
            let Reply::Status(kind) = self.wire.receive() else { panic!("TYPE has no such reply") };
            let (expires, mut value) = (self.integer(), self.wire.receive());
            if call.is_sliding() {
                let members = self.wire.receive();
                value = if kind == "zset" { members } else { value };
            }
            keys.push(Found { kind, expires, value });
        }
        Seen { keys, digest: self.wire.receive(), size: self.integer() }
    }

    fn integer(&mut self) -> i64 {
        match self.wire.receive() {
            Reply::Integer(integer) => integer,
            reply => panic!("{reply:?} is no integer"),
        }
    }

    // ---- What comes back --------------------------------------------------------------------------------------

    fn judge(&mut self, call: &Call) {
        let before = call.probed.then(|| self.hear(call));
        let reply = self.wire.receive();
        let outcome = match &before {
            Some(before) => {
                let after = self.hear(call);
                self.exactly(call, before, &reply, &after)
            }
            None => possible(&call.verdict, &reply),
        };
        if let Err(why) = outcome {
            let words: Vec<String> = call.words.iter().map(|word| word.escape_ascii().to_string()).collect();
            let words: String = words.join(" ").chars().take(500).collect();
            let before: String = format!("{before:?}").chars().take(1500).collect();
            let (seed, number, now) = (self.seed, self.totals.calls, self.now);
            panic!("seed {seed}, call {number}, at {now}: {words}\n{why}: {reply:?}\n{before}");
        }
        self.count(call, before.as_ref(), &reply);
    }

    fn count(&mut self, call: &Call, before: Option<&Seen>, reply: &Reply) {
        let totals = &mut self.totals;
        totals.calls += 1;
        totals.probed += u64::from(call.probed);
        if let Reply::Error(line) = reply {
            totals.refused += 1;
            totals.flawed += u64::from([model::DAMAGED, model::OTHER_VERSION].contains(&&**line));
            totals.uncalled += u64::from(matches!(call.verdict, Verdict::Uncalled(_)));
            return;
        }
        // `allowed` is the first integer of a short reply, and the first behind its name of a full one.
        let first = match reply {
            Reply::Array(parts) => parts.iter().find_map(|part| match part {
                Reply::Integer(integer) => Some(*integer),
                _ => None,
            }),
            Reply::Integer(integer) => Some(*integer),
            _ => None,
        };
        let first = first.unwrap_or_default();
        let (outcomes, allowed) = match &call.verdict {
            Verdict::Request(request) if request.peek => (&mut totals.peek, first == 1),
            Verdict::Request(request) if request.sliding => (&mut totals.sliding, first == 1),
            Verdict::Throttle(_) => (&mut totals.throttle, first == 0),
            Verdict::Reset(_) => {
                totals.resets += 1;
                totals.reset_keys += first.unsigned_abs();
                return;
            }
            _ => (&mut totals.fixed, first == 1),
        };
        outcomes.count(allowed);
        if call.is_sliding() && before.is_some_and(|before| before.keys[0].kind == "string") {
            totals.compact.count(allowed);
        }
    }

    /// Holds a probed call to the one right reply, and to what it may leave.
    fn exactly(&self, call: &Call, before: &Seen, reply: &Reply, after: &Seen) -> Result<(), String> {
        let right = |right: Reply| match *reply == right {
            true => Ok(()),
            false => Err(format!("a wrong reply, {right:?} is right")),
        };
        let result = match &call.verdict {
            Verdict::Uncalled(line) | Verdict::Refused(line) => {
                right(Reply::Error(line.clone()))?;
                return before.unchanged(after);
            }
            Verdict::Request(request) if request.sliding => before.keys[0].log().map(|log| match log {
                Log::Entries(entries) => {
                    // A key that exists is used as it is.
                    let compact = match &*before.keys[0].kind {
                        "none" => self.compact,
                        kind => kind == "string",
                    };
                    let logged = model::slide(request, &entries, compact, self.now);
                    right(logged.answer.reply(request.full))?;
                    match request.peek {
                        true => before.unchanged(after),
                        false => self.logged(request, before, &entries, &logged, after),
                    }
                }
                Log::Doubtful(units) => match *reply == Reply::Error(model::DAMAGED.to_owned()) {
                    true => before.unchanged(after),
                    false if !model::possible_within(request, units, reply) => {
                        Err(format!("neither refused nor within {units} units"))
                    }
                    false if request.peek => before.unchanged(after),
                    false => Ok(()),
                },
            }),
            Verdict::Request(request) => {
                // Each quota's own place among the keys, which several can share.
                let name = |window: i64| self.counters(&call.key()[..], [window].into_iter()).remove(0);
                let places: Vec<usize> = request
                    .quotas
                    .iter()
                    .map(|quota| call.state.iter().position(|key| *key == name(quota.window)).expect("a counter"))
                    .collect();
                let found: Vec<&Found> = places.iter().map(|&place| &before.keys[place]).collect();
                model::count(request, &found, self.now).map(|counted| {
                    right(counted.answer.reply(request.full))?;
                    let mut written = vec![None; call.state.len()];
                    if !request.peek {
                        counted.written.iter().zip(&places).for_each(|(standing, &place)| written[place] = *standing);
                    }
                    before.written(&written, after)
                })
            }
            Verdict::Throttle(rate) => {
                let at = |micros: i64| {
                    model::throttle(*rate, &before.keys[0], self.now * 1000 + micros).map(|(reply, moved)| {
                        right(reply)?;
                        before.written(&[moved], after)
                    })
                };
                // Valkey 9 counts microseconds with a clock of its own: one of the thousand has to explain it all.
                (0..1000).map(at).find(|outcome| *outcome == Ok(Ok(()))).unwrap_or_else(|| at(0))
            }
            Verdict::Reset(_) => {
                let counters: Vec<&Found> = before.keys[1..].iter().collect();
                model::reset(&before.keys[0], &counters).map(|removed| {
                    right(Reply::Integer(removed))?;
                    let gone = after.keys.iter().all(|key| key.kind == "none");
                    match gone && after.size == before.size - removed {
                        true => Ok(()),
                        false => Err(format!("not all has gone: {after:?}")),
                    }
                })
            }
        };
        result.unwrap_or_else(|line| {
            right(Reply::Error(line.to_owned()))?;
            before.unchanged(after)
        })
    }

    /// What a call leaves of a log: the entries that are right, and an expiry that does not lag.
    fn logged(
        &self,
        request: &Request,
        before: &Seen,
        entries: &[(f64, i64)],
        logged: &model::Logged,
        after: &Seen,
    ) -> Result<(), String> {
        let Found { kind, expires, .. } = &after.keys[0];
        if kind != logged.kind {
            return Err(format!("{kind} is left, not {}", logged.kind));
        }
        let left = after.keys[0].log();
        if left != Ok(Log::Entries(logged.left.clone())) {
            return Err(format!("{left:?} is left"));
        }
        let is_there = |seen: &Seen| i64::from(seen.keys[0].kind != "none");
        if after.size - is_there(after) != before.size - is_there(before) {
            return Err("there are other keys than before".to_owned());
        }
        if kind == "none" {
            return Ok(());
        }
        let window = request.quotas.last().expect("a quota").window;
        let lag = self.now + 2 * window - expires;
        if !(0..=(window / 10).min(1000)).contains(&lag) {
            return Err(format!("the expiry lags by {lag} ms"));
        }
        // An expiry that is new shows in the digest.
        if entries == logged.left && before.keys[0].expires >= 0 && before.digest != after.digest {
            return Err("a denial changed the log".to_owned());
        }
        Ok(())
    }
}

/// What the server's own commands say before a call, or after it.
#[derive(Debug)]
struct Seen {
    keys: Vec<Found>,
    digest: Reply,
    size: i64,
}

impl Seen {
    fn unchanged(&self, after: &Self) -> Result<(), String> {
        let expiries = |seen: &Self| seen.keys.iter().map(|key| key.expires).collect::<Vec<_>>();
        match expiries(self) == expiries(after) && self.digest == after.digest && self.size == after.size {
            true => Ok(()),
            false => Err(format!("something has changed that should not, now {after:?}")),
        }
    }

    /// Whether just these keys hold these integers now, and the others are as they were.
    fn written(&self, written: &[Option<model::Standing>], after: &Self) -> Result<(), String> {
        if written.iter().all(Option::is_none) {
            return self.unchanged(after);
        }
        for (index, (standing, key)) in written.iter().zip(&after.keys).enumerate() {
            let as_it_should = match standing {
                Some(standing) => (standing.expires, Ok(Some(standing.value))) == (key.expires, key.integer()),
                None => self.keys[index].expires == key.expires,
            };
            if !as_it_should {
                return Err(format!("key {index} is left as {key:?}, not {standing:?}"));
            }
        }
        let created = written.iter().zip(&self.keys).filter(|(standing, key)| standing.is_some() && key.kind == "none");
        match after.size == self.size + created.count() as i64 {
            true => Ok(()),
            false => Err("there are other keys than before".to_owned()),
        }
    }
}

impl Call {
    fn is_sliding(&self) -> bool {
        matches!(&self.verdict, Verdict::Request(request) if request.sliding)
    }

    /// The key that the caller named.
    fn key(&self) -> &Vec<u8> {
        let by_script = self.words[0] == b"EVAL";
        &self.words[if by_script { 4 } else { 1 }]
    }
}

/// Whether a call that was not probed has a reply that its arguments allow.
fn possible(verdict: &Verdict, reply: &Reply) -> Result<(), String> {
    let fits = match verdict {
        Verdict::Uncalled(line) | Verdict::Refused(line) => *reply == Reply::Error(line.clone()),
        Verdict::Request(request) => model::possible(request, reply),
        Verdict::Throttle(rate) => model::possible_throttle(*rate, reply),
        Verdict::Reset(windows) => model::possible_reset(windows.len(), reply),
    };
    if fits { Ok(()) } else { Err(format!("an impossible reply for {verdict:?}")) }
}

/// Fills a log with requests `spacing` ms apart, the oldest at `from`; the server does it by itself.
pub fn fill_log(client: &mut Client, key: &str, from: i64, count: i64, spacing: i64) {
    const SCRIPT: &str = "
        local from, count, spacing = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
        for first = 0, count - 1, 1000 do
            local words = {}
            for index = first, math.min(first + 999, count - 1) do
                local at = string.format('%.0f', from + index * spacing)
                words[#words + 1] = at
                words[#words + 1] = at .. '-' .. index
            end
            redis.call('ZADD', KEYS[1], unpack(words))
        end";
    let numbers = [from, count, spacing].map(|number| number.to_string());
    client.run::<redis::Value>(&["EVAL", SCRIPT, "1", key, &numbers[0], &numbers[1], &numbers[2]]);
}
