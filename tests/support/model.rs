//! The one right answer to a call, from what lies at its keys: the contract once more, without a thought for speed.

use super::compact::{self, Reading};
use super::grammar::{Quota, Rate, Request, canonical};
use super::wire::Reply;

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const OVERFLOW: &str = "ERR increment or decrement would overflow";
pub const OTHER_VERSION: &str =
    "ERR rl: the log at this key was written by a later version of the module, which alone can read it";
pub const DAMAGED: &str = "ERR rl: the log at this key is damaged; RL.RESET removes it";

/// In a sorted set a unit is a member. No call adds more of them than this.
const ADDED_AT_MOST: i64 = 1000;

/// Whether a request weighs too much for a sorted set, whatever is in it.
pub fn is_too_heavy(request: &Request) -> bool {
    request.sliding && request.cost > ADDED_AT_MOST
}

/// Whether a line refuses such a request: it names the way out.
pub fn refuses_the_cost(line: &str) -> bool {
    line.starts_with("ERR COST ") && line.contains("compact")
}

/// No call removes more expired members than this, unless nothing else is in the log.
pub const PRUNED_AT_MOST: i64 = 1000;

/// What the server's own commands say of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// As TYPE has it.
    pub kind: String,
    /// As PEXPIRETIME has it.
    pub expires: i64,
    /// GET of a string, ZRANGE of a sorted set.
    pub value: Reply,
}

/// What a log in either form holds.
#[derive(Debug, Clone, PartialEq)]
pub enum Log {
    /// Stamps, lowest first, and how many units bear each; a member of a sorted set is one.
    Entries(Vec<(f64, i64)>),
    /// Damaged somewhere, within a footer that speaks of so many units.
    Doubtful(i64),
}

impl Found {
    /// An integer that is kept as a string; none where there is no key.
    pub fn integer(&self) -> Result<Option<i64>, &'static str> {
        match (&*self.kind, &self.value) {
            ("none", _) => Ok(None),
            ("string", Reply::Bulk(Some(text))) => canonical(text).map(Some).ok_or(NOT_AN_INTEGER),
            _ => Err(WRONG_TYPE),
        }
    }

    pub fn log(&self) -> Result<Log, &'static str> {
        match (&*self.kind, &self.value) {
            ("none", _) => Ok(Log::Entries(Vec::new())),
            ("zset", Reply::Array(parts)) => {
                Ok(Log::Entries(parts.iter().skip(1).step_by(2).map(|part| (score(part), 1)).collect()))
            }
            ("string", Reply::Bulk(Some(bytes))) => match compact::read(bytes) {
                Reading::NotALog => Err(WRONG_TYPE),
                Reading::OtherVersion => Err(OTHER_VERSION),
                Reading::Damaged => Err(DAMAGED),
                Reading::Doubtful(units) => Ok(Log::Doubtful(units)),
                Reading::Sound(entries) => {
                    Ok(Log::Entries(entries.iter().map(|entry| (entry.stamp as f64, entry.weight as i64)).collect()))
                }
            },
            _ => Err(WRONG_TYPE),
        }
    }
}

fn score(part: &Reply) -> f64 {
    let Reply::Bulk(Some(text)) = part else { panic!("{part:?} is no score") };
    String::from_utf8_lossy(text).parse().unwrap_or_else(|_| panic!("{part:?} is no score"))
}

/// A wait that never ends. Longer than every other.
const NEVER: i64 = i64::MAX;

/// What all requests are answered, of the quota that binds.
#[derive(Debug, Clone, Copy)]
pub struct Answer {
    quota: Quota,
    /// Units in the window before the call.
    before: i64,
    /// And after it.
    used: i64,
    /// The second and third integer of the short reply.
    count: i64,
    ttl: i64,
    /// Milliseconds; 0 if the request is admitted.
    retry: i64,
    reset: i64,
}

impl Answer {
    pub fn allowed(&self) -> bool {
        self.retry == 0
    }

    pub fn reply(&self, full: bool) -> Reply {
        let allowed = i64::from(self.allowed());
        if !full {
            return Reply::Array([allowed, self.count, self.ttl].map(Reply::Integer).to_vec());
        }
        let fields = [
            ("allowed", allowed),
            ("limit", self.quota.limit),
            ("used", self.used),
            ("remaining", self.quota.limit.saturating_sub(self.used).max(0)),
            ("retry-after-ms", if self.retry == NEVER { -1 } else { self.retry }),
            ("reset-after-ms", self.reset),
            ("window-ms", self.quota.window),
        ];
        let name = |name: &str| Reply::Bulk(Some(name.as_bytes().to_vec()));
        Reply::Array(fields.iter().flat_map(|&(field, value)| [name(field), Reply::Integer(value)]).collect())
    }

