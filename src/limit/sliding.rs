//! The sliding window log.
//!
//! Each allowed request adds its time to a log. A request at time *t* is allowed if fewer than *limit* times in
//! the log are later than *t* − *window*. So no interval as long as the window, wherever it begins, ever holds
//! more than *limit* allowed requests. Denied requests add nothing.
//!
//! The rule is exact and needs one entry per request. It is the algorithm of the well-known Lua scripts over a sorted
//! set; see "sliding window log" in Alex Xu, *System Design Interview* (2020), chapter 4.
//!
//! A request may cost more than one unit. It then adds that many, and fits only if all of them do. Several quotas share
//! one log: each counts the units in its own window, and a request is allowed if it fits into all of them.
//!
//! The wait is exact. A request fits as soon as enough units have left the window. The last of these is found by its
//! rank in the log, and its stamp says when it leaves.
//!
//! Two things are added to the scripts' rule:
//!
//! * An entry more than one window ahead of the clock does not count: it is a turn that somebody waits for
//!   ([`super::turn`]), or was written by another clock, or by this one before it was stepped back. A window begins to count it
//!   once the clock is less than that window behind it. An entry ahead by more than the longest window and by more than the
//!   longest wait for a turn is removed like an expired one.
//! * The expiry of the key is written only when it matters, since each write of it travels to replicas and the AOF.

use std::cell::Cell;
use std::iter;

use super::{Decision, Detail, Quota, Refund, Request, Retry, Status, Time, Turn, Verdict, Waits, Window};

/// The stamps of a log at a given time: those later than `expired` count if they are not later than `latest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// The latest stamp that has expired.
    pub expired: Time,
    /// The latest stamp that counts.
    pub latest: Time,
    /// The latest stamp that is kept. A later one was written by a clock that was ahead.
    pub kept: Time,
}

impl Span {
    pub fn at(now: Time, window: Window) -> Self {
        let latest = now.plus(window);
        Self { expired: now.minus(window), latest, kept: latest.max(now.plus_millis(Turn::LONGEST_WAIT)) }
    }
}

/// A log at the time of a request. All methods are about the units that are kept at that time for the longest window.
pub trait History {
    /// Why a question has no answer.
    type Error;

    fn units(&self) -> i64;

    /// Units so far ahead that the longest window does not count them yet.
    fn beyond(&self) -> i64;

    /// The first time at which turns for this number of units may be added to those that are waited for.
    fn place_from(&self, units: i64) -> Result<Time, Self::Error>;

    /// Units stamped later than a time, without the permanent ones.
    fn stamped_after(&self, time: Time) -> Result<i64, Self::Error>;

    /// The same with the permanent ones.
    fn later_than(&self, time: Time) -> Result<i64, Self::Error> {
        Ok(self.stamped_after(time)?.saturating_add(self.permanent()))
    }

    /// The stamp of the unit with `rank` newer units in the log; the newest has rank 0. `None` if `rank` is out of range,
    /// and for a permanent unit.
    fn stamp_of(&self, rank: i64) -> Result<Option<Time>, Self::Error>;

    /// The number of units that never expire. They have no stamp of a clock, and are the oldest units of every window.
    fn permanent(&self) -> i64 {
        0
    }
}

/// Decides on one request. If it is counted, the units of its cost are added, stamped with its time. `may_count`: whether the call is
/// one that counts. `lookups`: how many look-ups for waits the call may still make, in all of its keys, rules and windows. Where entries
/// lie ahead of the clock, a wait is found in rounds, and a call could go through thousands of them for each of its windows. A search
/// that finds too few left takes one last round, whose answer may be too late, never too early.
pub fn decide<H: History>(
    log: &H,
    request: &Request,
    detail: Detail,
    may_count: bool,
    lookups: &Cell<usize>,
    now: Time,
) -> Result<Decision, H::Error> {
    Search::new(log, request, lookups, now).decide(detail, may_count)
}

/// The reply to a refund that takes `taken` units out of a log: the newest ones, or units stamped at the time `at`.
pub fn refund<H: History>(
    log: &H,
    request: &Request,
    taken: i64,
    at: Option<Time>,
    now: Time,
) -> Result<Refund, H::Error> {
    let quota = request.quotas.first();
    let lookups = Cell::new(0);
    let used = Search { may_begin: true, ..Search::new(log, request, &lookups, now) }.used(quota)?;
    let Span { expired, latest, .. } = Span::at(now, quota.window);
    let gone = match at {
        Some(at) if expired < at && at <= latest => taken,
        Some(_) => 0,
        None if quota.window == request.quotas.longest() => taken,
        // Of the units taken, which are not later than now, those that are in this window. Permanent ones are in it and stay.
        None => {
            let later = log.stamped_after(now)?.saturating_sub(log.stamped_after(latest)?);
            let stamped = used.saturating_sub(log.permanent()).saturating_sub(later).max(0);
            taken.min(stamped)
        }
    };
    Ok(Refund { units: taken, count: used.saturating_sub(gone), ttl: quota.window.seconds() })
}

