//! Draws calls and steps of the clock, so that limits are reached, exceeded, refunded and expire all the time. Writes a
//! call as words.

use fastrand::Rng;

use super::call::{Call, Hold, Quota, Report, Rule, seconds};

/// Which kinds of rules are drawn.
#[derive(Debug, Clone, Copy)]
pub struct Kinds {
    /// Whether the clock sometimes goes back. The contract leaves open what counters of later windows mean then.
    pub steps_back: bool,
    pub throttle: bool,
    /// Whether requests are held, and settled.
    pub holds: bool,
}

/// A key that holds something else.
pub const OTHER: &[u8] = b"w0";
/// A key with thousands of units.
const HEAVY: &[u8] = b"h0";
/// A key that is used with windows of all lengths.
const MIXED: &[u8] = b"m0";

pub struct Draw {
    pub rng: Rng,
    pub kinds: Kinds,
    /// Times in replies.
    told: Vec<i64>,
    /// When the last calls were made.
    made: Vec<i64>,
    now: i64,
    /// The number of the newest holder.
    holders: i64,
}

impl Draw {
    pub fn new(rng: Rng, kinds: Kinds) -> Self {
        Self { rng, kinds, told: Vec::new(), made: Vec::new(), now: 0, holders: 0 }
    }

    /// Remembers the times in a reply.
    pub fn hear(&mut self, waits: &[i64], now: i64) {
        self.told.extend(waits.iter().filter(|&&wait| wait > 0).map(|wait| now + wait));
        self.made.push(now);
        if self.made.len() > 12 {
            self.made.remove(0);
        }
    }

    /// When the next call is made.
    pub fn step(&mut self, now: i64) -> i64 {
        self.now = self.next(now);
        self.now
    }

    fn next(&mut self, now: i64) -> i64 {
        self.told.retain(|&time| time > now && time < now + 5_000);
        let far = self.told.len().saturating_sub(40);
        self.told.drain(..far);
        match self.rng.u32(..20) {
            0..7 => now,
            7..9 => now + 1,
            9..12 => now + self.rng.i64(1..20),
            12..14 => now + self.rng.i64(1..150),
            14 => now + self.rng.i64(100..2_500),
            15 if self.kinds.steps_back && self.rng.u32(..3) == 0 => {
                now - [1, self.rng.i64(1..100), self.rng.i64(1..1_500), 20_000][self.rng.usize(..4)]
            }
            _ if self.told.is_empty() => now + 1,
            // Exactly at one of these times, or a millisecond before.
            _ => self.told[self.rng.usize(..self.told.len())] - i64::from(self.rng.u32(..3) == 0),
        }
    }