    /// The one that binds: of those that deny, the one with the longest wait; if none does, the one with the least room.
    /// Of equals, the one with the least room, and then the shortest window.
    fn binding(answers: Vec<Self>) -> Self {
        let key = |answer: &Self| (std::cmp::Reverse(answer.retry), answer.quota.limit.saturating_sub(answer.before));
        answers.into_iter().min_by_key(key).expect("a quota")
    }
}

/// What becomes of a log.
#[derive(Debug)]
pub struct Logged {
    pub answer: Answer,
    /// As TYPE has it.
    pub kind: &'static str,
    /// The entries that are left.
    pub left: Vec<(f64, i64)>,
}

/// Decides on a request to a log with these entries. `compact`: whether it is a compact one.
pub fn slide(request: &Request, entries: &[(f64, i64)], compact: bool, now: i64) -> Logged {
    let longest = request.quotas.last().expect("a quota").window;
    // The range that goes begins at 0: a member with a negative score counts, and never leaves.
    let leaves = |score: f64, window: i64| if score < 0.0 { NEVER } else { score.ceil() as i64 + window };
    let is_ahead = |score: f64| score > (now + longest) as f64;
    let is_expired = |score: f64, window: i64| score >= 0.0 && score <= (now - window) as f64;
    let (expired, rest): (Vec<_>, Vec<_>) = entries.iter().partition(|(score, _)| is_expired(*score, longest));
    let (ahead, counted): (Vec<_>, Vec<_>) = rest.into_iter().partition(|&(score, _)| is_ahead(score));
    // What a stepped clock has left ahead of a window does not count in it yet.
    let is_inside =
        |score: f64, window: i64, at: i64| score < 0.0 || leaves(score, window) > at && score <= (at + window) as f64;
    let units_at = |window: i64, at: i64| -> i64 {
        counted.iter().filter(|&&(score, _)| is_inside(score, window, at)).map(|&(_, units)| units).sum()
    };
    // Counts fall only as an entry leaves a window.
    let first_time = |windows: &[i64], from: i64, holds: &dyn Fn(i64) -> bool| {
        let times = windows.iter().flat_map(|&window| counted.iter().map(move |&(score, _)| leaves(score, window)));
        let mut times: Vec<i64> = times.filter(|&at| from < at && at < NEVER).chain([from]).collect();
        times.sort_unstable();
        times.dedup();
        times.into_iter().find(|&at| holds(at)).unwrap_or(NEVER)
    };
    let fits = |quota: &Quota, at: i64| units_at(quota.window, at) + request.cost <= quota.limit;
    let answers = request.quotas.iter().map(|&quota| {
        let window = quota.window;
        let before = units_at(window, now);
        let retry = match first_time(&[window], now, &|at| fits(&quota, at)) {
            NEVER => NEVER,
            at => at - now,
        };
        let lasting = counted.iter().filter(|&&(score, _)| score < 0.0).map(|&(_, units)| units).sum();
        // The request itself leaves after a window. Those that never leave are not waited for.
        let from = if retry == 0 { now + window } else { now };
        let reset = first_time(&[window], from, &|at| units_at(window, at) <= lasting) - now;
        let ttl = (window + 999) / 1000;
        Answer { quota, before, used: before, count: before, ttl, retry, reset }
    });
    let mut answer = Answer::binding(answers.collect());
    if (1..NEVER).contains(&answer.retry) {
        // While the one that binds is waited for, others may fill again.
        let windows: Vec<i64> = request.quotas.iter().map(|quota| quota.window).collect();
        answer.retry = first_time(&windows, now, &|at| request.quotas.iter().all(|quota| fits(quota, at))) - now;
    }
    // A sorted set is pruned in steps, the oldest and the nearest first, unless nothing in it counts.
    let in_steps = !compact && !counted.is_empty();
    let left_over = |from: &[(f64, i64)]| if in_steps { from.len().saturating_sub(PRUNED_AT_MOST as usize) } else { 0 };
    let late = &expired[expired.len() - left_over(&expired)..];
    let far = &ahead[ahead.len() - left_over(&ahead)..];
    let mut left = [late, &counted, far].concat();
    if answer.allowed() {
        answer.used += request.cost;
        if compact {
            left.push((now as f64, request.cost));
        } else {
            left.extend((0..request.cost).map(|_| (now as f64, 1)));
        }
    }
    left.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    let kind = match (left.is_empty(), compact) {
        (true, _) => "none",
        (false, true) => "string",
        (false, false) => "zset",
    };
    Logged { answer, kind, left }
}

