//! Takes the steps of a decision: the calls of Redis, what is remembered of their replies, and the deadline.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use futures_util::future::join_all;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use super::decide::{Deciding, Outcome, Part, Step, give_back};
use super::denials::{Asked, Denials};
use super::plan::{Plan, Refund};
use super::reservations::Reservations;
use crate::few::Few;
use crate::limit::Kind;
use crate::redis::{Failure, Hold, Item, State, Store, batches, takes_at_once};
use crate::stats::Stats;

/// How many turns other tasks get before a request is given up: among them is the one that reads replies.
const TURNS: usize = 16;

/// What a request that is not small takes of the room that all have, until it is decided.
pub type Room = Option<OwnedSemaphorePermit>;

pub struct Asker {
    pub store: Arc<Store>,
    pub stats: Arc<Stats>,
    pub denials: Denials,
    pub reservations: Reservations,
    /// Of one call.
    pub deadline: Duration,
}

impl Asker {
    /// Decides, from memory or within the deadline.
    pub async fn decide(self: &Arc<Self>, plan: &Plan, room: Room) -> Result<Outcome, Failure> {
        let Plan { parts, refunds, .. } = plan;
        let found = if refunds.is_empty() { self.denials.find(parts) } else { Err(None) };
        let asked = match found {
            Ok(outcome) => {
                self.stats.own.deny_cache_hits.inc();
                return Ok(outcome);
            }
            Err(asked) => asked,
        };
        // Each call of Redis has its deadline. A request that needs several gets twice as long for all of them.
        let too_late = async {
            tokio::time::sleep(self.deadline.saturating_mul(2)).await;
            // Where the process was stopped meanwhile, both are over at once: a call reads first what has come.
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            answer = self.ask(plan, room, asked) => answer,
            () = too_late => Err(Failure::unavailable(format!("Redis has not answered within {:?}", self.deadline))),
        }
    }

    async fn ask(self: &Arc<Self>, plan: &Plan, room: Room, asked: Option<Asked>) -> Result<Outcome, Failure> {
        let Plan { parts, refunds, passing_quota, .. } = plan;
        let start = Instant::now();
        let at_once = refunds.is_empty() && takes_at_once(parts.iter().map(|part| &part.item), self.store.cluster);
        let outcome = if at_once {
            Run::new(self, parts, *passing_quota, refunds).take_steps().await?
        } else {
            // It goes on when the caller does not wait any longer, so that nothing stays done for a request without a decision.
            let (answer, answered) = oneshot::channel();
            let (asker, mut parts, refunds, passing_quota) =
                (Arc::clone(self), parts.clone(), refunds.clone(), *passing_quota);
            // What is given back has to have a stamp of its own.
            parts.iter_mut().for_each(|part| part.item.block = None);
            tokio::spawn(async move {
                let _room = room;
                let mut run = Run::new(&asker, &parts, passing_quota, &refunds);
                let decided = run.take_steps().await;
                if answer.send(decided).is_err() {
                    run.deciding.failed(Failure::unavailable("nobody waits for the decision"));
                    let _ = run.take_steps().await;
                }
            });
            answered.await.unwrap_or_else(|_| Err(Failure::unavailable("the service is ending")))?
        };
        if !parts.is_empty() {
            self.stats.times.redis.observe(start.elapsed().as_secs_f64());
        }
        for ((part, state), charged) in parts.iter().zip(&outcome.states).zip(&outcome.charged) {
            if let Some(hold) = part.item.hold.as_ref().filter(|_| *charged) {
                self.reservations.keep(&part.item.key, hold, state.at);
            }
        }
        if let Some(asked) = asked {
            self.denials.remember(parts, &outcome, asked);
        }
        Ok(outcome)
    }

    /// Gives units back. Answers how many, under which holder they were settled, and what is left in use, where that is known.
    async fn refund(&self, Refund { item, lease }: &Refund) -> (u64, Option<Hold>, Result<State, Failure>) {
        self.denials.forget(&item.key);
        let (mut refunded, mut hold, mut used) = (0, None, None);
        if item.units > 0 {
            let done = match lease {
                Some(lease) => {
                    let taken = self.reservations.take(&item.key, &item.holder, *lease);
                    let settled = self.store.settle(item, &taken, item.units, taken.at).await;
                    hold = Some(taken);
                    settled.inspect_err(|_| self.stats.own.undecided_units.add(item.units))
                }
                None => self.store.refund(item, None).await.map(|(units, used)| {
                    self.stats.own.refunded_units.add(units);
                    refunded = units;
                    used
                }),
            };
            match done {
                Ok(units) => used = Some(units),
                Err(failure) => return (refunded, hold, Err(failure)),
            }
        }
        // Of the shortest window, which the reply speaks of. Of places the reply does not say how many are held.
        if let (Some(used), [window, ..]) = (used, item.kind.windows()) {
            let mut state = State::new(window.limit(), window.length());
            state.used = i64::try_from(used).unwrap_or(i64::MAX);
            state.remaining = window.limit().saturating_sub(used);
            // Nobody asks: units are not given back over HTTP.
            state.next_after = None;
            state.reset_after = Some(if used == 0 { Duration::ZERO } else { window.length() });
            state.at = SystemTime::now();
            return (refunded, hold, Ok(state));
        }
        let mut state = self.store.peek(&Item { units: 0, ..item.clone() }).await;
        // It speaks of the state with the holder in its place.
        if let Ok(state) = &mut state
            && matches!(item.kind, Kind::Concurrency { .. })
            && state.allowed
            && item.units > 0
        {
            give_back(state, 1);
        }
        (refunded, hold, state)
    }
}

