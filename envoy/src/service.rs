//! ShouldRateLimit: from a request to its answer.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant, SystemTime};

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::{Code, DescriptorStatus, RateLimit as Shown};
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_service_server::RateLimitService;
use envoy_types::pb::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
use envoy_types::pb::google::protobuf;
use tonic::{Request, Response, Status};

use crate::config::tree::{Kind, UnknownUnit, seconds_of};
use crate::config::{Config, Found, Options};
use crate::decide::{Mode, Outcome, Part, decide};
use crate::denials::Denials;
use crate::metadata::dynamic_metadata;
use crate::settings::{Headers, OnError, Settings};
use crate::stats::Stats;
use crate::store::{Failure, Item, State, Store};

/// The most hits of a descriptor. Above it Envoy's service would count backwards.
const MOST_HITS: u64 = i64::MAX as u64;
/// The most units of a call of Redis; a request of more fits nowhere.
const MOST_UNITS: u64 = (1 << 53) - 1;

pub struct Service {
    config: RwLock<Option<Arc<Config>>>,
    store: Arc<Store>,
    pub stats: Arc<Stats>,
    denials: Denials,
    options: Options,
    deadline: Duration,
    on_error: OnError,
    key_prefix: String,
    near_limit_ratio: f32,
    headers: Option<Headers>,
    shadow_mode: bool,
    quota_mode: bool,
    dynamic_metadata: bool,
    /// Whether Redis has not decided the last request.
    failing: AtomicBool,
}

/// What a descriptor of the request comes to.
enum Meets {
    /// No limit, or one that another replaces.
    Nothing,
    Unlimited,
    Limit(Found),
}

/// A limit that the request asks for.
struct Asked {
    found: Found,
    hits: u64,
    negative: bool,
    /// Whether the hits settle what a check has reserved, and so cannot be denied.
    late: bool,
    /// Its position among the parts of the decision, or among the refunds.
    part: usize,
}

impl Service {
    pub fn new(settings: &Settings, store: Arc<Store>, stats: Arc<Stats>) -> Self {
        Self {
            config: RwLock::new(None),
            store,
            stats,
            denials: Denials::new(settings.redis.deny_cache),
            options: settings.options(),
            deadline: settings.redis.deadline,
            on_error: settings.on_error,
            key_prefix: settings.key_prefix.clone(),
            near_limit_ratio: settings.near_limit_ratio,
            headers: settings.headers.clone(),
            shadow_mode: settings.shadow_mode,
            quota_mode: settings.quota_mode,
            dynamic_metadata: settings.dynamic_metadata,
            failing: AtomicBool::new(false),
        }
    }

    pub fn config(&self) -> Option<Arc<Config>> {
        self.config.read().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }

    pub fn set_config(&self, config: Config) {
        *self.config.write().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(Arc::new(config));
    }

    /// Answers.
    ///
    /// # Errors
    /// As Envoy's rate limit service words them.
    pub async fn answer(&self, request: &RateLimitRequest) -> Result<RateLimitResponse, Status> {
        let wrong = |status: Status| {
            self.stats.service_error.inc();
            status
        };
        if request.domain.is_empty() {
            return Err(wrong(Status::unknown("rate limit domain must not be empty")));
        }
        if request.descriptors.is_empty() {
            return Err(wrong(Status::unknown("rate limit descriptor list must not be empty")));
        }
        let config = self.config().ok_or_else(|| wrong(Status::unknown("no rate limit configuration loaded")))?;
        let meets = self.limits(&config, request).map_err(wrong)?;
        let mut asked = self.asked(request, meets).map_err(wrong)?;
        let (parts, refunds) = self.parts(request, &mut asked.limits).map_err(wrong)?;

        let remembered = if refunds.is_empty() { self.denials.find(&parts) } else { None };
        let from_cache = remembered.is_some();
        let decided = match remembered {
            Some(outcome) => {
                self.stats.own.deny_cache_hits.inc();
                Ok((outcome, Vec::new()))
            }
            None => self.ask(&parts, &refunds, asked.passing_quota).await,
        };
        let (outcome, refunded) = match decided {
            Ok(decided) => {
                if self.failing.load(Relaxed) && !from_cache && self.failing.swap(false, Relaxed) {
                    tracing::warn!("Redis decides again");
                }
                decided
            }
            Err(failure) => return self.failed(&asked, &failure),
        };
        Ok(self.response(request, &asked, &parts, &outcome, &refunded, from_cache))
    }