/// Whether a reply is possible on a damaged compact log whose footer speaks of so many units.
pub fn possible_within(request: &Request, units: i64, reply: &Reply) -> bool {
    let Reply::Array(parts) = reply else { return false };
    let longest = request.quotas.last().expect("a quota").window;
    possible(request, reply)
        && match integers(parts, request.full).as_deref() {
            Some(&[_, count, _]) => count <= units,
            // What counts in the longest window leaves it some time.
            Some(&[allowed, limit, used, _, retry, reset, window]) => {
                used - allowed * request.cost <= units
                    && (window != longest || (retry >= 0 || limit < request.cost) && (used == 0 || reset > 0))
            }
            _ => false,
        }
}

/// The state of a counter after a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standing {
    pub value: i64,
    pub expires: i64,
}

/// What becomes of counters.
#[derive(Debug)]
pub struct Counted {
    pub answer: Answer,
    /// Those that are written, by their place among the quotas; nothing if none is.
    pub written: Vec<Option<Standing>>,
}

/// Decides on a request to counters. `found`: for each quota its own.
pub fn count(request: &Request, found: &[&Found], now: i64) -> Result<Counted, &'static str> {
    let values = found.iter().map(|found| found.integer().map(|value| value.unwrap_or(0)));
    let values: Vec<i64> = values.collect::<Result<_, _>>()?;
    // The script's own counts each call, and overflows as INCR does.
    let always = request.quotas.len() == 1 && request.cost == 1;
    if always && values[0] == i64::MAX {
        return Err(OVERFLOW);
    }
    let number = |quota: &Quota| now.div_euclid(quota.window);
    let mut written = Vec::new();
    let answers = request.quotas.iter().zip(found).zip(&values).map(|((&quota, found), &value)| {
        // Long windows of the same number share a counter, which lives as long as the longest of them.
        let sharing = request.quotas.iter().filter(|other| number(other) == number(&quota));
        let longest = sharing.map(|other| other.window).max().expect("itself");
        let expiry = (found.expires >= 0).then_some(found.expires);
        let expires = expiry.filter(|_| value != 0).unwrap_or(now + longest);
        let next = now - now.rem_euclid(quota.window) + quota.window;
        // The server keeps a key through the millisecond of its expiry.
        let fresh = |expiry: Option<i64>| expiry.map_or(next, |expiry| next.min(expiry + 1)) - now;
        let retry = if i128::from(value) + i128::from(request.cost) <= i128::from(quota.limit) {
            0
        } else if request.cost > quota.limit {
            NEVER
        } else {
            fresh(expiry)
        };
        let after = value.saturating_add(request.cost);
        written.push(Some(Standing { value: after, expires }));
        let counts = always || retry == 0;
        let (used, until) = if counts { (after, Some(expires)) } else { (value, expiry) };
        let reset = if used > 0 { fresh(until) } else { 0 };
        // Where nothing is written, the counter's own life; without one, what it would get.
        let told = if counts { expires } else { expiry.unwrap_or(now + longest) };
        let ttl = ((told - now).max(0) + 500) / 1000;
        Answer { quota, before: value, used, count: used, ttl, retry, reset }
    });
    let answer = Answer::binding(answers.collect());
    if !always && !answer.allowed() {
        written.fill(None);
    }
    Ok(Counted { answer, written })
}

/// What a throttle answers, and the arrival time that it stores if it moves. `now` in microseconds.
pub fn throttle(rate: Rate, found: &Found, now: i64) -> Result<(Reply, Option<Standing>), &'static str> {
    let stored = found.integer()?;
    if stored.is_some_and(|stored| stored < 0) {
        return Err(NOT_AN_INTEGER);
    }
    let seconds = |nanos: i128| i64::try_from((nanos + 999_999_999).div_euclid(1_000_000_000)).expect("seconds");
    let now = i128::from(now) * 1000;
    let tolerance = rate.interval * i128::from(rate.limit);
    let before = stored.map_or(now, |stored| now.max(i128::from(stored)));
    let increment = rate.interval * i128::from(rate.quantity);
    let after = before + increment;
    let wait = after - tolerance - now;
    let limited = wait > 0;
    let ahead = if limited { before } else { after } - now;
    let remaining = ((tolerance - ahead).max(0) / rate.interval) as i64;
    let retry = if limited && increment <= tolerance { seconds(wait) } else { -1 };
    let reply = [i64::from(limited), rate.limit, remaining, retry, seconds(ahead)].map(Reply::Integer);
    let standing = || Standing { value: after as i64, expires: (after as i64 - 1) / 1_000_000 + 1 };
    Ok((Reply::Array(reply.to_vec()), (!limited && rate.quantity > 0).then(standing)))
}