/// The reply to one call: whether all of it is charged, and the states.
type Decision = Result<(bool, Few<State>), Failure>;

struct Run<'a> {
    asker: &'a Asker,
    parts: &'a [Part],
    refunds: &'a [Refund],
    deciding: Deciding<'a>,
    /// Under which holders the refunds have settled.
    holds: Vec<Option<Hold>>,
}

impl<'a> Run<'a> {
    fn new(asker: &'a Asker, parts: &'a [Part], passing_quota: bool, refunds: &'a [Refund]) -> Self {
        let deciding = Deciding::new(parts, passing_quota, refunds.len());
        Self { asker, parts, refunds, deciding, holds: Vec::new() }
    }

    async fn take_steps(&mut self) -> Result<Outcome, Failure> {
        loop {
            match self.deciding.step() {
                Step::Done(decided) => return decided,
                Step::Peek(indices) => self.peek(&indices).await,
                Step::Ask(indices) => self.ask(&indices).await,
                Step::GiveBack(indices) => self.give_back(&indices).await,
                Step::Refund => self.refund().await,
                Step::TakeBack(refunds) => self.take_back(refunds).await,
            }
        }
    }

    async fn peek(&mut self, indices: &[usize]) {
        let looks = join_all(indices.iter().map(|index| self.asker.store.peek(&self.parts[*index].item))).await;
        for (index, look) in indices.iter().zip(looks) {
            match look {
                Ok(state) => self.deciding.saw(*index, state),
                Err(failure) => self.deciding.failed(failure),
            }
        }
    }

    async fn ask(&mut self, open: &[usize]) {
        let (parts, store) = (self.parts, &self.asker.store);
        let items: Few<_> = open.iter().map(|index| &parts[*index].item).collect();
        let too_heavy = |decided: &Decision| decided.as_ref().is_err_and(Failure::is_too_heavy);
        let mut replies = if takes_at_once(items.iter().copied(), store.cluster) {
            let decided = store.decide(&items).await;
            if !too_heavy(&decided) {
                return self.asked(open, decided);
            }
            vec![((0..items.len()).collect(), decided)]
        } else {
            self.decide(&items, batches(&items, store.cluster)).await
        };
        // Logs that take no more by one call may take it by several, and one that takes none denies by itself.
        let heavy = replies.extract_if(.., |(_, decided)| too_heavy(decided));
        let single = heavy.flat_map(|(batch, _): (Vec<usize>, _)| batch).map(|at| vec![at]).collect();
        replies.extend(self.decide(&items, single).await);
        for (batch, decided) in replies {
            self.asked(&batch.into_iter().map(|at| open[at]).collect::<Vec<_>>(), decided);
        }
    }

    fn asked(&mut self, batch: &[usize], decided: Decision) {
        match decided {
            Ok((allowed, states)) => self.deciding.asked(batch, allowed, states),
            Err(failure) => {
                if failure.may_have_charged() {
                    let units = batch.iter().map(|index| self.parts[*index].item.units).sum();
                    self.asker.stats.own.undecided_units.add(units);
                }
                self.deciding.failed(failure);
            }
        }
    }

    async fn decide(&self, items: &[&Item], batches: Vec<Vec<usize>>) -> Vec<(Vec<usize>, Decision)> {
        let calls = batches.into_iter().map(async |batch| {
            let items: Vec<_> = batch.iter().map(|at| items[*at]).collect();
            let decided = self.asker.store.decide(&items).await;
            (batch, decided)
        });
        join_all(calls).await
    }

    async fn give_back(&mut self, indices: &[usize]) {
        let calls = indices.iter().map(|index| {
            let item = &self.parts[*index].item;
            self.asker.denials.forget(&item.key);
            self.asker.store.refund(item, self.deciding.time_of(*index))
        });
        for (index, refunded) in indices.iter().zip(join_all(calls).await) {
            if let Err(failure) = &refunded {
                self.asker.stats.own.undecided_units.add(self.parts[*index].item.units);
                tracing::debug!("a request that does not pass stays charged: {}", failure.reason());
            }
            self.deciding.gave_back(*index, refunded.ok().map(|(units, _)| units));
        }
    }

    async fn refund(&mut self) {
        let calls = self.refunds.iter().map(|refund| self.asker.refund(refund));
        for (units, hold, state) in join_all(calls).await {
            self.holds.push(hold);
            self.deciding.refunded(units, state);
        }
    }

    /// The request comes again, perhaps, and with it these refunds.
    async fn take_back(&mut self, given_back: Vec<u64>) {
        let (mut again, Asker { store, reservations, .. }) = (Vec::new(), self.asker);
        for ((Refund { item, .. }, units), hold) in self.refunds.iter().zip(given_back).zip(self.holds.drain(..)) {
            match hold {
                // Under the same holder it is settled once, however often that is asked for.
                Some(hold) => reservations.keep(&item.key, &hold, hold.at),
                None if units == 0 => {}
                None => again.push(Item { units, force: item.can_be_forced(), ..item.clone() }),
            }
        }
        let calls = again.iter().map(async |item| store.decide(&[item]).await.err());
        for failure in join_all(calls).await.into_iter().flatten() {
            tracing::debug!("a request that has failed stays given back: {}", failure.reason());
        }
    }
}
