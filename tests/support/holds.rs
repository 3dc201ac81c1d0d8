//! Holds by the contract, as model/ has the rules: what is written down about a holder, and when it is given back.

use super::call::{Call, Hold, Rule, held};
use super::model::{Space, Stored, Value, WRONG_TYPE};

pub const SETTLED: &str = "ERR this hold is settled: a new request takes a new holder";
pub const OTHER_COST: &str = "ERR the hold of this holder has another COST";

/// What a call does at most for holds that have ended.
const MOST_WORK: i64 = 1000;

/// What is written down about a holder.
#[derive(Debug, Clone)]
pub struct Note {
    member: Vec<u8>,
    pub is_settled: bool,
    pub units: i64,
    pub at: i64,
    ends: Vec<i64>,
    until: i64,
}

type Members = Vec<(Vec<u8>, f64)>;

/// Units, and when they were counted.
type Counted = (i64, i64);

/// The scores of notes are not below this.
const END_OF_TIMES: f64 = (1_i64 << 50) as f64;

/// The score of a note.
pub fn score(holder: &[u8]) -> f64 {
    let hash = holder.iter().fold(0, |hash, &byte| (hash * 31 + i64::from(byte)) % (1 << 48));
    END_OF_TIMES + hash as f64
}

/// The member that says what a holder has counted.
pub fn note(units: i64, at: i64, ends: &[i64], holder: &[u8]) -> Vec<u8> {
    let ends: String = ends.iter().map(|end| format!("@{end:016}")).collect();
    [format!("h{units:016}{at:016}{ends} ").as_bytes(), holder].concat()
}

/// The member that says what a holder has settled.
pub fn settlement(holder: &[u8]) -> Vec<u8> {
    [b"s", holder].concat()
}

impl Note {
    fn parse(member: &[u8], holder: &[u8], until: i64) -> Option<Self> {
        let head = member.strip_suffix(holder)?.strip_suffix(b" ")?;
        let head = std::str::from_utf8(head).ok()?.strip_prefix('h')?;
        let number = |digits: &str| {
            let is_one = digits.len() == 16 && digits.bytes().all(|byte| byte.is_ascii_digit());
            is_one.then(|| digits.parse::<i64>().expect("16 digits"))
        };
        let mut parts = head.split('@');
        let (units, at) = parts.next()?.split_at_checked(16)?;
        let (units, at) = (number(units)?, number(at)?);
        let ends = parts.map(number).collect::<Option<_>>()?;
        let is_one = units < 1 << 53 && (at as f64) < END_OF_TIMES;
        is_one.then(|| Self { member: member.to_vec(), is_settled: false, units, at, ends, until })
    }

    /// What is written down about a holder, which may have ended.
    fn of(members: &[(Vec<u8>, f64)], holder: &[u8]) -> Result<Option<Self>, &'static str> {
        let score_of = |name: &[u8]| members.iter().find(|member| member.0 == name).map(|member| member.1);
        let Some(until) = score_of(&end_of(holder)) else { return Ok(None) };
        if until <= 0.0 || until >= END_OF_TIMES {
            return Err(WRONG_TYPE);
        }
        let (until, place) = (until.ceil() as i64, score(holder));
        let mut there = members.iter().filter(|member| member.1 == place);
        if let Some(note) = there.find_map(|member| Self::parse(&member.0, holder, until)) {
            return Ok(Some(note));
        }
        let member = settlement(holder);
        let units = score_of(&member).map_or(-1.0, |score| -1.0 - score);
        if units.fract() != 0.0 || !(0.0..((1_i64 << 53) as f64)).contains(&units) {
            return Err(WRONG_TYPE);
        }
        Ok(Some(Self { member, is_settled: true, units: units as i64, at: until, ends: Vec::new(), until }))
    }
}

/// The member that says when a hold ends.
fn end_of(holder: &[u8]) -> Vec<u8> {
    [b"e", holder].concat()
}

fn put(members: &mut Members, name: Vec<u8>, score: f64) {
    members.retain(|(other, _)| *other != name);
    members.push((name, score));
    members.sort_by(|one, other| one.1.total_cmp(&other.1).then_with(|| one.0.cmp(&other.0)));
}

/// The times of windows that end at one.
fn ends(rule: &Rule) -> Vec<i64> {
    rule.quotas().iter().filter_map(|quota| quota.end).collect()
}

