//! One request, one decision: what is charged of everything that a request asks for.
//!
//! All limits of a request are asked together. If an enforced one has no room, nothing is charged. A quota that has no
//! room drops out, and the rest is asked again; only where all quotas have none is the request denied. A limit in shadow
//! mode is charged where the request passes, and never denies. What a request gives back follows the decision.
//!
//! Limits in several slots of a cluster, or more than Redis takes in one call, are several decisions. If one of them denies
//! or fails, what the others have charged is given back.
//!
//! This is the order of the calls alone, without the calls: [`Deciding::step`] says what to do, and is told what came of it.

use std::time::SystemTime;

use crate::few::{Few, counted};
use crate::redis::{Failure, Item, State};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Denies the request.
    Enforced,
    /// Denies it together with all other quotas.
    Quota,
    /// Never denies it.
    Shadow,
}

#[derive(Debug, Clone)]
pub struct Part {
    pub item: Item,
    pub mode: Mode,
}

#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// Of each part.
    pub states: Few<State>,
    pub charged: Few<bool>,
    /// The state after each refund.
    pub refunded: Vec<State>,
    /// Whether it is a denial that was remembered.
    pub from_cache: bool,
}

/// What is to be done next. Parts and refunds are named by their positions.
#[derive(Debug)]
pub enum Step {
    /// Look at each of these parts.
    Peek(Few<usize>),
    /// Ask for these parts, together as far as that can be.
    Ask(Few<usize>),
    /// Take back what these parts were charged.
    GiveBack(Few<usize>),
    /// Give back all that the request gives back.
    Refund,
    /// Charge again the units that the refunds have given back.
    TakeBack(Vec<u64>),
    Done(Result<Outcome, Failure>),
}

/// How far a part is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It is only looked at.
    Look,
    Open,
    Charged,
    /// It was looked at, had no room, or was given back.
    Settled,
}

#[derive(Debug)]
struct Progress {
    stage: Stage,
    state: Option<State>,
    /// Whether it stays charged, whatever came of giving it back.
    kept: bool,
}

/// The state without these units.
pub fn give_back(state: &mut State, units: u64) {
    let used = used(state).saturating_sub(units);
    state.used = i64::try_from(used).unwrap_or(i64::MAX);
    state.remaining = state.limit.saturating_sub(used);
}

pub fn used(state: &State) -> u64 {
    u64::try_from(state.used).unwrap_or(0)
}

#[derive(Debug)]
pub struct Deciding<'a> {
    parts: &'a [Part],
    quota_passes: bool,
    progress: Few<Progress>,
    refunds: usize,
    refunded: Vec<(u64, Option<State>)>,
    failure: Option<Failure>,
}

impl<'a> Deciding<'a> {
    /// `quota_passes`: whether the request has a quota that never fails, beside those of the parts. `refunds`: how many there
    /// are.
    pub fn new(parts: &'a [Part], quota_passes: bool, refunds: usize) -> Self {
        // A check by itself is a look. Together with others it is part of the decision, where its rule can be asked for
        // nothing, and denies where nothing is left: not in shadow mode.
        let first = |Part { item, mode }: &Part| match item.units {
            0 if parts.len() == 1 || !item.can_be_forced() || *mode == Mode::Shadow => Stage::Look,
            _ => Stage::Open,
        };
        Self {
            parts,
            quota_passes,
            progress: parts.iter().map(|part| Progress { stage: first(part), state: None, kept: false }).collect(),
            refunds,
            refunded: Vec::new(),
            failure: None,
        }
    }

