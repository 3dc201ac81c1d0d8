//! The contract a third time, as a keyspace of limits in plain collections: what each call must reply, and what it leaves.
//!
//! Nothing here is quick or clever. A limit is anything of which a number of units are *used* at a given time. A call is decided
//! by looking at what is used now, it is carried out on a copy of everything, and each wait is found by trying, in their
//! order, all the times at which something can change, on that copy.

mod call;
pub mod draw;

use std::collections::{BTreeMap, BTreeSet};

pub use call::{Call, Quota, Report, Rule, seconds};
use redis::Value;

/// What a key holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stored {
    /// Stamps, and the units that bear them. The key expires somewhere between two times.
    Log {
        entries: Vec<(i64, i64)>,
        expires: (i64, i64),
    },
    Counter {
        value: i64,
        expires: i64,
    },
    /// The theoretical arrival time in nanoseconds.
    Arrival(i128),
    /// Holders, and when their leases end.
    Leases(BTreeMap<String, i64>),
    /// Of a type that no rule takes.
    Other,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Integer(i64),
    Array(Vec<Reply>),
    Map(Vec<(&'static str, i64)>),
    Error(String),
    /// An integer, of which the contract says this much.
    Within(i64, i64),
}

pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
pub const HEAVY: &str = "ERR COST above 1000 needs a compact log: a sorted set takes one member a unit \
    (rl.sliding-storage auto or compact; RL.RESET a key that is a sorted set)";

#[derive(Debug, Clone, Default)]
pub struct Space {
    pub keys: BTreeMap<String, Stored>,
    /// Whether new logs are sorted sets even where the call has a cost.
    pub only_sorted_sets: bool,
}

/// Longer than any other wait.
const NEVER: i64 = i64::MAX;

/// One window of a rule, decided.
#[derive(Debug, Clone, Copy)]
struct Verdict {
    quota: Quota,
    fits: bool,
    /// Units before the call, and after it.
    before: i64,
    used: i64,
    /// 0 if it fits; until it fits in this window.
    wait: i64,
    next: i64,
    reset: i64,
}

/// A rule, decided.
struct Decision {
    allowed: bool,
    windows: Vec<Verdict>,
    binding: usize,
    /// Until the call fits in every window.
    wait: i64,
}

impl Rule {
    /// The windows with their limits. A throttle has one, in which the empty bucket fills; leases have one, a lease long.
    pub fn quotas(&self) -> Vec<Quota> {
        match self {
            Self::Sliding { quotas, .. } | Self::Fixed { quotas, .. } => quotas.clone(),
            Self::Throttle { burst, .. } => {
                let nanos = self.interval() * i128::from(burst + 1);
                vec![Quota { window: up(nanos, 1_000_000), limit: burst + 1 }]
            }
            Self::Acquire { limit, lease, .. } => vec![Quota { window: *lease, limit: *limit }],
        }
    }

    /// Units that are taken.
    fn cost(&self) -> i64 {
        match self {
            Self::Sliding { cost, .. } | Self::Fixed { cost, .. } => cost.unwrap_or(1),
            Self::Throttle { quantity, .. } => quantity.unwrap_or(1),
            Self::Acquire { .. } => 1,
        }
    }

    /// Units that have to be free. COST 0 asks for one.
    fn needed(&self) -> i64 {
        match self {
            Self::Throttle { .. } => self.cost(),
            _ => self.cost().max(1),
        }
    }

    pub fn force(&self) -> bool {
        matches!(self, Self::Sliding { force: true, .. } | Self::Fixed { force: true, .. })
    }

    /// Nanoseconds from one unit of a throttle to the next.
    fn interval(&self) -> i128 {
        match self {
            // Rounded up: never more than count a period.
            Self::Throttle { count, period, .. } => {
                (i128::from(*period) * 1_000_000_000 + i128::from(*count) - 1) / i128::from(*count)
            }
            _ => 1,
        }
    }

    /// Whether denials count as well.
    fn counts_denials(&self) -> bool {
        matches!(self, Self::Fixed { quotas, .. } if quotas.len() == 1 && self.cost() == 1)
    }

    /// The keys that hold the rule's state, one a window.
    fn places(&self, key: &str, at: i64) -> Vec<String> {
        match self {
            Self::Fixed { quotas, anchored: true, .. } => {
                quotas.iter().map(|quota| format!("{key}:{}s", seconds(quota.window))).collect()
            }
            Self::Fixed { quotas, .. } => {
                quotas.iter().map(|quota| format!("{key}:{}", at.div_euclid(quota.window))).collect()
            }
            _ => vec![key.to_owned()],
        }
    }
}

/// Rounds up a division.
fn up(dividend: i128, divisor: i128) -> i64 {
    i64::try_from((dividend + divisor - 1).div_euclid(divisor)).expect("no such number comes up here")
}

fn up_to_seconds(millis: i64) -> i64 {
    up(millis.into(), 1000)
}

/// As TTL rounds.
fn nearest_seconds(millis: i64) -> i64 {
    (millis + 500) / 1000
}

/// Whether an entry counts in a window at a time. What a stepped clock has left further ahead does not count yet.
fn counts(stamp: i64, window: i64, at: i64) -> bool {
    stamp > at - window && stamp <= at + window
}

impl Space {
    /// What a call replies. The space is then as the call leaves it.
    pub fn answer(&mut self, call: &Call, now: i64) -> Reply {
        self.drop_expired(&Self::places(call, now), now);
        if let Err(line) = self.readable(call, now) {
            return Reply::Error(line);
        }
        match call {
            Call::Take { key, rule, report } => {
                let (decision, after) = self.decide(key, rule, now, Settle::ByRule);
                let reply = after.report(key, rule, &decision, *report, now);
                *self = after;
                reply
            }
            Call::Peek { key, rule, report } => {
                let (decision, after) = self.decide(key, rule, now, Settle::ByRule);
                after.report(key, rule, &decision, *report, now)
            }
            Call::Refund { key, rule, at } => self.refund(key, rule, *at, now),
            Call::Release { key, holders } => self.release(key, holders, now),
            Call::All { keys, rules, full } => self.all(keys, rules, *full, now),
            Call::Reset { key, windows } => self.reset(key, windows, now),
        }
    }

    /// The keys that a call looks at.
    pub fn places(call: &Call, now: i64) -> Vec<String> {
        match call {
            Call::Take { key, rule, .. } | Call::Peek { key, rule, .. } | Call::Refund { key, rule, .. } => {
                rule.places(key, now)
            }
            Call::Release { key, .. } => vec![key.clone()],
            Call::All { keys, rules, .. } => {
                keys.iter().zip(rules).flat_map(|(key, rule)| rule.places(key, now)).collect()
            }
            Call::Reset { key, windows } => {
                let quotas: Vec<Quota> = windows.iter().map(|&window| Quota { window, limit: 0 }).collect();
                let of = |anchored| {
                    Rule::Fixed { quotas: quotas.clone(), anchored, cost: None, force: false }.places(key, now)
                };
                [vec![key.clone()], of(false), of(true)].concat()
            }
        }
    }

    /// Whether nobody can say if a key of the call still lives: the contract leaves the expiry of a log a little room.
    pub fn is_doubtful(&self, call: &Call, now: i64) -> bool {
        Self::places(call, now).iter().any(|place| match self.keys.get(place) {
            Some(Stored::Log { expires: (least, most), .. }) => (*least..=*most).contains(&now),
            _ => false,
        })
    }

    /// Drops what has expired of some keys. As in a server an expired key goes when it is looked at: where the clock goes
    /// back before, it lives on.
    pub fn drop_expired(&mut self, places: &[String], now: i64) {
        let lives = |stored: &Stored| match stored {
            Stored::Log { expires: (_, most), .. } => now <= *most,
            Stored::Counter { expires, .. } => now <= *expires,
            Stored::Leases(leases) => leases.values().any(|&end| now <= end),
            Stored::Arrival(arrival) => now <= up(*arrival, 1_000_000),
            Stored::Other => true,
        };
        self.keys.retain(|key, stored| lives(stored) || !places.contains(key));
    }

    /// The error of a call that cannot be answered.
    fn readable(&self, call: &Call, now: i64) -> Result<(), String> {
        let of_another_type = |place: &String| self.keys.get(place) == Some(&Stored::Other);
        let parts: Vec<(&String, &Rule)> = match call {
            Call::Take { key, rule, .. } | Call::Peek { key, rule, .. } | Call::Refund { key, rule, .. } => {
                vec![(key, rule)]
            }
            Call::All { keys, rules, .. } => keys.iter().zip(rules).collect(),
            Call::Release { .. } | Call::Reset { .. } => Vec::new(),
        };
        if Self::places(call, now).iter().any(of_another_type) {
            return Err(WRONG_TYPE.to_owned());
        }
        for (key, rule) in parts {
            // Such a cost is drawn only for keys whose every call has a cost.
            let is_heavy = matches!(rule, Rule::Sliding { .. }) && rule.cost() > 1000;
            let has_a_set = !matches!(call, Call::Refund { .. }) || self.keys.contains_key(key);
            if is_heavy && self.only_sorted_sets && has_a_set {
                return Err(HEAVY.to_owned());
            }
        }
        Ok(())
    }

    /// Units used in a window of a rule at a time from now on, if nothing else happens.
    fn used(&self, key: &str, rule: &Rule, index: usize, at: i64) -> i64 {
        // A log, a throttle and leases lie at one key, whatever the windows.
        let places = rule.places(key, at);
        let Some(stored) = self.keys.get(places.get(index).unwrap_or(&places[0])) else { return 0 };
        let window = rule.quotas()[index].window;
        match (rule, stored) {
            (Rule::Sliding { quotas, .. }, Stored::Log { entries, .. }) => {
                let longest = quotas.last().expect("a window").window;
                let inside = |stamp: i64| counts(stamp, window, at) && counts(stamp, longest, at);
                entries.iter().filter(|(stamp, _)| inside(*stamp)).map(|(_, units)| units).sum()
            }
            // The server keeps a key through the millisecond of its expiry. An anchored window is over by then.
            (Rule::Fixed { anchored, .. }, Stored::Counter { value, expires }) => {
                let is_over = if *anchored { at >= *expires } else { at > *expires };
                if is_over { 0 } else { *value }
            }
            (Rule::Throttle { .. }, Stored::Arrival(arrival)) => {
                let debt = arrival - i128::from(at) * 1_000_000;
                up(debt.max(0), rule.interval())
            }
            (Rule::Acquire { .. }, Stored::Leases(leases)) => leases.values().filter(|&&end| end > at).count() as i64,
            _ => panic!("{rule:?} on {stored:?}: nobody draws this"),
        }
    }

    /// All times after now at which what a rule uses can change by itself, in their order.
    fn changes(&self, key: &str, rule: &Rule, now: i64) -> BTreeSet<i64> {
        let quotas = rule.quotas();
        let mut times = BTreeSet::new();
        for (place, quota) in rule.places(key, now).iter().zip(&quotas) {
            // The next window of a fixed counter.
            times.insert((now.div_euclid(quota.window) + 1) * quota.window);
            match self.keys.get(place) {
                Some(Stored::Log { entries, .. }) => {
                    for (stamp, _) in entries {
                        for quota in &quotas {
                            times.extend([stamp + quota.window, stamp - quota.window]);
                        }
                    }
                }
                Some(Stored::Counter { expires, .. }) => times.extend([*expires, expires + 1]),
                Some(Stored::Arrival(arrival)) => {
                    let interval = rule.interval();
                    let debt = (arrival - i128::from(now) * 1_000_000).max(0);
                    let full_again = |units: i64| up(arrival - i128::from(units) * interval, 1_000_000);
                    times.extend((0..=up(debt, interval)).map(full_again));
                }
                Some(Stored::Leases(leases)) => times.extend(leases.values()),
                Some(Stored::Other) | None => {}
            }
        }
        times.retain(|&time| time > now);
        times
    }

    /// How long it takes until something holds.
    fn wait(&self, key: &str, rule: &Rule, now: i64, holds: impl Fn(i64) -> bool) -> i64 {
        let times = self.changes(key, rule, now);
        std::iter::once(now).chain(times).find(|&time| holds(time)).map_or(NEVER, |time| time - now)
    }

    /// Decides on a rule, and gives the space that the call leaves.
    fn decide(&self, key: &str, rule: &Rule, now: i64, settle: Settle) -> (Decision, Self) {
        let quotas = rule.quotas();
        let is_renewal = match (rule, self.keys.get(key)) {
            (Rule::Acquire { holder, .. }, Some(Stored::Leases(leases))) => {
                leases.get(holder).is_some_and(|&end| end > now)
            }
            _ => false,
        };
        let always_fits = is_renewal;
        let fits_at = |space: &Self, index: usize, at: i64| {
            always_fits || space.used(key, rule, index, at) + rule.needed() <= quotas[index].limit
        };
        let fits: Vec<bool> = (0..quotas.len()).map(|index| fits_at(self, index, now)).collect();
        let allowed = fits.iter().all(|&fits| fits);
        let is_counted = match settle {
            Settle::ByRule => rule.cost() > 0 && (allowed || rule.force() || rule.counts_denials()),
            Settle::Counted => rule.cost() > 0,
            Settle::Untouched => false,
        };
        let mut after = self.clone();
        after.prune(key, rule, now);
        if is_counted {
            after.count(key, rule, now);
        }
        let never = |index: usize| rule.needed() > quotas[index].limit && !always_fits;
        let windows: Vec<Verdict> = (0..quotas.len())
            .map(|index| {
                let limit = quotas[index].limit;
                let used = |at: i64| after.used(key, rule, index, at);
                let free = |at: i64| (limit - used(at)).max(0);
                let wait = match fits[index] {
                    true => 0,
                    false if never(index) => NEVER,
                    false => after.wait(key, rule, now, |at| fits_at(&after, index, at)),
                };
                let next = match used(now) {
                    0 => 0,
                    _ => after.wait(key, rule, now, |at| free(at) > free(now)),
                };
                let reset = after.wait(key, rule, now, |at| used(at) == 0);
                let before = self.used(key, rule, index, now);
                Verdict { quota: quotas[index], fits: fits[index], before, used: used(now), wait, next, reset }
            })
            .collect();
        let wait = match allowed {
            true => 0,
            false if (0..quotas.len()).any(never) => NEVER,
            false => after.wait(key, rule, now, |at| (0..quotas.len()).all(|index| fits_at(&after, index, at))),
        };
        // Of those that deny the one with the longest wait; of equals, and if none denies, the one with the least room.
        let rank = |verdict: &Verdict| {
            (verdict.fits, std::cmp::Reverse(verdict.wait), verdict.quota.limit - verdict.used, verdict.quota.window)
        };
        let binding = (0..windows.len()).min_by_key(|&index| rank(&windows[index])).expect("a window");
        let left = if settle == Settle::Untouched { self.clone() } else { after };
        (Decision { allowed, windows, binding, wait }, left)
    }

    /// Drops what is over, as a call that is not refused does.
    fn prune(&mut self, key: &str, rule: &Rule, now: i64) {
        let place = &rule.places(key, now)[0];
        let is_left = match (rule, self.keys.get_mut(place)) {
            (Rule::Sliding { quotas, .. }, Some(Stored::Log { entries, expires })) => {
                let longest = quotas.last().expect("a window").window;
                entries.retain(|(stamp, _)| counts(*stamp, longest, now));
                *expires = (now + 2 * longest - (longest / 10).min(1000), now + 2 * longest);
                !entries.is_empty()
            }
            (Rule::Acquire { .. }, Some(Stored::Leases(leases))) => {
                leases.retain(|_, end| *end > now);
                !leases.is_empty()
            }
            _ => true,
        };
        if !is_left {
            self.keys.remove(place);
        }
    }

    /// Counts a call.
    fn count(&mut self, key: &str, rule: &Rule, now: i64) {
        let places = rule.places(key, now);
        match rule {
            Rule::Sliding { quotas, .. } => {
                let longest = quotas.last().expect("a window").window;
                let expires = (now + 2 * longest - (longest / 10).min(1000), now + 2 * longest);
                let log = Stored::Log { entries: Vec::new(), expires };
                let stored = self.keys.entry(places[0].clone()).or_insert(log);
                let Stored::Log { entries, .. } = stored else { panic!("{stored:?} is no log") };
                entries.push((now, rule.cost()));
            }
            Rule::Fixed { quotas, .. } => {
                for (index, quota) in quotas.iter().enumerate() {
                    let value = self.used(key, rule, index, now);
                    let expires = match self.keys.get(&places[index]) {
                        Some(Stored::Counter { expires, .. }) if value != 0 => *expires,
                        _ => now + quota.window,
                    };
                    self.keys.insert(places[index].clone(), Stored::Counter { value: value + rule.cost(), expires });
                }
            }
            Rule::Throttle { .. } => {
                let now = i128::from(now) * 1_000_000;
                let arrival = match self.keys.get(key) {
                    Some(Stored::Arrival(arrival)) => now.max(*arrival),
                    _ => now,
                };
                let taken = rule.interval() * i128::from(rule.cost());
                self.keys.insert(key.to_owned(), Stored::Arrival(arrival + taken));
            }
            Rule::Acquire { lease, holder, .. } => {
                let stored = self.keys.entry(key.to_owned()).or_insert(Stored::Leases(BTreeMap::new()));
                let Stored::Leases(leases) = stored else { panic!("{stored:?} are no leases") };
                leases.insert(holder.clone(), now + lease);
            }
        }
    }

    /// The seconds that the reply of a counter ends with.
    fn life(&self, key: &str, rule: &Rule, index: usize, now: i64) -> i64 {
        let window = rule.quotas()[index].window;
        let is_anchored = matches!(rule, Rule::Fixed { anchored: true, .. });
        nearest_seconds(match self.keys.get(&rule.places(key, now)[index]) {
            Some(Stored::Counter { expires, .. }) if !is_anchored || *expires > now => expires - now,
            _ => window,
        })
    }

    /// The reply of a call that was decided, on the space that it leaves.
    fn report(&self, key: &str, rule: &Rule, decision: &Decision, report: Report, now: i64) -> Reply {
        let Decision { allowed, ref windows, binding, wait } = *decision;
        let bound = windows[binding];
        match report {
            Report::Full => Self::map(&bound, allowed, wait, now),
            Report::Each => {
                Reply::Array(windows.iter().map(|window| Self::map(window, window.fits, window.wait, now)).collect())
            }
            Report::Short => {
                let integers = match rule {
                    Rule::Sliding { .. } => vec![i64::from(allowed), bound.before, up_to_seconds(bound.quota.window)],
                    Rule::Fixed { .. } => vec![i64::from(allowed), bound.used, self.life(key, rule, binding, now)],
                    Rule::Acquire { .. } => vec![i64::from(allowed), bound.used, up_to_seconds(bound.quota.window)],
                    Rule::Throttle { .. } => {
                        let remaining = (bound.quota.limit - bound.used).max(0);
                        let retry = if allowed || wait == NEVER { -1 } else { up_to_seconds(wait) };
                        let limited = i64::from(!allowed);
                        vec![limited, bound.quota.limit, remaining, retry, up_to_seconds(bound.reset)]
                    }
                };
                Reply::Array(integers.into_iter().map(Reply::Integer).collect())
            }
        }
    }

    fn map(verdict: &Verdict, allowed: bool, wait: i64, now: i64) -> Reply {
        let or_never = |wait: i64| if wait == NEVER { -1 } else { wait };
        Reply::Map(vec![
            ("allowed", i64::from(allowed)),
            ("limit", verdict.quota.limit),
            ("used", verdict.used),
            ("remaining", (verdict.quota.limit - verdict.used).max(0)),
            ("retry-after-ms", or_never(wait)),
            ("next-after-ms", or_never(verdict.next)),
            ("reset-after-ms", or_never(verdict.reset)),
            ("window-ms", verdict.quota.window),
            ("at-ms", now),
        ])
    }

    fn refund(&mut self, key: &str, rule: &Rule, at: Option<i64>, now: i64) -> Reply {
        let quotas = rule.quotas();
        let integers = match rule {
            Rule::Sliding { .. } => {
                let longest = quotas.last().expect("a window").window;
                let mut refunded = 0;
                if let Some(Stored::Log { entries, expires }) = self.keys.get_mut(key) {
                    // A unit at a time, the newest first.
                    entries.sort_unstable();
                    while refunded < rule.cost() {
                        let fits = |stamp: i64| counts(stamp, longest, now) && at.is_none_or(|at| at == stamp);
                        let newest = entries.iter_mut().rev().find(|(stamp, units)| *units > 0 && fits(*stamp));
                        let Some((_, units)) = newest else { break };
                        let taken = (*units).min(rule.cost() - refunded);
                        *units -= taken;
                        refunded += taken;
                    }
                    entries.retain(|(_, units)| *units > 0);
                    // The contract is silent on whether the expiry moves.
                    let (least, most) = *expires;
                    let lag = (longest / 10).min(1000);
                    *expires = (least.min(now + 2 * longest - lag), most.max(now + 2 * longest));
                    // Nor on whether what does not count goes, and the key with it.
                    if !entries.iter().all(|(stamp, _)| counts(*stamp, longest, now)) {
                        *expires = (i64::MIN, i64::MAX);
                    }
                    if entries.is_empty() {
                        self.keys.remove(key);
                    }
                }
                [refunded, self.used(key, rule, 0, now), up_to_seconds(quotas[0].window)]
            }
            Rule::Fixed { anchored, .. } => {
                let mut refunded = 0;
                for (index, place) in rule.places(key, now).iter().enumerate() {
                    let window = quotas[index].window;
                    let standing = self.used(key, rule, index, now);
                    let Some(Stored::Counter { value, expires }) = self.keys.get_mut(place) else { continue };
                    let is_of_this_window = at.is_none_or(|at| {
                        if *anchored {
                            (*expires - window..*expires).contains(&at)
                        } else {
                            at.div_euclid(window) == now.div_euclid(window)
                        }
                    });
                    if is_of_this_window && standing > 0 {
                        let taken = standing.min(rule.cost());
                        *value -= taken;
                        refunded = refunded.max(taken);
                    }
                }
                [refunded, self.used(key, rule, 0, now), self.life(key, rule, 0, now)]
            }
            Rule::Throttle { .. } => {
                let before = self.used(key, rule, 0, now);
                // One that has passed is as good as none.
                if let Some(Stored::Arrival(arrival)) = self.keys.get_mut(key)
                    && *arrival > i128::from(now) * 1_000_000
                {
                    *arrival -= rule.interval() * i128::from(rule.cost());
                    if *arrival <= i128::from(now) * 1_000_000 {
                        self.keys.remove(key);
                    }
                }
                let after = self.used(key, rule, 0, now);
                let reset = self.wait(key, rule, now, |at| self.used(key, rule, 0, at) == 0);
                [before - after, after, up_to_seconds(reset)]
            }
            Rule::Acquire { .. } => panic!("leases are released, not refunded"),
        };
        Reply::Array(integers.map(Reply::Integer).to_vec())
    }

    fn release(&mut self, key: &str, holders: &[String], now: i64) -> Reply {
        let Some(Stored::Leases(leases)) = self.keys.get_mut(key) else { return Reply::Integer(0) };
        leases.retain(|_, end| *end > now);
        let released = holders.iter().filter(|holder| leases.remove(*holder).is_some()).count() as i64;
        if leases.is_empty() {
            self.keys.remove(key);
        }
        Reply::Integer(released)
    }

    fn all(&mut self, keys: &[String], rules: &[Rule], full: bool, now: i64) -> Reply {
        let decide_all = |settle: Settle| {
            let mut space = self.clone();
            let mut decisions = Vec::new();
            // No two rules touch the same key, so each is decided on what was there before.
            for (key, rule) in keys.iter().zip(rules) {
                let (decision, left) = space.decide(key, rule, now, settle);
                decisions.push(decision);
                space = left;
            }
            (decisions, space)
        };
        let (untouched, _) = decide_all(Settle::Untouched);
        let denies = |index: usize| !rules[index].force() && !untouched[index].allowed;
        let denying: Vec<usize> = (0..rules.len()).filter(|&index| denies(index)).collect();
        let allowed = denying.is_empty();
        // A unit is a member of a sorted set, and all the rules together may add a thousand.
        let is_sliding = |rule: &&Rule| matches!(rule, Rule::Sliding { .. });
        let added: i64 = rules.iter().filter(is_sliding).map(Rule::cost).sum();
        if allowed && self.only_sorted_sets && added > 1000 {
            return Reply::Error(HEAVY.to_owned());
        }
        let (decisions, after) = if allowed { decide_all(Settle::Counted) } else { decide_all(Settle::Untouched) };
        let bound = |index: usize| &decisions[index].windows[decisions[index].binding];
        let free = |index: usize| (bound(index).quota.limit - bound(index).used).max(0);
        // The share of a limit that is free, as a fraction.
        let share = |index: usize| match bound(index).quota.limit {
            0 => (0, 1),
            limit => (i128::from(free(index)), i128::from(limit)),
        };
        // Of equals the first.
        let index = if allowed {
            (0..rules.len()).min_by(|&one, &other| {
                let (one, other) = (share(one), share(other));
                (one.0 * other.1).cmp(&(other.0 * one.1))
            })
        } else {
            denying.iter().copied().min_by_key(|&index| std::cmp::Reverse(decisions[index].wait))
        };
        let index = index.expect("a rule");
        let wait = match decisions[index].wait {
            _ if allowed => 0,
            NEVER => -1,
            wait => wait,
        };
        let mut parts: Vec<Reply> =
            [i64::from(allowed), index as i64, free(index), wait].into_iter().map(Reply::Integer).collect();
        if full {
            let maps = decisions.iter().map(|decision| {
                let Decision { allowed, ref windows, binding, wait } = *decision;
                Self::map(&windows[binding], allowed, wait, now)
            });
            parts.push(Reply::Array(maps.collect()));
        }
        *self = after;
        Reply::Array(parts)
    }

    fn reset(&mut self, key: &str, windows: &[i64], now: i64) -> Reply {
        let call = Call::Reset { key: key.to_owned(), windows: windows.to_vec() };
        let (mut least, mut most) = (0, 0);
        for place in Self::places(&call, now).into_iter().collect::<BTreeSet<_>>() {
            let Some(stored) = self.keys.remove(&place) else { continue };
            most += 1;
            // In the very millisecond in which it ends a key may be there or not.
            least += i64::from(match stored {
                Stored::Counter { expires, .. } => expires > now,
                Stored::Leases(leases) => leases.values().any(|&end| end > now),
                Stored::Arrival(arrival) => arrival > i128::from(now) * 1_000_000,
                _ => true,
            });
        }
        Reply::Within(least, most)
    }
}

impl Reply {
    /// The same as the client reads it. RESP2 has no maps.
    fn value(&self, resp3: bool) -> Value {
        match self {
            Self::Integer(integer) => Value::Int(*integer),
            Self::Array(parts) => Value::Array(parts.iter().map(|part| part.value(resp3)).collect()),
            Self::Map(fields) => {
                let pairs = fields
                    .iter()
                    .map(|(name, value)| (Value::BulkString(name.as_bytes().to_vec()), Value::Int(*value)));
                if resp3 {
                    Value::Map(pairs.collect())
                } else {
                    Value::Array(pairs.flat_map(|(name, value)| [name, value]).collect())
                }
            }
            Self::Error(_) | Self::Within(..) => panic!("{self:?} is no value"),
        }
    }

    /// Whether this is what a server has replied.
    pub fn is(&self, heard: &Result<Value, String>, resp3: bool) -> bool {
        match (self, heard) {
            (Self::Error(line), Err(heard)) => line == heard,
            (Self::Within(least, most), Ok(Value::Int(heard))) => (least..=most).contains(&heard),
            (Self::Error(_) | Self::Within(..), _) | (_, Err(_)) => false,
            (_, Ok(heard)) => self.value(resp3) == *heard,
        }
    }

    /// The waits that a reply tells of.
    pub fn waits(&self) -> Vec<i64> {
        match self {
            Self::Map(fields) => {
                fields.iter().filter(|(name, _)| name.ends_with("-after-ms")).map(|&(_, wait)| wait).collect()
            }
            Self::Array(parts) => match &parts[..] {
                [Self::Integer(_), _, _, Self::Integer(wait)] => vec![*wait],
                parts => parts.iter().flat_map(Self::waits).collect(),
            },
            _ => Vec::new(),
        }
    }
}

/// Which of the spaces a decision is to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Settle {
    /// As the rule's own command does.
    ByRule,
    /// As RL.ALL does where it allows.
    Counted,
    /// As RL.ALL does where it denies.
    Untouched,
}
