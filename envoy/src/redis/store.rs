//! Redis, as the service asks it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redis_rl_client::{Admission, Limiter, Mode, Options, Rule, Source, State};
use smallvec::smallvec;

use super::PATIENCE;
use super::address::connection;
use super::item::{Hold, Item};
use super::reply::Failure;
use crate::few::Few;
use crate::limit::{Block, Kind};
use crate::settings::{Redis, RedisType};
use crate::stats::Stats;

/// How long a call that gives units back may take at least: the response has its own deadline and does not wait for it.
const GIVING_BACK: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub struct Store {
    limiter: Limiter,
    /// The same with more time, for what gives units back.
    giving_back: Limiter,
    /// Whether keys lie in slots.
    pub cluster: bool,
    probe_key: String,
    stats: Arc<Stats>,
}

impl Store {
    pub async fn connect(settings: &Redis, prefix: &str, stats: Arc<Stats>) -> Result<Self, Failure> {
        let connection = connection(settings)?;
        let options = Options::default().name("redis-rl-envoy").mode(settings.mode).timeout(settings.deadline);
        let limiter = Limiter::with_options(connection, options);
        // The first call finds out how the server is asked; no request should have to wait for it.
        let probe_key = format!("{prefix}redis-rl-envoy:probe");
        let giving_back = limiter.with_timeout(settings.deadline.max(GIVING_BACK));
        let store = Self { limiter, giving_back, cluster: settings.kind == RedisType::Cluster, probe_key, stats };
        store.probe(PATIENCE).await?;
        Ok(store)
    }

    /// How Redis is asked; `None` before its first answer.
    pub fn mode(&self) -> Option<Mode> {
        self.limiter.mode()
    }

    /// Decides about a key of the service's own, as about any other: where nobody asks for a while, that is how an outage
    /// is noticed, and its end. It is charged, so that it fails where those of requests fail: without memory, at a replica.
    pub async fn probe(&self, patience: Duration) -> Result<(), Failure> {
        let limiter = self.limiter.with_timeout(patience);
        let _ = limiter.admit(&self.probe_key, Rule::fixed("1000000/second")?).await?;
        Ok(())
    }

    /// Whether Redis is asked, and not left alone in an outage.
    pub fn is_available(&self) -> bool {
        self.limiter.is_available()
    }

    pub fn connections(&self) -> u64 {
        self.limiter.connections()
    }

    /// One decision, all or nothing. What never fits for its weight alone is a denial.
    pub async fn decide(&self, items: &[&Item]) -> Result<(bool, Few<State>), Failure> {
        match (self.ask(items).await, items) {
            (Err(failure), [item]) if failure.is_too_heavy() => Ok((false, smallvec![self.too_heavy(item).await?])),
            (decided, _) => decided,
        }
    }

    async fn ask(&self, items: &[&Item]) -> Result<(bool, Few<State>), Failure> {
        if let [item] = items
            && let Some(block) = item.block.as_ref().filter(|_| !item.force && item.units > 0)
        {
            return self.ask_block(item, block).await;
        }
        self.stats.own.redis_calls.inc();
        if let [item] = items
            // The plain form of a fixed window would count its denials.
            && (item.hold.is_some() || !matches!(item.kind, Kind::Fixed(_) | Kind::Calendar { .. }))
        {
            let state = self.limiter.hit(&item.key, item.rule()?).await?.state();
            return Ok((state.allowed || item.force, smallvec![state]));
        }
        if let [item] = items
            && let Kind::Fixed(rule) = &item.kind
            && let [window] = rule.windows()
            && !item.force
        {
            // The short reply costs Redis a third less. It does not tell the time, which this process has, too.
            let Admission { allowed, remaining, retry_after, .. } = self.limiter.admit(&item.key, item.rule()?).await?;
            let mut state = State::new(window.limit(), window.length());
            let used = window.limit().saturating_sub(remaining);
            state.at = SystemTime::now();
            if used > 0 {
                state.next_after = until_end(window.length(), state.at);
            }
            (state.used, state.reset_after) = (i64::try_from(used).unwrap_or(i64::MAX), None);
            (state.allowed, state.remaining, state.retry_after) = (allowed, remaining, retry_after);
            return Ok((allowed, smallvec![state]));
        }
        let mut rules = Vec::with_capacity(items.len());
        for item in items {
            rules.push((&item.key, item.rule()?));
        }
        let decision = self.limiter.all(rules).await?;
        Ok((decision.allowed, decision.each().iter().copied().collect()))
    }