    /// Which limit each descriptor meets.
    fn limits(&self, config: &Config, request: &RateLimitRequest) -> Result<Vec<Meets>, Status> {
        if !config.has_domain(&request.domain) {
            self.stats.unknown_domain(&request.domain).add(request.descriptors.len() as u64);
        }
        let mut replaced = HashSet::new();
        let mut meets = Vec::with_capacity(request.descriptors.len());
        for descriptor in &request.descriptors {
            let found = config
                .find(&request.domain, descriptor, &self.stats, &self.options)
                .map_err(|UnknownUnit| Status::invalid_argument("the limit of a descriptor has no unit"))?;
            let Some(found) = found else {
                meets.push(Meets::Nothing);
                continue;
            };
            replaced.extend(found.limit.replaces.iter().cloned());
            let unlimited = found.limit.rule.is_none();
            meets.push(if unlimited { Meets::Unlimited } else { Meets::Limit(found) });
        }
        if !replaced.is_empty() {
            for meet in &mut meets {
                if matches!(meet, Meets::Limit(found) if replaced.contains(&found.limit.name)) {
                    *meet = Meets::Nothing;
                }
            }
        }
        Ok(meets)
    }

    fn asked(&self, request: &RateLimitRequest, meets: Vec<Meets>) -> Result<AskedAll, Status> {
        let mut all = AskedAll { limits: Vec::with_capacity(meets.len()), unlimited: Vec::new(), passing_quota: false };
        for (descriptor, meet) in request.descriptors.iter().zip(meets) {
            all.unlimited.push(matches!(meet, Meets::Unlimited));
            let Meets::Limit(found) = meet else {
                all.limits.push(None);
                continue;
            };
            let hits = match &descriptor.hits_addend {
                Some(hits) => hits.value,
                // 0 is what a client sends that says nothing.
                None => u64::from(request.hits_addend.max(1)),
            };
            if hits > MOST_HITS {
                return Err(Status::invalid_argument(format!("hits_addend must be at most {MOST_HITS}, not {hits}")));
            }
            let limit = &found.limit;
            all.passing_quota |= limit.shadow_mode && (limit.quota_mode || self.quota_mode);
            all.limits.push(Some(Asked { hits, negative: descriptor.is_negative_hits, late: false, part: 0, found }));
        }
        Ok(all)
    }

    /// What Redis is asked for. The same key twice is one part with the sum of the hits.
    fn parts(&self, request: &RateLimitRequest, asked: &mut [Option<Asked>]) -> Result<(Vec<Part>, Vec<Item>), Status> {
        let mut parts: Vec<Part> = Vec::new();
        let mut refunds = Vec::new();
        let mut seen: HashMap<(Vec<u8>, String), usize> = HashMap::new();
        for (descriptor, asked) in request.descriptors.iter().zip(asked) {
            let Some(asked) = asked else { continue };
            let limit = &asked.found.limit;
            let Some(kind) = &limit.rule else { continue };
            let (key, holder) = self.key(&request.domain, descriptor, &asked.found, kind);
            if holder.is_empty() && matches!(kind, Kind::Concurrency { .. }) {
                return Err(Status::invalid_argument("a place needs a holder, and the descriptor names none"));
            }
            let mut units = asked.hits.min(MOST_UNITS);
            if let Some(estimate) = limit.reserve
                && !asked.negative
            {
                // A check takes the estimate. Hits come later, and settle the difference: it is charged whether it fits
                // or not, or given back.
                asked.late = units > 0;
                (units, asked.negative) = match units {
                    0 => (estimate, false),
                    units => (units.abs_diff(estimate), units < estimate),
                };
            }
            let mut item = Item { key, kind: kind.clone(), units, force: false, holder };
            if asked.negative {
                asked.part = refunds.len();
                refunds.push(item);
                continue;
            }
            let mode = if self.shadow_mode || limit.shadow_mode || asked.late {
                Mode::Shadow
            } else if self.quota_mode || limit.quota_mode {
                Mode::Quota
            } else {
                Mode::Enforced
            };
            item.force = mode == Mode::Shadow && item.can_be_forced();
            asked.part = *seen.entry((item.key.clone(), item.holder.clone())).or_insert(parts.len());
            match parts.get_mut(asked.part) {
                Some(part) => {
                    part.item.units = part.item.units.saturating_add(units).min(MOST_UNITS);
                    // Where one of the two is enforced, so is the sum.
                    if (mode as u8) < (part.mode as u8) {
                        part.mode = mode;
                        part.item.force = item.force;
                    }
                }
                None => parts.push(Part { item, mode }),
            }
        }
        Ok((parts, refunds))
    }

