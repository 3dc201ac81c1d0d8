//! Decisions of the model: what is used of a rule, and the first time at which a request fits.

use super::*;

impl Usage<'_> {
    pub(super) fn nanos(&self, at: i64) -> i128 {
        i128::from(at) * 1_000_000 + i128::from(self.micros) * 1_000
    }

    /// Units used in a window at a time from now on, if nothing else happens.
    pub(super) fn used(&self, index: usize, at: i64) -> i64 {
        let window = self.quotas[index].window;
        match &self.units {
            Units::Log(entries) => {
                let inside = entries.iter().filter(|&&(score, _)| counts(score, window, at));
                inside.fold(0, |sum: i64, &(_, units)| sum.saturating_add(units))
            }
            Units::Counters(counters) => {
                let Counter { value, expires, end, .. } = counters[index];
                // The server keeps a key through the millisecond of its expiry. An anchored window is over by then.
                let is_over = match (end, self.rule.is_anchored()) {
                    (Some(end), _) => at >= end,
                    (None, true) => at >= expires,
                    (None, false) => at > expires || at.div_euclid(window) != self.now.div_euclid(window),
                };
                if is_over { 0 } else { value }
            }
            Units::Arrival(arrival) => up((arrival - self.nanos(at)).max(0), self.rule.interval()),
            Units::Leases(leases) => leases.iter().filter(|&&(_, score)| end(score) > at).count() as i64,
        }
    }

    /// The times after now at which less can be used in a window, in order.
    pub(super) fn changes(&self, index: usize) -> Vec<i64> {
        let Quota { window, limit, end: over } = self.quotas[index];
        let mut times: Vec<i64> = match &self.units {
            Units::Log(entries) => entries.iter().map(|&(score, _)| leaves(score, window)).collect(),
            Units::Counters(_) if over.is_some() => over.into_iter().collect(),
            Units::Counters(counters) => {
                let expires = counters[index].expires;
                vec![(self.now.div_euclid(window) + 1) * window, expires, expires.saturating_add(1)]
            }
            Units::Arrival(arrival) => {
                // When the request fits, when one unit more is free, and when the bucket is full.
                let units = [limit - self.rule.needed(), self.used(index, self.now).min(limit) - 1, 0];
                let interval = self.rule.interval();
                let offset = self.nanos(0);
                units.map(|units| up(arrival - i128::from(units.max(0)) * interval - offset, 1_000_000)).to_vec()
            }
            Units::Leases(leases) => leases.iter().map(|&(_, score)| end(score)).collect(),
        };
        times.retain(|&at| self.now < at && at < NEVER);
        times.sort_unstable();
        times.dedup();
        times
    }

    /// How long it takes until something holds, if it begins to hold only where one of these windows changes.
    pub(super) fn wait(&self, windows: std::ops::Range<usize>, holds: impl Fn(i64) -> bool) -> i64 {
        let mut times: Vec<i64> = windows.flat_map(|index| self.changes(index)).collect();
        times.sort_unstable();
        std::iter::once(self.now).chain(times).find(|&at| holds(at)).map_or(NEVER, |at| at - self.now)
    }

    /// Counts the call.
    pub(super) fn count(&mut self) -> Result<(), &'static str> {
        let (now, cost, nanos) = (self.now, self.rule.cost(), self.nanos(self.now));
        match (&mut self.units, self.rule) {
            (Units::Log(entries), _) => {
                let at = entries.partition_point(|&(score, _)| score <= now as f64);
                entries.insert(at, (now as f64, cost));
            }
            (Units::Counters(counters), _) => {
                for counter in counters.iter_mut().filter(|counter| counter.end.is_none_or(|end| end > now)) {
                    if counter.value == 0 {
                        counter.expires = counter.fresh;
                    }
                    counter.value = counter.value.checked_add(cost).ok_or(OVERFLOW)?;
                }
            }
            (Units::Arrival(arrival), rule) => {
                *arrival = nanos.max(*arrival) + rule.interval() * i128::from(cost);
            }
            (Units::Leases(leases), Rule::Acquire { lease, holder, .. }) => {
                leases.retain(|(name, _)| name != holder);
                leases.push((holder.clone(), (now + lease) as f64));
            }
            (units, rule) => panic!("{units:?} are not of {rule:?}"),
        }
        Ok(())
    }

    /// Decides on the call. Gives what is used after it, and whether it counts.
    pub(super) fn decide(&self, charge: Charge) -> Result<(Decision, Self, bool), &'static str> {
        let Some(within) = self.rule.within() else { return self.decide_now(charge) };
        let within = if self.rule.cost() == 0 { 0 } else { within };
        let room = self.room(self.now);
        self.decide_waiting(within, room.map(|room| room - self.now), charge)
    }

    /// Decides on a request that may wait, alone or with others. `wait`: until the first time with room for all.
    pub(super) fn decide_waiting(
        &self,
        within: i64,
        wait: Option<i64>,
        charge: Charge,
    ) -> Result<(Decision, Self, bool), &'static str> {
        let waiting = Self { is_waiting: true, ..self.clone() };
        let (mut decision, after, is_counted);
        match wait {
            Some(wait) if wait <= within => {
                let turn = self.now + wait;
                // The arrival time moves on from where it stands.
                let is_arrival = matches!(self.units, Units::Arrival(_));
                let then = if is_arrival { waiting } else { Self { now: turn, ..waiting } };
                (decision, after, is_counted) =
                    then.decide_now(if is_arrival && wait > 0 { Charge::Always } else { charge })?;
                for window in &mut decision.windows {
                    if is_arrival {
                        window.used = window.used.min(window.quota.limit);
                    } else {
                        window.next = window.next.saturating_add(wait);
                        window.reset += wait;
                    }
                    (window.fits, window.wait) = (true, 0);
                }
                (decision.allowed, decision.wait) = (true, 0);
                decision.turn = Some((within, wait));
            }
            _ => {
                (decision, after, is_counted) = waiting.decide_now(Charge::Never)?;
                decision.allowed = false;
                decision.wait = wait.map_or(NEVER, |wait| wait - within);
                decision.turn = Some((within, 0));
            }
        }
        Ok((decision, after, is_counted))
    }

    /// `at-ms` after a call that was made `now`, if the request might wait.
    pub(super) fn turn_at(&self, now: i64, decision: &Decision) -> Option<i64> {
        decision.turn.map(|(_, wait)| match &self.units {
            // Of nanoseconds.
            Units::Arrival(arrival) if wait > 0 => {
                up(arrival - self.rule.interval() * i128::from(self.quotas[0].limit), 1_000_000)
            }
            _ => now + wait,
        })
    }

    /// The first time, not before `from`, at which the request fits, if there ever is one.
    pub(super) fn room(&self, from: i64) -> Option<i64> {
        let needed = self.rule.needed();
        if self.quotas.iter().any(|quota| needed > quota.limit) {
            return None;
        }
        match &self.units {
            Units::Log(_) => {
                let left = |quota: &Quota| quota.limit - needed - self.lasting();
                let windows: Vec<(i64, i64)> = self.quotas.iter().map(|quota| (quota.window, left(quota))).collect();
                if windows.iter().any(|&(_, left)| left < 0) { None } else { Some(self.found(&windows, from)) }
            }
            Units::Arrival(_) => {
                let fits = |at: i64| self.used(0, at) + needed <= self.quotas[0].limit;
                Some(self.now + self.wait(0..1, fits))
            }
            units => panic!("{units:?} wait for nothing"),
        }
    }

    /// Units that never leave a log.
    pub(super) fn lasting(&self) -> i64 {
        match &self.units {
            Units::Log(entries) => entries.iter().filter(|&&(score, _)| score < 0.0).map(|&(_, units)| units).sum(),
            _ => 0,
        }
    }

    /// The first time, not before `from`, at which each window has at most this number of units: as far as it is looked for, and else the
    /// first from which on there is always room.
    pub(super) fn found(&self, windows: &[(i64, i64)], from: i64) -> i64 {
        let Units::Log(entries) = &self.units else { unreachable!() };
        let ahead = |time: i64| -> i64 {
            entries.iter().filter(|&&(score, _)| score > time as f64).map(|&(_, units)| units).sum()
        };
        let stamp = |rank: i64| {
            let mut newer = 0;
            let unit = entries.iter().rev().filter(|&&(score, _)| score >= 0.0).find(|&&(_, units)| {
                newer += units;
                newer > rank
            });
            unit.map(|&(score, _)| score.ceil() as i64)
        };
        let round = |mut at: i64, is_exact: bool| {
            for &(window, left) in windows {
                let newer = if is_exact { ahead(at + window) } else { 0 };
                at = at.max(stamp(left + newer).map_or(at, |stamp| stamp + window));
            }
            at
        };
        let mut at = from;
        for _ in 0..self.rounds {
            let begun = at;
            at = round(at, true);
            if at == begun {
                return at;
            }
        }
        round(at, false)
    }

    pub(super) fn decide_now(&self, charge: Charge) -> Result<(Decision, Self, bool), &'static str> {
        let (rule, quotas, now) = (self.rule, &self.quotas, self.now);
        let is_renewal = match (&self.units, rule) {
            (Units::Leases(leases), Rule::Acquire { holder, .. }) => leases.iter().any(|(name, _)| name == holder),
            _ => false,
        };
        let fits_at = |usage: &Self, index: usize, at: i64| {
            is_renewal || usage.used(index, at).saturating_add(rule.needed()) <= quotas[index].limit
        };
        let all = 0..quotas.len();
        let allowed = all.clone().all(|index| fits_at(self, index, now));
        let is_counted = match charge {
            Charge::ByRule => allowed || rule.force() || rule.counts_denials(),
            Charge::Always => true,
            Charge::Never => false,
        } && rule.cost() > 0;
        let mut after = self.clone();
        if is_counted {
            after.count()?;
        }
        let never_fits = |index: usize| rule.needed() > quotas[index].limit && !is_renewal;
        // Units that never leave are not waited for.
        let lasting = self.lasting();
        let window = |index: usize| {
            let quota = quotas[index];
            let fits = fits_at(self, index, now);
            let used = |at: i64| after.used(index, at);
            let free = |at: i64| quota.limit.saturating_sub(used(at)).max(0);
            let wait = |left: i64, holds: &dyn Fn(i64) -> bool| match after.units {
                Units::Log(_) if self.is_waiting && left < lasting => NEVER,
                Units::Log(_) if self.is_waiting => after.found(&[(quota.window, left - lasting)], now) - now,
                _ => after.wait(index..index + 1, holds),
            };
            Standard {
                quota,
                fits,
                before: self.used(index, now),
                used: used(now),
                wait: match fits {
                    true => 0,
                    false if never_fits(index) => NEVER,
                    false => wait(quota.limit - rule.needed(), &|at| fits_at(&after, index, at)),
                },
                next: match used(now) {
                    ..=0 => 0,
                    used => wait(used.min(quota.limit) - 1, &|at| free(at) > free(now)),
                },
                reset: wait(lasting, &|at| used(at) <= lasting),
                life: match &after.units {
                    Units::Counters(counters) => (quota.end.unwrap_or(counters[index].expires) - now).max(0),
                    _ => 0,
                },
            }
        };
        let windows: Vec<Standard> = all.clone().map(window).collect();
        // While one window is waited for, others may fill again: a log after a step of the clock. A counter that was set below 0
        // from outside has room above its limit until it expires, which the waits of other windows do not consider.
        let keeps_room = |index: usize| matches!(rule, Rule::Fixed { .. }) && fits_at(&after, index, now);
        let wait = match allowed {
            true => 0,
            false if windows.iter().any(|window| window.wait == NEVER) => NEVER,
            false => {
                after.wait(all.clone(), |at| all.clone().all(|index| keeps_room(index) || fits_at(&after, index, at)))
            }
        };
        Ok((Decision { allowed, windows, wait, is_let_through: false, turn: None }, after, is_counted))
    }
}

