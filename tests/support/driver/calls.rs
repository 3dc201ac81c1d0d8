//! The generator of calls. Some are ordinary, some are ordinary calls with mistakes in them, and some have hostile words.
//! The seed determines all of them.

use super::Moment;
use super::seen;
use crate::support::call::{Call as Asked, Quota, Rule};
use crate::support::grammar::{self, Verdict, verdict};
use crate::support::wire::pack;

pub type Words = Vec<Vec<u8>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Sliding,
    Fixed,
    Throttle,
}

/// What the calls of a case have in common.
pub struct Case {
    pub kind: Kind,
    pub key: Vec<u8>,
    /// `windowSec limit ...`
    pub quotas: Words,
    /// `max_burst count period`
    pub rate: Words,
    /// The keys that hold the state.
    pub state: Vec<Vec<u8>>,
}

pub struct Call {
    pub words: Words,
    pub verdict: Verdict,
    /// The keys that hold the state of the call, or could if it were not refused.
    pub state: Vec<Vec<u8>>,
    pub is_checked: bool,
}

pub enum Sent {
    Plant,
    Call(Call),
}

/// Draws what is sent from the seed.
pub struct Generator {
    pub rng: fastrand::Rng,
    pub moment: Moment,
    /// One call in this number is checked exactly.
    pub check_every: u32,
}

impl Generator {
    /// Some hostile state, perhaps, and a few calls on it, packed for the wire.
    pub fn case(&mut self, bytes: &mut Vec<u8>, sent: &mut Vec<Sent>) {
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
            if call.is_checked {
                seen::ask(bytes, &call);
                pack(bytes, &call.words);
                seen::ask(bytes, &call);
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
            key.insert(0, b't'); // Usually a string of its own.
        }
        let quotas = self.quotas();
        let rate = self.rate();
        let windows = quotas.iter().step_by(2).filter_map(|word| grammar::window(word));
        let quota = |window: i64| Quota { window, limit: 0 };
        let counters = Rule::Fixed { quotas: windows.map(quota).collect(), anchored: false, cost: None, force: false };
        let state = match kind {
            Kind::Fixed => counters.places(&key, self.moment.now),
            _ => vec![],
        };
        let state = if state.is_empty() { vec![key.clone()] } else { state };
        Case { kind, key, quotas, rate, state }
    }

    fn call(&mut self, case: &Case) -> Call {
        if self.rng.u32(..4) == 0 {
            return self.loose(case);
        }
        let (name, algorithm) = match (case.kind, self.rng.u32(..24)) {
            (_, 0) => ("RL.RESET", ""),
            (_, 1) => ("RL.PEEK", "FIXED"),
            (_, 2) => ("RL.PEEK", "SLIDING"),
            (Kind::Sliding, 3..8) => ("RL.PEEK", "SLIDING"),
            (Kind::Fixed, 3..8) => ("RL.PEEK", "FIXED"),
            (Kind::Throttle, 3..8) => ("RL.PEEK", "THROTTLE"),
            (Kind::Sliding, _) => ("RL.SLIDING", ""),
            (Kind::Fixed, _) => ("RL.FIXED", ""),
            (Kind::Throttle, _) => ("RL.THROTTLE", ""),
        };
        let mut words = vec![self.any_case(name), case.key.clone()];
        if name == "RL.PEEK" {
            words.push(self.any_case(algorithm));
        }
        match name {
            "RL.RESET" => {
                let most = if self.rng.u32(..4) == 0 { usize::MAX } else { self.rng.usize(..4) };
                words.extend(case.quotas.iter().step_by(2).take(most).cloned());
            }
            _ if name == "RL.THROTTLE" || algorithm == "THROTTLE" => {
                words.extend(case.rate.iter().cloned());
                if self.rng.bool() {
                    words.push(self.quantity());
                }
                match self.rng.u32(..6) {
                    0 | 1 => words.push(self.any_case("FULL")),
                    2 if name == "RL.PEEK" => words.push(self.any_case("EACH")),
                    _ => {}
                }
            }
            _ => {
                words.extend(case.quotas.iter().cloned());
                let is_fixed = name == "RL.FIXED" || algorithm == "FIXED";
                words.extend(self.options(is_fixed));
            }
        }
        if self.rng.u32(..12) == 0 {
            self.mangle(&mut words);
        }
        self.sent(words, case)
    }