    /// The key of a limit: prefix, domain, entries and windows. What clients send is escaped, so that two descriptors
    /// never share a key, and no text can choose the slot of a cluster.
    fn key(&self, domain: &str, descriptor: &RateLimitDescriptor, found: &Found, kind: &Kind) -> (Vec<u8>, String) {
        let mut key = String::with_capacity(96);
        key.push_str(&self.key_prefix);
        if let Some(tag) = &found.hash_tag {
            key.push('{');
            escape(&mut key, tag);
            key.push('}');
        }
        escape(&mut key, domain);
        let mut whose = String::new();
        for (index, entry) in descriptor.entries.iter().enumerate() {
            if let Kind::Concurrency { holder, .. } = kind
                && *holder == entry.key
            {
                whose.clone_from(&entry.value);
                continue;
            }
            key.push('|');
            escape(&mut key, &entry.key);
            key.push('=');
            let shared = found.shared.get(index).and_then(Option::as_deref);
            escape(&mut key, shared.unwrap_or(&entry.value));
        }
        key.push_str(&found.limit.suffix);
        (key.into_bytes(), whose)
    }

    /// Asks Redis, within the deadline: first what is given back, then the decision.
    async fn ask(
        &self,
        parts: &[Part],
        refunds: &[Item],
        passing_quota: bool,
    ) -> Result<(Outcome, Vec<State>), Failure> {
        let asked = async {
            let asked = self.denials.asking(parts);
            let mut states = Vec::with_capacity(refunds.len());
            for item in refunds {
                states.push(self.refund(item).await?);
            }
            if parts.is_empty() {
                return Ok((Outcome { states: Vec::new(), charged: Vec::new() }, states));
            }
            let outcome = decide(&self.store, &self.stats, parts, passing_quota).await?;
            if refunds.is_empty() {
                self.denials.remember(parts, &outcome, &asked);
            }
            Ok((outcome, states))
        };
        if parts.is_empty() && refunds.is_empty() {
            return Ok((Outcome { states: Vec::new(), charged: Vec::new() }, Vec::new()));
        }
        // Each call of Redis has its deadline. A request that needs several gets twice as long for all of them.
        match tokio::time::timeout(self.deadline.saturating_mul(2), asked).await {
            Ok(answer) => answer,
            Err(_) => Err(Failure::Unavailable(format!("Redis has not answered within {:?}", self.deadline))),
        }
    }

    /// Gives the units back, and says what is left in use.
    async fn refund(&self, item: &Item) -> Result<State, Failure> {
        self.denials.forget(&item.key);
        let mut state = None;
        if item.units > 0 {
            self.stats.own.redis_calls.inc();
            let (units, used) = self.store.refund(item, None).await?;
            self.stats.own.refunded.add(units);
            // Of the shortest window, which the reply speaks of. Of places the reply does not say how many are held.
            let windows = match &item.kind {
                Kind::Fixed(rule) => rule.windows(),
                Kind::Sliding(rule) => rule.windows(),
                Kind::Throttle(_) | Kind::Concurrency { .. } => &[],
            };
            state = windows.first().map(|window| State {
                allowed: true,
                limit: window.limit(),
                used,
                remaining: window.limit().saturating_sub(used),
                retry_after: Some(Duration::ZERO),
                reset_after: Some(if used == 0 { Duration::ZERO } else { window.length() }),
                window: window.length(),
                at: SystemTime::now(),
            });
        }
        match state {
            Some(state) => Ok(state),
            None => {
                self.stats.own.redis_calls.inc();
                let mut state = self.store.peek(&Item { units: 0, ..item.clone() }).await?;
                // It speaks of the state with the holder in its place.
                if matches!(item.kind, Kind::Concurrency { .. }) && state.allowed && item.units > 0 {
                    state.used = state.used.saturating_sub(1);
                    state.remaining = state.limit.saturating_sub(state.used);
                }
                Ok(state)
            }
        }
    }