    /// To be called until it is done, each time after the step before was reported.
    pub fn step(&mut self) -> Step {
        if self.failure.is_none() {
            let looks = self.in_stage(Stage::Look);
            if !looks.is_empty() {
                return Step::Peek(looks);
            }
            let open = if self.is_denied() { Few::new() } else { self.in_stage(Stage::Open) };
            if !open.is_empty() {
                return Step::Ask(open);
            }
        }
        if self.failure.is_some() || self.is_denied() {
            let mut charged = self.in_stage(Stage::Charged);
            charged.retain(|index| self.parts[*index].item.units > 0);
            if !charged.is_empty() {
                return Step::GiveBack(charged);
            }
        }
        if let Some(failure) = &self.failure {
            let done: Vec<_> = self.refunded.drain(..).map(|(units, _)| units).collect();
            return if done.is_empty() { Step::Done(Err(failure.clone())) } else { Step::TakeBack(done) };
        }
        let unknown = counted((0..self.parts.len()).filter(|index| self.progress[*index].state.is_none()));
        if !unknown.is_empty() {
            return Step::Peek(unknown);
        }
        if self.refunded.len() < self.refunds {
            return Step::Refund;
        }
        let states = counted(self.progress.iter().filter_map(|part| part.state));
        let charged = self.progress.iter().map(|part| part.kept).collect();
        let refunded = self.refunded.iter().filter_map(|(_, state)| *state).collect();
        Step::Done(Ok(Outcome { states, charged, refunded, from_cache: false }))
    }

    pub fn saw(&mut self, index: usize, state: State) {
        self.progress[index].state = Some(state);
        if self.progress[index].stage == Stage::Look {
            self.progress[index].stage = Stage::Settled;
        }
    }

    /// These parts were asked for together, and all charged or none.
    pub fn asked(&mut self, batch: &[usize], allowed: bool, states: Few<State>) {
        let mut decided = false;
        let denies = |index: usize, state: &State| !state.allowed && !self.parts[index].item.force;
        let any = batch.iter().zip(&states).any(|(index, state)| denies(*index, state));
        for (index, state) in batch.iter().zip(states) {
            let part = &mut self.progress[*index];
            if allowed {
                (part.stage, part.kept) = (Stage::Charged, true);
            // What is counted whether it fits or not drops out where it is what cannot be counted at all.
            } else if !state.allowed && (!self.parts[*index].item.force || !any) {
                part.stage = Stage::Settled;
            }
            part.state = Some(state);
            decided |= part.stage != Stage::Open;
        }
        if !decided {
            self.failed(Failure::unavailable("Redis denied a request without a reason"));
        }
    }

    /// When a part was asked for, by the server's clock.
    pub fn time_of(&self, index: usize) -> Option<SystemTime> {
        self.progress[index].state.as_ref().map(|state| state.at)
    }

    /// It was tried to give back what a part was charged, and came to this many units.
    pub fn gave_back(&mut self, index: usize, units: Option<u64>) {
        let part = &mut self.progress[index];
        part.stage = Stage::Settled;
        if let (Some(units), Some(state)) = (units, &mut part.state) {
            part.kept = false;
            give_back(state, units);
        }
    }

    /// A refund has given back this many units, and this is the state since, if it is known. To be called in their order.
    pub fn refunded(&mut self, units: u64, state: Result<State, Failure>) {
        self.refunded.push((units, state.as_ref().ok().copied()));
        if let Err(failure) = state {
            self.failed(failure);
        }
    }

    /// A call has failed, or nobody waits for the decision any longer.
    pub fn failed(&mut self, failure: Failure) {
        self.failure.get_or_insert(failure);
    }

    fn in_stage(&self, stage: Stage) -> Few<usize> {
        counted((0..self.parts.len()).filter(|index| self.progress[*index].stage == stage))
    }

