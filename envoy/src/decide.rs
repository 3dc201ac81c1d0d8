//! One request, one decision: what is charged of everything that a request asks for.
//!
//! All limits of a request are asked together. If an enforced one has no room, nothing is charged. A quota that has no
//! room drops out, and the rest is asked again; only where all quotas have none is the request denied. A limit in shadow
//! mode is charged where the request passes, and never denies.
//!
//! Limits in several slots of a cluster, or more than Redis takes in one call, are several decisions. If one of them denies
//! or fails, what the others have charged is given back.

use std::sync::Arc;

use futures_util::future::join_all;
use tokio::sync::oneshot;

use crate::stats::Stats;
use crate::store::{Failure, Item, State, Store};

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

/// What was decided, by part.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub states: Vec<State>,
    pub charged: Vec<bool>,
}

struct Deciding<'a> {
    store: &'a Store,
    stats: &'a Stats,
    parts: &'a [Part],
    states: Vec<Option<State>>,
    charged: Vec<bool>,
}

/// Decides. `quota_passes`: whether the request has a quota that never fails, beside those of the parts.
pub async fn decide(
    store: &Arc<Store>,
    stats: &Arc<Stats>,
    parts: &[Part],
    quota_passes: bool,
) -> Result<Outcome, Failure> {
    if store.takes_at_once(parts.iter().map(|part| &part.item)) {
        return Deciding::new(store, stats, parts).decide(quota_passes).await;
    }
    // It goes on when the caller does not wait any longer, so that nothing stays charged for a request without a decision.
    let (answer, answered) = oneshot::channel();
    let (store, stats, parts) = (Arc::clone(store), Arc::clone(stats), parts.to_vec());
    tokio::spawn(async move {
        let mut deciding = Deciding::new(&store, &stats, &parts);
        let decided = deciding.decide(quota_passes).await;
        let failed = decided.is_err();
        if answer.send(decided).is_err() || failed {
            deciding.give_back().await;
        }
    });
    answered.await.unwrap_or_else(|_| Err(Failure::unavailable("a limit was not decided")))
}

impl<'a> Deciding<'a> {
    fn new(store: &'a Store, stats: &'a Stats, parts: &'a [Part]) -> Self {
        Self { store, stats, parts, states: vec![None; parts.len()], charged: vec![false; parts.len()] }
    }

    async fn decide(&mut self, quota_passes: bool) -> Result<Outcome, Failure> {
        let (parts, count) = (self.parts, self.parts.len());
        // A check by itself is a look. Together with others it is part of the decision, where its rule can be asked for
        // nothing, and denies where nothing is left: not in shadow mode.
        let looks = |index: &usize| {
            let Part { item, mode } = &parts[*index];
            item.units == 0 && (count == 1 || !item.can_be_forced() || *mode == Mode::Shadow)
        };
        let (checks, mut open): (Vec<_>, Vec<_>) = (0..count).partition(looks);
        self.peek(&checks).await?;
        let mut denied = checks.iter().any(|index| parts[*index].mode == Mode::Enforced && !self.allowed(*index));
        denied |= !quota_passes && self.all_quotas_failed();
        while !denied && !open.is_empty() {
            let (passed, out) = self.ask(&open).await?;
            denied = out.iter().any(|index| parts[*index].mode == Mode::Enforced);
            open.retain(|index| !passed.contains(index) && !out.contains(index));
            denied |= !quota_passes && self.all_quotas_failed();
        }
        if denied {
            self.give_back().await;
            let unknown: Vec<_> = (0..count).filter(|index| self.states[*index].is_none()).collect();
            self.peek(&unknown).await?;
        }
        let states = self.states.iter().cloned().collect::<Option<Vec<_>>>();
        let states = states.ok_or_else(|| Failure::unavailable("a limit was not decided"))?;
        Ok(Outcome { states, charged: self.charged.clone() })
    }

    fn allowed(&self, index: usize) -> bool {
        self.states[index].as_ref().is_none_or(|state| state.allowed)
    }

    fn all_quotas_failed(&self) -> bool {
        let mut quotas = (0..self.parts.len()).filter(|index| self.parts[*index].mode == Mode::Quota).peekable();
        quotas.peek().is_some() && quotas.all(|index| !self.allowed(index))
    }

    /// Asks for the parts at these positions: which passed and are charged, and which have no room.
    async fn ask(&mut self, open: &[usize]) -> Result<(Vec<usize>, Vec<usize>), Failure> {
        let items: Vec<_> = open.iter().map(|index| &self.parts[*index].item).collect();
        let batches = self.store.batches(&items);
        self.stats.own.redis_calls.add(batches.len() as u64);
        let calls = batches.into_iter().map(async |batch| {
            let items: Vec<_> = batch.iter().map(|at| items[*at]).collect();
            (batch, self.store.decide(&items).await)
        });
        let results = join_all(calls).await;
        let (mut passed, mut out) = (Vec::new(), Vec::new());
        let mut failure = None;
        for (batch, decided) in results {
            let positions = batch.iter().map(|at| open[*at]);
            let (allowed, states) = match decided {
                Ok(decided) => decided,
                Err(failed) => {
                    if failed.may_have_charged() {
                        self.stats.own.undecided_units.add(positions.map(|index| self.parts[index].item.units).sum());
                    }
                    failure = Some(failed);
                    continue;
                }
            };
            for (index, state) in positions.zip(states) {
                if allowed {
                    self.charged[index] = true;
                    passed.push(index);
                } else if !state.allowed && !self.parts[index].item.force {
                    out.push(index);
                }
                self.states[index] = Some(state);
            }
        }
        if let Some(failure) = failure {
            return Err(failure);
        }
        if passed.is_empty() && out.is_empty() {
            return Err(Failure::unavailable("Redis denied a request without a reason"));
        }
        Ok((passed, out))
    }

    /// Takes back what was charged for a request that does not pass.
    async fn give_back(&mut self) {
        let charged = (0..self.parts.len()).filter(|index| self.charged[*index] && self.parts[*index].item.units > 0);
        let refunds = charged.map(async |index| {
            self.stats.own.redis_calls.inc();
            let at = self.states[index].as_ref().map(|state| state.at);
            (index, self.store.refund(&self.parts[index].item, at).await)
        });
        for (index, refunded) in join_all(refunds).await {
            match refunded {
                Ok((units, _)) => {
                    self.charged[index] = false;
                    if let Some(state) = &mut self.states[index] {
                        state.used = state.used.saturating_sub(units);
                        state.remaining = state.limit.saturating_sub(state.used);
                    }
                }
                Err(failure) => {
                    self.stats.own.undecided_units.add(self.parts[index].item.units);
                    tracing::debug!("a request that does not pass stays charged: {}", failure.reason());
                }
            }
        }
    }

    async fn peek(&mut self, positions: &[usize]) -> Result<(), Failure> {
        self.stats.own.redis_calls.add(positions.len() as u64);
        let looks = positions.iter().map(|index| self.store.peek(&self.parts[*index].item));
        for (index, state) in positions.iter().zip(join_all(looks).await) {
            self.states[*index] = Some(state?);
        }
        Ok(())
    }
}