    /// The answer where Redis could not be asked.
    fn failed(&self, asked: &AskedAll, failure: &Failure) -> Result<RateLimitResponse, Status> {
        self.stats.redis_error.inc();
        let reason = failure.reason();
        if !self.failing.swap(true, Relaxed) {
            tracing::warn!("Redis does not decide: {reason}");
        }
        if matches!(failure, Failure::Permanent(_)) {
            return Err(Status::unknown(format!("redis: {reason}")));
        }
        let mut code = Code::Ok;
        let statuses = asked.limits.iter().zip(&asked.unlimited).map(|(asked, unlimited)| match asked {
            _ if *unlimited => unlimited_status(),
            Some(asked) if self.on_error == OnError::Deny => {
                let enforced = !(self.shadow_mode || asked.found.limit.shadow_mode || asked.negative);
                if enforced {
                    code = Code::OverLimit;
                }
                DescriptorStatus {
                    code: if enforced { Code::OverLimit } else { Code::Ok }.into(),
                    current_limit: asked.found.limit.rates.first().cloned(),
                    ..DescriptorStatus::default()
                }
            }
            _ => DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() },
        });
        let statuses = statuses.collect();
        match self.on_error {
            OnError::Error => return Err(Status::unknown(format!("redis: {reason}"))),
            OnError::Allow => self.stats.own.failed_open.inc(),
            OnError::Deny => self.stats.own.failed_closed.inc(),
        }
        Ok(RateLimitResponse { overall_code: code.into(), statuses, ..RateLimitResponse::default() })
    }

    fn response(
        &self,
        request: &RateLimitRequest,
        asked: &AskedAll,
        parts: &[Part],
        outcome: &Outcome,
        refunded: &[State],
        from_cache: bool,
    ) -> RateLimitResponse {
        let mut statuses = Vec::with_capacity(asked.limits.len());
        let mut closest: Option<usize> = None;
        let mut fewest = u32::MAX;
        let (mut denied, mut quotas, mut failed_quotas) = (false, 0, 0);
        let mut passed = Vec::new();
        for (index, limit) in asked.limits.iter().enumerate() {
            if asked.unlimited[index] {
                statuses.push(unlimited_status());
                continue;
            }
            let status = match limit {
                None => DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() },
                Some(asked) if asked.negative => status_of(asked, &refunded[asked.part], true),
                Some(asked) => {
                    let state = &outcome.states[asked.part];
                    self.count(asked, state, outcome.charged[asked.part], parts[asked.part].item.units, from_cache);
                    status_of(asked, state, state.allowed || asked.found.limit.shadow_mode || asked.late)
                }
            };
            if status.current_limit.is_some() && status.limit_remaining < fewest {
                (closest, fewest) = (Some(index), status.limit_remaining);
            }
            let quota = self.quota_mode || limit.as_ref().is_some_and(|asked| asked.found.limit.quota_mode);
            quotas += usize::from(quota);
            if status.code() != Code::OverLimit {
                passed.push(index);
            } else if quota {
                failed_quotas += 1;
            } else {
                denied = true;
                (closest, fewest) = (Some(index), 0);
            }
            statuses.push(status);
        }
        denied |= quotas > 0 && quotas == failed_quotas;
        if denied && self.shadow_mode {
            denied = false;
            self.stats.global_shadow_mode.inc();
        }
        let response_headers_to_add = match (&self.headers, closest.and_then(|index| statuses.get(index))) {
            (Some(headers), Some(status)) => headers_of(headers, status),
            _ => Vec::new(),
        };
        let limits = asked.limits.iter().map(|asked| asked.as_ref().and_then(|asked| asked.found.metadata.as_deref()));
        let dynamic_metadata =
            self.dynamic_metadata.then(|| dynamic_metadata(request, &passed, &limits.collect::<Vec<_>>()));
        RateLimitResponse {
            overall_code: if denied { Code::OverLimit } else { Code::Ok }.into(),
            statuses,
            response_headers_to_add,
            dynamic_metadata,
            ..RateLimitResponse::default()
        }
    }

    /// Counts the hits of a descriptor. `units`: those of all descriptors with this key.
    fn count(&self, asked: &Asked, state: &State, charged: bool, units: u64, from_cache: bool) {
        let stats = &asked.found.stats;
        let hits = asked.hits;
        stats.total_hits.add(hits);
        let before = if charged { state.used.saturating_sub(units) } else { state.used };
        let near = (state.limit as f32 * self.near_limit_ratio).floor() as u64;
        if state.allowed {
            stats.within(hits, before.saturating_add(hits), near);
            return;
        }
        let over = if from_cache {
            stats.over_limit.add(hits);
            stats.over_limit_with_local_cache.add(hits);
            hits
        } else {
            stats.over(hits, before, state.limit, near)
        };
        if asked.found.limit.shadow_mode {
            stats.shadow_mode.add(over);
        }
    }
}

