//! From a request to its answer.

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis_rl_client::Rule;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tonic::Status;

use super::ask::{Asker, Room};
use super::decide::Outcome;
use super::denials::Denials;
use super::plan::Plan;
use super::reservations::Reservations;
use super::response;
use crate::limits::tree::Config;
use crate::messages::{RateLimitRequest, RateLimitResponse};
use crate::redis::{Failure, State, Store};
use crate::settings::{OnError, Settings};
use crate::stats::Stats;

/// The most descriptors of a request. Each may cost a call of Redis.
const MOST_DESCRIPTORS: usize = 1000;

/// How much of requests is decided at a time, of all that are not small. A piece is a descriptor or an entry, and a kilobyte of
/// an entry's text.
const PIECES: usize = 40_000;
const FEW: usize = 32;

/// The limits that are enforced, and their states. `None` where Redis was not available and ON_ERROR says what follows.
pub type Enforced = Option<Vec<(Rule, State)>>;

pub struct Service {
    config: ArcSwapOption<Config>,
    pub settings: Settings,
    pub stats: Arc<Stats>,
    asker: Arc<Asker>,
    /// Where requests are decided, whichever way they came. A connection of Redis belongs to the runtime that made it, and
    /// must not wait there for a scrape.
    requests: Handle,
    room: Arc<Semaphore>,
    refusals: Refusals,
}

impl Service {
    /// To be called in the runtime of requests.
    pub fn new(settings: &Settings, store: Arc<Store>, stats: Arc<Stats>) -> Self {
        Self {
            config: ArcSwapOption::empty(),
            settings: settings.clone(),
            stats: Arc::clone(&stats),
            asker: Arc::new(Asker {
                store,
                stats,
                denials: Denials::new(settings.redis.deny_cache),
                reservations: Reservations::default(),
                deadline: settings.redis.deadline,
            }),
            requests: Handle::current(),
            room: Arc::new(Semaphore::new(PIECES)),
            refusals: Refusals::default(),
        }
    }

    pub fn config(&self) -> Option<Arc<Config>> {
        self.config.load_full()
    }

    pub fn set_config(&self, config: Config) {
        self.config.store(Some(Arc::new(config)));
    }

    /// Forgets statistics of limits that there are no longer, or that were refused.
    pub fn forget_statistics(&self) {
        self.stats.keep(&self.config().map(|config| config.names()).unwrap_or_default());
    }

    pub fn store(&self) -> &Store {
        &self.asker.store
    }

    pub fn remembered(&self) -> usize {
        self.asker.denials.len()
    }

    pub async fn answer(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let (plan, decided) = self.decide(request).await?;
        self.respond(request, &plan, &decided)
    }

    /// As `answer`, for a caller in another runtime.
    pub async fn answer_from_outside(
        self: Arc<Self>,
        request: RateLimitRequest,
    ) -> Result<(RateLimitResponse, Enforced), Status> {
        let requests = self.requests.clone();
        let answered = requests.spawn(async move {
            let (plan, decided) = self.decide(&request).await?;
            let response = self.respond(&request, &plan, &decided)?;
            Ok((response, decided.ok().map(|outcome| response::enforced(&plan, &outcome, &self.settings))))
        });
        answered.await.unwrap_or_else(|_| Err(Status::unavailable("the service is ending")))
    }

    async fn decide(&self, request: &RateLimitRequest) -> Result<(Plan, Result<Outcome, Failure>), Status> {
        let room = self.room_for(request)?;
        let plan = self.plan(request).await.inspect_err(|_| self.stats.service_error.inc())?;
        let decided = self.asker.decide(&plan, room).await;
        Ok((plan, decided))
    }

    /// Room for a request, until it is decided, even where nobody waits for that any longer.
    fn room_for(&self, request: &RateLimitRequest) -> Result<Room, Status> {
        let entries = request.descriptors.iter().flat_map(|descriptor| &descriptor.entries);
        let text: usize = entries.map(|entry| 1 + (entry.key.len() + entry.value.len()) / 1024).sum();
        let pieces = request.descriptors.len() + text;
        if pieces <= FEW {
            return Ok(None);
        }
        let pieces = u32::try_from(pieces).unwrap_or(u32::MAX);
        Arc::clone(&self.room).try_acquire_many_owned(pieces).map(Some).map_err(|_| {
            self.stats.own.refused_requests.inc();
            Status::resource_exhausted("too many requests at a time")
        })
    }

    fn respond(
        &self,
        request: &RateLimitRequest,
        plan: &Plan,
        decided: &Result<Outcome, Failure>,
    ) -> Result<RateLimitResponse, Status> {
        let failure = match decided {
            Ok(outcome) => return Ok(response::decided(request, plan, outcome, &self.settings, &self.stats)),
            Err(failure) => failure,
        };
        self.stats.redis_error.inc();
        let reason = failure.reason();
        match (failure, self.settings.on_error) {
            (Failure::Permanent(_), _) => {
                self.refusals.log(reason);
                return Err(Status::unknown(format!("redis: {reason}")));
            }
            (_, OnError::Error) => return Err(Status::unknown(format!("redis: {reason}"))),
            (_, OnError::Allow) => self.stats.own.failed_open.inc(),
            (_, OnError::Deny) => self.stats.own.failed_closed.inc(),
        }
        Ok(response::undecided(plan, &self.settings))
    }

    async fn plan(&self, request: &RateLimitRequest) -> Result<Plan, Status> {
        if request.domain.is_empty() {
            return Err(Status::unknown("rate limit domain must not be empty"));
        }
        if request.descriptors.is_empty() {
            return Err(Status::unknown("rate limit descriptor list must not be empty"));
        }
        if request.descriptors.len() > MOST_DESCRIPTORS {
            let count = request.descriptors.len();
            return Err(Status::invalid_argument(format!(
                "at most {MOST_DESCRIPTORS} descriptors a request, not {count}"
            )));
        }
        let config = self.config.load();
        let config = config.as_ref().ok_or_else(|| Status::unknown("no rate limit configuration loaded"))?;
        Plan::new(request, config, &self.settings, &self.stats, &self.asker.reservations).await
    }
}

/// Requests that Redis refuses for good, of which clients can send any number: a line a minute.
#[derive(Default)]
struct Refusals(Mutex<(Option<Instant>, u64)>);

impl Refusals {
    fn log(&self, reason: &str) {
        let mut state = self.0.lock();
        let (last, since) = &mut *state;
        *since += 1;
        if last.is_none_or(|last| last.elapsed() >= Duration::from_secs(60)) {
            tracing::warn!("Redis refuses requests ({since} since it was last said): {reason}");
            *state = (Some(Instant::now()), 0);
        }
    }
}
