//! The contract once more, without regard to speed: what each call must reply, and what it leaves at its keys.
//!
//! A limit is anything of which a number of units are *used* at a given time. A call is decided by what is used now. Each
//! wait is found by trying, in order, the times at which something changes.
//!
//! histories.rs keeps a [`Space`] beside a server over thousands of calls. driver/ plants hostile state, and reads the
//! keys of a call into a space before it.

mod decision;
mod reply;

use std::cmp::Reverse;
use std::collections::BTreeMap;

use super::call::{Call, Quota, Report, Rule, up};
use super::compact::{self, Reading};
use super::grammar::canonical;
use super::holds;

pub const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
pub const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
pub const OVERFLOW: &str = "ERR increment or decrement would overflow";
pub const HEAVY: &str = "ERR COST above 1000 needs a compact log: a sorted set takes one member a unit \
    (rl.sliding-storage auto or compact; RL.RESET a key that is a sorted set)";
pub const OTHER_VERSION: &str =
    "ERR rl: the log at this key was written by a later version of the module, which alone can read it";
pub const DAMAGED: &str = "ERR rl: the log at this key is damaged; RL.RESET removes it";
pub const ENDED: &str = "ERR the window has ended";
pub const SHARED_BY_RULES: &str = "ERR two rules of RL.ALL would share a counter";
pub const SHARED: &str = "ERR two windows would share a counter";
pub const TOO_FAR: &str = "ERR @ms must be at most 2147483647 seconds ahead";
pub const LOG_IS_FULL: &str = "ERR rl: the log at this key is full: it holds at most 16 MiB and 2^53 - 1 units";

/// The most members that a call adds to sorted sets.
const ADDED_AT_MOST: i64 = 1000;

/// The most expired members that a call removes, unless nothing else is in the set.
pub const PRUNED_AT_MOST: i64 = 1000;

/// A counter outlives by this a window that ends at a given time.
const GRACE: i64 = 3_600_000;

/// The longest wait for a turn.
const HOUR: i64 = 3_600_000;

/// How many rounds a search takes for a request that may wait: what is found then is its turn. Behind more units than
/// [`LONG_QUEUE`], beyond the longest window, it takes one.
const ROUNDS: u32 = 6;
const LONG_QUEUE: i64 = 48;

/// A wait that never ends. Longer than any other.
const NEVER: i64 = i64::MAX;

/// The names in a reply with FULL.
pub const NAMES: [&str; 9] = [
    "allowed",
    "limit",
    "used",
    "remaining",
    "retry-after-ms",
    "next-after-ms",
    "reset-after-ms",
    "window-ms",
    "at-ms",
];

