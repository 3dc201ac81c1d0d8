//! ShouldRateLimit: from a request to its answer.

use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime};

use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::Code;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use futures_util::future::try_join_all;
use redis_rl_client::{Rule, State as Shown};
use tokio::runtime::Handle;
use tokio::task::JoinError;
use tonic::{Request, Response, Status};

use crate::config::Config;
use crate::config::tree::Kind;
use crate::decide::{Outcome, decide};
use crate::denials::Denials;
use crate::plan::Plan;
use crate::reservations::{Hold, Reservations};
use crate::response::{self, Decided};
use crate::settings::{OnError, Settings};
use crate::stats::Stats;
use crate::store::{Failure, Item, State, Store};

/// The most descriptors of a request. Each may cost a call of Redis.
const MOST_DESCRIPTORS: usize = 1000;
/// How many turns other tasks get before a request is given up: among them is the one that reads replies.
const TURNS: usize = 16;

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
    config: RwLock<Option<Arc<Config>>>,
    settings: Settings,
    store: Arc<Store>,
    pub stats: Arc<Stats>,
    denials: Denials,
    reservations: Reservations,
    /// Where requests are decided, whichever way they came. A connection of Redis belongs to the runtime that made it, and
    /// must not wait there for a scrape.
    requests: Handle,
    refusals: Refusals,
}

impl Service {
    /// To be called in the runtime of requests.
    pub fn new(settings: &Settings, store: Arc<Store>, stats: Arc<Stats>) -> Self {
        Self {
            config: RwLock::new(None),
            settings: settings.clone(),
            store,
            stats,
            denials: Denials::new(settings.redis.deny_cache),
            reservations: Reservations::default(),
            requests: Handle::current(),
            refusals: Refusals::default(),
        }
    }

