//! The one right answer to a call, from what lies at its keys: the contract once more, without a thought for speed.

use super::compact::{self, Reading};
use super::grammar::{All, Lease, Quota, Rate, Report, Request, Rule, canonical};
use super::wire::Reply;

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
const OVERFLOW: &str = "ERR increment or decrement would overflow";
pub const OTHER_VERSION: &str =
    "ERR rl: the log at this key was written by a later version of the module, which alone can read it";
pub const DAMAGED: &str = "ERR rl: the log at this key is damaged; RL.RESET removes it";

/// Only what is forced can come to this.
pub const LOG_IS_FULL: &str = "ERR rl: the log at this key is full: it holds at most 16 MiB and 2^53 - 1 units";

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
    /// Damaged somewhere, within a footer that counts this many units.
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

    /// The members of a sorted set with their scores, lowest first; none where there is no key.
    pub fn members(&self) -> Result<Vec<(Vec<u8>, f64)>, &'static str> {
        match (&*self.kind, &self.value) {
            ("none", _) => Ok(Vec::new()),
            ("zset", Reply::Array(parts)) => {
                let name = |part: &Reply| match part {
                    Reply::Bulk(Some(name)) => name.clone(),
                    part => panic!("{part:?} is no member"),
                };
                Ok(parts.chunks(2).map(|pair| (name(&pair[0]), score(&pair[1]))).collect())
            }
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

/// How a request stands in one window.
#[derive(Debug, Clone, Copy)]
struct Standard {
    quota: Quota,
    fits: bool,
    /// Units in the window before the call.
    before: i64,
    /// And after it.
    used: i64,
    /// The second and third integer of the short reply.
    count: i64,
    ttl: i64,
    /// Milliseconds; 0 if the request fits.
    retry: i64,
    next: i64,
    reset: i64,
}

/// What a request is answered.
#[derive(Debug, Clone)]
pub struct Answer {
    windows: Vec<Standard>,
    /// Until the request fits in every window.
    retry: i64,
}

impl Answer {
    pub fn allowed(&self) -> bool {
        self.windows.iter().all(|window| window.fits)
    }

    /// The one that binds: of those that deny, the one with the longest wait; if none does, the one with the least room.
    /// Of equals, the one with the least room, and then the shortest window.
    fn binding(&self) -> &Standard {
        let key = |window: &&Standard| {
            (window.fits, std::cmp::Reverse(window.retry), window.quota.limit.saturating_sub(window.before))
        };
        self.windows.iter().min_by_key(key).expect("a window")
    }

    pub fn reply(&self, report: Report, now: i64) -> Reply {
        let bound = self.binding();
        match report {
            Report::Short => {
                Reply::Array([i64::from(self.allowed()), bound.count, bound.ttl].map(Reply::Integer).to_vec())
            }
            Report::Full => bound.map(self.allowed(), self.retry, now),
            Report::Each => {
                Reply::Array(self.windows.iter().map(|window| window.map(window.fits, window.retry, now)).collect())
            }
        }
    }
}

impl Standard {
    fn map(&self, allowed: bool, retry: i64, now: i64) -> Reply {
        let or_never = |wait: i64| if wait == NEVER { -1 } else { wait };
        map([
            i64::from(allowed),
            self.quota.limit,
            self.used,
            self.quota.limit.saturating_sub(self.used).max(0),
            or_never(retry),
            or_never(self.next),
            self.reset,
            self.quota.window,
            now,
        ])
    }
}

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

/// The reply with FULL.
fn map(values: [i64; 9]) -> Reply {
    let name = |name: &str| Reply::Bulk(Some(name.as_bytes().to_vec()));
    let pairs = NAMES.iter().zip(values);
    Reply::Array(pairs.flat_map(|(field, value)| [name(field), Reply::Integer(value)]).collect())
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
    let needed = request.cost.max(1);
    let fits: Vec<bool> =
        request.quotas.iter().map(|quota| units_at(quota.window, now).saturating_add(needed) <= quota.limit).collect();
    let allowed = fits.iter().all(|&fits| fits);
    let is_counted = request.cost > 0 && (allowed || request.force);
    let before: Vec<i64> = request.quotas.iter().map(|quota| units_at(quota.window, now)).collect();
    let mut after = counted.clone();
    if is_counted {
        after.push((now as f64, request.cost));
    }
    let units_at = |window: i64, at: i64| -> i64 {
        let inside = after.iter().filter(|&&(score, _)| is_inside(score, window, at));
        inside.fold(0, |sum: i64, &(_, units)| sum.saturating_add(units))
    };
    // Counts fall only as an entry leaves a window.
    let first_time = |windows: &[i64], holds: &dyn Fn(i64) -> bool| {
        let times = windows.iter().flat_map(|&window| after.iter().map(move |&(score, _)| leaves(score, window)));
        let mut times: Vec<i64> = times.filter(|&at| now < at && at < NEVER).chain([now]).collect();
        times.sort_unstable();
        times.dedup();
        times.into_iter().find(|&at| holds(at)).map_or(NEVER, |at| at - now)
    };
    let fits_at = |quota: &Quota, at: i64| units_at(quota.window, at).saturating_add(needed) <= quota.limit;
    let windows = request.quotas.iter().zip(fits).zip(before).map(|((&quota, fits), before)| {
        let window = quota.window;
        let retry = if fits { 0 } else { first_time(&[window], &|at| fits_at(&quota, at)) };
        // Units that never leave are not waited for.
        let lasting = counted.iter().filter(|&&(score, _)| score < 0.0).map(|&(_, units)| units).sum();
        let reset = first_time(&[window], &|at| units_at(window, at) <= lasting);
        let free = |at: i64| quota.limit.saturating_sub(units_at(window, at)).max(0);
        let used = units_at(window, now);
        let next = if used == 0 { 0 } else { first_time(&[window], &|at| free(at) > free(now)) };
        Standard { quota, fits, before, used, count: before, ttl: (window + 999) / 1000, retry, next, reset }
    });
    let windows: Vec<Standard> = windows.collect();
    let lengths: Vec<i64> = request.quotas.iter().map(|quota| quota.window).collect();
    // While the one that binds is waited for, others may fill again.
    let retry = match () {
        () if allowed => 0,
        () if windows.iter().any(|window| window.retry == NEVER) => NEVER,
        () => first_time(&lengths, &|at| request.quotas.iter().all(|quota| fits_at(quota, at))),
    };
    let answer = Answer { windows, retry };
    // A sorted set is pruned in steps, the oldest and the nearest first, unless nothing in it counts.
    let in_steps = !compact && !counted.is_empty();
    let left_over = |from: &[(f64, i64)]| if in_steps { from.len().saturating_sub(PRUNED_AT_MOST as usize) } else { 0 };
    let late = &expired[expired.len() - left_over(&expired)..];
    let far = &ahead[ahead.len() - left_over(&ahead)..];
    let mut left = [late, &counted, far].concat();
    if is_counted {
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

/// Whether a reply is possible on a damaged compact log whose footer counts this many units.
pub fn possible_within(request: &Request, units: i64, reply: &Reply) -> bool {
    let Reply::Array(parts) = reply else { return false };
    let longest = request.quotas.last().expect("a quota").window;
    possible(request, reply)
        && match request.report {
            Report::Short => matches!(integers(parts, false).as_deref(), Some(&[_, count, _]) if count <= units),
            // What counts in the longest window leaves it some time.
            Report::Full | Report::Each => maps(parts, request.report).iter().flatten().all(|map| {
                let [allowed, limit, used, _, retry, _, reset, window, _] = *map;
                let own = if allowed == 1 || request.force { request.cost } else { 0 };
                used - own <= units
                    && (window != longest || (retry >= 0 || limit < request.cost.max(1)) && (used == 0 || reset > 0))
            }),
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
    let mut values = Vec::new();
    for found in found {
        // An anchored window is over in the very millisecond of its expiry.
        let is_over = request.anchored && found.expires >= 0 && now >= found.expires;
        let value = found.integer()?.unwrap_or(0);
        values.push(if is_over { (0, None) } else { (value, (found.expires >= 0).then_some(found.expires)) });
    }
    // The script's own counts each call, and overflows as INCR does.
    let always = request.quotas.len() == 1 && request.cost == 1;
    let needed = request.cost.max(1);
    let fits =
        |index: usize| i128::from(values[index].0) + i128::from(needed) <= i128::from(request.quotas[index].limit);
    let allowed = (0..values.len()).all(fits);
    let is_counted = request.cost > 0 && (allowed || always || request.force);
    if is_counted && values.iter().any(|(value, _)| value.checked_add(request.cost).is_none()) {
        return Err(OVERFLOW);
    }
    let number = |quota: &Quota| now.div_euclid(quota.window);
    let mut written = Vec::new();
    let windows = request.quotas.iter().enumerate().map(|(index, &quota)| {
        let (value, expiry) = values[index];
        // Long windows of the same number share a counter, which lives as long as the longest of them.
        let sharing = request.quotas.iter().filter(|other| !request.anchored && number(other) == number(&quota));
        let longest = sharing.map(|other| other.window).chain([quota.window]).max().expect("itself");
        let expires = expiry.filter(|_| value != 0).unwrap_or(now + longest);
        let next_window = now - now.rem_euclid(quota.window) + quota.window;
        // The server keeps a key through the millisecond of its expiry.
        let fresh = |expiry: Option<i64>| match expiry {
            _ if request.anchored => expiry.unwrap_or(now + quota.window) - now,
            None => next_window - now,
            Some(expiry) => next_window.min(expiry + 1) - now,
        };
        let after = value.saturating_add(request.cost);
        let (used, until) = if is_counted { (after, Some(expires)) } else { (value, expiry) };
        let retry = if fits(index) {
            0
        } else if needed > quota.limit {
            NEVER
        } else {
            fresh(until)
        };
        // One that never ended would lock its key for ever.
        let is_endless = found[index].kind == "string" && found[index].expires < 0;
        written.push(match is_counted {
            true => Some(Standing { value: after, expires }),
            false => is_endless.then_some(Standing { value, expires: now + longest }),
        });
        let reset = if used > 0 { fresh(until) } else { 0 };
        let next = if used > 0 && quota.limit == 0 { NEVER } else { reset };
        // Where nothing is written, the counter's own life; without one, what it would get.
        let told = until.unwrap_or(now + longest);
        let ttl = ((told - now).max(0) + 500) / 1000;
        Standard { quota, fits: fits(index), before: value, used, count: used, ttl, retry, next, reset }
    });
    let windows: Vec<Standard> = windows.collect();
    // Of what is forced, another window can be full now that had room before.
    let until_it_fits = |window: &Standard| match i128::from(window.used) + i128::from(needed) {
        units if units <= i128::from(window.quota.limit) => 0,
        _ => window.retry.max(window.reset),
    };
    let retry = match () {
        () if allowed => 0,
        () => windows.iter().map(|window| window.retry.max(until_it_fits(window))).max().expect("a window"),
    };
    Ok(Counted { answer: Answer { windows, retry }, written })
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
    let millis = |nanos: i128| i64::try_from((nanos + 999_999).div_euclid(1_000_000)).expect("milliseconds");
    let used = i64::try_from((ahead.max(0) + rate.interval - 1) / rate.interval).expect("units");
    // Until one unit more than now is free.
    let next = match used {
        0 => 0,
        _ => millis(ahead - rate.interval * i128::from(used.min(rate.limit) - 1)),
    };
    let retry_ms = match limited {
        false => 0,
        true if increment > tolerance => -1,
        true => millis(wait),
    };
    let full = [
        i64::from(!limited),
        rate.limit,
        used,
        (rate.limit - used).max(0),
        retry_ms,
        next,
        millis(ahead),
        millis(tolerance),
        i64::try_from(now / 1_000_000).expect("milliseconds"),
    ];
    let short = [i64::from(limited), rate.limit, remaining, retry, seconds(ahead)];
    let reply = match rate.report {
        Report::Short => Reply::Array(short.map(Reply::Integer).to_vec()),
        Report::Full => map(full),
        Report::Each => Reply::Array(vec![map(full)]),
    };
    let standing = || Standing { value: after as i64, expires: (after as i64 - 1) / 1_000_000 + 1 };
    Ok((reply, (!limited && rate.quantity > 0 && !rate.peek).then(standing)))
}

/// What becomes of leases.
#[derive(Debug)]
pub struct Leased {
    pub reply: Reply,
    /// The members that are left, with their scores.
    pub left: Vec<(Vec<u8>, f64)>,
    /// When the key expires, where that is not as before.
    pub expires: Option<i64>,
}

/// When a lease with this score ends. Scores that no clock has written are not told apart.
fn end(score: f64) -> Option<i64> {
    score.is_finite().then_some((score.ceil() as i64).min((1 << 62) - 1))
}

/// When the last of these leases ends.
fn last_end(leases: &[(Vec<u8>, f64)]) -> Option<i64> {
    end(leases.iter().map(|&(_, score)| score).fold(f64::NEG_INFINITY, f64::max))
}

/// When the last of the leases ends that have not ended yet.
pub fn last_end_of_held(members: &[(Vec<u8>, f64)], now: i64) -> Option<i64> {
    let held = held(members, now);
    if held.is_empty() { None } else { last_end(&held) }
}

/// The leases that have not ended.
fn held(members: &[(Vec<u8>, f64)], now: i64) -> Vec<(Vec<u8>, f64)> {
    members.iter().filter(|&&(_, score)| score > now as f64).cloned().collect()
}

/// The members that are left where these leases are: they, and what has ended and is too much for one call.
fn left_with(
    leases: Vec<(Vec<u8>, f64)>,
    members: &[(Vec<u8>, f64)],
    now: i64,
    removes_all: bool,
) -> Vec<(Vec<u8>, f64)> {
    let ended = members.iter().filter(|&&(_, score)| score <= now as f64);
    let most = if removes_all { usize::MAX } else { PRUNED_AT_MOST as usize };
    let again = |name: &Vec<u8>| leases.iter().any(|(holder, _)| holder == name);
    let late: Vec<_> = ended.skip(most).filter(|(name, _)| !again(name)).cloned().collect();
    [late, leases].concat()
}

/// Decides on a request for a lease. `members`: those of the sorted set, lowest score first.
pub fn lease(asked: &Lease, members: &[(Vec<u8>, f64)], now: i64) -> Leased {
    let Quota { window, limit } = asked.quota;
    let held = held(members, now);
    let has_one = held.iter().any(|(name, _)| *name == asked.holder);
    let allowed = has_one || (held.len() as i64) < limit;
    let mut after = held.clone();
    if allowed {
        after.retain(|(name, _)| *name != asked.holder);
        after.push((asked.holder.clone(), (now + window) as f64));
    }
    let held_at = |at: i64| after.iter().filter(|&&(_, score)| end(score).is_none_or(|end| end > at)).count() as i64;
    let free_at = |at: i64| (limit - held_at(at)).max(0);
    let wait = |holds: &dyn Fn(i64) -> bool| {
        let mut ends: Vec<i64> = after.iter().filter_map(|&(_, score)| end(score)).collect();
        ends.sort_unstable();
        ends.into_iter().find(|&at| holds(at)).map_or(-1, |at| at - now)
    };
    let used = after.len() as i64;
    let full = map([
        i64::from(allowed),
        limit,
        used,
        (limit - used).max(0),
        if allowed { 0 } else { wait(&|at| free_at(at) > 0) },
        if used == 0 { 0 } else { wait(&|at| free_at(at) > free_at(now)) },
        if used == 0 { 0 } else { wait(&|at| held_at(at) == 0) },
        window,
        now,
    ]);
    let reply = match asked.report {
        Report::Short => Reply::Array([i64::from(allowed), used, (window + 999) / 1000].map(Reply::Integer).to_vec()),
        Report::Full => full,
        Report::Each => Reply::Array(vec![full]),
    };
    let expires = if allowed { last_end(&after) } else { None };
    Leased { reply, left: left_with(after, members, now, held.is_empty()), expires }
}

/// Gives leases back.
pub fn release(holders: &[Vec<u8>], members: &[(Vec<u8>, f64)], now: i64) -> Leased {
    let held = held(members, now);
    let after: Vec<_> = held.iter().filter(|(name, _)| !holders.contains(name)).cloned().collect();
    let released = held.len() - after.len();
    let expires = if released > 0 { last_end(&after) } else { None };
    let is_last = after.is_empty();
    let left = left_with(after, members, now, is_last);
    Leased { reply: Reply::Integer(released as i64), left, expires }
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
    let parts = match reply {
        Reply::Error(line) if request.sliding => {
            return [WRONG_TYPE, OTHER_VERSION, DAMAGED].contains(&&**line)
                || is_too_heavy(request) && refuses_the_cost(line)
                || request.force && line == LOG_IS_FULL;
        }
        Reply::Error(line) => return [WRONG_TYPE, NOT_AN_INTEGER, OVERFLOW].contains(&&**line),
        Reply::Array(parts) => parts,
        _ => return false,
    };
    let plain = !request.sliding && request.quotas.len() == 1 && request.cost == 1;
    let needed = request.cost.max(1);
    // The units before the call, which say whether it fits.
    let decided = |allowed: i64, quota: &Quota, used: i64, counted: bool| {
        let before = if counted { used.saturating_sub(request.cost) } else { used };
        (!request.sliding || before >= 0) && allowed == i64::from(before.saturating_add(needed) <= quota.limit)
    };
    // A counter that somebody has set below 0 lets in more than the limit, until its window is over.
    let hopeless = request.quotas.iter().any(|quota| quota.limit < needed);
    let never = request.sliding && hopeless;
    match request.report {
        Report::Short => match integers(parts, false).as_deref() {
            Some(&[allowed, count, ttl]) => request.quotas.iter().any(|quota| {
                let counted = !request.sliding && (plain || allowed == 1 || request.force) && request.cost > 0;
                let lives = if request.sliding {
                    ttl == (quota.window + 999) / 1000
                } else {
                    (0..=10_000_000_000).contains(&ttl)
                };
                lives && decided(allowed, quota, count, counted) && !(never && allowed == 1)
            }),
            _ => false,
        },
        Report::Full | Report::Each => {
            let Some(maps) = maps(parts, request.report) else { return false };
            let all_fit = maps.iter().all(|map| map[0] == 1);
            let is_complete = request.report == Report::Full || maps.len() == request.quotas.len();
            is_complete
                && maps.iter().all(|&[allowed, limit, used, remaining, retry, next, reset, window, _]| {
                    let counted = plain || all_fit || request.force;
                    let never = request.sliding && limit < needed || never && request.report == Report::Full;
                    request.quotas.contains(&Quota { window, limit })
                        && decided(allowed, &Quota { window, limit }, used, counted)
                        && remaining == limit.saturating_sub(used).max(0)
                        && match allowed {
                            1 => retry == 0 && !never,
                            _ => {
                                let may_never = limit < needed || hopeless && request.report == Report::Full;
                                retry >= 1 || retry == -1 && (request.sliding || may_never)
                            }
                        }
                        && (!never || retry == -1)
                        && (reset >= 0 && next >= -1)
                })
        }
    }
}

/// The integers of a reply, or of one that names them.
fn integers(parts: &[Reply], named: bool) -> Option<Vec<i64>> {
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

/// The map of a reply with FULL, or those of one with EACH.
fn maps(parts: &[Reply], report: Report) -> Option<Vec<[i64; 9]>> {
    let one = |parts: &[Reply]| integers(parts, true)?.try_into().ok();
    if report == Report::Full {
        return Some(vec![one(parts)?]);
    }
    let each = parts.iter().map(|part| match part {
        Reply::Array(parts) => one(parts),
        _ => None,
    });
    each.collect()
}

/// Whether a reply of a throttle is possible, whatever lies at the key.
pub fn possible_throttle(rate: Rate, reply: &Reply) -> bool {
    let parts = match reply {
        Reply::Error(line) => return [WRONG_TYPE, NOT_AN_INTEGER].contains(&&**line),
        Reply::Array(parts) => parts,
        _ => return false,
    };
    if rate.report != Report::Short {
        return maps(parts, rate.report).is_some_and(|maps| {
            matches!(maps[..], [[allowed, limit, used, remaining, retry, next, reset, _, _]]
                if limit == rate.limit
                    && used >= 0
                    && remaining == (limit - used).max(0)
                    && (allowed == 1) == (retry == 0)
                    && (retry == -1) == (allowed == 0 && rate.quantity > rate.limit)
                    && (used == 0) == (next == 0)
                    && (used == 0) == (reset == 0))
        });
    }
    match integers(parts, false).as_deref() {
        Some(&[limited, limit, remaining, retry, reset]) => {
            limit == rate.limit
                && (0..=limit).contains(&remaining)
                && reset >= 0
                && match limited {
                    0 => retry == -1,
                    _ => limited == 1 && (retry >= 1) == (rate.quantity <= rate.limit) && (retry >= 1 || retry == -1),
                }
        }
        _ => false,
    }
}

/// An error that a call may meet at its keys: not one about its words, and not the module's own failure.
fn is_of_the_keys(line: &str) -> bool {
    [WRONG_TYPE, OTHER_VERSION, DAMAGED, NOT_AN_INTEGER, OVERFLOW, LOG_IS_FULL].contains(&line)
        || refuses_the_cost(line)
}

/// Whether a reply to a refund is possible, whatever lies at the key.
pub fn possible_refund(rule: &Rule, reply: &Reply) -> bool {
    match reply {
        Reply::Error(line) => is_of_the_keys(line),
        Reply::Array(parts) => matches!(
            integers(parts, false).as_deref(),
            Some(&[refunded, _, ttl]) if (0..=rule.cost()).contains(&refunded) && ttl >= 0
        ),
        _ => false,
    }
}

/// Whether a reply about several keys is possible, whatever lies there.
pub fn possible_all(asked: &All, reply: &Reply) -> bool {
    let is_map_of = |part: &Reply, rule: &Rule| match part {
        Reply::Array(parts) => matches!(
            maps(parts, Report::Full).as_deref(),
            Some(&[[0 | 1, limit, used, remaining, _, _, _, window, _]])
                if rule.quotas().contains(&Quota { window, limit })
                    && remaining == limit.saturating_sub(used).max(0)
        ),
        _ => false,
    };
    let parts = match reply {
        Reply::Error(line) => return is_of_the_keys(line),
        Reply::Array(parts) => parts,
        _ => return false,
    };
    let [
        Reply::Integer(allowed @ (0 | 1)),
        Reply::Integer(index),
        Reply::Integer(free),
        Reply::Integer(wait),
        rest @ ..,
    ] = &parts[..]
    else {
        return false;
    };
    let has_rule = (0..asked.parts.len() as i64).contains(index);
    let has_maps = match rest {
        [] => !asked.full,
        [Reply::Array(maps)] => {
            asked.full
                && maps.len() == asked.parts.len()
                && maps.iter().zip(&asked.parts).all(|(map, (_, rule))| is_map_of(map, rule))
        }
        _ => false,
    };
    has_rule && has_maps && *free >= 0 && (*allowed == 1) == (*wait == 0) && *wait >= -1
}

/// Whether a reply to a request for a lease is possible, whatever lies at the key.
pub fn possible_lease(asked: &Lease, reply: &Reply) -> bool {
    let parts = match reply {
        Reply::Error(line) => return line == WRONG_TYPE,
        Reply::Array(parts) => parts,
        _ => return false,
    };
    let Quota { window, limit } = asked.quota;
    if asked.report == Report::Short {
        return matches!(integers(parts, false).as_deref(), Some(&[allowed, held, ttl])
        if ttl == (window + 999) / 1000
            && match allowed {
                1 => held >= 1,
                _ => allowed == 0 && held >= limit,
            });
    }
    maps(parts, asked.report).is_some_and(|maps| {
        matches!(maps[..], [[allowed, told, used, remaining, retry, next, reset, lease, _]]
            if (told, lease) == (limit, window)
                && remaining == (limit - used).max(0)
                && match allowed {
                    1 => used >= 1 && retry == 0,
                    _ => allowed == 0 && used >= limit && retry == if used == 0 { -1 } else { next },
                }
                && (used == 0) == (next == 0)
                && (used == 0) == (reset == 0))
    })
}

/// Whether a reply to a release is possible, whatever lies at the key.
pub fn possible_release(holders: usize, reply: &Reply) -> bool {
    match reply {
        Reply::Error(line) => line == WRONG_TYPE,
        Reply::Integer(released) => (0..=holders as i64).contains(released),
        _ => false,
    }
}

/// Whether a reply to a reset with this many windows is possible.
pub fn possible_reset(windows: usize, reply: &Reply) -> bool {
    match reply {
        Reply::Error(line) => line == WRONG_TYPE,
        Reply::Integer(removed) => (0..=1 + 2 * windows as i64).contains(removed),
        _ => false,
    }
}
