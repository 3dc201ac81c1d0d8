//! Holds: who has counted units that are not settled yet, and who has settled. They lie in a sorted set at `key:held`, as [`note`] says.
//!
//! Counting, giving back and charging are the rules' own. Here is only what is written down about holders; what that means for a request
//! or a settlement, [`limit::hold`](crate::limit::hold) says. A hold that has ended by itself is given back before the next call with HOLD
//! or RL.SETTLE, see [`ended`].

mod ended;
mod note;

use smallvec::{SmallVec, smallvec};

use self::ended::ended_by;
pub use self::ended::{find_ended, give_back, leave_out_ended};
use self::note::{END_OF_TIMES, HOLDS, Note};
use super::counter_name::{Suffix, check_missing, counter_name};
use super::plan::{Change, Changes, OpenKey, Plan};
use super::stale::score;
use super::{Stored, WRONG_TYPE};
use crate::limit::hold::{Known, Refused};
use crate::limit::{Cost, Micros, Time, Window};
use crate::server::{Call, Context, Error, Key, Kind, Mode, OwnedStr, ScoreRange};

const SETTLED: Error = Error::Line(c"ERR this hold is settled: a new request takes a new holder");
const OTHER_COST: Error = Error::Line(c"ERR the hold of this holder has another COST");
const TOO_MANY: Error =
    Error::Line(c"ERR rl: this key has 1048576 holds, the most there may be; RL.SETTLE ends a hold");

/// The most holders at a key, of whom each has two members.
const MOST_HOLDERS: i64 = 1 << 20;

/// That a holder has settled is known for this number of milliseconds at least.
const REMEMBERED: i64 = 60_000;

/// The key may outlive what is in it by this number of milliseconds.
const MOST_LATE: i64 = 3_600_000;

impl From<Refused> for Error {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Settled => SETTLED,
            Refused::OtherCost => OTHER_COST,
        }
    }
}

/// The holder of a request, and how long its hold lasts.
pub struct Hold {
    pub holder: OwnedStr,
    pub lease: Window,
}

/// The holds of a key, and what is known of the holder of a call.
pub struct HoldSet<'a, M: Mode> {
    open: OpenKey<'a, M>,
    hold: &'a Hold,
    now: Time,
    /// The member that says when the holder's hold ends.
    end: OwnedStr,
    /// Also one that has ended.
    own: Option<Note>,
    /// How many holders are left out.
    left_out: i64,
}

/// Opens the holds of a key. `again`: whether the call has read them before. If they have gone, it has given back all of them.
fn open<'a, M: Mode>(ctx: &'a Context, call: Call<'_>, again: bool) -> Result<OpenKey<'a, M>, Error> {
    let name = counter_name(ctx, call, Suffix::Held)?;
    let key = Key::open(ctx, name.as_str());
    match key.kind() {
        Kind::Empty if !again => check_missing(ctx, call, name.as_str())?,
        Kind::Empty | Kind::SortedSet => {}
        Kind::String | Kind::Other => return Err(WRONG_TYPE),
    }
    Ok(OpenKey { key, name: Some(name) })
}

impl<'a, M: Mode> HoldSet<'a, M> {
    pub fn read(ctx: &'a Context, call: Call<'_>, hold: &'a Hold, now: Time, again: bool) -> Result<Self, Error> {
        let open = open(ctx, call, again)?;
        let end = note::end_of(hold.holder.as_str().as_bytes());
        let own = Note::find(&open.key, end.as_str())?;
        Ok(Self { open, hold, now, end, own, left_out: 0 })
    }

    /// For a request by a rule. Refuses it where its holder has settled, or has a hold of another cost.
    #[inline(always)] // Its result is large, and would be copied.
    pub fn of_request<R: Stored>(
        ctx: &'a Context,
        call: Call<'_>,
        hold: &'a Hold,
        rule: &R,
        now: Micros,
        again: bool,
    ) -> Result<Self, Error> {
        let held = Self::read(ctx, call, hold, now.time(), again)?;
        let cost = rule.request().map_or(Cost::NOTHING, |request| request.cost);
        held.known().counted(cost)?;
        Ok(held)
    }

    /// The name of their key.
    pub fn name(&self) -> &[u8] {
        self.open.name.as_ref().map_or(&[], |name| name.as_str().as_bytes())
    }