struct AskedAll {
    /// By descriptor; `None` without a limit.
    limits: Vec<Option<Asked>>,
    unlimited: Vec<bool>,
    /// Whether there is a quota that cannot fail.
    passing_quota: bool,
}

/// The service as gRPC calls it.
pub struct Door(pub Arc<Service>);

#[tonic::async_trait]
impl RateLimitService for Door {
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

/// Percent signs, and what separates the parts of a key or means something to a cluster.
fn escape(key: &mut String, text: &str) {
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| matches!(byte, b'%' | b'|' | b'=' | b'{' | b'}')) {
        key.push_str(&rest[..at]);
        key.push_str(match rest.as_bytes()[at] {
            b'%' => "%25",
            b'|' => "%7C",
            b'=' => "%3D",
            b'{' => "%7B",
            _ => "%7D",
        });
        rest = &rest[at + 1..];
    }
    key.push_str(rest);
}

fn unlimited_status() -> DescriptorStatus {
    DescriptorStatus { code: Code::Ok.into(), limit_remaining: u32::MAX, ..DescriptorStatus::default() }
}

fn status_of(asked: &Asked, state: &State, passes: bool) -> DescriptorStatus {
    let limit = &asked.found.limit;
    let rate = binding(&limit.rates, &limit.rule, state);
    DescriptorStatus {
        code: if passes { Code::Ok } else { Code::OverLimit }.into(),
        limit_remaining: u32::try_from(state.remaining).unwrap_or(u32::MAX),
        duration_until_reset: Some(protobuf::Duration { seconds: reset(&limit.rule, state), nanos: 0 }),
        current_limit: rate,
        quota: None,
    }
}

/// The rate that the state is about.
fn binding(rates: &[Shown], rule: &Option<Kind>, state: &State) -> Option<Shown> {
    let windows = match rule {
        Some(Kind::Fixed(rule)) => rule.windows(),
        Some(Kind::Sliding(rule)) => rule.windows(),
        _ => &[],
    };
    // The windows are in order of length, the rates in that of the file.
    let of_window = |rate: &&Shown| {
        windows.iter().any(|window| {
            window.length() == state.window
                && window.limit() == u64::from(rate.requests_per_unit)
                && seconds_of(rate.unit()).is_some_and(|seconds| window.length().as_secs() % seconds == 0)
        })
    };
    if rates.len() > 1 { rates.iter().find(of_window).cloned() } else { rates.first().cloned() }
}

/// Seconds until there is more: of a window of the clock until it ends, else until the request fits or all is free.
fn reset(rule: &Option<Kind>, state: &State) -> i64 {
    let up = |wait: Duration| i64::try_from(wait.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
    if let Some(Kind::Fixed(_)) = rule {
        let at = state.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let length = state.window.as_secs().max(1);
        return i64::try_from(length - at % length).unwrap_or(i64::MAX);
    }
    match (state.allowed, state.retry_after) {
        (false, Some(wait)) => up(wait),
        _ => state.reset_after.map_or_else(|| up(state.window), up),
    }
}

fn headers_of(headers: &Headers, status: &DescriptorStatus) -> Vec<HeaderValue> {
    let header = |key: &str, value: String| HeaderValue { key: key.to_owned(), value, ..HeaderValue::default() };
    let limit = status.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
    let reset = status.duration_until_reset.as_ref().map_or(0, |reset| reset.seconds);
    vec![
        header(&headers.limit, limit.to_string()),
        header(&headers.remaining, status.limit_remaining.to_string()),
        header(&headers.reset, reset.to_string()),
    ]
}