    /// A call of these words; some are made by a script, which gets the same reply.
    fn sent(&mut self, mut words: Words, case: &Case) -> Call {
        let verdict = verdict(&words, self.moment.now);
        let state = match &verdict {
            Verdict::Call(call) => call.places(self.moment.now),
            _ => case.state.clone(),
        };
        // Not for counters: Lua's numbers round a planted 2^63-2.
        let is_of_counters = |rule: &Rule| matches!(rule, Rule::Fixed { .. });
        let by_script = match &verdict {
            Verdict::Uncalled(_) => false,
            Verdict::Call(Asked::Take { rule, .. } | Asked::Peek { rule, .. } | Asked::Refund { rule, .. }) => {
                !is_of_counters(rule)
            }
            Verdict::Call(Asked::All { rules, .. }) => !rules.iter().any(is_of_counters),
            _ => true,
        };
        if by_script && self.rng.u32(..16) == 0 {
            words.splice(0..0, ["EVAL", "return redis.pcall(unpack(ARGV))", "0"].map(Into::into));
        }
        Call { words, verdict, state, is_checked: self.rng.u32(..self.check_every) == 0 }
    }

    /// Leases, refunds and several keys, with the words of a case and with others, also where the case is of another kind.
    fn loose(&mut self, case: &Case) -> Call {
        let mut words = Words::new();
        let mut keys = vec![case.key.clone()];
        match self.rng.u32(..8) {
            0..2 => {
                words.extend([self.any_case("RL.ACQUIRE"), case.key.clone()]);
                words.extend(self.lease());
                if self.rng.bool() {
                    words.push(self.any_case("FULL"));
                }
            }
            2 => {
                words.extend([self.any_case("RL.RELEASE"), case.key.clone()]);
                words.extend((0..self.rng.usize(1..12)).map(|_| self.holder()).collect::<Vec<_>>());
            }
            3 => {
                words.extend([self.any_case("RL.PEEK"), case.key.clone(), self.any_case("ACQUIRE")]);
                words.extend(self.lease());
                if self.rng.bool() {
                    let word = ["FULL", "EACH"][self.rng.usize(..2)];
                    words.push(self.any_case(word));
                }
            }
            4 | 5 => {
                words.extend([self.any_case("RL.REFUND"), case.key.clone()]);
                words.extend(self.rule(case));
                if self.rng.bool() {
                    let at = match self.rng.u32(..4) {
                        0 => self.hostile(),
                        _ => (self.moment.now - self.rng.i64(0..3)).to_string().into_bytes(),
                    };
                    words.extend([self.any_case("AT"), at]);
                }
            }
            _ => {
                for _ in 0..self.rng.usize(..4) {
                    let key = self.key();
                    if !keys.contains(&key) || self.rng.u32(..20) == 0 {
                        keys.push(key);
                    }
                }
                let number = if self.rng.u32(..30) == 0 { self.hostile() } else { keys.len().to_string().into_bytes() };
                words.extend([self.any_case("RL.ALL"), number]);
                words.extend(keys.iter().cloned());
                for _ in 0..keys.len() {
                    words.extend(self.rule(case));
                }
                if self.rng.bool() {
                    words.push(self.any_case("FULL"));
                }
            }
        }
        if self.rng.u32(..12) == 0 {
            self.mangle(&mut words);
        }
        self.sent(words, case)
    }