    pub fn call(&mut self) -> Call {
        let key = self.key();
        let report = [Report::Short, Report::Full, Report::Each][self.rng.usize(..3)];
        match self.rng.u32(..40) {
            0..16 => {
                let rule = self.rule(&key);
                // EACH belongs to rules of several windows.
                let report = match rule {
                    Rule::Throttle { .. } | Rule::Acquire { .. } if report == Report::Each => Report::Full,
                    _ => report,
                };
                Call::Take { key, rule, report }
            }
            16..22 => {
                let mut rule = self.rule(&key);
                if let Rule::Sliding { cost, hold: None, .. } | Rule::Fixed { cost, hold: None, .. } = &mut rule
                    && self.rng.bool()
                {
                    *cost = Some(0);
                }
                Call::Peek { key, rule, report }
            }
            22..27 => {
                let mut key = key;
                while key.starts_with(b"l") {
                    key = self.key();
                }
                let mut rule = self.rule(&key).at_once();
                let longest = Self::windows(&key).last().copied();
                if rule.hold().is_some() {
                    let actual = [0, rule.cost(), self.rng.i64(0..9)][self.rng.usize(..3)];
                    return Call::Settle { key, rule, actual };
                }
                match &mut rule {
                    // With the same windows.
                    Rule::Sliding { quotas, .. } if key == MIXED => {
                        *quotas = vec![Quota::of(longest.expect("a window"), 9)];
                    }
                    Rule::Acquire { .. } => return self.call(),
                    _ => {}
                }
                let at = match self.rng.u32(..3) {
                    0 if !self.made.is_empty() => Some(self.made[self.rng.usize(..self.made.len())]),
                    _ => None,
                };
                Call::Refund { key, rule, at }
            }
            27..29 => {
                let key = format!("l{}", self.rng.u32(..2)).into_bytes();
                let holders = (0..self.rng.u32(1..4)).map(|_| self.holder()).collect();
                Call::Release { key, holders }
            }
            29..39 => {
                let mut keys: Vec<Vec<u8>> = (0..self.rng.usize(1..6)).map(|_| self.key()).collect();
                keys.sort();
                keys.dedup();
                self.rng.shuffle(&mut keys);
                let mut rules: Vec<Rule> = keys.iter().map(|key| self.rule(key).at_once()).collect();
                for rule in &mut rules {
                    if let Rule::Sliding { cost, hold: None, .. } | Rule::Fixed { cost, hold: None, .. } = rule
                        && self.rng.u32(..8) == 0
                    {
                        *cost = Some(0); // A check.
                    }
                }
                let within = match self.rng.u32(..3) {
                    0 => self.within(),
                    _ => None,
                };
                if within.is_some() {
                    self.make_wait(&mut keys, &mut rules);
                }
                Call::All { keys, rules, within, full: self.rng.bool() }
            }
            _ => {
                let windows = match key.starts_with(b"f") {
                    true => self.some_windows(&key),
                    false => Vec::new(),
                };
                let holds = self.kinds.holds && self.rng.bool();
                Call::Reset { key, windows, ends: Vec::new(), holds }
            }
        }
    }

    fn key(&mut self) -> Vec<u8> {
        loop {
            let key = match self.rng.u32(..100) {
                0 => OTHER,
                1..16 => b"s0",
                16..28 => b"s1",
                28..38 => MIXED,
                38..46 => HEAVY,
                46..58 => b"f0",
                58..68 => b"f1",
                68..80 => b"t0",
                80..92 => b"l0",
                _ => b"l1",
            };
            if self.kinds.throttle || !key.starts_with(b"t") {
                return key.to_vec();
            }
        }
    }

    pub fn longest(key: &[u8]) -> i64 {
        *Self::windows(key).last().expect("a window")
    }