/// A search for the ends of waits.
pub(super) struct Search<'a, H> {
    log: &'a H,
    request: &'a Request,
    lookups: &'a Cell<usize>,
    /// The time that is decided for: that of the call, or a turn.
    now: Time,
    is_turn: bool,
    /// Units that the request adds to the log, which are not in it yet.
    added: i64,
    /// Whether units ahead of the clock may begin to count: some are further ahead than the window, or later than now if there are
    /// several windows.
    may_begin: bool,
    /// How many rounds a search takes for units that may begin to count.
    most_rounds: usize,
}

/// For a request that may wait. A queue can be thousands of windows long: what is not found in this number of rounds, which are about as many
/// windows, stays unused.
const ROUNDS_OF_A_QUEUE: usize = 6;

impl<'a, H: History> Search<'a, H> {
    pub(super) fn new(log: &'a H, request: &'a Request, lookups: &'a Cell<usize>, now: Time) -> Self {
        let may_begin = log.beyond() > 0;
        Self { log, request, lookups, now, is_turn: false, added: 0, may_begin, most_rounds: usize::MAX }
    }

    /// For a request that may wait.
    pub(super) fn waiting(self) -> Self {
        Self { most_rounds: ROUNDS_OF_A_QUEUE, ..self }
    }

    /// For a turn: a later time than that of the call.
    pub(super) fn for_turn(self, turn: Time) -> Result<Self, H::Error> {
        Ok(Self { now: turn, is_turn: true, may_begin: self.log.stamped_after(turn)? > 0, ..self })
    }

    pub(super) fn decide(mut self, detail: Detail, may_count: bool) -> Result<Decision, H::Error> {
        let request = self.request;
        let charged = if may_count { request.cost.units() } else { 0 };
        if request.force {
            self.added = charged;
        }
        let mut binding = match request.quotas.single() {
            // No other wait is compared with this one, so it is computed only if the reply shows it.
            Some(quota) => self.verdict(quota, detail > Detail::Short)?,
            None => self.binding(detail > Detail::Allowed)?,
        };
        match binding.retry {
            Retry::Now => self.added = charged,
            // By then another quota may have no room: units ahead of the clock begin to count, and forced units count in all of
            // them.
            Retry::After(wait) if request.quotas.len() > 1 && (self.may_begin || self.added > 0) => {
                binding.retry = self.retry_in_all(wait)?;
            }
            Retry::After(_) | Retry::Never => {}
        }
        let mut each = Vec::new();
        if detail == Detail::Each {
            for quota in request.quotas.iter() {
                each.push(self.status(self.verdict(quota, true)?, true)?);
            }
        }
        Ok(Decision {
            status: self.status(binding, detail == Detail::Full)?,
            count: binding.used,
            ttl: binding.quota.window.seconds(),
            each,
            counted: self.added > 0,
            turn: None,
        })
    }

    /// The first time, not before `from`, at which the request fits into all quotas: as far as it is looked for, see
    /// [`Self::room_at`]. `None` if it never does.
    pub(super) fn first_room(mut self, from: Time) -> Result<Option<Time>, H::Error> {
        self.may_begin = self.log.stamped_after(from)? > 0;
        let leftover = |quota: Quota| Some((quota.window, self.leftover(self.room_for_others(quota))?));
        let leftovers = self.request.quotas.iter().map(leftover);
        if leftovers.clone().any(|leftover| leftover.is_none()) {
            return Ok(None);
        }
        self.room_at(leftovers.flatten(), from).map(Some)
    }

    /// The verdict of the quota that binds.
    fn binding(&mut self, with_waits: bool) -> Result<Verdict, H::Error> {
        self.may_begin = self.log.stamped_after(self.now)? > 0;
        let mut binding = self.verdict(self.request.quotas.first(), with_waits)?;
        for quota in self.request.quotas.iter().skip(1) {
            let next = self.verdict(quota, with_waits)?;
            if next.binds_before(&binding) {
                binding = next;
            }
        }
        Ok(binding)
    }

