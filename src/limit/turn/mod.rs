//! Turns in the log of a sliding window.
//!
//! A request that does not fit now, but will after a wait that is not too long, is counted at the time at which it fits: its *turn*. The
//! caller sleeps until then and need not ask again. A window counts the stamps ahead of a time as well as those behind it, so no stretch
//! as long as the window ever holds more than its limit, wherever the stamps lie; and a later caller finds room only behind the
//! turns that are given already.
//!
//! How many may wait is bounded by what a log can hold ahead of the clock.

use std::iter;

use super::sliding::{History, Search};
use super::{Cost, Decision, Detail, Retry, Time, Turn};

/// When a request that may wait has a turn, as the log stands.
#[derive(Debug, Clone, Copy)]
pub struct Outlook {
    /// The first time with room that was found, not before now. `None` if there never is any.
    room: Option<Time>,
    /// The first time at which the queue takes it.
    place: Time,
}

impl Outlook {
    /// That of several requests which have a turn together. `next`: the first time with room for all, not before a time, as far as each
    /// by itself looks for it.
    pub fn together<E>(each: &[Self], now: Time, next: impl Fn(Time) -> Result<Option<Time>, E>) -> Result<Self, E> {
        let place = each.iter().map(|outlook| outlook.place).fold(now, Time::max);
        let mut room = each.iter().map(|outlook| outlook.room).try_fold(now, |last, room| Some(last.max(room?)));
        // Where one has room another may have none again.
        while let Some(at) = room {
            room = next(at)?;
            if room == Some(at) {
                break;
            }
        }
        Ok(Self { room, place })
    }

    /// When the request gets a turn that is at most `within` milliseconds away.
    pub fn retry(&self, within: i64, now: Time) -> Retry {
        let Some(wait) = self.room.map(|room| room.since(now)) else { return Retry::Never };
        match wait.saturating_sub(within).max(self.place.since(now).min(wait)) {
            ..=0 => Retry::Now,
            millis => Retry::After(millis),
        }
    }

    pub fn turn(&self, now: Time) -> Turn {
        let at = self.room.unwrap_or(now);
        Turn { at, wait: at.since(now) }
    }
}

impl<H: History> Search<'_, H> {
    /// Whether the request takes units. One that takes none waits for nothing.
    pub fn counts(self) -> bool {
        self.request.cost > Cost::NOTHING
    }

    /// The first time, not before `from`, at which the request fits into all quotas, as far as it is looked for. `None` if it never does.
    pub fn first_room(mut self, from: Time) -> Result<Option<Time>, H::Error> {
        self.may_begin = self.log.stamped_after(from)? > 0;
        match self.leftovers().all(|leftover| leftover.is_some()) {
            true => self.room_at(self.leftovers().flatten(), from).map(Some),
            false => Ok(None),
        }
    }

    pub fn outlook(self) -> Result<Outlook, H::Error> {
        let room = self.first_room(self.now)?;
        let place = if self.counts() { self.log.place_from(self.request.cost.units())? } else { self.now };
        Ok(Outlook { room, place })
    }

    /// Decides on the request, which waits for this number of milliseconds at most.
    pub fn decide_within(self, within: i64, detail: Detail, may_count: bool) -> Result<Decision, H::Error> {
        if self.decide(Detail::Allowed, false)?.allowed() {
            return self.take(Turn::now(self.now), detail, may_count);
        }
        let outlook = self.outlook()?;
        let within = if self.counts() { within } else { 0 };
        match outlook.retry(within, self.now) {
            Retry::Now => self.take(outlook.turn(self.now), detail, may_count),
            retry => self.deny(within, retry, detail),
        }
    }

    /// The decision for a turn. Its waits are those from now.
    pub fn take(mut self, turn: Turn, detail: Detail, may_count: bool) -> Result<Decision, H::Error> {
        if turn.wait > 0 {
            (self.now, self.is_turn) = (turn.at, true);
            self.may_begin = self.log.stamped_after(turn.at)? > 0;
        }
        let mut decision = self.decide(detail, may_count)?;
        for status in iter::once(&mut decision.status).chain(&mut decision.each) {
            status.waits = status.waits.map(|waits| waits.after(turn.wait));
        }
        decision.turn = Some(turn);
        Ok(decision)
    }

    /// The decision for now where there is no turn. `retry`: when the same request gets one.
    pub fn deny(self, within: i64, retry: Retry, detail: Detail) -> Result<Decision, H::Error> {
        let mut decision = self.decide(detail, false)?;
        decision.status.retry = retry;
        for status in &mut decision.each {
            status.retry = match status.retry {
                // The one that binds denies, also where each window by itself has room in time and all together have not.
                _ if status.window == decision.status.window => retry,
                Retry::After(wait) if wait <= within => Retry::Now,
                Retry::After(wait) => Retry::After(wait.saturating_sub(within)),
                own => own,
            };
        }
        decision.turn = Some(Turn::now(self.now));
        Ok(decision)
    }
}

#[cfg(test)]
mod tests;
