//! Requests that are decided in this process, from units that it has reserved in blocks.

use std::io::ErrorKind::TimedOut;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use quick_cache::sync::Cache;
use tokio::sync::Mutex;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::block::{Held, ROUNDING, Take, Terms};
use crate::decision::{Decision, Source};
use crate::denials::LONGEST;
use crate::error::{Error, no_answer};
use crate::limiter::{LONGEST_TURN, Leave, Limiter};
use crate::rates::{MOST_UNITS, Window};
use crate::rule::{Rule, Sliding, Use};

/// Of how many keys it is known what this process holds. Beyond them, those that are asked for least begin anew.
const KEYS: usize = 10_000;
/// The largest block, as a sorted set takes no more in one call.
const MOST: u64 = 1000;

/// Decides in this process on most requests of busy keys, by an exact sliding window: it reserves a *block* of units in one
/// call, spends them here for a short time, and gives the rest back. However many processes do so, no stretch of time as
/// long as a window holds more than its limit. [Blocks](crate#blocks) says on which conditions.
///
/// A block is as large as what this process has spent at the key within the last `within`, up to `units`. A process that
/// spends fewer than two in that time asks for single units, so that idle processes keep nothing from others. Near the limit
/// blocks get smaller. A request that weighs more than a block asks for itself.
///
/// It costs `within` and a millisecond of each window, as a part of the limit, and what processes have reserved and not spent:
/// at most `units` times processes, usually less.
///
/// Make one for each rule and keep it; clones share what is held. All processes must use the same `units` and `within`:
/// both are part of the [key](Self::key).
#[derive(Debug, Clone)]
pub struct Blocks {
    limiter: Limiter,
    /// As the caller knows it.
    given: Sliding,
    /// With windows that are longer.
    rule: Sliding,
    terms: Terms,
    places: Arc<Cache<Vec<u8>, Place>>,
}

/// A key in this process. It is locked also while the server is asked for units.
type Place = Arc<Mutex<Known>>;

#[derive(Debug)]
struct Known {
    held: Held,
    /// What the server answered last, and when that came.
    last: Option<(Decision, Instant)>,
}

impl Blocks {
    /// Blocks of at most `units` (2 to 1000), spent within a time of at least a millisecond, in whole milliseconds, and at
    /// most the shortest window. That time has to be several times as long as a call to the server takes.
    /// The rule has no cost, which is that of each hit, and is neither forced nor held.
    pub fn new(limiter: &Limiter, rule: &Sliding, units: u64, within: Duration) -> Result<Self, Error> {
        let plain = Rule::from(rule);
        if plain.common().cost.is_some() || !plain.takes_turns() {
            return Err(Error::Invalid("blocks take a sliding rule without cost, force and holder".to_owned()));
        }
        if !(2..=MOST).contains(&units) {
            return Err(Error::Invalid(format!("a block has 2 to {MOST} units, not {units}")));
        }
        let shortest = rule.windows().iter().map(Window::length).min().unwrap_or_default();
        if !(ROUNDING..=shortest).contains(&within) || !within.subsec_nanos().is_multiple_of(1_000_000) {
            return Err(Error::Invalid(format!(
                "a block is spent within whole milliseconds, from 1 to the shortest window, not within {within:?}"
            )));
        }
        let longer = |window: &Window| Window::new(window.limit(), window.length() + within + ROUNDING);
        let longer = rule.windows().iter().map(longer).collect::<Result<Vec<_>, _>>()?;
        Ok(Self {
            limiter: limiter.clone(),
            given: rule.clone(),
            rule: Rule::sliding(longer)?,
            terms: Terms { units, within },
            places: Arc::new(Cache::new(KEYS)),
        })
    }

    /// The key at which the server counts: with the size of a block and its milliseconds behind it, as in
    /// `tenant:7:block:10:500`. For [`peek`](Limiter::peek) and [`reset`](Limiter::reset), together with
    /// [`rule`](Self::rule).
    pub fn key(&self, key: impl AsRef<[u8]>) -> Vec<u8> {
        let suffix = format!(":block:{}:{}", self.terms.units, self.terms.within.as_millis());
        [key.as_ref(), suffix.as_bytes()].concat()
    }

    /// The rule by which the server counts, whose windows are longer.
    pub fn rule(&self) -> &Sliding {
        &self.rule
    }

    /// Decides on a request that weighs `cost` units (1 to 2^53 − 1), here or by a call to the server.
    ///
    /// Callers at one key share what is held. Of those that find nothing one asks at a time, and the others wait. No
    /// call takes longer than the limiter's [timeout](crate::Options::timeout); what is held is spent also while the server is
    /// unavailable. `used` and `remaining` count what this process holds as free. A denial is believed for its wait and at most
    /// a second. The hook and the statistics see each request.
    ///
    /// What is allowed is allowed at the moment at which this future is ready, so the request has to begin then. It is
    /// [`Error::Unavailable`] where the server's answers take longer than `within`.
    pub async fn hit(&self, key: impl AsRef<[u8]>, cost: u64) -> Result<Decision, Error> {
        let (key, started) = (key.as_ref(), Instant::now());
        let outcome = self.decide(key, cost).await;
        self.limiter.observe("hit", [key].into_iter(), outcome.as_ref().map(Decision::state), started);
        outcome
    }