    fn windows(key: &[u8]) -> &'static [i64] {
        match key {
            b"s0" => &[20, 75, 200],
            HEAVY => &[100, 500],
            _ => &[50, 200, 1000],
        }
    }

    /// Some of a key's windows. Except at one key, a log is always used with the longest of them.
    fn some_windows(&mut self, key: &[u8]) -> Vec<i64> {
        let windows = Self::windows(key);
        let any_longest = key.starts_with(b"f") || key == MIXED;
        let last = if any_longest { self.rng.usize(..windows.len()) } else { windows.len() - 1 };
        let mut chosen: Vec<i64> = windows[..last].iter().copied().filter(|_| self.rng.u32(..3) == 0).collect();
        chosen.push(windows[last]);
        chosen
    }

    fn quotas(&mut self, key: &[u8]) -> Vec<Quota> {
        let limit = |rng: &mut Rng| match (key == HEAVY, rng.u32(..30)) {
            (_, 0) => 0,
            (true, _) => rng.i64(1_000..6_000),
            (false, _) => rng.i64(1..9),
        };
        self.some_windows(key).into_iter().map(|window| Quota::of(window, limit(&mut self.rng))).collect()
    }

    fn rule(&mut self, key: &[u8]) -> Rule {
        let kind = if key == OTHER { b"sftl"[self.rng.usize(..4)] } else { key[0] };
        let force = self.rng.u32(..7) == 0;
        let cost = match self.rng.u32(..8) {
            _ if key == HEAVY => Some(self.rng.i64(300..3_000)),
            0..3 => None,
            3 => Some(1),
            4 => Some(self.rng.i64(1..12)),
            _ => Some(self.rng.i64(1..4)),
        };
        match kind {
            b'f' => {
                // If the clock goes back, the contract is definite only about ANCHORED.
                let ends = self.kinds.holds && self.rng.u32(..4) == 0;
                let anchored = !ends && (self.kinds.steps_back || self.rng.bool());
                let mut quotas = self.quotas(key);
                if ends {
                    let end = (self.now.div_euclid(1_000) + self.rng.i64(1..3)) * 1_000;
                    quotas[0] = Quota::until(end, quotas[0].limit);
                    quotas.truncate(1);
                }
                let (hold, cost) = self.hold(key, cost);
                Rule::Fixed { quotas, anchored, cost, force, hold }
            }
            b't' => {
                let (burst, count, period) = [(4, 10, 1), (4, 10, 1), (2, 3, 1), (0, 7, 1)][self.rng.usize(..4)];
                let quantity = if self.rng.bool() { None } else { Some(self.rng.i64(0..7)) };
                Rule::Throttle { burst, count, period, quantity, within: self.within() }
            }
            b'l' => {
                let lease = [50, 200, 1000][self.rng.usize(..3)];
                Rule::Acquire { limit: self.rng.i64(0..4), lease, holder: self.holder() }
            }
            _ => {
                let (hold, cost) = self.hold(key, cost);
                let within = self.within().filter(|_| hold.is_none() && !force);
                Rule::Sliding { quotas: self.quotas(key), cost, force, hold, within }
            }
        }
    }

    /// Perhaps for how long a request may wait.
    fn within(&mut self) -> Option<i64> {
        match self.rng.u32(..3) {
            0 => Some([0, 5, 60, 400, 3_600_000][self.rng.usize(..5)]),
            _ => None,
        }
    }

    /// Makes these rules such that they may wait together.
    fn make_wait(&mut self, keys: &mut Vec<Vec<u8>>, rules: &mut Vec<Rule>) {
        let waits = |rule: &Rule| matches!(rule, Rule::Sliding { .. });
        let kept: Vec<bool> = rules.iter().map(waits).collect();
        let mut index = 0..;
        keys.retain(|_| kept[index.next().expect("a number")]);
        rules.retain(waits);
        if rules.is_empty() {
            keys.push(b"s0".to_vec());
            rules.push(Rule::Sliding {
                quotas: self.quotas(b"s0"),
                cost: None,
                force: false,
                hold: None,
                within: None,
            });
        }
        for rule in rules {
            if let Rule::Sliding { force, hold, .. } = rule {
                (*force, *hold) = (false, None);
            }
        }
    }

    /// Perhaps a holder, one of the last few, so that calls are sent again, ended holds counted anew and settlements too late. A holder
    /// nearly always has one cost. Two each have one hash.
    fn hold(&mut self, key: &[u8], cost: Option<i64>) -> (Option<Hold>, Option<i64>) {
        if !self.kinds.holds || key == MIXED || self.rng.u32(..3) == 0 {
            return (None, cost);
        }
        self.holders += i64::from(self.rng.u32(..4) == 0);
        let number = (self.holders - self.rng.i64(0..5)).max(0);
        let own = if key == HEAVY { 300 + 150 * (number % 6) } else { 1 + number % 3 };
        let holder = format!("{}{}", ["Aa", "BB"][number as usize % 2], number / 2).into_bytes();
        let lease = [20, 50, 200, 1_000, 70_000][self.rng.usize(..5)];
        (Some(Hold { holder, lease }), if self.rng.u32(..12) == 0 { cost } else { Some(own) })
    }

    fn holder(&mut self) -> Vec<u8> {
        vec![self.rng.u8(b'a'..=b'e')]
    }
}

/// Words for the wire.
type Words = Vec<Vec<u8>>;

fn word(word: impl ToString) -> Vec<u8> {
    word.to_string().into_bytes()
}

impl Rule {
    /// For a request that does not wait, or not by itself.
    fn at_once(mut self) -> Self {
        if let Self::Sliding { within, .. } | Self::Throttle { within, .. } = &mut self {
            *within = None;
        }
        self
    }