/// How many keys go.
pub fn reset(key: &Found, counters: &[&Found]) -> Result<i64, &'static str> {
    let takes = |found: &Found, kinds: &[&str]| kinds.contains(&&*found.kind);
    if !takes(key, &["none", "string", "zset"]) || counters.iter().any(|found| !takes(found, &["none", "string"])) {
        return Err(WRONG_TYPE);
    }
    let there = |found: &&Found| found.kind != "none";
    Ok(i64::from(there(&key)) + counters.iter().copied().filter(there).count() as i64)
}

/// Whether a reply to a request is possible, whatever lies at the key.
pub fn possible(request: &Request, reply: &Reply) -> bool {
    let numbers = match reply {
        Reply::Error(line) if request.sliding => {
            return [WRONG_TYPE, OTHER_VERSION, DAMAGED].contains(&&**line)
                || is_too_heavy(request) && refuses_the_cost(line);
        }
        Reply::Error(line) => return [WRONG_TYPE, NOT_AN_INTEGER, OVERFLOW].contains(&&**line),
        Reply::Array(parts) => integers(parts, request.full),
        _ => return false,
    };
    let plain = !request.sliding && request.quotas.len() == 1 && request.cost == 1;
    // The units before the call, which say whether it is allowed.
    let decided = |allowed: i64, quota: &Quota, used: i64, counted: bool| {
        let before = if counted { used.saturating_sub(request.cost) } else { used };
        (!request.sliding || before >= 0) && allowed == i64::from(before.saturating_add(request.cost) <= quota.limit)
    };
    // A counter that somebody has set below 0 lets in more than the limit.
    let never = request.sliding && request.quotas.iter().any(|quota| quota.limit < request.cost);
    match numbers.as_deref() {
        Some(&[allowed, count, ttl]) if !request.full => request.quotas.iter().any(|quota| {
            let counted = !request.sliding && (plain || allowed == 1);
            let lives =
                if request.sliding { ttl == (quota.window + 999) / 1000 } else { (0..=10_000_000_000).contains(&ttl) };
            lives && decided(allowed, quota, count, counted) && !(never && allowed == 1)
        }),
        Some(&[allowed, limit, used, remaining, retry, reset, window]) if request.full => {
            request.quotas.contains(&Quota { window, limit })
                && decided(allowed, &Quota { window, limit }, used, plain || allowed == 1)
                && remaining == limit.saturating_sub(used).max(0)
                && match allowed {
                    1 => retry == 0 && !never,
                    _ => retry >= 1 || retry == -1 && (request.sliding || limit < request.cost),
                }
                && (!never || retry == -1)
                && reset >= 0
        }
        _ => false,
    }
}

/// The integers of a reply, or of one that names them.
fn integers(parts: &[Reply], named: bool) -> Option<Vec<i64>> {
    const NAMES: [&str; 7] = ["allowed", "limit", "used", "remaining", "retry-after-ms", "reset-after-ms", "window-ms"];
    let integer = |part: &Reply| match part {
        Reply::Integer(integer) => Some(*integer),
        _ => None,
    };
    if !named {
        return parts.iter().map(integer).collect();
    }
    let names = parts.iter().step_by(2).map(|part| match part {
        Reply::Bulk(Some(name)) => name.clone(),
        _ => Vec::new(),
    });
    names.eq(NAMES.map(|name| name.as_bytes().to_vec())).then_some(())?;
    parts.iter().skip(1).step_by(2).map(integer).collect()
}

/// Whether a reply of a throttle is possible, whatever lies at the key.
pub fn possible_throttle(rate: Rate, reply: &Reply) -> bool {
    match reply {
        Reply::Error(line) => [WRONG_TYPE, NOT_AN_INTEGER].contains(&&**line),
        Reply::Array(parts) => match integers(parts, false).as_deref() {
            Some(&[limited, limit, remaining, retry, reset]) => {
                limit == rate.limit
                    && (0..=limit).contains(&remaining)
                    && reset >= 0
                    && match limited {
                        0 => retry == -1,
                        _ => {
                            limited == 1 && (retry >= 1) == (rate.quantity <= rate.limit) && (retry >= 1 || retry == -1)
                        }
                    }
            }
            _ => false,
        },
        _ => false,
    }
}

/// Whether a reply to a reset with so many windows is possible.
pub fn possible_reset(windows: usize, reply: &Reply) -> bool {
    match reply {
        Reply::Error(line) => line == WRONG_TYPE,
        Reply::Integer(removed) => (0..=1 + windows as i64).contains(removed),
        _ => false,
    }
}