    async fn decide(&self, key: &[u8], cost: u64) -> Result<Decision, Error> {
        if !(1..=MOST_UNITS).contains(&cost) {
            return Err(Error::Invalid(format!("a cost must be from 1 to {MOST_UNITS}, not {cost}")));
        }
        let deadline = Instant::now() + self.limiter.timeout().min(LONGEST_TURN);
        let place = self.place(key);
        let Ok(mut known) = timeout_at(deadline, place.lock()).await else {
            let late = "no other caller's request was answered in time".to_owned();
            return Err(Error::Unavailable(no_answer(TimedOut, late)));
        };
        let mut was_late = false;
        loop {
            let sent = Instant::now();
            let ask = match known.held.take(cost, sent.into_std()) {
                Take::Spent => return self.tell(&known, cost, true, sent, Source::Memory),
                Take::Denied => return self.tell(&known, cost, false, sent, Source::Memory),
                Take::Ask(ask) => ask,
            };
            let decision = self.ask(key, ask.size, deadline.saturating_duration_since(sent)).await?;
            let (now, allowed, at) = (Instant::now(), decision.allowed, decision.at);
            let free = decision.each().iter().map(|window| window.remaining).min().unwrap_or(0);
            let retry_after = decision.retry_after.unwrap_or(LONGEST).min(LONGEST);
            if !allowed && !known.held.denied(ask, free, (sent + retry_after).into_std()) {
                // There is no room for a block.
                continue;
            }
            known.last = Some((decision, now));
            if allowed {
                self.give_back_later(&place, key, sent + self.terms.within);
            }
            if !allowed || known.held.granted(ask, at, free, now.into_std()) {
                return self.tell(&known, cost, allowed, now, Source::Server);
            }
            // The first call may have made the connection.
            if was_late {
                let late = format!("the server takes longer than {:?} to answer", self.terms.within);
                return Err(Error::Unavailable(no_answer(TimedOut, late)));
            }
            was_late = true;
        }
    }

    fn place(&self, key: &[u8]) -> Place {
        if let Some(place) = self.places.get(key) {
            return place;
        }
        let place = Arc::new(Mutex::new(Known { held: Held::new(self.terms), last: None }));
        // Two callers may each make one: what either holds was reserved, and is given back.
        self.places.insert(key.to_vec(), Arc::clone(&place));
        place
    }

    /// Makes a call for units. If this future is dropped, what the call gets is given back.
    async fn ask(&self, key: &[u8], units: u64, left: Duration) -> Result<Decision, Error> {
        let (key, rule) = (self.key(key), self.rule.clone().cost(units));
        let call = Arc::new(self.limiter.request([(&key, rule.clone().into())], None, Use::Hit)?);
        let leave = Leave::new(move |limiter, outcome| async move {
            if let Some(block) = outcome {
                give_back(&limiter, &key, rule, block.at).await;
            }
        });
        self.limiter.with_timeout(left).decide_anew(&call, Some(leave)).await
    }

    /// Gives back what is left when its time is over.
    fn give_back_later(&self, place: &Place, key: &[u8], ends: Instant) {
        let (blocks, place, key) = (self.clone(), Arc::clone(place), self.key(key));
        tokio::spawn(async move {
            sleep_until(ends).await;
            let over = place.lock().await.held.over(Instant::now().into_std());
            for rest in over {
                give_back(&blocks.limiter, &key, blocks.rule.clone().cost(rest.units), rest.at).await;
            }
        });
    }

    /// The decision on a request, by what the server answered last.
    fn tell(&self, known: &Known, cost: u64, allowed: bool, now: Instant, source: Source) -> Result<Decision, Error> {
        let Some((last, came)) = &known.last else {
            return Err(Error::Unexpected("units that were never reserved".to_owned()));
        };
        let (rule, left) = (self.given.clone().cost(cost), known.held.left(now.into_std()));
        Ok(last.of_block(rule.into(), allowed, left, now.duration_since(*came), self.terms.within + ROUNDING, source))
    }
}

/// What fails is not sent again, as it may have been carried out: then the units count until their window is over.
async fn give_back(limiter: &Limiter, key: &[u8], rule: Sliding, at: SystemTime) {
    if let Err(error) = limiter.refund_at(key, rule, at).await {
        tracing::debug!(limiter = limiter.name(), key = %key.escape_ascii(), %error, "a block was not given back");
    }
}