/// A value at a key.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Members with their scores, lowest first. The names of the members that RL.SLIDING adds are not predicted: they are
    /// empty here.
    Set(Vec<(Vec<u8>, f64)>),
    /// A sound compact log: stamps, lowest first, and the units of each.
    Compact(Vec<(f64, i64)>),
    /// A compact log whose sound footer counts this many units, which its entries contradict.
    Doubtful(i64),
    /// A string that is an integer: a counter, or the arrival time of a throttle.
    Integer(i64),
    /// Any other string, and the line with which RL.SLIDING refuses it.
    Text(&'static str),
    /// Of a type that no rule takes.
    Other,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Stored {
    pub value: Value,
    /// The earliest and the latest time at which the key may expire: the contract leaves the expiry of a log some room.
    pub expires: Option<(i64, i64)>,
}

impl Value {
    pub fn of_string(bytes: &[u8]) -> Self {
        match compact::read(bytes) {
            Reading::Sound(entries) => {
                Self::Compact(entries.iter().map(|entry| (entry.stamp as f64, entry.weight as i64)).collect())
            }
            Reading::Doubtful(units) => Self::Doubtful(units),
            Reading::Damaged => Self::Text(DAMAGED),
            Reading::OtherVersion => Self::Text(OTHER_VERSION),
            Reading::NotALog => canonical(bytes).map_or(Self::Text(WRONG_TYPE), Self::Integer),
        }
    }

    /// The part that is live, in a form in which equal states are equal: the names of members only if `named`, the units of
    /// each stamp added up, nothing if nothing is live.
    pub fn live(&self, named: bool, is_live: impl Fn(f64) -> bool) -> Option<Self> {
        match self {
            Self::Set(members) => {
                let live = members.iter().filter(|&&(_, score)| is_live(score));
                let name = |name: &Vec<u8>| if named { name.clone() } else { Vec::new() };
                let mut live: Vec<_> = live.map(|(member, score)| (name(member), *score)).collect();
                live.sort_by(|one, other| one.1.total_cmp(&other.1).then_with(|| one.0.cmp(&other.0)));
                (!live.is_empty()).then_some(Self::Set(live))
            }
            Self::Compact(entries) => {
                let mut live: Vec<(f64, i64)> = Vec::new();
                for &(stamp, units) in entries.iter().filter(|&&(stamp, _)| is_live(stamp)) {
                    match live.last_mut() {
                        Some(last) if last.0 == stamp => last.1 += units,
                        _ => live.push((stamp, units)),
                    }
                }
                (!live.is_empty()).then_some(Self::Compact(live))
            }
            other => Some(other.clone()),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    Integer(i64),
    Array(Vec<Reply>),
    /// What [`NAMES`] say, and after WITHIN the wait.
    Map([i64; 9], Option<i64>),
    Error(String),
    /// An integer in this range.
    Within(i64, i64),
}

/// How RL.SLIDING stores new logs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Storage {
    Sorted,
    Compact,
    Auto,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Space {
    pub keys: BTreeMap<Vec<u8>, Stored>,
    pub storage: Storage,
    /// What a throttle's clock is ahead of the milliseconds: Valkey 9 counts microseconds.
    pub micros: i64,
    /// The members that the present call may still prune from sorted sets.
    pub prunable: usize,
}

/// A window, decided.
#[derive(Debug, Clone, Copy)]
struct Standard {
    quota: Quota,
    fits: bool,
    /// Units before the call, and after it.
    before: i64,
    used: i64,
    /// 0 if the call fits in this window.
    wait: i64,
    next: i64,
    reset: i64,
    /// What is left of a counter's life.
    life: i64,
}

/// A rule, decided.
struct Decision {
    allowed: bool,
    windows: Vec<Standard>,
    /// Until the call fits in every window.
    wait: i64,
    /// Whether it is allowed in any case.
    is_let_through: bool,
    /// For a request that may wait: for how long, and until its turn, which is 0 if it has none.
    turn: Option<(i64, i64)>,
}

/// What a rule counts at a time.
#[derive(Debug, Clone)]
struct Usage<'a> {
    rule: &'a Rule,
    quotas: Vec<Quota>,
    now: i64,
    micros: i64,
    units: Units,
    /// Whether the request may wait for its turn.
    is_waiting: bool,
    /// How many rounds its search takes.
    rounds: u32,
}

#[derive(Debug, Clone)]
enum Units {
    /// Stamps, lowest first, and the units of each.
    Log(Vec<(f64, i64)>),
    Counters(Vec<Counter>),
    /// The arrival time in nanoseconds.
    Arrival(i128),
    Leases(Vec<(Vec<u8>, f64)>),
}

#[derive(Debug, Clone, Copy)]
struct Counter {
    value: i64,
    expires: i64,
    /// When a counter expires that begins now.
    fresh: i64,
    lacks_expiry: bool,
    /// When the window ends, if that is given. What has ended is left alone.
    end: Option<i64>,
}

/// When a call counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Charge {
    /// As the rule's own command does.
    ByRule,
    /// As RL.ALL does if it is allowed.
    Always,
    /// As RL.ALL does if it is denied.
    Never,
}

/// When an entry leaves a window. The range that is removed begins at 0: a negative score stays for ever.
fn leaves(score: f64, window: i64) -> i64 {
    if score < 0.0 { NEVER } else { (score.ceil() as i64).saturating_add(window) }
}

/// Whether an entry counts in a window. One that a stepped clock has left further ahead does not count yet.
pub fn counts(score: f64, window: i64, at: i64) -> bool {
    score < 0.0 || leaves(score, window) > at && score <= (at + window) as f64
}

/// Whether an entry stays in a log of this longest window. One further ahead than that and than an hour was left by a stepped clock.
pub fn is_kept(score: f64, longest: i64, at: i64) -> bool {
    score < 0.0 || leaves(score, longest) > at && score <= (at + longest.max(HOUR)) as f64
}

/// When a lease with this score ends. Scores that no clock has written are not told apart.
fn end(score: f64) -> i64 {
    if score < (1_i64 << 53) as f64 { score.ceil() as i64 } else { NEVER }
}

/// When the last of these leases ends.
fn last_end(leases: &[(Vec<u8>, f64)]) -> Option<i64> {
    leases.iter().map(|&(_, score)| end(score)).max().filter(|&end| end != NEVER)
}

fn seconds_up(millis: i64) -> i64 {
    up(millis.into(), 1000)
}

/// As TTL rounds.
fn nearest_seconds(millis: i64) -> i64 {
    (millis + 500) / 1000
}

/// When the key of a log may expire after a call.
fn log_expiry(rule: &Rule, now: i64) -> Option<(i64, i64)> {
    let window = rule.longest();
    Some((now + 2 * window - (window / 10).min(1000), now + 2 * window))
}

/// The same if the log has these stamps then: it outlives the newest, and stays for as long as it would before if any is ahead.
fn expiry_of_log(rule: &Rule, now: i64, newest: f64, old: Option<(i64, i64)>) -> Option<(i64, i64)> {
    let (mut least, mut most) = log_expiry(rule, now).expect("an expiry");
    if newest > now as f64 {
        let needed = leaves(newest, rule.longest());
        let (old_least, old_most) = old.unwrap_or((least, most));
        (least, most) = (least.max(old_least).max(needed.min(most)), most.max(old_most).max(needed));
        if newest > (now + rule.longest()) as f64 {
            least = least.max(needed);
        }
    }
    Some((least, most))
}

impl Space {
    pub fn new(storage: Storage) -> Self {
        Self { keys: BTreeMap::new(), storage, micros: 0, prunable: 0 }
    }

    /// What a call replies. The space is then as the call leaves it.
    pub fn answer(&mut self, call: &Call, now: i64) -> Reply {
        self.drop_expired(&call.places(now), now);
        self.prunable = PRUNED_AT_MOST as usize;
        if let Err(line) = self.pass(call, now) {
            return Reply::Error(line.to_owned());
        }
        let before = self.clone();
        let reply = match call {
            Call::Take { key, rule, report } => self.take(key, rule, *report, now),
            Call::Peek { key, rule, report } => {
                let call = Call::Take { key: key.clone(), rule: rule.clone(), report: *report };
                Ok(self.clone().answer(&call, now))
            }
            Call::Refund { key, rule, at } => self.refund(key, rule, *at, now),
            Call::Settle { key, rule, actual } => self.settle(key, rule, *actual, now),
            Call::Release { key, holders } => self.release(key, holders, now),
            Call::All { keys, rules, within, full } => self.all(keys, rules, *within, *full, now),
            Call::Reset { key, .. } => self.reset(key, &call.places(now), now),
        };
        reply.unwrap_or_else(|line| {
            *self = before; // An error changes nothing else.
            Reply::Error(line.to_owned())
        })
    }

    /// Whether nobody can say if a key of the call still exists.
    pub fn may_have_expired(&self, call: &Call, now: i64) -> bool {
        call.places(now).iter().any(|place| match self.keys.get(place) {
            Some(&Stored { expires: Some((least, most)), .. }) => least < most && (least..=most).contains(&now),
            _ => false,
        })
    }

    /// Drops those of some keys that have expired. In a server, too, an expired key goes when it is accessed: if the clock
    /// goes back before, it lives on.
    pub fn drop_expired(&mut self, places: &[Vec<u8>], now: i64) {
        let lives = |stored: &Stored| stored.expires.is_none_or(|(_, most)| now <= most);
        self.keys.retain(|key, stored| lives(stored) || !places.contains(key));
    }

    /// Whether the keys of a rule can be read.
    pub fn check(&self, key: &[u8], rule: &Rule, now: i64) -> Result<(), &'static str> {
        self.read(key, rule, false, now).map(drop)
    }

    /// What a rule counts now. `skips`: whether a window that has ended is left alone, and not an error.
    fn read<'a>(&self, key: &[u8], rule: &'a Rule, skips: bool, now: i64) -> Result<Usage<'a>, &'static str> {
        let (quotas, places) = (rule.quotas(), rule.places(key, now));
        let value = |place: &Vec<u8>| self.keys.get(place).map(|stored| &stored.value);
        let integer = |place: &Vec<u8>| match value(place) {
            None => Ok(None),
            Some(Value::Integer(value)) => Ok(Some(*value)),
            Some(Value::Set(_) | Value::Other) => Err(WRONG_TYPE),
            Some(_) => Err(NOT_AN_INTEGER),
        };
        let units = match rule {
            Rule::Sliding { .. } => {
                let mut entries = match value(&places[0]) {
                    None => Vec::new(),
                    Some(Value::Set(members)) => members.iter().map(|&(_, score)| (score, 1)).collect(),
                    Some(Value::Compact(entries)) => entries.clone(),
                    Some(Value::Doubtful(_)) => return Err(DAMAGED),
                    Some(Value::Text(line)) => return Err(line),
                    Some(Value::Integer(_) | Value::Other) => return Err(WRONG_TYPE),
                };
                entries.retain(|&(score, _)| is_kept(score, rule.longest(), now));
                Units::Log(entries)
            }
            Rule::Fixed { .. } => {
                let mut counters = Vec::new();
                for (index, (quota, place)) in quotas.iter().zip(&places).enumerate() {
                    // Long windows can have the same number.
                    if places[..index].contains(place) {
                        return Err(SHARED);
                    }
                    if let Some(end) = quota.end {
                        if end - now > 2_147_483_647_000 {
                            return Err(TOO_FAR);
                        }
                        if end <= now && !skips {
                            return Err(ENDED);
                        }
                        if end <= now {
                            let fresh = end + GRACE;
                            counters.push(Counter {
                                value: 0,
                                expires: fresh,
                                fresh,
                                lacks_expiry: false,
                                end: Some(end),
                            });
                            continue;
                        }
                    }
                    let found = integer(place)?;
                    let expires = self.keys.get(place).and_then(|stored| stored.expires).map(|(expires, _)| expires);
                    let fresh = quota.end.map_or(now + quota.window, |end| end + GRACE);
                    let is_over = rule.is_anchored() && expires.is_some_and(|expires| now >= expires);
                    counters.push(Counter {
                        value: if is_over { 0 } else { found.unwrap_or(0) },
                        expires: expires.filter(|_| !is_over).unwrap_or(fresh),
                        fresh,
                        lacks_expiry: found.is_some() && expires.is_none(),
                        end: quota.end,
                    });
                }
                Units::Counters(counters)
            }
            Rule::Throttle { .. } => {
                let arrival = integer(&places[0])?.unwrap_or(0);
                Units::Arrival(if arrival < 0 { return Err(NOT_AN_INTEGER) } else { arrival.into() })
            }
            Rule::Acquire { .. } => Units::Leases(self.leases(key, now)?),
        };
        let longest = quotas.last().map_or(0, |quota| quota.window);
        let beyond: i64 = match &units {
            Units::Log(entries) => {
                let are_beyond = |&&(score, _): &&(f64, i64)| score > (now + longest) as f64;
                entries.iter().filter(are_beyond).map(|&(_, units)| units).sum()
            }
            _ => 0,
        };
        let rounds = if beyond > LONG_QUEUE { 1 } else { ROUNDS };
        Ok(Usage { rule, quotas, now, micros: self.micros, units, is_waiting: false, rounds })
    }

    /// The leases that have not ended.
    fn leases(&self, key: &[u8], now: i64) -> Result<Vec<(Vec<u8>, f64)>, &'static str> {
        match self.keys.get(key).map(|stored| &stored.value) {
            None => Ok(Vec::new()),
            Some(Value::Set(members)) => {
                Ok(members.iter().filter(|&&(_, score)| score > now as f64).cloned().collect())
            }
            Some(_) => Err(WRONG_TYPE),
        }
    }

    /// Whether the log of a rule is compact, or will be.
    fn is_compact(&self, key: &[u8], rule: &Rule) -> bool {
        match (self.keys.get(key), self.storage) {
            (Some(stored), _) => matches!(stored.value, Value::Compact(_)),
            (None, Storage::Auto) => matches!(rule, Rule::Sliding { cost: Some(_), .. }),
            (None, storage) => storage == Storage::Compact,
        }
    }

    /// Members that a rule adds to a sorted set.
    fn added(&self, key: &[u8], rule: &Rule) -> i64 {
        match rule {
            Rule::Sliding { .. } if !self.is_compact(key, rule) => rule.cost(),
            _ => 0,
        }
    }

    /// Decides, and gives what is to be written.
    fn decide<'a>(
        &self,
        key: &[u8],
        usage: &Usage<'a>,
        charge: Charge,
    ) -> Result<(Decision, Usage<'a>, bool), &'static str> {
        if self.added(key, usage.rule) > ADDED_AT_MOST {
            return Err(HEAVY);
        }
        let decided = usage.decide(charge)?;
        if let Units::Log(entries) = &decided.1.units
            && decided.2
            && entries.iter().map(|&(_, units)| i128::from(units)).sum::<i128>() >= 1 << 53
        {
            return Err(LOG_IS_FULL);
        }
        Ok(decided)
    }

    pub fn take(&mut self, key: &[u8], rule: &Rule, report: Report, now: i64) -> Result<Reply, &'static str> {
        let usage = self.read(key, rule, false, now)?;
        let is_known = self.finds_hold(key, rule, now)? == Some(true);
        let charge = if is_known { Charge::Never } else { Charge::ByRule };
        let (decision, after, is_counted) = self.decide(key, &usage, charge)?;
        self.write(key, &usage, &after, is_counted);
        if is_known || is_counted {
            self.hold(key, rule, now);
        }
        let at = after.turn_at(usage.now, &decision);
        Ok(if is_known { decision.let_through() } else { decision }.reply(rule, report, at, now))
    }

    pub fn settle(&mut self, key: &[u8], rule: &Rule, actual: i64, now: i64) -> Result<Reply, &'static str> {
        let hold = rule.hold().expect("the grammar sees to it");
        let (settled, counted) = self.settlement(key, hold, actual, now)?;
        if let Some((units, at)) = counted {
            let charging = holds::charging(rule, (actual - units).abs());
            if actual < units {
                self.refund(key, &charging, Some(at), now)?;
            } else if actual > units {
                let usage = self.read(key, &charging, true, now)?;
                let (_, after, is_counted) = self.decide(key, &usage, Charge::ByRule)?;
                self.write(key, &usage, &after, is_counted);
            }
            self.settled(key, hold, actual, now);
        }
        let Reply::Array(mut left) = self.clone().refund(key, &holds::charging(rule, 0), None, now)? else {
            unreachable!()
        };
        left[0] = Reply::Integer(settled);
        Ok(Reply::Array(left))
    }

    /// How many of these members are pruned: all if nothing else is in the set, and otherwise as many as one call may prune, or
    /// none if other keys of the call have left too few of these.
    fn prunes(&mut self, stale: usize, is_all: bool) -> usize {
        if is_all {
            return usize::MAX;
        }
        let pruned = stale.min(PRUNED_AT_MOST as usize);
        if pruned > self.prunable {
            return 0;
        }
        self.prunable -= pruned;
        pruned
    }

    /// Writes what a call leaves.
    fn write(&mut self, key: &[u8], before: &Usage<'_>, after: &Usage<'_>, is_counted: bool) {
        let (rule, now, at) = (before.rule, before.now, after.now);
        match (&before.units, &after.units) {
            (Units::Log(counted), _) => {
                let compact = self.is_compact(key, rule);
                let value = match self.keys.get(key).map(|stored| &stored.value) {
                    _ if compact => {
                        let Units::Log(entries) = &after.units else { unreachable!() };
                        Value::Compact(entries.clone())
                    }
                    Some(Value::Set(members)) => {
                        // A sorted set is pruned in steps, the oldest and the nearest first, unless nothing in it counts.
                        let is_expired = |score: f64| score >= 0.0 && leaves(score, rule.longest()) <= now;
                        let mut left = members.clone();
                        let (mut expired, mut ahead) = (0, 0);
                        for (_, score) in members.iter().filter(|(_, score)| !is_kept(*score, rule.longest(), now)) {
                            *(if is_expired(*score) { &mut expired } else { &mut ahead }) += 1;
                        }
                        let most = self.prunes(expired.max(ahead), counted.is_empty());
                        (expired, ahead) = (0, 0);
                        left.retain(|&(_, score)| match is_kept(score, rule.longest(), now) {
                            true => true,
                            false => {
                                let removed = if is_expired(score) { &mut expired } else { &mut ahead };
                                *removed += 1;
                                *removed > most
                            }
                        });
                        Value::Set(left)
                    }
                    _ => Value::Set(Vec::new()),
                };
                let value = match value {
                    Value::Set(mut members) if is_counted => {
                        let added = std::iter::repeat_n((Vec::new(), at as f64), rule.cost() as usize);
                        members.extend(added);
                        members.sort_by(|one, other| one.1.total_cmp(&other.1));
                        Value::Set(members)
                    }
                    value => value,
                };
                let old = self.keys.get(key).and_then(|stored| stored.expires).filter(|_| !counted.is_empty());
                let Units::Log(entries) = &after.units else { unreachable!() };
                let newest = entries.iter().map(|&(score, _)| score).fold(f64::MIN, f64::max);
                self.put(key, value, expiry_of_log(rule, now, newest, old));
            }
            (_, Units::Counters(counters)) => {
                for (counter, place) in counters.iter().zip(rule.places(key, now)) {
                    if (is_counted || counter.lacks_expiry) && counter.end.is_none_or(|end| end > now) {
                        self.put(&place, Value::Integer(counter.value), Some((counter.expires, counter.expires)));
                    }
                }
            }
            (_, Units::Arrival(arrival)) => {
                if is_counted {
                    self.put_arrival(key, *arrival);
                }
            }
            (Units::Leases(held), Units::Leases(leases)) => {
                // Where no lease changes, an expiry that is there stays.
                let has_changed = leases.iter().any(|lease| !held.contains(lease));
                let last = last_end(leases).filter(|_| has_changed || self.lacks_expiry(key));
                self.put_leases(key, leases, held.is_empty(), last, now);
            }
            (before, after) => panic!("{before:?} cannot become {after:?}"),
        }
    }

    fn put(&mut self, key: &[u8], value: Value, expires: Option<(i64, i64)>) {
        match &value {
            Value::Set(members) if members.is_empty() => drop(self.keys.remove(key)),
            Value::Compact(entries) if entries.is_empty() => drop(self.keys.remove(key)),
            _ => drop(self.keys.insert(key.to_vec(), Stored { value, expires })),
        }
    }

    fn put_arrival(&mut self, key: &[u8], arrival: i128) {
        let expires = up(arrival, 1_000_000);
        let arrival = i64::try_from(arrival).expect("the contract bounds it");
        self.put(key, Value::Integer(arrival), Some((expires, expires)));
    }

    /// Writes leases, beside those that have ended and are more than a call removes. `expires`: if it changes.
    fn put_leases(&mut self, key: &[u8], leases: &[(Vec<u8>, f64)], removes_all: bool, expires: Option<i64>, now: i64) {
        let (members, old) = match self.keys.get(key) {
            Some(Stored { value: Value::Set(members), expires }) => (members.clone(), *expires),
            _ => (Vec::new(), None),
        };
        let ended: Vec<_> = members.into_iter().filter(|&(_, score)| score <= now as f64).collect();
        let most = self.prunes(ended.len(), removes_all);
        let is_renewed = |name: &Vec<u8>| leases.iter().any(|(holder, _)| holder == name);
        let mut left: Vec<_> = ended.into_iter().filter(|(name, _)| !is_renewed(name)).skip(most).collect();
        left.extend_from_slice(leases);
        left.sort_by(|one, other| one.1.total_cmp(&other.1));
        self.put(key, Value::Set(left), expires.map(|at| (at, at)).or(old));
    }

    fn lacks_expiry(&self, key: &[u8]) -> bool {
        self.keys.get(key).is_some_and(|stored| stored.expires.is_none())
    }

    pub fn refund(&mut self, key: &[u8], rule: &Rule, at: Option<i64>, now: i64) -> Result<Reply, &'static str> {
        let usage = self.read(key, rule, true, now)?;
        let (places, before) = (rule.places(key, now), usage.used(0, now));
        let mut refunded = 0;
        let ttl = match &usage.units {
            Units::Log(_) => {
                if self.keys.contains_key(key) && self.added(key, rule) > ADDED_AT_MOST {
                    return Err(HEAVY);
                }
                // A negative score is not a time, so nothing was taken then.
                let fits = |score: f64| {
                    score >= 0.0
                        && is_kept(score, rule.longest(), now)
                        && at.map_or(score <= now as f64, |at| at as f64 == score)
                };
                // The newest first.
                match self.keys.get_mut(key).map(|stored| &mut stored.value) {
                    Some(Value::Set(members)) => {
                        for index in (0..members.len()).rev() {
                            if refunded < rule.cost() && fits(members[index].1) {
                                members.remove(index);
                                refunded += 1;
                            }
                        }
                    }
                    Some(Value::Compact(entries)) => {
                        for (_, units) in entries.iter_mut().rev().filter(|(stamp, _)| fits(*stamp)) {
                            let taken = (*units).min(rule.cost() - refunded);
                            *units -= taken;
                            refunded += taken;
                        }
                        entries.retain(|&(_, units)| units > 0);
                        // A log in which nothing counts any more goes.
                        if !entries.iter().any(|&(stamp, _)| is_kept(stamp, rule.longest(), now)) {
                            entries.clear();
                        }
                    }
                    _ => {}
                }
                if let Some(Stored { value, expires }) = self.keys.remove(key) {
                    // The contract is silent on whether the expiry moves, and on whether what does not count goes.
                    let (least, most) = log_expiry(rule, now).expect("an expiry");
                    let all_count =
                        value.live(false, |score| is_kept(score, rule.longest(), now)) == value.live(false, |_| true);
                    let expires = expires
                        .filter(|_| all_count)
                        .map(|(old_least, old_most)| (least.min(old_least), most.max(old_most)));
                    self.put(key, value, expires.or(Some((i64::MIN, i64::MAX))));
                }
                seconds_up(usage.quotas[0].window)
            }
            Units::Counters(counters) => {
                for (index, counter) in counters.iter().enumerate() {
                    let window = usage.quotas[index].window;
                    // Nobody but the caller knows when a window began that ends at a given time.
                    let is_of_this_window = counter.end.is_some()
                        || at.is_none_or(|at| match rule.is_anchored() {
                            true => (counter.expires - window..counter.expires).contains(&at),
                            false => at.div_euclid(window) == now.div_euclid(window),
                        });
                    let taken = usage.used(index, now).min(rule.cost());
                    if is_of_this_window && taken > 0 {
                        let stored = self.keys.get_mut(&places[index]).expect("a counter");
                        stored.value = Value::Integer(counter.value - taken);
                        refunded = refunded.max(taken);
                    }
                }
                nearest_seconds((counters[0].end.unwrap_or(counters[0].expires) - now).max(0))
            }
            Units::Arrival(arrival) => {
                // While somebody waits, only the last turn can be taken back.
                let last = arrival - rule.interval() * i128::from(usage.quotas[0].limit);
                let is_taken = match last > usage.nanos(now) {
                    true => at == Some(up(last, 1_000_000)),
                    false => at.is_none_or(|at| at <= now),
                };
                let units = if is_taken { rule.cost() } else { 0 };
                let (after, nanos) = (arrival - rule.interval() * i128::from(units), usage.nanos(now));
                // One that has passed is the same as none.
                if *arrival > nanos && after > nanos {
                    self.put_arrival(key, after);
                } else if *arrival > nanos {
                    self.keys.remove(key);
                }
                let left = self.read(key, rule, true, now)?;
                refunded = before - left.used(0, now);
                seconds_up(left.wait(0..1, |at| left.used(0, at) == 0))
            }
            Units::Leases(_) => panic!("leases are released, not refunded"),
        };
        let left = self.read(key, rule, true, now)?.used(0, now);
        Ok(Reply::integers(&[refunded, left, ttl]))
    }

    fn release(&mut self, key: &[u8], holders: &[Vec<u8>], now: i64) -> Result<Reply, &'static str> {
        let mut leases = self.leases(key, now)?;
        let before = leases.len();
        leases.retain(|(name, _)| !holders.contains(name));
        let released = before - leases.len();
        let expires = last_end(&leases).filter(|_| released > 0);
        self.put_leases(key, &leases, leases.is_empty(), expires, now);
        Ok(Reply::Integer(released as i64))
    }

    pub fn all(
        &mut self,
        keys: &[Vec<u8>],
        rules: &[Rule],
        within: Option<i64>,
        full: bool,
        now: i64,
    ) -> Result<Reply, &'static str> {
        let parts = || keys.iter().zip(rules);
        let usages = parts().map(|(key, rule)| self.read(key, rule, false, now)).collect::<Result<Vec<_>, _>>()?;
        let found = parts().map(|(key, rule)| self.finds_hold(key, rule, now)).collect::<Result<Vec<_>, _>>()?;
        // No rule counts in the state of another.
        let mut places = Vec::new();
        for (key, rule) in parts() {
            let own = rule.all_places(key, now);
            if own.iter().any(|place| places.contains(place)) {
                return Err(SHARED_BY_RULES);
            }
            places.extend(own);
        }
        // Where each holder has its hold, the call was carried out before.
        let is_known = found.iter().any(Option::is_some) && !found.contains(&Some(false));
        let counting = parts().zip(&found).filter(|(_, found)| !is_known && **found != Some(true));
        if counting.map(|((key, rule), _)| self.added(key, rule)).sum::<i64>() > ADDED_AT_MOST {
            return Err(HEAVY);
        }
        let decide_all = |charge: Charge| {
            let charge = |index: usize| match (&rules[index], found[index]) {
                (Rule::Acquire { .. }, _) if is_known => Charge::ByRule,
                (_, Some(true)) => Charge::Never,
                _ if is_known => Charge::Never,
                _ => charge,
            };
            let decide = |index: usize| {
                let (decision, after, is_counted) = self.decide(&keys[index], &usages[index], charge(index))?;
                let is_let_through = is_known || found[index] == Some(true);
                Ok((if is_let_through { decision.let_through() } else { decision }, after, is_counted))
            };
            (0..rules.len()).map(decide).collect::<Result<Vec<_>, &'static str>>()
        };
        let mut decided = decide_all(Charge::Never)?;
        let denies = |index: &usize| {
            let decision = &decided[*index].0;
            !rules[*index].force() && !decision.allowed && !decision.is_let_through
        };
        let mut denying: Vec<usize> = (0..rules.len()).filter(denies).collect();
        let (mut turn, mut late) = (within.map(|_| 0), None);
        if let Some(within) = within
            && !denying.is_empty()
        {
            // Checks alone wait for nothing.
            let within = if rules.iter().any(|rule| rule.cost() > 0) { within } else { 0 };
            let own: Vec<Option<i64>> = usages.iter().map(|usage| usage.room(now)).collect();
            let mut joint = own.iter().try_fold(now, |last, room| Some(last.max((*room)?)));
            while let Some(at) = joint {
                joint = usages.iter().try_fold(at, |at, usage| usage.room(at));
                if joint == Some(at) {
                    break;
                }
            }
            let retry = |room: Option<i64>| room.map_or(NEVER, |room| (room - now - within).max(0));
            let wait = joint.map(|joint| joint - now);
            let mut own_waits: Vec<i64> = own.iter().map(|&room| retry(room)).collect();
            if retry(joint) == 0 {
                turn = wait;
            } else {
                late = Some(retry(joint));
                // Where each has a turn by itself, the last of them has none.
                if own_waits.iter().all(|&wait| wait == 0) {
                    let last = own.iter().max();
                    (0..own.len())
                        .filter(|&index| Some(&own[index]) == last)
                        .for_each(|index| own_waits[index] = retry(joint));
                }
            }
            decided.clear();
            for (usage, &own) in usages.iter().zip(&own_waits) {
                let (mut decision, after, is_counted) = match late {
                    None => usage.decide_waiting(within, wait, Charge::Always)?,
                    Some(_) => usage.decide_waiting(within, None, Charge::Never)?,
                };
                if late.is_some() {
                    (decision.allowed, decision.wait) = (own == 0, own);
                }
                decided.push((decision, after, is_counted));
            }
            denying = (0..rules.len()).filter(|&index| late.is_some() && own_waits[index] > 0).collect();
        }
        let allowed = denying.is_empty();
        if allowed {
            if turn.is_none_or(|wait| wait == 0) {
                decided = decide_all(Charge::Always)?;
            }
            for (decision, ..) in &mut decided {
                decision.turn = decision.turn.or(within.map(|within| (within, 0)));
            }
        }
        for (((key, rule), before), (found, (_, after, is_counted))) in
            parts().zip(&usages).zip(found.iter().zip(&decided))
        {
            if allowed {
                self.write(key, before, after, *is_counted);
                if *is_counted || *found == Some(true) {
                    self.hold(key, rule, now);
                }
            } else {
                self.heal(key, before);
            }
        }
        // The share of a limit that is free, as a fraction. Under a limit of 0 units are free where a counter was set below 0.
        let share = |decision: &Decision| {
            let binding = decision.binding();
            (i128::from(binding.remaining()), i128::from(binding.quota.limit.max(1)))
        };
        // Of equals the first.
        let index = if allowed {
            (0..rules.len()).min_by(|&one, &other| {
                let (one, other) = (share(&decided[one].0), share(&decided[other].0));
                (one.0 * other.1).cmp(&(other.0 * one.1))
            })
        } else {
            denying.iter().copied().min_by_key(|&index| Reverse(decided[index].0.wait))
        };
        let index = index.expect("a rule");
        let wait = match late.unwrap_or(decided[index].0.wait) {
            _ if allowed => 0,
            NEVER => -1,
            wait => wait,
        };
        let integers = [i64::from(allowed), index as i64, decided[index].0.binding().remaining(), wait];
        let mut parts: Vec<Reply> = integers.into_iter().chain(turn).map(Reply::Integer).collect();
        if full {
            let at = turn.map(|wait| now + wait);
            let maps = decided.iter().zip(rules);
            let maps = maps.map(|((decision, ..), rule)| decision.reply(rule, Report::Full, at, now));
            parts.push(Reply::Array(maps.collect()));
        }
        Ok(Reply::Array(parts))
    }

    /// Sets an expiry that is missing, as a denied RL.ALL does.
    fn heal(&mut self, key: &[u8], usage: &Usage<'_>) {
        match &usage.units {
            Units::Log(entries) if !entries.is_empty() && self.lacks_expiry(key) => {
                let newest = entries.iter().map(|&(score, _)| score).fold(f64::MIN, f64::max);
                self.keys.get_mut(key).expect("a log").expires = expiry_of_log(usage.rule, usage.now, newest, None);
            }
            Units::Counters(_) => self.write(key, usage, usage, false),
            Units::Leases(leases) if self.lacks_expiry(key) => {
                self.keys.get_mut(key).expect("leases").expires = last_end(leases).map(|end| (end, end));
            }
            _ => {}
        }
    }

    fn reset(&mut self, key: &[u8], places: &[Vec<u8>], now: i64) -> Result<Reply, &'static str> {
        let is_held = |place: &Vec<u8>| *place == super::call::held(key);
        let is_refused = |place: &Vec<u8>| match self.keys.get(place).map(|stored| &stored.value) {
            Some(Value::Other) => true,
            Some(Value::Set(_)) => place != key && !is_held(place),
            Some(_) => is_held(place),
            None => false,
        };
        if places.iter().any(is_refused) {
            return Err(WRONG_TYPE);
        }
        let (mut least, mut most) = (0, 0);
        for place in places {
            let Some(stored) = self.keys.remove(place) else { continue };
            most += 1;
            // In the very millisecond in which it ends a key may be there or not.
            least += i64::from(stored.expires.is_none_or(|(_, expires)| expires > now));
        }
        Ok(Reply::Within(least, most))
    }
}
