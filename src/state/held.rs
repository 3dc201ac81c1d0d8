//! Holds: who has counted units that are not settled yet, and who has settled. They lie in a sorted set at `key:held`.
//!
//! For a holder there are two members. One has its name, and the time at which the hold ends as score. The other is a note of what it
//! has counted. That is found by its score, which is a hash of the holder's bytes; should holders have the same hash, the note names its
//! own. Once the holder has settled, a member with its name takes the place of the note, whose score says what it has settled.
//!
//! Counting, giving back and charging are the rules' own. This file only says how many units, and when they were counted:
//!
//! - A hold counts as the same request without it, and is then written down. The same holder finds it and counts nothing.
//! - A hold that has ended by itself is given back as RL.REFUND does it, before the next call with HOLD or RL.SETTLE.
//! - A settlement gives the difference back in that way, or counts it with FORCE.

use std::iter;

use smallvec::{SmallVec, smallvec};

use super::budget::MOST_WORK;
use super::counter_name::{Suffix, check_missing, counter_name};
use super::plan::{Change, Changes, OpenKey};
use super::stale::score;
use super::{Budget, OpenKeys, Plan, State, Stored, WRONG_TYPE};
use crate::limit::{Cost, Decision, Detail, Limit, Micros, Refund, Request, Time, Window};
use crate::server::{Call, Context, Digits, Error, Key, Kind, Mode, OwnedStr, ReadOnly, ScoreRange, Str, Writable};

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

/// What the members begin with that say when a hold ends, and what a holder has settled.
const END: &[u8] = b"e";
const SETTLEMENT: &[u8] = b"s";

/// The holder of a request, and how long its hold lasts.
pub struct Hold {
    pub holder: OwnedStr,
    pub lease: Window,
}

/// A rule that can be held.
pub trait Holdable: Stored + Sized {
    fn hold(&self) -> Option<&Hold>;

    fn request(&self) -> &Request;

    /// The same rule for a request of another cost, without its hold.
    fn charging(&self, cost: Cost, force: bool) -> Self;

    /// The rule by which an ended hold is given back, if it can be, and what work that takes of the budget of a call.
    fn giving_back(&self, ctx: &Context, call: Call<'_>, note: &Note) -> (Option<Self>, i64);
}

/// A hold or a settlement that has ended.
pub struct Ended {
    /// The member that says when.
    member: OwnedStr,
    note: Note,
}

/// What is written down about a holder.
pub struct Note {
    /// The member that says so.
    member: OwnedStr,
    /// The units that were counted, or settled.
    pub units: i64,
    /// When they were counted. `None` if the holder has settled.
    at: Option<Time>,
    /// The windows with a given end in which they were counted.
    pub ends: Vec<Time>,
    /// When the hold ends, or until when the settlement is known.
    until: Time,
}

/// The number that a note begins with, and the rest.
fn number(bytes: &[u8]) -> Option<(i64, &[u8])> {
    let (digits, rest) = bytes.split_at_checked(DIGITS)?;
    let value = digits.iter().try_fold(0_i64, |value, byte| {
        byte.is_ascii_digit().then(|| value.saturating_mul(10).saturating_add(i64::from(byte & 0x0f)))
    });
    Some((value?, rest))
}

/// How many digits the numbers in a note have: those of 2^53 - 1.
const DIGITS: usize = 16;

impl Note {
    /// The member with the note of a hold: the units, the time, each end after an `@`, and after a blank the holder.
    fn member_of_hold(request: &Request, at: Time, holder: &[u8]) -> OwnedStr {
        let mut ends = Vec::new();
        for end in request.quotas.iter().filter_map(|quota| quota.end) {
            ends.extend_from_slice(Digits::new().text(b"@").padded(end.millis(), DIGITS).as_bytes());
        }
        let (units, at) = (request.cost.units(), at.millis());
        let (units, at) = (Digits::new().text(b"h").padded(units, DIGITS), Digits::new().padded(at, DIGITS));
        OwnedStr::concat([units.as_bytes(), at.as_bytes(), &ends, b" ", holder])
    }

