//! One request, one decision: what is charged of everything that a request asks for.
//!
//! All limits of a request are asked together. If an enforced one has no room, nothing is charged. A quota that has no
//! room drops out, and the rest is asked again; only where all quotas have none is the request denied. A limit in shadow
//! mode is charged where the request passes, and never denies.

use tokio::task::JoinSet;

use std::sync::Arc;

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
    store: &'a Arc<Store>,
    stats: &'a Stats,
    parts: &'a [Part],
    states: Vec<Option<State>>,
    charged: Vec<bool>,
}

/// Decides. `quota_passes`: whether the request has a quota that never fails, beside those of the parts.
pub async fn decide(store: &Arc<Store>, stats: &Stats, parts: &[Part], quota_passes: bool) -> Result<Outcome, Failure> {
    let count = parts.len();
    let mut deciding = Deciding { store, stats, parts, states: vec![None; count], charged: vec![false; count] };
    // A check by itself is a look. Together with others it is part of the decision, where its rule can be asked for
    // nothing, and denies where nothing is left: not in shadow mode.
    let looks = |index: &usize| {
        let Part { item, mode } = &parts[*index];
        item.units == 0 && (count == 1 || !item.can_be_forced() || *mode == Mode::Shadow)
    };
    let (checks, mut open): (Vec<_>, Vec<_>) = (0..count).partition(looks);
    deciding.peek(&checks).await?;
    let mut denied = checks.iter().any(|index| parts[*index].mode == Mode::Enforced && !deciding.allowed(*index));
    denied |= !quota_passes && deciding.all_quotas_failed();
    while !denied && !open.is_empty() {
        let (passed, out) = deciding.ask(&open).await?;
        denied = out.iter().any(|index| parts[*index].mode == Mode::Enforced);
        open.retain(|index| !passed.contains(index) && !out.contains(index));
        denied |= !quota_passes && deciding.all_quotas_failed();
    }
    if denied {
        deciding.give_back().await;
        let unknown: Vec<_> = (0..count).filter(|index| deciding.states[*index].is_none()).collect();
        deciding.peek(&unknown).await?;
    }
    let states = deciding.states.into_iter().collect::<Option<Vec<_>>>();
    let states = states.ok_or_else(|| Failure::Unavailable("a limit was not decided".to_owned()))?;
    Ok(Outcome { states, charged: deciding.charged })
}

impl Deciding<'_> {
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
        let mut results = Vec::with_capacity(batches.len());
        self.stats.own.redis_calls.add(batches.len() as u64);
        if let [_] = batches.as_slice() {
            results.push((open.to_vec(), self.store.decide(&items).await?));
        } else {
            let mut tasks = JoinSet::new();
            for batch in batches {
                let positions: Vec<_> = batch.iter().map(|at| open[*at]).collect();
                let items: Vec<_> = batch.iter().map(|at| items[*at].clone()).collect();
                let store = Arc::clone(self.store);
                tasks.spawn(async move { (positions, store.decide(&items.iter().collect::<Vec<_>>()).await) });
            }
            while let Some(Ok((positions, decided))) = tasks.join_next().await {
                results.push((positions, decided?));
            }
        }
        let (mut passed, mut out) = (Vec::new(), Vec::new());
        for (positions, (allowed, states)) in results {
            for (index, state) in positions.into_iter().zip(states) {
                if allowed {
                    self.charged[index] = true;
                    passed.push(index);
                } else if !state.allowed && !self.parts[index].item.force {
                    out.push(index);
                }
                self.states[index] = Some(state);
            }
        }
        if passed.is_empty() && out.is_empty() {
            return Err(Failure::Unavailable("Redis denied a request without a reason".to_owned()));
        }
        Ok((passed, out))
    }

    /// Takes back what parts of the request were charged before another slot of the cluster denied it.
    async fn give_back(&mut self) {
        for index in 0..self.parts.len() {
            if !self.charged[index] || self.parts[index].item.units == 0 {
                continue;
            }
            let item = &self.parts[index].item;
            let at = self.states[index].as_ref().map(|state| state.at);
            self.stats.own.redis_calls.inc();
            match self.store.refund(item, at).await {
                Ok((units, _)) => {
                    self.charged[index] = false;
                    if let Some(state) = &mut self.states[index] {
                        state.used = state.used.saturating_sub(units);
                        state.remaining = state.limit.saturating_sub(state.used);
                    }
                }
                Err(failure) => tracing::warn!("a denied request stays charged: {}", failure.reason()),
            }
        }
    }

    async fn peek(&mut self, positions: &[usize]) -> Result<(), Failure> {
        if positions.is_empty() {
            return Ok(());
        }
        self.stats.own.redis_calls.add(positions.len() as u64);
        let mut tasks = JoinSet::new();
        for index in positions {
            let (index, item, store) = (*index, self.parts[*index].item.clone(), Arc::clone(self.store));
            tasks.spawn(async move { (index, store.peek(&item).await) });
        }
        while let Some(Ok((index, state))) = tasks.join_next().await {
            self.states[index] = Some(state?);
        }
        Ok(())
    }
}