    /// The verdict of a quota. Without waits a denial is for ever.
    fn verdict(&self, quota: Quota, with_waits: bool) -> Result<Verdict, H::Error> {
        let used = self.used(quota)?;
        let retry = match quota.limit.free(used) >= self.request.cost.needed() {
            true => Retry::Now,
            false if with_waits => self.retry(quota)?,
            false => Retry::Never,
        };
        Ok(Verdict { quota, used, retry })
    }

    /// Units in the window of a quota.
    fn used(&self, quota: Quota) -> Result<i64, H::Error> {
        if quota.window == self.request.quotas.longest() && !self.is_turn {
            return Ok(self.log.units().saturating_sub(self.log.beyond()));
        }
        let later = self.log.later_than(self.now.minus(quota.window))?;
        let ahead = if self.may_begin { self.log.stamped_after(self.now.plus(quota.window))? } else { 0 };
        Ok(later.saturating_sub(ahead))
    }

    /// When a request that does not fit into one quota will.
    fn retry(&self, quota: Quota) -> Result<Retry, H::Error> {
        // A unit that is in the way, has expired and still counts never expires.
        let wait = self.until(quota, self.room_for_others(quota))?.filter(|&wait| wait > 0);
        Ok(wait.map_or(Retry::Never, Retry::After))
    }

    /// When a request that has to wait for one quota fits into all of them.
    fn retry_in_all(&self, wait: i64) -> Result<Retry, H::Error> {
        let leftover = |quota: Quota| Some((quota.window, self.leftover(self.room_for_others(quota))?));
        let leftovers = self.request.quotas.iter().filter_map(leftover);
        Ok(Retry::after(self.room_at(leftovers, self.now.plus_millis(wait))?.since(self.now)))
    }

    /// How many units may be in a window for the request to fit.
    fn room_for_others(&self, quota: Quota) -> i64 {
        quota.limit.free(self.request.cost.needed())
    }

    /// The state of a quota after the request.
    fn status(&self, Verdict { quota, used, retry }: Verdict, with_waits: bool) -> Result<Status, H::Error> {
        let used = used.saturating_add(self.added);
        let waits = if with_waits { Some(self.waits(quota, used)?) } else { None };
        Ok(Status { limit: quota.limit.requests(), used, window: quota.window.millis(), retry, waits })
    }

    #[cold] // Most calls want the short reply, which does not show them.
    fn waits(&self, quota: Quota, used: i64) -> Result<Waits, H::Error> {
        let next = match used {
            0 => Some(0),
            // One unit less than what is used now, or than the limit if that is overdrawn.
            _ => self.until(quota, used.min(quota.limit.requests()).saturating_sub(1))?,
        };
        Ok(Waits { next, reset: self.wait(quota, 0)? })
    }

    /// How many stamped units may be left where this number of units may be. `None` if the permanent ones are more.
    fn leftover(&self, units: i64) -> Option<i64> {
        units.checked_sub(self.log.permanent()).filter(|&leftover| leftover >= 0)
    }

    /// The milliseconds until at most this number of units are left in a window. `None` if it never happens.
    fn until(&self, quota: Quota, units: i64) -> Result<Option<i64>, H::Error> {
        self.leftover(units).map(|leftover| self.wait(quota, leftover)).transpose()
    }

    /// The milliseconds until at most `leftover` stamped units are left in a window.
    fn wait(&self, quota: Quota, leftover: i64) -> Result<i64, H::Error> {
        Ok(self.room_at(iter::once((quota.window, leftover)), self.now)?.since(self.now))
    }

    /// The first time, not before `from`, at which each of these windows holds at most this number of stamped units.
    ///
    /// Ranks count from the newest unit, so the unit whose rank is the number that may be left is the last that has to
    /// expire. Units ahead of the window are newer, too, but do not count yet. Some of them may begin to count before that
    /// unit has expired; then more have to expire, which takes another round. Each round takes its windows from what the call may
    /// still look up. If too few are left, the last round counts all units ahead: it finds the end of the queue, and no gap before it.
    fn room_at(&self, leftovers: impl Iterator<Item = (Window, i64)> + Clone, from: Time) -> Result<Time, H::Error> {
        let (mut at, mut rounds) = (from, 0..self.most_rounds);
        loop {
            let begun = at;
            let is_exact = self.may_begin && rounds.next().is_some() && self.take_lookups(leftovers.clone().count());
            for (window, leftover) in leftovers.clone() {
                let ahead = if is_exact { self.log.stamped_after(at.plus(window))? } else { 0 };
                if let Some(stamp) = self.stamp_of(leftover.saturating_add(ahead))? {
                    at = at.max(stamp.plus(window));
                }
            }
            if !is_exact || at == begun {
                return Ok(at);
            }
        }
    }