    fn of_hold(member: OwnedStr, holder: &[u8], until: Time) -> Option<Self> {
        let (units, rest) = number(member.as_str().as_bytes().strip_prefix(b"h")?)?;
        let (at, mut rest) = number(rest)?;
        let mut ends = Vec::new();
        while let Some(end) = rest.strip_prefix(b"@") {
            let (end, behind) = number(end)?;
            ends.push(Time::from_millis(end));
            rest = behind;
        }
        if rest.strip_prefix(b" ")? != holder || units > Limit::MAX || at >= END_OF_TIMES {
            return None;
        }
        Some(Self { units, at: Some(Time::from_millis(at)), ends, until, member })
    }

    /// The score of the member of a settlement.
    fn score_of_settlement(actual: Cost) -> Time {
        Time::from_millis(actual.units().saturating_neg().saturating_sub(1))
    }

    fn of_settlement(member: OwnedStr, score: f64, until: Time) -> Option<Self> {
        let actual = Cost::new((-1.0 - score) as i64)?;
        let is_one = self::score(Self::score_of_settlement(actual)) == score;
        is_one.then(|| Self { units: actual.units(), at: None, ends: Vec::new(), until, member })
    }

    const fn is_settled(&self) -> bool {
        self.at.is_none()
    }

    /// The rule by which it is given back, if there is something to give back, and what that takes of the work of a call.
    fn giving_back<R: Holdable>(&self, rule: &R, ctx: &Context, call: Call<'_>) -> (Option<R>, i64) {
        if self.is_settled() { (None, 1) } else { rule.giving_back(ctx, call, self) }
    }
}

/// The scores of notes of holds begin here. Those of times are lower.
const END_OF_TIMES: i64 = 1 << 50;

const HOLDS: ScoreRange = ScoreRange::closed(END_OF_TIMES as f64, f64::INFINITY);

/// The score of the note of a hold.
fn note_score(holder: &[u8]) -> Time {
    const MASK: i64 = (1 << 48) - 1;
    let hash = holder.iter().fold(0_i64, |hash, &byte| hash.wrapping_mul(31).wrapping_add(i64::from(byte)) & MASK);
    Time::from_millis(hash | END_OF_TIMES)
}

/// Opens the holds of a key.
fn open<'a, M: Mode>(ctx: &'a Context, call: Call<'_>) -> Result<OpenKey<'a, M>, Error> {
    let name = counter_name(ctx, call, Suffix::Held)?;
    let key = Key::open(ctx, name.as_str());
    match key.kind() {
        Kind::Empty => check_missing(ctx, call, name.as_str())?,
        Kind::SortedSet => {}
        Kind::String | Kind::Other => return Err(WRONG_TYPE),
    }
    Ok(OpenKey { key, name: Some(name) })
}

/// The holds of a key, and what is known of the holder of a call.
pub struct Held<'a, M: Mode> {
    open: OpenKey<'a, M>,
    holder: Str<'a>,
    lease: Window,
    now: Time,
    /// The member that says when the holder's hold ends.
    end: OwnedStr,
    /// Also one that has ended.
    own: Option<Note>,
    /// The holders that are left out.
    left_out: i64,
}

impl<'a, M: Mode> Held<'a, M> {
    pub fn read(ctx: &'a Context, call: Call<'_>, hold: &'a Hold, now: Time) -> Result<Self, Error> {
        let open = open(ctx, call)?;
        let holder = hold.holder.as_str();
        let end = OwnedStr::concat([END, holder.as_bytes()]);
        let own = note_of(&open.key, end.as_str())?;
        Ok(Self { open, holder, lease: hold.lease, now, end, own, left_out: 0 })
    }