/// A rule for other units, without its hold.
pub fn charging(rule: &Rule, units: i64) -> Rule {
    let mut rule = rule.clone();
    if let Rule::Sliding { cost, force, hold, .. } | Rule::Fixed { cost, force, hold, .. } = &mut rule {
        (*cost, *force, *hold) = (Some(units), true, None);
    }
    rule
}

impl Space {
    fn members(&self, key: &[u8]) -> Result<Members, &'static str> {
        match self.keys.get(&held(key)).map(|stored| &stored.value) {
            None => Ok(Vec::new()),
            Some(Value::Set(members)) => Ok(members.clone()),
            Some(_) => Err(WRONG_TYPE),
        }
    }

    fn put_members(&mut self, key: &[u8], members: Members, expires: Option<i64>) {
        let old = self.keys.remove(&held(key)).and_then(|stored| stored.expires);
        if !members.is_empty() {
            let expires = expires.map(|at| (at, at)).or(old);
            self.keys.insert(held(key), Stored { value: Value::Set(members), expires });
        }
    }

    /// What is known of a holder, and has not ended.
    fn known(&self, key: &[u8], hold: &Hold, now: i64) -> Result<Option<Note>, &'static str> {
        Ok(Note::of(&self.members(key)?, &hold.holder)?.filter(|note| note.until > now))
    }

    /// Whether the holder of a request has its hold there; an error if it cannot be held.
    pub fn finds_hold(&self, key: &[u8], rule: &Rule, now: i64) -> Result<Option<bool>, &'static str> {
        let Some(hold) = rule.hold() else { return Ok(None) };
        match self.known(key, hold, now)? {
            Some(note) if note.is_settled => Err(SETTLED),
            Some(note) if note.units != rule.cost() => Err(OTHER_COST),
            note => Ok(Some(note.is_some())),
        }
    }

    /// Gives back what has ended at the keys of a call, before it is decided.
    pub fn pass(&mut self, call: &Call, now: i64) -> Result<(), &'static str> {
        let parts: Vec<(&Vec<u8>, &Rule)> = match call {
            Call::Take { key, rule, .. } | Call::Settle { key, rule, .. } => vec![(key, rule)],
            Call::All { keys, rules, .. } => keys.iter().zip(rules).collect(),
            _ => return Ok(()),
        };
        let mut any = false;
        for &(key, rule) in &parts {
            if let Call::Settle { .. } = call {
                Note::of(&self.members(key)?, &rule.hold().expect("a hold").holder)?;
            } else {
                self.check(key, rule, now)?;
                self.finds_hold(key, rule, now)?;
            }
            any |= rule.hold().is_some() && self.members(key)?.iter().any(|member| has_ended(member, now));
        }
        if any {
            // What refuses the call does so before anything is given back.
            let mut tried = self.clone();
            match call {
                Call::Take { key, rule, report } => tried.take(key, rule, *report, now)?,
                Call::Settle { key, rule, actual } => tried.settle(key, rule, *actual, now)?,
                Call::All { keys, rules, within, full } => tried.all(keys, rules, *within, *full, now)?,
                _ => return Ok(()),
            };
        }
        let mut work = (MOST_WORK, false);
        // All of it can be given back, or nothing is.
        let mut after = self.clone();
        for (key, rule) in parts.into_iter().filter(|_| any) {
            after.give_back(key, rule, &mut work, now)?;
        }
        *self = after;
        Ok(())
    }

    fn give_back(&mut self, key: &[u8], rule: &Rule, work: &mut (i64, bool), now: i64) -> Result<(), &'static str> {
        let Some(hold) = rule.hold() else { return Ok(()) };
        let (members, own) = (self.members(key)?, end_of(&hold.holder));
        let mut ended: Vec<Vec<u8>> =
            members.iter().filter(|member| has_ended(member, now)).map(|member| member.0.clone()).collect();
        ended.truncate(work.0 as usize);
        if Note::of(&members, &hold.holder)?.is_some_and(|note| note.until <= now) {
            ended.retain(|name| *name != own);
            ended.insert(0, own.clone());
        }
        let mut notes = Vec::new();
        for name in ended {
            let holder = name.strip_prefix(b"e").ok_or(WRONG_TYPE)?;
            let note = Note::of(&members, holder)?.ok_or(WRONG_TYPE)?;
            notes.push((name, note));
        }
        for (name, note) in notes {
            let is_set = matches!(self.keys.get(key), Some(Stored { value: Value::Set(_), .. }));
            let (units, cost) = match rule {
                _ if note.is_settled => (note.units, 1),
                Rule::Sliding { .. } if is_set => (note.units.min(1000), note.units.max(1)),
                Rule::Sliding { .. } => (note.units, 250),
                _ => (note.units, rule.quotas().len() as i64),
            };
            let (left, has_begun) = *work;
            if name != own && has_begun && cost > left {
                break;
            }
            *work = ((left - cost).max(0), true);
            let mut giving = charging(rule, units);
            let mut any = true;
            if let Rule::Fixed { quotas, .. } = &mut giving {
                quotas.retain(|quota| quota.end.is_none_or(|end| note.ends.contains(&end)));
                any = !quotas.is_empty();
            }
            if any && !note.is_settled {
                self.refund(key, &giving, Some(note.at), now)?;
            }
            let mut members = self.members(key)?;
            members.retain(|(member, _)| *member != name && *member != note.member);
            self.put_members(key, members, None);
        }
        Ok(())
    }

    /// Writes down that a holder has counted its units, or makes its hold last longer.
    pub fn hold(&mut self, key: &[u8], rule: &Rule, now: i64) {
        let Some(hold) = rule.hold() else { return };
        let mut members = self.members(key).expect("read before");
        let own = self.known(key, hold, now).expect("read before");
        let at = own.as_ref().map_or(now, |note| note.at);
        let until = own.as_ref().map_or(0, |note| note.until).max(now + hold.lease);
        if own.is_none() {
            put(&mut members, note(rule.cost(), now, &ends(rule), &hold.holder), score(&hold.holder));
        }
        if own.is_none_or(|note| note.until != until) {
            put(&mut members, end_of(&hold.holder), until as f64);
        }
        // It lives at least for as long as the units count.
        let leaves = rule.quotas().iter().map(|quota| quota.end.unwrap_or(at + quota.window)).fold(until, i64::max);
        let expires = self.not_before(key, leaves);
        self.put_members(key, members, expires);
    }

    fn not_before(&self, key: &[u8], time: i64) -> Option<i64> {
        let wanted = whole_second(time);
        let old = self.keys.get(&held(key)).and_then(|stored| stored.expires);
        old.is_none_or(|(old, _)| old < wanted).then_some(wanted)
    }

    /// What a settlement replies first, and the units that are counted, and when, unless it was made before.
    pub fn settlement(
        &self,
        key: &[u8],
        hold: &Hold,
        actual: i64,
        now: i64,
    ) -> Result<(i64, Option<Counted>), &'static str> {
        Ok(match self.known(key, hold, now)? {
            None => (2, Some((0, now))),
            Some(note) if note.is_settled => (if note.units == actual { 3 } else { 0 }, None),
            Some(note) => (1, Some((note.units, note.at))),
        })
    }

    /// Writes down that a holder has settled.
    pub fn settled(&mut self, key: &[u8], hold: &Hold, actual: i64, now: i64) {
        let mut members = self.members(key).expect("read before");
        let own = self.known(key, hold, now).expect("read before");
        let (until, end) = (now + hold.lease.max(60_000), end_of(&hold.holder));
        if let Some(own) = own {
            members.retain(|(name, _)| *name != own.member);
        }
        put(&mut members, end, until as f64);
        put(&mut members, settlement(&hold.holder), (-1 - actual) as f64);
        let is_held = members.iter().any(|member| member.1 >= END_OF_TIMES);
        let times = members.iter().map(|member| member.1.ceil()).filter(|&score| score < END_OF_TIMES);
        let last = whole_second(times.fold(until as f64, f64::max) as i64);
        // It may be an hour late.
        let old = self.keys.get(&held(key)).and_then(|stored| stored.expires);
        let is_late = !is_held && old.is_some_and(|(old, _)| old - last > 3_600_000);
        let expires = if is_late { Some(last) } else { self.not_before(key, until) };
        self.put_members(key, members, expires);
    }
}

fn has_ended((_, score): &(Vec<u8>, f64), now: i64) -> bool {
    *score > 0.0 && *score <= now as f64
}

/// Scores that no clock has written are not told apart.
fn whole_second(time: i64) -> i64 {
    (time.saturating_add(999) / 1000 * 1000).min((1 << 62) - 1)
}