    /// What is known of the holder.
    pub fn known(&self) -> Known {
        self.own().map_or(Known::Nothing, Note::known)
    }

    /// Whether the holder has a hold, so that its request was counted before.
    pub fn is_known(&self) -> bool {
        self.own().is_some()
    }

    /// What is written down about the holder, if that has not ended.
    fn own(&self) -> Option<&Note> {
        self.own.as_ref().filter(|note| note.until > self.now)
    }

    /// Whether something has ended, and has to be given back first.
    pub fn has_ended(&self) -> bool {
        self.open.key.any_in(ended_by(self.now))
    }

    /// Refuses one holder more than a key may have.
    pub fn check_room(&self) -> Result<(), Error> {
        let most = MOST_HOLDERS.saturating_add(self.left_out).saturating_mul(2);
        let has_room = self.own().is_some() || self.open.key.members() < most;
        if has_room { Ok(()) } else { Err(TOO_MANY) }
    }

    /// Writes down that the request is counted, or makes an existing hold last longer.
    pub fn keep<R: Stored>(self, rule: &R, counted: bool, plan: &mut Plan<'a, M>) -> Result<(), Error> {
        let Some(request) = rule.request().filter(|_| counted || self.is_known()) else { return Ok(()) };
        self.check_room()?;
        let (own, lasts) = (self.own(), self.now.plus(self.hold.lease));
        let until = own.map_or(lasts, |note| note.until.max(lasts));
        let mut added = SmallVec::new();
        if own.is_none_or(|note| note.until != until) {
            added.push((until, self.end.as_str().retain()));
        }
        if own.is_none() {
            added.push(note::of_request(request, self.now, self.hold.holder.as_str().as_bytes()));
        }
        // The next call has to find a hold that has ended by itself, as long as its units count.
        let at = own.and_then(|note| note.at).unwrap_or(self.now);
        let leaves =
            request.quotas.iter().map(|quota| quota.end.unwrap_or(at.plus(quota.window))).fold(until, Time::max);
        let mut changes = Changes::new();
        if !added.is_empty() {
            changes.push(Change::Zadd(added));
        }
        changes.extend(self.expire_after(leaves));
        plan.push((self.open, changes));
        Ok(())
    }

    /// The key does not expire before this.
    fn expire_after(&self, time: Time) -> Option<Change> {
        let wanted = time.whole_second();
        let is_later = self.open.key.expiry().is_none_or(|expiry| Time::from_millis(expiry) < wanted);
        is_later.then_some(Change::PexpireAt(wanted))
    }

    /// Writes down that the holder has settled.
    pub fn settle(self, actual: Cost, plan: &mut Plan<'a, M>) -> Result<(), Error> {
        self.check_room()?;
        let until = self.now.plus(self.hold.lease).max(self.now.plus_millis(REMEMBERED));
        let settlement = note::of_settlement(actual, self.hold.holder.as_str().as_bytes());
        let mut changes = Changes::new();
        changes.push(Change::Zadd(smallvec![(until, self.end.as_str().retain()), settlement]));
        changes.extend(self.own().map(|note| Change::Zrem(smallvec![note.member.as_str().retain()])));
        changes.extend(self.expire_after(until).or_else(|| self.expire_sooner(until)));
        plan.push((self.open, changes));
        Ok(())
    }

    /// Where nobody holds anything once the holder has settled, the key expires with the last settlement that is known. It keeps an
    /// expiry that is not much later: the next hold would move it back.
    fn expire_sooner(&self, until: Time) -> Option<Change> {
        let key = &self.open.key;
        let is_late = |time: Time| key.expiry().is_some_and(|expiry| Time::from_millis(expiry).since(time) > MOST_LATE);
        let own = usize::from(self.own().is_some());
        if !is_late(until) || key.has_more_in(HOLDS, own) {
            return None;
        }
        let later = key.last_in(ScoreRange::below(score(until), END_OF_TIMES as f64), 2);
        let last = later.iter().find(|member| member.as_str().as_bytes() != self.end.as_str().as_bytes());
        let last = last.and_then(|member| key.score_of(member.as_str()));
        let last = last.map_or(until, |last| Time::from_millis(last.ceil() as i64)).whole_second();
        is_late(last).then_some(Change::PexpireAt(last))
    }
}

#[cfg(test)]
mod tests;
