//! From a request to its answer.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use redis_rl_client::{Rule, State as Shown};
use tokio::runtime::Handle;
use tokio::task::JoinError;
use tonic::Status;

use super::ask::{Asker, Decided};
use super::denials::Denials;
use super::plan::Plan;
use super::reservations::Reservations;
use super::response;
use crate::limits::tree::Config;
use crate::redis::{Failure, Store};
use crate::settings::{OnError, Settings};
use crate::stats::Stats;

/// The most descriptors of a request. Each may cost a call of Redis.
const MOST_DESCRIPTORS: usize = 1000;

/// What a gateway is told that asks by HTTP.
pub enum Verdict {
    /// With the limits that are enforced.
    Decided { allowed: bool, limits: Vec<(Rule, Shown)> },
    /// Redis is unavailable, and ON_ERROR says what follows.
    Undecided { allowed: bool },
}

/// The result of a task; `None` only when the runtime ends.
fn ended<T>(result: Result<Result<T, Status>, JoinError>) -> Result<T, Status> {
    result.unwrap_or_else(|_| Err(Status::unavailable("the service is ending")))
}

pub struct Service {
    config: ArcSwapOption<Config>,
    settings: Settings,
    pub stats: Arc<Stats>,
    asker: Arc<Asker>,
    /// Where requests are decided, whichever way they came. A connection of Redis belongs to the runtime that made it, and
    /// must not wait there for a scrape.
    requests: Handle,
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

    /// How many denials are remembered.
    pub fn remembered(&self) -> usize {
        self.asker.denials.len()
    }

    /// How many limits the configuration has.
    pub fn limits(&self) -> usize {
        self.config().map_or(0, |config| config.limits())
    }

    /// How many limits Redis has in place of those.
    pub fn overrides(&self) -> usize {
        self.config().map_or(0, |config| config.overrides())
    }

    /// Answers.
    ///
    /// # Errors
    /// As Envoy's rate limit service words them.
    pub async fn answer(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let plan = self.plan(request).await.inspect_err(|_| self.stats.service_error.inc())?;
        let decided = self.asker.decide(&plan).await;
        self.respond(request, &plan, &decided)
    }

    /// Answers a gateway that asks by HTTP.
    ///
    /// # Errors
    /// Those of `answer`.
    async fn verdict(&self, request: &RateLimitRequest) -> Result<Verdict, Status> {
        let plan = self.plan(request).await.inspect_err(|_| self.stats.service_error.inc())?;
        let decided = self.asker.decide(&plan).await;
        let allowed = self.respond(request, &plan, &decided)?.overall_code() != Code::OverLimit;
        Ok(match decided {
            Ok(decided) => Verdict::Decided { allowed, limits: response::enforced(&plan, &decided, &self.settings) },
            Err(_) => Verdict::Undecided { allowed },
        })
    }

    fn respond(
        &self,
        request: &RateLimitRequest,
        plan: &Plan,
        decided: &Result<Decided, Failure>,
    ) -> Result<RateLimitResponse, Status> {
        match decided {
            Ok(decided) => Ok(response::decided(request, plan, decided, &self.settings, &self.stats)),
            Err(failure) => self.failed(plan, failure),
        }
    }

    /// As `answer`, for a caller in another runtime.
    ///
    /// # Errors
    /// Those of `answer`.
    pub async fn answer_from_outside(self: Arc<Self>, request: RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let requests = self.requests.clone();
        ended(requests.spawn(async move { self.answer(&request).await }).await)
    }

    /// As `answer_from_outside`, for a gateway that asks by HTTP.
    ///
    /// # Errors
    /// Those of `answer`.
    pub async fn verdict_from_outside(self: Arc<Self>, request: RateLimitRequest) -> Result<Verdict, Status> {
        let requests = self.requests.clone();
        ended(requests.spawn(async move { self.verdict(&request).await }).await)
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

    /// The answer where Redis could not be asked.
    fn failed(&self, plan: &Plan, failure: &Failure) -> Result<RateLimitResponse, Status> {
        self.stats.redis_error.inc();
        let reason = failure.reason();
        match (failure, self.settings.on_error) {
            (Failure::Permanent(reason), _) => {
                self.refusals.log(reason);
                return Err(Status::unknown(format!("redis: {reason}")));
            }
            (_, OnError::Error) => return Err(Status::unknown(format!("redis: {reason}"))),
            (_, OnError::Allow) => self.stats.own.failed_open.inc(),
            (_, OnError::Deny) => self.stats.own.failed_closed.inc(),
        }
        Ok(response::undecided(plan, &self.settings))
    }
}

/// Requests that Redis refuses for good, of which clients can send any number: a line a minute.
#[derive(Default)]
struct Refusals(Mutex<(Option<Instant>, u64)>);

impl Refusals {
    fn log(&self, reason: &str) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, since) = &mut *state;
        *since += 1;
        if last.is_none_or(|last| last.elapsed() >= Duration::from_secs(60)) {
            tracing::warn!("Redis refuses requests ({since} since it was last said): {reason}");
            *state = (Some(Instant::now()), 0);
        }
    }
}