    fn into_key(self) -> OpenKey<'a, M> {
        self.open
    }

    /// What is known of the holder, if that has not ended.
    fn own(&self) -> Option<&Note> {
        self.own.as_ref().filter(|note| note.until > self.now)
    }

    /// Whether something has ended.
    pub fn has_ended(&self) -> bool {
        self.open.key.any_in(ended_by(self.now))
    }

    /// What has ended, at most what a call may give back, the holder's own first.
    fn ended(&self) -> Result<Vec<Ended>, Error> {
        let most = usize::try_from(MOST_WORK).unwrap_or(usize::MAX);
        let mut members = self.open.key.lowest_in(ended_by(self.now), most);
        if self.own.is_some() && self.own().is_none() {
            let own = self.end.as_str();
            members.retain(|member| member.as_str().as_bytes() != own.as_bytes());
            members.insert(0, own.retain());
        }
        let with_note = |member: OwnedStr| {
            let note = note_of(&self.open.key, member.as_str())?.ok_or(WRONG_TYPE)?;
            Ok(Ended { member, note })
        };
        members.into_iter().map(with_note).collect()
    }

    /// Refuses one holder more than a key may have.
    fn check_room(&self) -> Result<(), Error> {
        let most = MOST_HOLDERS.saturating_add(self.left_out).saturating_mul(2);
        let has_room = self.own().is_some() || self.open.key.members() < most;
        if has_room { Ok(()) } else { Err(TOO_MANY) }
    }

    /// Writes a hold down, or makes an existing one last longer.
    fn hold(&self, request: &Request) -> Result<Changes, Error> {
        self.check_room()?;
        let (own, lasts) = (self.own(), self.now.plus(self.lease));
        let until = own.map_or(lasts, |note| note.until.max(lasts));
        let mut added = SmallVec::new();
        if own.is_none_or(|note| note.until != until) {
            added.push((until, self.end.as_str().retain()));
        }
        if own.is_none() {
            let holder = self.holder.as_bytes();
            added.push((note_score(holder), Note::member_of_hold(request, self.now, holder)));
        }
        // The next call has to find a hold that has ended by itself, as long as its units count.
        let at = own.and_then(|note| note.at).unwrap_or(self.now);
        let leaves =
            request.quotas.iter().map(|quota| quota.end.unwrap_or(at.plus(quota.window))).fold(until, Time::max);
        let add = (!added.is_empty()).then_some(Change::Zadd(added));
        Ok(add.into_iter().chain(self.expire_after(leaves)).collect())
    }

    /// The key does not expire before this.
    fn expire_after(&self, time: Time) -> Option<Change> {
        let wanted = time.whole_second();
        let is_later = self.open.key.expiry().is_none_or(|expiry| Time::from_millis(expiry) < wanted);
        is_later.then_some(Change::PexpireAt(wanted))
    }

    /// Writes down that the holder has settled.
    fn settle(&self, actual: Cost) -> Result<Changes, Error> {
        self.check_room()?;
        let until = self.now.plus(self.lease).max(self.now.plus_millis(REMEMBERED));
        let settled = OwnedStr::concat([SETTLEMENT, self.holder.as_bytes()]);
        let mut changes = Changes::new();
        changes.push(Change::Zadd(smallvec![
            (until, self.end.as_str().retain()),
            (Note::score_of_settlement(actual), settled)
        ]));
        changes.extend(self.own().map(|note| Change::Zrem(vec![note.member.as_str().retain()])));
        changes.extend(self.expire_after(until).or_else(|| self.expire_sooner(until)));
        Ok(changes)
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

/// The scores of what has ended.
fn ended_by(now: Time) -> ScoreRange {
    ScoreRange::above(0.0, score(now))
}

/// What is written down about a holder, by the member that says when its hold ends.
fn note_of<M: Mode>(key: &Key<'_, M>, end: Str<'_>) -> Result<Option<Note>, Error> {
    let Some(until) = key.score_of(end) else { return Ok(None) };
    let holder = end.as_bytes().strip_prefix(END).ok_or(WRONG_TYPE)?;
    if until <= 0.0 || until >= END_OF_TIMES as f64 {
        return Err(WRONG_TYPE);
    }
    let (until, place) = (Time::from_millis(until.ceil() as i64), score(note_score(holder)));
    let notes = key.lowest_in(ScoreRange::closed(place, place), usize::MAX);
    let held = notes.into_iter().find_map(|note| Note::of_hold(note, holder, until));
    let note = held.or_else(|| {
        let settled = OwnedStr::concat([SETTLEMENT, holder]);
        key.score_of(settled.as_str()).and_then(|score| Note::of_settlement(settled, score, until))
    });
    note.map(Some).ok_or(WRONG_TYPE)
}

/// What a rule has read of its keys, and the holds of the key if the request is held.
pub struct Holding<'a, S, M: Mode> {
    state: S,
    /// Boxed: most requests are not held, and would move the room for it.
    held: Option<Box<(Held<'a, M>, &'a Request)>>,
}