    /// The words behind the name. Options come in any order.
    fn words(&self, rng: &mut Rng) -> Words {
        let mut options: Vec<Words> = Vec::new();
        let mut words = match self {
            Self::Sliding { quotas, cost, force, hold, .. } | Self::Fixed { quotas, cost, force, hold, .. } => {
                options.extend(self.within().map(|within| vec![word("WITHIN"), word(within)]));
                options.extend(cost.map(|cost| vec![word("COST"), word(cost)]));
                options.extend(force.then(|| vec![word("FORCE")]));
                options.extend(self.is_anchored().then(|| vec![word("ANCHORED")]));
                options
                    .extend(hold.iter().map(|hold| vec![word("HOLD"), hold.holder.clone(), word(seconds(hold.lease))]));
                let window = |quota: &Quota| quota.end.map_or_else(|| seconds(quota.window), |end| format!("@{end}"));
                quotas.iter().flat_map(|quota| [word(window(quota)), word(quota.limit)]).collect()
            }
            Self::Throttle { burst, count, period, quantity, within } => {
                options.extend(within.map(|within| vec![word("WITHIN"), word(within)]));
                [Some(*burst), Some(*count), Some(*period), *quantity].into_iter().flatten().map(word).collect()
            }
            Self::Acquire { limit, lease, holder } => vec![word(limit), word(seconds(*lease)), holder.clone()],
        };
        rng.shuffle(&mut options);
        words.extend(options.into_iter().flatten());
        words
    }
}

impl Call {
    pub fn words(&self, rng: &mut Rng) -> Words {
        let mut words = match self {
            Self::Take { key, rule, .. } => vec![word(format!("RL.{}", rule.name())), key.clone()],
            Self::Peek { key, rule, .. } => vec![word("RL.PEEK"), key.clone(), word(rule.name())],
            Self::Refund { key, rule, .. } => vec![word("RL.REFUND"), key.clone(), word(rule.name())],
            Self::Settle { key, rule, .. } => vec![word("RL.SETTLE"), key.clone(), word(rule.name())],
            Self::Release { key, .. } => vec![word("RL.RELEASE"), key.clone()],
            Self::All { keys, .. } => [&[word("RL.ALL"), word(keys.len())], &keys[..]].concat(),
            Self::Reset { key, .. } => vec![word("RL.RESET"), key.clone()],
        };
        match self {
            Self::Take { rule, report, .. } | Self::Peek { rule, report, .. } => {
                words.extend(rule.words(rng));
                words.extend(match report {
                    Report::Short => None,
                    Report::Full => Some(word("FULL")),
                    Report::Each => Some(word("EACH")),
                });
            }
            Self::Refund { rule, at, .. } => {
                words.extend(rule.words(rng));
                words.extend(at.iter().flat_map(|at| [word("AT"), word(at)]));
            }
            Self::Settle { rule, actual, .. } => {
                words.extend(rule.words(rng));
                words.extend([word("ACTUAL"), word(actual)]);
            }
            Self::Release { holders, .. } => words.extend(holders.iter().cloned()),
            Self::All { rules, within, full, .. } => {
                for rule in rules {
                    words.push(word(rule.name()));
                    words.extend(rule.words(rng));
                }
                words.extend(within.iter().flat_map(|within| [word("WITHIN"), word(within)]));
                words.extend(full.then(|| word("FULL")));
            }
            Self::Reset { windows, ends, holds, .. } => {
                words.extend(windows.iter().map(|&window| word(seconds(window))));
                words.extend(ends.iter().map(|end| word(format!("@{end}"))));
                words.extend(holds.then(|| word("HOLD")));
            }
        }
        // Keywords are taken in any case. No other words here are in capitals.
        if rng.u32(..4) == 0 {
            let is_keyword = |word: &&mut Vec<u8>| word.iter().all(|&byte| byte.is_ascii_uppercase() || byte == b'.');
            words.iter_mut().filter(is_keyword).for_each(|word| word.make_ascii_lowercase());
        }
        words
    }
}