impl Decision {
    /// The same, allowed as it is for a holder that has counted before.
    pub(super) fn let_through(mut self) -> Self {
        self.is_let_through = true;
        self
    }

    /// The window that binds: of those that deny the one with the longest wait; of equals, and if none denies, the one with
    /// the least room, and then the shortest.
    pub(super) fn binding(&self) -> &Standard {
        let rank =
            |window: &&Standard| (window.fits, Reverse(window.wait), window.quota.limit.saturating_sub(window.before));
        self.windows.iter().min_by_key(rank).expect("a window")
    }

    pub(super) fn reply(&self, rule: &Rule, report: Report, turn_at: Option<i64>, now: i64) -> Reply {
        let bound = self.binding();
        let turn = self.turn.map(|(_, wait)| wait);
        let at = turn_at.unwrap_or(now);
        let map = |window: &Standard, allowed: bool, wait: i64| match self.is_let_through {
            true => window.map(true, 0, at, turn),
            false => window.map(allowed, wait, at, turn),
        };
        match report {
            Report::Full => map(bound, self.allowed, self.wait),
            Report::Each => {
                let each = |window: &Standard| match self.turn {
                    // The window that binds denies, also where all have a turn but none together.
                    Some(_) if !self.allowed && std::ptr::eq(window, bound) => map(window, false, self.wait),
                    Some((within, _)) if window.wait != NEVER => {
                        map(window, window.wait <= within, (window.wait - within).max(0))
                    }
                    _ => map(window, window.fits, window.wait),
                };
                Reply::Array(self.windows.iter().map(each).collect())
            }
            Report::Short => {
                let allowed = i64::from(self.allowed || self.is_let_through);
                let window = seconds_up(bound.quota.window);
                let integers = match rule {
                    Rule::Sliding { .. } => vec![allowed, bound.before, window],
                    Rule::Fixed { .. } => vec![allowed, bound.used, nearest_seconds(bound.life)],
                    Rule::Acquire { .. } => vec![allowed, bound.used, window],
                    Rule::Throttle { .. } => {
                        let retry = if self.allowed || self.wait == NEVER { -1 } else { seconds_up(self.wait) };
                        vec![1 - allowed, bound.quota.limit, bound.remaining(), retry, seconds_up(bound.reset)]
                    }
                };
                Reply::integers(&[integers, turn.into_iter().collect()].concat())
            }
        }
    }
}

impl Standard {
    pub(super) fn remaining(&self) -> i64 {
        self.quota.limit.saturating_sub(self.used).max(0)
    }

    pub(super) fn map(&self, allowed: bool, wait: i64, now: i64, turn: Option<i64>) -> Reply {
        let or_never = |wait: i64| if wait == NEVER { -1 } else { wait };
        let Quota { window, limit, .. } = self.quota;
        let [wait, next, reset] = [wait, self.next, self.reset].map(or_never);
        Reply::Map([i64::from(allowed), limit, self.used, self.remaining(), wait, next, reset, window, now], turn)
    }
}