impl<'a, S, M: Mode> Holding<'a, S, M> {
    #[inline]
    pub fn read<R: Holdable>(
        rule: &'a R,
        state: S,
        ctx: &'a Context,
        call: Call<'_>,
        now: Micros,
    ) -> Result<Self, Error> {
        let held = match rule.hold() {
            None => None,
            Some(hold) => Some(read_own(hold, rule.request(), ctx, call, now.time())?),
        };
        Ok(Self { state, held })
    }
}

impl<S, M: Mode> Holding<'_, S, M> {
    /// Without the holds.
    pub fn state(&self) -> &S {
        &self.state
    }

    /// Leaves out of what was read what [`give_back`] would give back. `leave_out` gets the rule by which that is taken back, and
    /// the time at which it was counted.
    pub fn leave_out_ended<R: Holdable>(
        &mut self,
        rule: &R,
        ctx: &Context,
        call: Call<'_>,
        budget: &Budget,
        leave_out: impl Fn(&mut S, &R, Time) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let Some((held, _)) = self.held.as_deref_mut() else { return Ok(()) };
        for Ended { note, .. } in held.ended()? {
            let (giving_back, work) = note.giving_back(rule, ctx, call);
            if !budget.give_back(work, false) {
                break;
            }
            if let Some((giving_back, at)) = giving_back.zip(note.at) {
                leave_out(&mut self.state, &giving_back, at)?;
            }
            held.left_out = held.left_out.saturating_add(1);
        }
        Ok(())
    }
}

/// Reads the holds of a key for a request of this holder.
#[inline(never)]
fn read_own<'a, M: Mode>(
    hold: &'a Hold,
    request: &'a Request,
    ctx: &'a Context,
    call: Call<'_>,
    now: Time,
) -> Result<Box<(Held<'a, M>, &'a Request)>, Error> {
    let held = Held::read(ctx, call, hold, now)?;
    match held.own() {
        Some(note) if note.is_settled() => Err(SETTLED),
        Some(note) if note.units != request.cost.units() => Err(OTHER_COST),
        _ => Ok(Box::new((held, request))),
    }
}

impl<'a, S: State<'a, M>, M: Mode> State<'a, M> for Holding<'a, S, M> {
    fn decide(&self, detail: Detail, may_count: bool, budget: &Budget) -> Result<Decision, Error> {
        if self.finds_hold() == Some(true) {
            return self.state.decide(detail, false, budget).map(Decision::let_through);
        }
        self.state.decide(detail, may_count, budget)
    }

    fn plan(&self, decision: &Decision, budget: &Budget) -> Result<Plan, Error> {
        let Some((held, request)) = self.held.as_deref() else { return self.state.plan(decision, budget) };
        let mut plan = self.state.plan(decision, budget)?;
        let is_held = decision.counted || held.own().is_some();
        plan.keys.push(if is_held { held.hold(request)? } else { Changes::new() });
        Ok(plan)
    }

    fn check_room(&self, decision: &Decision) -> Result<(), Error> {
        self.state.check_room(decision)?;
        self.held.as_deref().map_or(Ok(()), |(held, _)| held.check_room())
    }

    fn set_missing_expiry(&self) -> Plan {
        self.state.set_missing_expiry()
    }

    fn refund(&self, at: Option<Time>, budget: &Budget) -> Result<(Refund, Plan), Error> {
        self.state.refund(at, budget)
    }

    fn is_nearly_full(&self) -> bool {
        self.state.is_nearly_full()
    }

    fn finds_hold(&self) -> Option<bool> {
        self.held.as_deref().map(|(held, _)| held.own().is_some())
    }

    fn has_ended_holds(&self) -> bool {
        self.held.as_deref().is_some_and(|(held, _)| held.has_ended())
    }

    fn into_keys(self) -> OpenKeys<'a, M> {
        let mut keys = self.state.into_keys();
        if let Some(held) = self.held {
            keys.push(held.0.into_key());
        }
        keys
    }
}