    fn is_denied(&self) -> bool {
        let out = |index: &usize| self.progress[*index].state.as_ref().is_some_and(|state| !state.allowed);
        let of = |mode| (0..self.parts.len()).filter(move |index| self.parts[*index].mode == mode);
        let mut quotas = of(Mode::Quota).peekable();
        of(Mode::Enforced).any(|index| out(&index))
            || !self.quota_passes && quotas.peek().is_some() && quotas.all(|index| out(&index))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::collection::vec;
    use proptest::prelude::*;
    use redis_rl_client::Rule;
    use smallvec::smallvec;

    use super::*;
    use crate::limit::Kind;
    use crate::testing::state;

    /// A limit of a request: how it is asked for, the state of its counter, and which call it belongs to.
    #[derive(Debug, Clone)]
    struct Limit {
        part: Part,
        limit: u64,
        used: u64,
        call: u8,
    }

    fn limit() -> impl Strategy<Value = Limit> {
        let mode = prop_oneof![Just(Mode::Enforced), Just(Mode::Quota), Just(Mode::Shadow)];
        (mode, any::<bool>(), 0..3_u64, 0..4_u64, 0..4_u64, 0..3_u8).prop_map(
            |(mode, throttle, units, limit, used, call)| {
                let kind = if throttle {
                    Kind::Throttle(Rule::throttle("1/second").unwrap())
                } else {
                    Kind::Sliding(Rule::sliding("1/second").unwrap())
                };
                let force = mode == Mode::Shadow && !throttle && units > 0;
                let item =
                    Item { key: b"k".to_vec(), kind, units, force, holder: String::new(), hold: None, block: None };
                Limit { part: Part { item, mode }, limit, used, call }
            },
        )
    }

    /// A server of these counters whose calls fail in turn as told.
    struct Server {
        limits: Vec<Limit>,
        refunds: Vec<bool>,
        fails: std::vec::IntoIter<bool>,
        /// Of charges that could not be given back, and the reverse.
        stuck: bool,
    }

    impl Server {
        fn fails(&mut self) -> bool {
            self.fails.next().unwrap_or(false)
        }

        fn state(&self, index: usize) -> State {
            let Limit { part, limit, used, .. } = &self.limits[index];
            state(used + part.item.units.max(1) <= *limit, *limit, *used)
        }

        fn ask(&mut self, open: Few<usize>, deciding: &mut Deciding<'_>) {
            let mut calls: BTreeMap<u8, Vec<usize>> = BTreeMap::new();
            open.into_iter().for_each(|index| calls.entry(self.limits[index].call).or_default().push(index));
            for batch in calls.into_values() {
                if self.fails() {
                    deciding.failed(Failure::unavailable("a call"));
                    continue;
                }
                let mut states: Few<_> = batch.iter().map(|index| self.state(*index)).collect();
                let fits = |(index, state): (&usize, &State)| state.allowed || self.limits[*index].part.item.force;
                let allowed = batch.iter().zip(&states).all(fits);
                for (index, state) in batch.iter().zip(&mut states).filter(|_| allowed) {
                    self.limits[*index].used += self.limits[*index].part.item.units;
                    state.used = i64::try_from(self.limits[*index].used).unwrap();
                }
                deciding.asked(&batch, allowed, states);
            }
        }

        fn play(&mut self, deciding: &mut Deciding<'_>) -> Result<Outcome, Failure> {
            for _ in 0..100 {
                match deciding.step() {
                    Step::Done(done) => return done,
                    Step::Ask(open) => self.ask(open, deciding),
                    Step::Peek(indices) => indices.into_iter().for_each(|index| {
                        if self.fails() {
                            deciding.failed(Failure::unavailable("a look"));
                        } else {
                            deciding.saw(index, self.state(index));
                        }
                    }),
                    Step::GiveBack(indices) => indices.into_iter().for_each(|index| {
                        let units = self.limits[index].part.item.units;
                        if self.fails() {
                            self.stuck = true;
                            deciding.gave_back(index, None);
                        } else {
                            self.limits[index].used -= units;
                            deciding.gave_back(index, Some(units));
                        }
                    }),
                    Step::Refund => (0..self.refunds.len()).for_each(|index| {
                        let fails = self.fails();
                        self.refunds[index] = !fails;
                        let state = state(true, 5, 0);
                        let state = if fails { Err(Failure::unavailable("a refund")) } else { Ok(state) };
                        deciding.refunded(u64::from(!fails), state);
                    }),
                    Step::TakeBack(done) => {
                        let again = done.into_iter().enumerate().filter(|(_, units)| *units > 0);
                        again.for_each(|(index, _)| self.refunds[index] = false);
                    }
                }
            }
            panic!("it does not end: {deciding:?}");
        }
    }

    proptest! {
        #[test]
        fn a_decision_charges_all_that_passes_or_nothing(
            limits in vec(limit(), 1..6),
            quota_passes: bool,
            refunds in 0..3_usize,
            fails in prop_oneof![Just(vec![]), vec(prop::bool::weighted(0.2), 0..20)],
            given_up: bool,
        ) {
            let parts: Vec<_> = limits.iter().map(|limit| limit.part.clone()).collect();
            let mut server =
                Server { limits: limits.clone(), refunds: vec![false; refunds], fails: fails.into_iter(), stuck: false };
            let mut deciding = Deciding::new(&parts, quota_passes, refunds);
            let mut decided = server.play(&mut deciding);
            if given_up && decided.is_ok() {
                deciding.failed(Failure::unavailable("nobody waits"));
                decided = server.play(&mut deciding);
                prop_assert!(decided.is_err());
            }
            let charged = |index: usize| server.limits[index].used - limits[index].used;
            let Ok(outcome) = decided else {
                prop_assert!(server.stuck || (0..parts.len()).all(|index| charged(index) == 0));
                prop_assert!(!server.refunds.contains(&true));
                return Ok(());
            };
            prop_assert_eq!((outcome.refunded.len(), server.refunds.contains(&false)), (refunds, false));
            let of = |mode: Mode| parts.iter().zip(&outcome.states).filter(move |(part, _)| part.mode == mode);
            let quotas = of(Mode::Quota).count();
            let denied = of(Mode::Enforced).any(|(_, state)| !state.allowed)
                || !quota_passes && quotas > 0 && of(Mode::Quota).all(|(_, state)| !state.allowed);
            for (index, (part, state)) in parts.iter().zip(&outcome.states).enumerate() {
                let passes = !denied && (state.allowed || part.item.force);
                let units = if passes { part.item.units } else { 0 };
                prop_assert!(charged(index) == units || server.stuck && charged(index) == part.item.units);
                // What it says is so.
                prop_assert_eq!(used(state), server.limits[index].used);
                prop_assert!(part.item.units == 0 || outcome.charged[index] == (charged(index) > 0));
                prop_assert!(state.allowed == (limits[index].used + part.item.units.max(1) <= limits[index].limit));
            }
        }
    }

    #[test]
    fn what_cannot_be_counted_at_all_drops_out_of_a_denial_that_nothing_else_explains() {
        let shadow = Limit {
            part: Part {
                item: Item {
                    key: b"k".to_vec(),
                    kind: Kind::Sliding(Rule::sliding("5/second").unwrap()),
                    units: 2000,
                    force: true,
                    holder: String::new(),
                    hold: None,
                    block: None,
                },
                mode: Mode::Shadow,
            },
            limit: 5,
            used: 0,
            call: 0,
        };
        let parts = [shadow.part.clone()];
        let server = Server { limits: vec![shadow], refunds: vec![], fails: vec![].into_iter(), stuck: false };
        let mut deciding = Deciding::new(&parts, false, 0);
        assert!(matches!(deciding.step(), Step::Ask(open) if *open == [0]));
        deciding.asked(&[0], false, smallvec![server.state(0)]);
        let Step::Done(Ok(outcome)) = deciding.step() else { panic!("{deciding:?}") };
        assert_eq!((outcome.states[0].allowed, outcome.charged), (false, smallvec![false]));

        let mut deciding = Deciding::new(&parts, false, 0);
        deciding.asked(&[0], false, smallvec![state(true, 5, 0)]);
        assert!(matches!(deciding.step(), Step::Done(Err(_))));
    }
}