    /// A rule, usually that of a case.
    fn rule(&mut self, case: &Case) -> Words {
        let name = match (case.kind, self.rng.u32(..6)) {
            (_, 0) => "ACQUIRE",
            (_, 1) => "FIXED",
            (_, 2) => "SLIDING",
            (Kind::Sliding, _) => "SLIDING",
            (Kind::Fixed, _) => "FIXED",
            (Kind::Throttle, _) => "THROTTLE",
        };
        let mut words = vec![self.any_case(name)];
        match name {
            "ACQUIRE" => words.extend(self.lease()),
            "THROTTLE" => {
                words.extend(case.rate.iter().cloned());
                if self.rng.bool() {
                    words.push(self.quantity());
                }
            }
            _ => {
                words.extend(case.quotas.iter().cloned());
                if self.rng.bool() {
                    let cost =
                        if self.rng.u32(..8) == 0 { self.hostile() } else { self.rng.u32(1..6).to_string().into() };
                    words.extend([self.any_case("COST"), cost]);
                }
                for option in ["FORCE", "ANCHORED"] {
                    if self.rng.u32(..5) == 0 && (name == "FIXED" || option == "FORCE") {
                        words.push(self.any_case(option));
                    }
                }
            }
        }
        words
    }

    /// `limit leaseSec holder`
    fn lease(&mut self) -> Words {
        let mut words = vec![self.sane_limit(), self.sane_window(), self.holder()];
        if self.rng.u32(..12) == 0 {
            let at = self.rng.usize(..words.len());
            words[at] = self.hostile();
        }
        words
    }

    fn holder(&mut self) -> Vec<u8> {
        match self.rng.u32(..8) {
            0 => self.hostile(),
            1 => self.random_bytes(20),
            _ => self.pick(&[b"a", b"b", b"c", b"\0", b"FULL", b"EACH"]),
        }
    }

    /// Puts mistakes into a call.
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
                    let keyword = [
                        "COST", "FULL", "SLIDING", "FIXED", "COST 2", "FULLY", "EACH", "FORCE", "ANCHORED", "AT",
                        "ACQUIRE",
                    ];
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

    /// `[COST n] [FORCE] [ANCHORED] [FULL | EACH]`, in many orders.
    fn options(&mut self, is_fixed: bool) -> Words {
        let mut words = Words::new();
        if self.rng.u32(..5) < 2 {
            let cost = match self.rng.u32(..100) {
                0..3 => self.rng.u32(1..=3000).to_string().into_bytes(),
                3..6 => self.hostile(),
                6 => {
                    self.pick(&[b"0", b"1000", b"1001", b"9007199254740991", b"9007199254740992", b"-1", b"FULL", b"1"])
                }
                _ => self.rng.u32(1..6).to_string().into_bytes(),
            };
            words.extend([self.any_case("COST"), cost]);
        }
        let report = if self.rng.u32(..3) == 0 { "EACH" } else { "FULL" };
        let anchored = if is_fixed { 12 } else { 1 };
        for (option, times) in [(report, 24), ("FORCE", 12), ("ANCHORED", anchored)] {
            if self.rng.u32(..60) < times {
                let at = if self.rng.bool() { 0 } else { words.len() };
                words.insert(at, self.any_case(option));
            }
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
    pub fn hostile(&mut self) -> Vec<u8> {
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

    pub fn random_bytes(&mut self, most: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..self.rng.usize(..most)).map(|_| self.rng.u8(..)).collect();
        // Windows that end at a given time have tests of their own; the model does not know them.
        if let [b'@', digit, ..] = bytes.as_mut_slice() {
            *digit |= 0x80;
        }
        bytes
    }

    pub fn pick(&mut self, from: &[&[u8]]) -> Vec<u8> {
        from[self.rng.usize(..from.len())].to_vec()
    }
}

impl Call {
    /// Whether a script makes the call.
    pub fn is_by_script(&self) -> bool {
        self.words[0] == b"EVAL"
    }
}