    pub fn config(&self) -> Option<Arc<Config>> {
        self.config.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn set_config(&self, config: Config) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(config));
    }

    pub fn store(&self) -> &Store {
        &self.store
    }

    /// How many denials are remembered.
    pub fn remembered(&self) -> usize {
        self.denials.len()
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
        let decided = self.decide(&plan).await;
        self.respond(request, &plan, &decided)
    }

    /// Answers a gateway that asks by HTTP.
    ///
    /// # Errors
    /// Those of `answer`.
    async fn verdict(&self, request: &RateLimitRequest) -> Result<Verdict, Status> {
        let plan = self.plan(request).await.inspect_err(|_| self.stats.service_error.inc())?;
        let decided = self.decide(&plan).await;
        let allowed = self.respond(request, &plan, &decided)?.overall_code() != Code::OverLimit;
        Ok(match decided {
            Ok(decided) => Verdict::Decided { allowed, limits: response::enforced(&plan, &decided, &self.settings) },
            Err(_) => Verdict::Undecided { allowed },
        })
    }

    async fn decide(&self, plan: &Plan) -> Result<Decided, Failure> {
        let remembered = if plan.refunds.is_empty() { self.denials.find(&plan.parts) } else { None };
        if let Some(outcome) = remembered {
            self.stats.own.deny_cache_hits.inc();
            return Ok(Decided { outcome, refunded: Vec::new(), from_cache: true });
        }
        let (outcome, refunded) = self.ask(plan).await?;
        Ok(Decided { outcome, refunded, from_cache: false })
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
        let config = self.config().ok_or_else(|| Status::unknown("no rate limit configuration loaded"))?;
        Plan::new(request, &config, &self.settings, &self.stats, &self.reservations).await
    }

    /// Asks Redis, within the deadline: first what is given back, then the decision.
    async fn ask(&self, plan: &Plan) -> Result<(Outcome, Vec<State>), Failure> {
        let Plan { parts, refunds, .. } = plan;
        let nothing = || Outcome { states: Vec::new(), charged: Vec::new() };
        if parts.is_empty() && refunds.is_empty() {
            return Ok((nothing(), Vec::new()));
        }
        let deciding = async {
            let started = self.denials.started(parts);
            let states = try_join_all(refunds.iter().map(|item| self.refund(item))).await?;
            if parts.is_empty() {
                return Ok((nothing(), states));
            }
            let asked = Instant::now();
            let outcome = decide(&self.store, &self.stats, parts, plan.passing_quota).await?;
            self.stats.redis_time.0.observe(asked.elapsed().as_secs_f64());
            for ((part, state), _) in parts.iter().zip(&outcome.states).zip(&outcome.charged).filter(|(_, is)| **is) {
                if let Some(hold) = &part.item.hold {
                    self.reservations.keep(&part.item.key, hold, state.at);
                }
            }
            if refunds.is_empty() {
                self.denials.remember(parts, &outcome, &started);
            }
            Ok((outcome, states))
        };
        // Each call of Redis has its deadline. A request that needs several gets twice as long for all of them.
        let deadline = self.settings.redis.deadline;
        let too_late = async {
            tokio::time::sleep(deadline.saturating_mul(2)).await;
            // Where the process was stopped meanwhile, both are over at once: a call reads first what has come.
            for _ in 0..TURNS {
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            biased;
            answer = deciding => answer,
            () = too_late => Err(Failure::unavailable(format!("Redis has not answered within {deadline:?}"))),
        }
    }

    /// Gives the units back, and says what is left in use.
    async fn refund(&self, item: &Item) -> Result<State, Failure> {
        self.denials.forget(&item.key);
        let mut state = None;
        if item.units > 0 {
            self.stats.own.redis_calls.inc();
            let used = match &item.hold {
                Some(hold) => self.settle(item, hold).await?,
                None => {
                    let (units, used) = self.store.refund(item, None).await?;
                    self.stats.own.refunded.add(units);
                    used
                }
            };
            // Of the shortest window, which the reply speaks of. Of places the reply does not say how many are held.
            let windows = match &item.kind {
                Kind::Fixed(rule) => rule.windows(),
                Kind::Sliding(rule) => rule.windows(),
                Kind::Calendar { .. } | Kind::Throttle(_) | Kind::Concurrency { .. } => &[],
            };
            state = windows.first().map(|window| State {
                allowed: true,
                limit: window.limit(),
                used,
                remaining: window.limit().saturating_sub(used),
                retry_after: Some(Duration::ZERO),
                // Nobody asks: units are not given back over HTTP.
                next_after: None,
                reset_after: Some(if used == 0 { Duration::ZERO } else { window.length() }),
                window: window.length(),
                at: SystemTime::now(),
            });
        }
        match state {
            Some(state) => Ok(state),
            None => {
                self.stats.own.redis_calls.inc();
                let mut state = self.store.peek(&Item { units: 0, hold: None, ..item.clone() }).await?;
                // It speaks of the state with the holder in its place.
                if matches!(item.kind, Kind::Concurrency { .. }) && state.allowed && item.units > 0 {
                    state.used = state.used.saturating_sub(1);
                    state.remaining = state.limit.saturating_sub(state.used);
                }
                Ok(state)
            }
        }
    }

    /// Settles what the request has reserved, and says what is in use. It goes on where the response has to come earlier: a
    /// stream ends once.
    async fn settle(&self, item: &Item, hold: &Hold) -> Result<u64, Failure> {
        let (store, stats, item, hold) = (Arc::clone(&self.store), Arc::clone(&self.stats), item.clone(), hold.clone());
        let settling = tokio::spawn(async move {
            let settled = store.settle(&item, &hold, item.units, hold.at).await;
            settled.inspect_err(|_| stats.own.undecided_units.add(item.units))
        });
        settling.await.unwrap_or_else(|_| Err(Failure::unavailable("the service is ending")))
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

/// The service as gRPC calls it.
pub struct Grpc(pub Arc<Service>);

#[tonic::async_trait]
impl RateLimitService for Grpc {
    async fn should_rate_limit(
        &self,
        request: Request<RateLimitRequest>,
    ) -> Result<Response<RateLimitResponse>, Status> {
        let Self(service) = self;
        let start = Instant::now();
        service.stats.total_requests.inc();
        let answer = service.answer(request.get_ref()).await;
        service.stats.response_time.0.observe(start.elapsed().as_secs_f64());
        answer.map(Response::new)
    }
}