/// What has ended at the key of a rule with a hold, as far as the budget goes. Refuses what could not be given back.
pub fn ended<R: Holdable>(
    rule: &R,
    ctx: &Context,
    call: Call<'_>,
    now: Micros,
    budget: &Budget,
) -> Result<Vec<Ended>, Error> {
    let Some(hold) = rule.hold() else { return Ok(Vec::new()) };
    let mut ended = Held::<ReadOnly>::read(ctx, call, hold, now.time())?.ended()?;
    let mut within = 0_usize;
    for Ended { member, note } in &ended {
        let (rule, work) = note.giving_back(rule, ctx, call);
        let is_own = member.as_str().as_bytes().get(1..) == Some(hold.holder.as_str().as_bytes());
        if !budget.give_back(work, is_own) {
            break;
        }
        if let Some(rule) = &rule {
            rule.read::<ReadOnly>(ctx, call, now)?.refund(note.at, &Budget::of_peek())?;
        }
        within = within.saturating_add(1);
    }
    ended.truncate(within);
    Ok(ended)
}

/// Gives it back: each hold as RL.REFUND with the time at which it was counted.
pub fn give_back<R: Holdable>(
    rule: &R,
    ended: Vec<Ended>,
    ctx: &mut Context,
    call: Call<'_>,
    now: Micros,
    budget: &Budget,
) -> Result<(), Error> {
    for Ended { member, note } in ended {
        let (rule, _) = note.giving_back(rule, ctx, call);
        let (mut plan, mut keys) = (Plan::default(), OpenKeys::new());
        if let Some(rule) = &rule {
            let state = rule.read::<Writable>(ctx, call, now)?;
            plan = state.refund(note.at, budget)?.1;
            keys = state.into_keys();
        }
        // In one step with its units, so that it is not given back again if the next hold fails.
        plan.keys.push(iter::once(Change::Zrem(vec![member, note.member])).collect());
        keys.push(open(ctx, call)?);
        plan.apply(keys).publish(ctx, call.key);
    }
    Ok(())
}

/// How a settlement went.
pub struct Settlement {
    pub outcome: i64,
    /// What is left in the first window, and its seconds, as a refund replies them.
    pub count: i64,
    pub ttl: i64,
}

/// Makes `actual` units of what the holder of a rule has counted, once.
pub fn settle<R: Holdable>(
    rule: &R,
    hold: &Hold,
    ctx: &mut Context,
    call: Call<'_>,
    actual: Cost,
    now: Micros,
) -> Result<Settlement, Error> {
    let budget = Budget::new();
    let held = Held::<Writable>::read(ctx, call, hold, now.time())?;
    let held = if held.has_ended() {
        drop(held);
        give_back(rule, ended(rule, ctx, call, now, &budget)?, ctx, call, now, &budget)?;
        Held::read(ctx, call, hold, now.time())?
    } else {
        held
    };
    // The units that were counted so far, if they are not settled yet.
    let (outcome, counted) = match held.own() {
        None => (2, Some((0, now.time()))),
        Some(&Note { units, at: Some(at), .. }) => (1, Some((units, at))),
        Some(note) => (if note.units == actual.units() { 3 } else { 0 }, None),
    };
    if let Some((units, at)) = counted {
        let difference = actual.units().saturating_sub(units);
        let rule = rule.charging(Cost::new(difference.saturating_abs()).unwrap_or(Cost::NOTHING), true);
        let state = rule.read::<Writable>(ctx, call, now)?;
        let (mut plan, mut left) = (Plan::default(), None);
        if difference > 0 {
            let decision = state.decide(Detail::Allowed, true, &budget)?;
            plan = state.plan(&decision, &budget)?;
        } else if difference < 0 {
            let (refund, changes) = state.refund(Some(at), &budget)?;
            (plan, left) = (changes, Some(refund));
        }
        let mut keys = state.into_keys();
        plan.keys.resize_with(keys.len(), Changes::new);
        plan.keys.push(held.settle(actual)?);
        keys.push(held.into_key());
        plan.apply(keys).publish(ctx, call.key);
        if let Some(Refund { count, ttl, .. }) = left {
            return Ok(Settlement { outcome, count, ttl });
        }
    }
    let rule = rule.charging(Cost::NOTHING, false);
    let (refund, _) = rule.read::<Writable>(ctx, call, now)?.refund(None, &Budget::of_peek())?;
    Ok(Settlement { outcome, count: refund.count, ttl: refund.ttl })
}