    async fn ask_block(&self, item: &Item, block: &Block) -> Result<(bool, Few<State>), Failure> {
        let blocks = block.blocks(&self.limiter)?;
        // The client adds it again.
        let key = item.key.strip_suffix(blocks.key("").as_slice()).unwrap_or(&item.key);
        let decided = blocks.hit(key, item.units).await.map(|decision| decision.state());
        match &decided {
            Ok(State { source: Source::Memory, .. }) => self.stats.own.block_hits.inc(),
            _ => self.stats.own.redis_calls.inc(),
        }
        let state = decided?;
        Ok((state.allowed, smallvec![state]))
    }

    /// The state as it is; `allowed` says whether the units fit, or any unit if there are none. Of places, the state that
    /// the holder would make.
    pub async fn peek(&self, item: &Item) -> Result<State, Failure> {
        let mut state = match self.look(item).await {
            Err(failure) if failure.is_too_heavy() => return self.too_heavy(item).await,
            state => state?,
        };
        if item.units == 0 && !matches!(item.kind, Kind::Concurrency { .. }) {
            state.allowed = state.remaining > 0;
        }
        Ok(state)
    }

    async fn look(&self, item: &Item) -> Result<State, Failure> {
        self.stats.own.redis_calls.inc();
        Ok(self.limiter.peek(&item.key, item.rule()?).await?.state())
    }

    /// The state of a log that does not take as many units, whether there is room or not.
    async fn too_heavy(&self, item: &Item) -> Result<State, Failure> {
        let mut state = self.look(&Item { units: 0, force: false, hold: None, ..item.clone() }).await?;
        (state.allowed, state.retry_after) = (false, None);
        Ok(state)
    }

    /// Gives units back: the newest, or those of a time. Answers how many, and how many are still in use.
    pub async fn refund(&self, item: &Item, at: Option<SystemTime>) -> Result<(u64, u64), Failure> {
        let Item { key, kind, units, holder, hold, .. } = item;
        let limiter = &self.giving_back;
        if let Some(hold) = hold {
            let used = self.settle(item, hold, 0, at.unwrap_or(hold.at)).await?;
            return Ok((*units, used));
        }
        self.stats.own.redis_calls.inc();
        let refund = match (kind, at) {
            (Kind::Fixed(rule), None) => limiter.refund(key, rule.clone().cost(*units)).await?,
            (Kind::Fixed(rule), Some(at)) => limiter.refund_at(key, rule.clone().cost(*units), at).await?,
            (Kind::Sliding(rule), None) => limiter.refund(key, rule.clone().cost(*units)).await?,
            (Kind::Sliding(rule), Some(at)) => limiter.refund_at(key, rule.clone().cost(*units), at).await?,
            (Kind::Calendar { rule, .. }, None) => limiter.refund(key, rule.clone().cost(*units)).await?,
            (Kind::Calendar { rule, .. }, Some(at)) => limiter.refund_at(key, rule.clone().cost(*units), at).await?,
            (Kind::Throttle(rule), _) => limiter.refund(key, rule.clone().cost(*units)).await?,
            (Kind::Concurrency { .. }, _) => return Ok((limiter.release(key, [holder]).await?, 0)),
        };
        Ok((refund.refunded, u64::try_from(refund.used).unwrap_or(0)))
    }

    /// Makes this many units of what was reserved at that time. Answers how many are in use.
    pub async fn settle(&self, item: &Item, hold: &Hold, units: u64, at: SystemTime) -> Result<u64, Failure> {
        // The cost means nothing here, but that it is one.
        let held = Item { units: 1, force: false, hold: Some(hold.clone()), ..item.clone() };
        let limiter = &self.giving_back;
        self.stats.own.redis_calls.inc();
        let settled = match held.rule()? {
            Rule::Sliding(rule) => limiter.settle(&item.key, rule, units, at).await?,
            Rule::Fixed(rule) => limiter.settle(&item.key, rule, units, at).await?,
            Rule::Calendar(rule) => limiter.settle(&item.key, rule, units, at).await?,
            _ => return Err(Failure::Permanent("it cannot be settled".to_owned())),
        };
        Ok(u64::try_from(settled.used).unwrap_or(0))
    }
}

/// How long a window of the clock lasts from this time on.
fn until_end(window: Duration, at: SystemTime) -> Option<Duration> {
    let (at, length) = (at.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_millis(), window.as_millis());
    Some(Duration::from_millis(u64::try_from(length - at.checked_rem(length)?).ok()?))
}