    /// Takes this many look-ups, if as many are left.
    fn take_lookups(&self, number: usize) -> bool {
        let left = self.lookups.get().checked_sub(number);
        left.inspect(|&left| self.lookups.set(left)).is_some()
    }

    /// As [`History::stamp_of`], with the units that the request adds.
    fn stamp_of(&self, rank: i64) -> Result<Option<Time>, H::Error> {
        if self.added == 0 {
            return self.log.stamp_of(rank);
        }
        let newer = self.log.stamped_after(self.now)?;
        match rank.saturating_sub(newer) {
            ..0 => self.log.stamp_of(rank),
            behind if behind < self.added => Ok(Some(self.now)),
            _ => self.log.stamp_of(rank.saturating_sub(self.added)),
        }
    }
}

/// The expiry of a key lags by less than this many milliseconds, and by less than a tenth of its window.
const LONGEST_LAG: i64 = 1000;

/// The expiry to set for the key of a log in which something is kept, or `None` if the current one is good enough.
///
/// A log is of no use once its newest entry has expired. It is kept for two of its longest windows, as the scripts keep
/// it, which leaves room for clocks that differ and for the lag. `newest`: the newest stamp if that may be ahead by more than the window,
/// or is a turn. Nothing shortens the life of a log with entries ahead of the clock; `any_ahead` tells whether there are any.
pub fn renewed_expiry(
    current: Option<Time>,
    now: Time,
    window: Window,
    newest: Option<Time>,
    any_ahead: impl FnOnce() -> bool,
) -> Option<Time> {
    let wanted = now.plus(window).plus(window);
    let least = newest.map_or(now, |newest| newest.plus(window));
    let longest_lag = window.millis().div_euclid(10).clamp(1, LONGEST_LAG);
    let is_good = current.is_some_and(|current| {
        let lag = wanted.since(current);
        lag < longest_lag && current >= least && (lag >= 0 || newest.is_some() || any_ahead())
    });
    (!is_good).then_some(wanted.max(least))
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Cost, Limit, Quotas};
    use super::*;
    use proptest::prelude::*;

    /// The log in its simplest form.
    struct Naive {
        stamps: Vec<i64>,
        window: i64,
        limit: i64,
    }

    impl Naive {
        fn request(&mut self, now: i64) -> (bool, i64) {
            let window = self.window;
            self.stamps.retain(|&stamp| stamp > now - window && stamp <= now + window.max(Turn::LONGEST_WAIT));
            let count = self.stamps.iter().filter(|&&stamp| stamp <= now + window).count() as i64;
            if count < self.limit {
                self.stamps.push(now);
            }
            (count < self.limit, count)
        }
    }

    /// The rules of this file around a plain list.
    #[derive(Clone)]
    pub(crate) struct Ruled {
        pub stamps: Vec<Time>,
        pub request: Request,
        now: Time,
    }

    impl Ruled {
        fn of(window: Window, limit: i64) -> Self {
            Self::by(Quotas::of(Quota::of(window, Limit::new(limit).unwrap())))
        }

        pub fn by(quotas: Quotas) -> Self {
            let request = Request { quotas, cost: Cost::ONE, force: false, held: false, within: None };
            Self { stamps: vec![], request, now: Time::from_millis(0) }
        }

        /// Drops what is not kept at a time.
        pub fn prune(&mut self, now: Time) {
            let span = Span::at(now, self.request.quotas.longest());
            self.stamps.retain(|&stamp| stamp > span.expired && stamp <= span.kept);
            self.stamps.sort();
            self.now = now;
        }

        /// What a request would be answered, as far as the log is concerned.
        fn peek(&mut self, now: Time) -> Decision {
            self.prune(now);
            let request = self.request.clone();
            decide(self, &request, Detail::Full, true, &Cell::new(1024), now).unwrap()
        }

        /// A decision, and what it adds to the log.
        fn ask(&mut self, detail: Detail, may_count: bool, now: i64) -> Decision {
            let now = Time::from_millis(now);
            self.peek(now); // Prunes.
            let request = self.request.clone();
            decide(self, &request, detail, may_count, &Cell::new(1024), now).unwrap()
        }

        fn add(&mut self, now: i64) {
            self.stamps.extend((0..self.request.cost.units()).map(|_| Time::from_millis(now)));
        }

        fn request(&mut self, now: Time) -> Decision {
            let decision = self.peek(now);
            if decision.allowed() {
                self.stamps.extend((0..self.request.cost.units()).map(|_| now));
            }
            decision
        }
    }

    impl History for Ruled {
        type Error = std::convert::Infallible;

        fn units(&self) -> i64 {
            self.stamps.len() as i64
        }

        fn beyond(&self) -> i64 {
            let Ok(beyond) = self.stamped_after(self.now.plus(self.request.quotas.longest()));
            beyond
        }

        /// So many may wait.
        fn place_from(&self, units: i64) -> Result<Time, Self::Error> {
            Ok(self.now.max(self.stamp_of(40 - units)?.unwrap_or(self.now)))
        }

        fn stamped_after(&self, time: Time) -> Result<i64, Self::Error> {
            Ok(self.stamps.iter().filter(|&&stamp| stamp > time).count() as i64)
        }

        fn stamp_of(&self, rank: i64) -> Result<Option<Time>, Self::Error> {
            Ok(self.stamps.iter().rev().nth(rank as usize).copied())
        }
    }

    /// Some quotas with windows in increasing order, short enough that time runs through all of them.
    pub(crate) fn quotas() -> impl Strategy<Value = Quotas> {
        proptest::collection::btree_map(1i64..600, 0i64..12, 1..5).prop_map(quotas_of)
    }

    /// Milliseconds and limits, the windows in increasing order.
    fn quotas_of(parts: impl IntoIterator<Item = (i64, i64)>) -> Quotas {
        let mut parts = parts.into_iter().map(|(millis, limit)| Quota::of(window(millis), Limit::new(limit).unwrap()));
        let mut quotas = Quotas::of(parts.next().unwrap());
        parts.for_each(|quota| quotas.push(quota).unwrap());
        quotas
    }

    /// From a call to the next one. The clock may be stepped back.
    pub(crate) fn step() -> impl Strategy<Value = i64> {
        prop_oneof![7 => 0i64..60, 1 => -700i64..0]
    }

    fn window(millis: i64) -> Window {
        Window::from_millis(millis).unwrap()
    }

    proptest! {
        #[test]
        fn decisions_are_those_of_the_naive_log(
            millis in 1i64..5_000,
            limit in 0i64..20,
            steps in proptest::collection::vec(prop_oneof![9 => 0i64..400, 1 => -3_000i64..3_000], 1..400),
        ) {
            let mut naive = Naive { stamps: vec![], window: millis, limit };
            let mut ruled = Ruled::of(window(millis), limit);
            let mut now = 1_700_000_000_000;
            for step in steps {
                now += step;
                let (allowed, count) = naive.request(now);
                let decision = ruled.request(Time::from_millis(now));
                prop_assert_eq!((decision.allowed(), decision.count), (allowed, count));
            }
        }

        #[test]
        fn no_stretch_as_long_as_the_window_allows_more_than_the_limit(
            millis in 1i64..2_000,
            limit in 0i64..10,
            steps in proptest::collection::vec(0i64..300, 1..400),
        ) {
            let mut ruled = Ruled::of(window(millis), limit);
            let mut now = 0;
            let mut passed: Vec<i64> = vec![];
            for step in steps {
                now += step;
                if ruled.request(Time::from_millis(now)).allowed() {
                    passed.push(now);
                }
            }
            for (index, &first) in passed.iter().enumerate() {
                let within = passed[index..].iter().take_while(|&&at| at < first + millis).count();
                prop_assert!(within as i64 <= limit);
            }
        }

        #[test]
        fn a_request_is_allowed_if_it_fits_into_every_quota(
            quotas in quotas(),
            steps in proptest::collection::vec((step(), 1i64..6), 1..300),
        ) {
            let mut passed: Vec<(i64, i64)> = vec![];
            let mut ruled = Ruled::by(quotas);
            let mut now = 1_700_000_000_000;
            for (step, cost) in steps {
                now += step;
                let longest = ruled.request.quotas.longest().millis();
                passed.retain(|(at, _)| (now - longest + 1..=now + longest.max(Turn::LONGEST_WAIT)).contains(at));
                let standings: Vec<(bool, i64, i64)> = ruled.request.quotas.iter().map(|quota| {
                    let window = quota.window.millis();
                    let recent = passed.iter().filter(|(at, _)| (now - window + 1..=now + window).contains(at));
                    let used: i64 = recent.map(|(_, cost)| cost).sum();
                    (used + cost <= quota.limit.requests(), used, quota.limit.requests() - used)
                }).collect();
                ruled.request.cost = Cost::new(cost).unwrap();
                let decision = ruled.request(Time::from_millis(now));
                prop_assert_eq!(decision.allowed(), standings.iter().all(|&(fits, _, _)| fits));
                if decision.allowed() {
                    passed.push((now, cost));
                    // The quota that binds is the one with the least room.
                    prop_assert_eq!(decision.status.remaining() + cost, standings.iter().map(|&(_, _, free)| free).min().unwrap());
                    prop_assert_eq!(decision.status.used, decision.count + cost);
                } else {
                    prop_assert_eq!(decision.status.used, decision.count);
                    prop_assert!(standings.iter().any(|&(fits, used, _)| !fits && used == decision.status.used));
                }
            }
        }

        #[test]
        fn a_request_is_denied_at_every_millisecond_of_its_wait_and_allowed_after_it(
            quotas in quotas(),
            steps in proptest::collection::vec((step(), 1i64..6), 1..60),
            cost in 1i64..8,
        ) {
            let mut ruled = Ruled::by(quotas);
            let mut now = 1_700_000_000_000;
            for (step, cost) in steps {
                now += step;
                ruled.request.cost = Cost::new(cost).unwrap();
                ruled.request(Time::from_millis(now));
            }
            ruled.request.cost = Cost::new(cost).unwrap();
            let decision = ruled.peek(Time::from_millis(now));
            let denied = |ruled: &mut Ruled, after: i64| !ruled.peek(Time::from_millis(now + after)).allowed();
            match decision.status.retry {
                Retry::Now => prop_assert!(decision.allowed()),
                Retry::After(wait) => {
                    prop_assert!(!decision.allowed());
                    for after in 0..wait {
                        prop_assert!(denied(&mut ruled, after));
                    }
                    prop_assert!(!denied(&mut ruled, wait));
                }
                Retry::Never => {
                    prop_assert!(ruled.request.quotas.iter().any(|quota| quota.limit.requests() < cost));
                    prop_assert!(denied(&mut ruled, 1_000));
                }
            }
        }

        #[test]
        fn what_is_forced_counts_and_the_waits_allow_for_it(
            quotas in quotas(),
            steps in proptest::collection::vec((step(), 1i64..6, any::<bool>()), 1..60),
        ) {
            let mut ruled = Ruled::by(quotas);
            let mut now = 1_700_000_000_000;
            let mut decision = None;
            for (step, cost, force) in steps {
                now += step;
                ruled.request.cost = Cost::new(cost).unwrap();
                ruled.request.force = force;
                let free = ruled.ask(Detail::Full, false, now);
                let next = ruled.ask(Detail::Full, true, now);
                // The same quotas deny, forced or not, and what does not fit counts only if it is forced.
                prop_assert_eq!(free.allowed(), next.allowed());
                prop_assert_eq!(next.counted, next.allowed() || force);
                if next.counted {
                    ruled.add(now);
                }
                decision = Some(next);
            }
            // The same request, not forced, at each time from now on.
            let Decision { status, .. } = decision.unwrap();
            ruled.request.force = false;
            let then = |after: i64| ruled.clone().ask(Detail::Each, false, now + after);
            match status.retry {
                Retry::Now => {}
                Retry::After(wait) => {
                    for after in 0..wait {
                        prop_assert!(!then(after).allowed());
                    }
                    prop_assert!(then(wait).allowed());
                }
                Retry::Never => prop_assert!(!then(5_000).allowed()),
            }
            let free = |after: i64| {
                let each = then(after).each;
                each.iter().find(|each| each.window == status.window).unwrap().remaining()
            };
            prop_assert_eq!(free(0), status.remaining());
            let Waits { next, reset } = status.waits.unwrap();
            match next {
                Some(0) => prop_assert_eq!(status.used, 0),
                Some(wait) => prop_assert_eq!((1..=reset).find(|&after| free(after) > free(0)), Some(wait)),
                None => prop_assert_eq!(status.limit, 0),
            }
        }

        #[test]
        fn a_refund_counts_what_is_left_in_the_first_window(
            quotas in quotas(),
            steps in proptest::collection::vec(step(), 1..60),
            cost in 1i64..8,
            at in proptest::option::of(0usize..60),
        ) {
            let mut ruled = Ruled::by(quotas);
            let mut now = 1_700_000_000_000;
            for step in steps {
                now += step;
                ruled.request(Time::from_millis(now));
            }
            ruled.peek(Time::from_millis(now)); // Prunes.
            let at = at.and_then(|index| ruled.stamps.get(index % ruled.stamps.len().max(1)).copied());
            let mut left = ruled.stamps.clone();
            let mut taken = 0;
            while taken < cost
                && let Some(index) = left.iter().rposition(|&stamp| at.map_or(stamp.millis() <= now, |at| stamp == at))
            {
                left.remove(index);
                taken += 1;
            }
            let request = ruled.request.clone();
            let refund = refund(&ruled, &request, taken, at, Time::from_millis(now)).unwrap();
            let first = request.quotas.first().window.millis();
            let count = left.iter().filter(|stamp| (now - first + 1..=now + first).contains(&stamp.millis())).count() as i64;
            prop_assert_eq!((refund.units, refund.count), (taken, count));
        }

        #[test]
        fn the_quota_is_whole_again_just_when_it_is_said_to_be(
            quotas in quotas(),
            steps in proptest::collection::vec(step(), 1..60),
        ) {
            let mut ruled = Ruled::by(quotas);
            let mut now = 1_700_000_000_000;
            let mut decision = None;
            for step in steps {
                now += step;
                decision = Some(ruled.request(Time::from_millis(now)));
            }
            let decision = decision.unwrap();
            let is_whole = |after: i64| {
                let (from, to) = (now + after - decision.status.window + 1, now + after + decision.status.window);
                !ruled.stamps.iter().any(|stamp| (from..=to).contains(&stamp.millis()))
            };
            let reset = decision.status.waits.unwrap().reset;
            prop_assert_eq!((0..).find(|&after| is_whole(after)), Some(reset));
        }

        #[test]
        fn an_entry_frees_its_place_at_the_very_millisecond(millis in 1i64..1_000_000, at in 0i64..1_000_000) {
            let (stamp, window) = (Time::from_millis(at), window(millis));
            let counts = |now: i64| stamp > Span::at(Time::from_millis(now), window).expired;
            prop_assert!(counts(at + millis - 1));
            prop_assert!(!counts(at + millis));
        }

        #[test]
        fn the_expiry_never_lags_by_more_than_it_may(
            millis in 1i64..10_000_000,
            steps in proptest::collection::vec(-100i64..3_000, 1..200),
        ) {
            let window = window(millis);
            let (mut now, mut expiry) = (1_700_000_000_000, None);
            for step in steps {
                now += step;
                expiry = renewed_expiry(expiry, Time::from_millis(now), window, None, || false).or(expiry);
                let lag = now + 2 * millis - expiry.unwrap().millis();
                prop_assert!((0..=1000).contains(&lag) && lag <= millis / 10);
            }
        }
    }

    #[test]
    fn a_stamp_from_a_clock_that_was_ahead_counts_for_one_window_at_most() {
        let span = Span::at(Time::from_millis(100_000), window(60_000));
        assert_eq!(span.latest, Time::from_millis(160_000));
        assert_eq!(span.expired, Time::from_millis(40_000));
    }

    #[test]
    fn a_wait_allows_for_what_a_shorter_window_is_yet_to_count() {
        let mut ruled = Ruled::by(quotas_of([(100, 1), (1_000, 2)]));
        // The clock was stepped back to before the second request. The longer window has room at 10,100; just then the shorter
        // one counts the second, until 10,250.
        ruled.stamps = [9_100, 10_150].map(Time::from_millis).to_vec();
        let decision = ruled.peek(Time::from_millis(10_000));
        assert_eq!((decision.status.window, decision.count), (1_000, 2));
        assert_eq!(decision.status.retry, Retry::After(250));
    }

    /// Each second that is taken is followed by another one: the wait ends after the last of them.
    #[test]
    fn a_wait_moves_later_as_often_as_others_begin_to_count() {
        let mut ruled = Ruled::by(quotas_of([(1_000, 1), (3_600_000, 1_000)]));
        let now = 10_000_000;
        for taken in [1, 10, 200, 900] {
            let stamps = (0..taken).map(|number| now + 10 + number * 1_000);
            // The last one lies after a gap that a request fits into.
            ruled.stamps = stamps.chain([now + 2_000_000]).map(Time::from_millis).collect();
            let decision = ruled.peek(Time::from_millis(now));
            assert_eq!((decision.status.window, decision.count), (1_000, 1));
            assert_eq!(decision.status.retry, Retry::After(taken * 1_000 + 10), "{taken}");
        }
    }

    #[test]
    fn units_that_never_leave_are_not_waited_for() {
        /// One unit at 1,000 ms, one at 2,000, and two that nobody has stamped.
        struct Planted;

        impl History for Planted {
            type Error = std::convert::Infallible;

            fn units(&self) -> i64 {
                4
            }

            fn beyond(&self) -> i64 {
                0
            }

            fn place_from(&self, _: i64) -> Result<Time, Self::Error> {
                unreachable!("nobody waits")
            }

            fn stamped_after(&self, _: Time) -> Result<i64, Self::Error> {
                Ok(2)
            }

            fn stamp_of(&self, rank: i64) -> Result<Option<Time>, Self::Error> {
                Ok([2_000, 1_000].get(rank as usize).map(|&at| Time::from_millis(at)))
            }

            fn permanent(&self) -> i64 {
                2
            }
        }

        let retry = |limit: i64| {
            let request = Ruled::of(window(5_000), limit).request;
            decide(&Planted, &request, Detail::Full, true, &Cell::new(1024), Time::from_millis(3_000))
                .unwrap()
                .status
                .retry
        };
        assert_eq!([5, 4, 3].map(retry), [Retry::Now, Retry::After(3_000), Retry::After(4_000)]);
        assert_eq!([2, 1, 0].map(retry), [Retry::Never; 3]);
    }

    #[test]
    fn the_expiry_stays_while_it_is_good_enough() {
        let minute = window(60_000);
        let now = Time::from_millis(1_000_000);
        let exact = Time::from_millis(1_120_000);
        assert_eq!(renewed_expiry(None, now, minute, None, || false), Some(exact));
        assert_eq!(renewed_expiry(Some(exact), now, minute, None, || false), None);
        assert_eq!(renewed_expiry(Some(Time::from_millis(1_119_001)), now, minute, None, || false), None);
        assert_eq!(renewed_expiry(Some(Time::from_millis(1_119_000)), now, minute, None, || false), Some(exact));
        // An expiry that lies too late comes from a longer window or another clock.
        assert_eq!(renewed_expiry(Some(Time::from_millis(1_120_001)), now, minute, None, || false), Some(exact));
    }

    #[test]
    fn a_short_window_allows_a_tenth_of_itself() {
        let (short, now) = (window(100), Time::from_millis(1_000));
        assert_eq!(renewed_expiry(Some(Time::from_millis(1_191)), now, short, None, || false), None);
        assert_eq!(
            renewed_expiry(Some(Time::from_millis(1_190)), now, short, None, || false),
            Some(Time::from_millis(1_200))
        );
        let shortest = window(1);
        assert_eq!(renewed_expiry(Some(Time::from_millis(1_002)), now, shortest, None, || false), None);
        assert_eq!(
            renewed_expiry(Some(Time::from_millis(1_001)), now, shortest, None, || false),
            Some(Time::from_millis(1_002))
        );
    }

    /// A log that counts what is asked of it.
    struct Counting {
        log: Ruled,
        asked: std::cell::Cell<usize>,
    }

    impl History for Counting {
        type Error = std::convert::Infallible;

        fn units(&self) -> i64 {
            self.log.units()
        }

        fn beyond(&self) -> i64 {
            self.log.beyond()
        }

        fn place_from(&self, units: i64) -> Result<Time, Self::Error> {
            self.log.place_from(units)
        }

        fn stamped_after(&self, time: Time) -> Result<i64, Self::Error> {
            self.asked.set(self.asked.get() + 1);
            self.log.stamped_after(time)
        }

        fn stamp_of(&self, rank: i64) -> Result<Option<Time>, Self::Error> {
            self.asked.set(self.asked.get() + 1);
            self.log.stamp_of(rank)
        }
    }

    #[test]
    fn a_call_asks_a_bounded_number_of_times_after_the_clock_was_stepped_back() {
        const LOOKUPS: usize = 1024;
        let seconds = (1..=16).map(|number| (number * 1_000, number));
        let stamps = (1..10_000).map(|number| Time::from_millis(1_000_000 + number)).collect();
        let counting = Counting { log: Ruled { stamps, ..Ruled::by(quotas_of(seconds)) }, asked: 0.into() };
        let (lookups, request) = (Cell::new(LOOKUPS), counting.log.request.clone());
        for call in 0..64 {
            decide(&counting, &request, Detail::Each, true, &lookups, Time::from_millis(995_000)).unwrap();
            // A rule asks a few times for each window and wait. What it looks up besides is shared by all.
            assert!(counting.asked.get() < 2 * LOOKUPS + (call + 1) * 16 * 12, "{}", counting.asked.get());
        }
        assert!(counting.asked.get() > LOOKUPS, "{} prove nothing", counting.asked.get());
    }
}
