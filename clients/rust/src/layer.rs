//! A layer for tower services, such as axum's routers.

use std::fmt;
use std::future::Future;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use http_body_util::{Either, Full};
use tokio::time::Instant;
use tower_layer::Layer;
use tower_service::Service;

use crate::call::Call;
use crate::command::Command;
use crate::decision::{Decision, State};
use crate::error::Error;
use crate::headers::{self, Headers};
use crate::identity;
use crate::lease::{Held, give_back, random_holder};
use crate::limiter::{Leave, Limiter};
use crate::local::Local;
use crate::rule::{Rule, Use};

/// The deadline of a decision, and what keys begin with, unless set.
pub(crate) const TIMEOUT: Duration = Duration::from_millis(250);
pub(crate) const PREFIX: &[u8] = b"rl:";
/// Whether denials are remembered, unless set.
pub(crate) const DENY_CACHE: bool = true;
pub(crate) const DENIED: StatusCode = StatusCode::TOO_MANY_REQUESTS;
pub(crate) const NO_IDENTITY: StatusCode = StatusCode::FORBIDDEN;
pub(crate) const UNAVAILABLE: StatusCode = StatusCode::SERVICE_UNAVAILABLE;
pub(crate) const PROBLEM: &str = "application/problem+json";

/// What happens to a request while the server is unavailable. A `tracing` event of level `WARN` of the limiter says when
/// that begins, one of level `INFO` when it ends.
///
/// It is for a server that cannot decide now. An error that is permanent, such as a key of another type or a missing
/// permission, is answered with 500, whatever is set here. Clients can cause any number of them, so that they are logged at
/// level `DEBUG` alone; [`RateLimitLayer::on_refused`] is told of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WhenUnavailable {
    /// It is let through, without RateLimit headers.
    #[default]
    Open,
    /// It is answered with 503 Service Unavailable.
    Closed,
    /// The same rules hold in this process' memory, by one plain counter for each key and window, which begins with its first
    /// request; each limit is divided by the number of processes that share it. What the server has counted is not known
    /// there, a throttle is a window in which its bucket fills, and leases are let through.
    Local {
        /// How many processes share the limits, at least 1.
        processes: u32,
    },
}

/// What happens to a request that has no identity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WithoutIdentity {
    /// It is answered with 403 Forbidden.
    #[default]
    Refuse,
    /// It is not held to the rule.
    Allow,
}

/// A rule for a request, and by what the request is counted. See [`RateLimitLayer::per_request`].
#[derive(Debug, Clone)]
pub struct Check {
    rule: Rule,
    identity: Option<Vec<u8>>,
}

impl Check {
    /// Holds a request to a rule, by an identity: an address, a user, an API key. `None` if it has none.
    pub fn new(rule: impl Into<Rule>, identity: Option<impl Into<Vec<u8>>>) -> Self {
        Self { rule: rule.into(), identity: identity.map(Into::into) }
    }
}

/// What was decided on a request that a [`RateLimitLayer`] let through, in the request's extensions: one entry for each
/// rule that it was counted by on the server, those of outer layers first. It is there with every request, and empty where
/// nothing was counted: while the server is unavailable, for example.
#[derive(Debug, Clone, Default)]
pub struct Decisions(Vec<Decided>);

impl Deref for Decisions {
    type Target = [Decided];

    fn deref(&self) -> &[Decided] {
        &self.0
    }
}

/// A rule's decision on a request.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Decided {
    /// The key at which the request was counted, without the limiter's own prefix: for a refund, for example.
    pub key: Vec<u8>,
    /// The decision.
    pub decision: Decision,
}

/// A denial, as [`RateLimitLayer::on_denied`] is told of it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Denial<'a> {
    /// The request.
    pub request: &'a Parts,
    /// The names of the policies that the request did not fit into.
    pub violated_policies: &'a [String],
    /// The window that denies.
    pub state: State,
}

/// A request that is refused for another reason than its rules, as [`RateLimitLayer::on_refused`] is told of it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Refusal<'a> {
    /// The request.
    pub request: &'a Parts,
    /// 403 without an identity, 503 while the server is unavailable, 500 after an error that is permanent.
    pub status: StatusCode,
    /// Why the server has not decided; `None` if it was not asked.
    pub error: Option<&'a Error>,
}

type By<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;
type OnDenied = Arc<dyn Fn(&Denial<'_>) -> Response<String> + Send + Sync>;
type OnRefused = Arc<dyn Fn(&Refusal<'_>) -> Response<String> + Send + Sync>;

/// Puts rules before a service.
///
/// Every request is counted by the rules under its identity. One that fits goes on to the service, with [`Decisions`] in
/// its extensions, and the response gets the headers `RateLimit-Policy` and `RateLimit`. One that does not is answered
/// with 429, `Retry-After` and a problem of type `quota-exceeded`. A request of gRPC (`content-type: application/grpc`) gets
/// the status `RESOURCE_EXHAUSTED` in its place, and `PERMISSION_DENIED`, `UNAVAILABLE` or `INTERNAL` for 403, 503 or 500.
///
/// A key is the prefix, the policy (the rule's name, or else its kind with its limits) and the identity:
/// `rl:sliding-100/60s:{203.0.113.7}`. So two layers with two rules are two limits. Two layers with the same rule are
/// one, unless the rules have names. An identity of more than 512 bytes is shortened to its beginning and a hash.
///
/// A [`Lease`](crate::Lease) bounds how many requests of an identity are under way at a time: each holds a place, which is
/// renewed meanwhile, until its response has been sent or its client has gone. The layer makes up the holders.
///
/// ```no_run
/// # use redis_rl_client::{Limiter, RateLimitLayer, Rule};
/// use axum::{Router, routing::get};
///
/// # fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::open("redis://127.0.0.1/")?;
/// let layer = RateLimitLayer::new(limiter, Rule::sliding("100/minute")?, |request| {
///     Some(request.headers.get("x-api-key")?.as_bytes().to_vec())
/// });
/// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(layer);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct RateLimitLayer {
    shared: Arc<Shared>,
}

#[derive(Clone)]
struct Shared {
    limiter: Limiter,
    checks: By<Vec<Check>>,
    prefix: Vec<u8>,
    cost: Option<By<u64>>,
    skip: Option<By<bool>>,
    on_denied: Option<OnDenied>,
    on_refused: Option<OnRefused>,
    when_unavailable: WhenUnavailable,
    without_identity: WithoutIdentity,
    timeout: Duration,
    deny_cache: bool,
    local: Option<Arc<Local>>,
}

impl RateLimitLayer {
    /// Holds requests to a rule, by the identity that a function finds in each. See [`ByAddress`](crate::ByAddress) for
    /// that of the sender's address.
    pub fn new<K: Into<Vec<u8>>>(
        limiter: Limiter,
        rule: impl Into<Rule>,
        identity: impl Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        Self::per_request(limiter, |_| Vec::new()).and(rule, identity)
    }

    /// Holds each request to the rules that a function has for it: those of the customer's plan, of the route, or none.
    /// Several are decided together, all or nothing.
    ///
    /// A limit on a route is best named by the route's template, such as that of axum's `MatchedPath`, and never by the
    /// path. Making a rule for each request costs little; cloning a rule that was made before costs less.
    pub fn per_request(limiter: Limiter, checks: impl Fn(&Parts) -> Vec<Check> + Send + Sync + 'static) -> Self {
        let shared = Shared {
            limiter,
            checks: Arc::new(checks),
            prefix: PREFIX.to_vec(),
            cost: None,
            skip: None,
            on_denied: None,
            on_refused: None,
            when_unavailable: WhenUnavailable::default(),
            without_identity: WithoutIdentity::default(),
            timeout: TIMEOUT,
            deny_cache: DENY_CACHE,
            local: None,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Holds requests to another rule as well. They are decided together, all or nothing. In a cluster, the identities
    /// have to be the same, or the prefix has to have a hash tag.
    #[must_use]
    pub fn and<K: Into<Vec<u8>>>(
        self,
        rule: impl Into<Rule>,
        identity: impl Fn(&Parts) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        let rule = rule.into();
        self.with(|shared| {
            let others = Arc::clone(&shared.checks);
            shared.checks = Arc::new(move |request| {
                let mut checks = others(request);
                checks.push(Check::new(&rule, identity(request)));
                checks
            });
        })
    }

    /// What a request weighs in each of the rules, 0 to 2^53 − 1. Unless set, the cost of each rule. With a cost of 0 it
    /// is checked whether a unit is free, and nothing is counted.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.with(|shared| shared.cost = Some(Arc::new(cost)))
    }

    /// Lets requests through uncounted for which the function says so.
    #[must_use]
    pub fn skip(self, skip: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Self {
        self.with(|shared| shared.skip = Some(Arc::new(skip)))
    }

    /// Makes the response to a request that is denied, to which the headers are added. Unless set it has the status 429
    /// and a problem as its body.
    #[must_use]
    pub fn on_denied(self, handler: impl Fn(&Denial<'_>) -> Response<String> + Send + Sync + 'static) -> Self {
        self.with(|shared| shared.on_denied = Some(Arc::new(handler)))
    }

    /// Makes the response to a request that is refused for another reason: see [`Refusal`]. Unless set it has the status and
    /// a problem that says no more.
    #[must_use]
    pub fn on_refused(self, handler: impl Fn(&Refusal<'_>) -> Response<String> + Send + Sync + 'static) -> Self {
        self.with(|shared| shared.on_refused = Some(Arc::new(handler)))
    }

    /// What happens to requests while the server is unavailable: [`WhenUnavailable::Open`] unless set.
    #[must_use]
    pub fn when_unavailable(self, policy: WhenUnavailable) -> Self {
        self.with(|shared| {
            shared.when_unavailable = policy;
            if let WhenUnavailable::Local { processes } = policy {
                shared.local = Some(Arc::new(Local::new(processes)));
            }
        })
    }

    /// What happens to requests that have no identity: [`WithoutIdentity::Refuse`] unless set.
    #[must_use]
    pub fn without_identity(self, policy: WithoutIdentity) -> Self {
        self.with(|shared| shared.without_identity = policy)
    }

    /// What all keys begin with, behind the limiter's own prefix: `rl:` unless set.
    #[must_use]
    pub fn prefix(self, prefix: impl AsRef<[u8]>) -> Self {
        self.with(|shared| shared.prefix = prefix.as_ref().to_vec())
    }

    /// The longest that a request waits for the server's decision. 250 ms unless set.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|shared| shared.timeout = timeout)
    }

    /// Whether denials are remembered: `true` unless set. For its wait, and a second at most, the same or a heavier request
    /// is denied in this process. 10,000 denials are kept, in 4 MB at most, by the limiter: its own refund, reset or release
    /// forgets them, and what other processes give back is seen within the second.
    #[must_use]
    pub fn deny_cache(self, remembers: bool) -> Self {
        self.with(|shared| shared.deny_cache = remembers)
    }

    fn with(self, change: impl FnOnce(&mut Shared)) -> Self {
        let mut shared = Shared::clone(&self.shared);
        change(&mut shared);
        Self { shared: Arc::new(shared) }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Shared");
        debug.field("when_unavailable", &self.when_unavailable).field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let mut shared = Shared::clone(&self.shared);
        shared.limiter = shared.limiter.with_timeout(shared.timeout).remembering(shared.deny_cache);
        RateLimit { inner, shared: Arc::new(shared) }
    }
}

/// The service that a [`RateLimitLayer`] makes.
#[derive(Debug, Clone)]
pub struct RateLimit<S> {
    inner: S,
    shared: Arc<Shared>,
}

pin_project_lite::pin_project! {
    /// The body of a response: that of the service, or that of a denial.
    #[derive(Debug)]
    pub struct ResponseBody<T: Body> {
        #[pin]
        inner: Either<T, Full<T::Data>>,
        // The places of the request, which end with the response.
        held: Vec<Held>,
    }
}

impl<T: Body + Default> Default for ResponseBody<T> {
    fn default() -> Self {
        Self { inner: Either::Left(T::default()), held: Vec::new() }
    }
}

impl<T: Body> Body for ResponseBody<T>
where
    T::Error: Into<BoxError>,
{
    type Data = T::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        let this = self.project();
        let frame = this.inner.poll_frame(context);
        if let Poll::Ready(None) = frame {
            this.held.clear();
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

type BoxError = Box<dyn std::error::Error + Send + Sync>;

impl<S, B, T> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<T>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    T: Body,
    T::Data: From<String>,
{
    type Response = Response<ResponseBody<T>>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // This request is for the service that is ready. Its clone has yet to become ready.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let shared = Arc::clone(&self.shared);
        Box::pin(async move {
            let (mut parts, body) = request.into_parts();
            let Passed { decided, fields, held } = match shared.decide(&parts).await {
                Ok(passed) => passed,
                Err(response) => {
                    let body = |text| Either::Right(Full::new(T::Data::from(text)));
                    return Ok(response.map(|text| ResponseBody { inner: body(text), held: Vec::new() }));
                }
            };
            let mut decisions = parts.extensions.remove::<Decisions>().unwrap_or_default();
            decisions.0.extend(decided);
            parts.extensions.insert(decisions);
            let mut response = inner.call(Request::from_parts(parts, body)).await?;
            if let Some(fields) = fields {
                describe(&mut response, &fields);
            }
            Ok(response.map(|body| ResponseBody { inner: Either::Left(body), held }))
        })
    }
}

/// What a request goes on to the service with: nothing where the server has not counted it.
#[derive(Default)]
struct Passed {
    decided: Vec<Decided>,
    fields: Option<Headers>,
    held: Vec<Held>,
}

impl Shared {
    /// The keys and rules for a request; none if it is not to be counted, `None` if it has no identity.
    fn asked(&self, request: &Parts) -> Option<Vec<(Vec<u8>, Rule)>> {
        let cost = self.cost.as_ref().map(|cost| cost(request));
        if self.skip.as_ref().is_some_and(|skip| skip(request)) {
            return Some(Vec::new());
        }
        let checks = (self.checks)(request);
        let mut asked = Vec::with_capacity(checks.len());
        for Check { rule, identity } in checks {
            let Some(identity) = identity.filter(|identity| !identity.is_empty()) else {
                if self.without_identity == WithoutIdentity::Allow {
                    continue;
                }
                tracing::debug!(limiter = self.limiter.name(), "a request without an identity was refused");
                return None;
            };
            let key = identity::key(&identity::head(&self.prefix, &rule.policy()), &identity);
            let rule = match rule {
                Rule::Lease(rule) => rule.holder(random_holder()).into(),
                mut rule => {
                    rule.common_mut().cost = cost.or(rule.common().cost);
                    rule
                }
            };
            asked.push((key, rule));
        }
        Some(asked)
    }

    /// Whether the request goes on to the service, or the answer to it.
    async fn decide(&self, request: &Parts) -> Result<Passed, Response<String>> {
        let Some(asked) = self.asked(request) else { return Err(self.refuse(request, NO_IDENTITY, None)) };
        let sent = Instant::now();
        let (command, wanted) = match &asked[..] {
            [] => return Ok(Passed::default()),
            // What weighs nothing is checked by RL.ALL alone.
            [(_, rule)] if rule.cost() > 0 => (None, Use::Hit),
            _ => (Some(Command::ALL), Use::Check),
        };
        let call = self.limiter.request(asked, command, wanted);
        let call = Arc::new(call.map_err(|error| self.undecided(request, &error.into()))?);
        let (asked, holds) = (Arc::clone(&call), call.rules.iter().any(|rule| matches!(rule, Rule::Lease(_))));
        let leave = Leave::new(move |limiter, _| async move {
            for (key, rule) in asked.items() {
                if let Rule::Lease(rule) = rule {
                    give_back(&limiter, limiter.bare(key), rule).await;
                }
            }
        });
        match self.limiter.decide(&call, holds.then_some(leave)).await {
            Ok(outcome) => {
                let (state, fields) = (outcome.state(), outcome.headers());
                if state.allowed {
                    let each = call.keys.iter().map(|key| self.limiter.bare(key).to_vec()).zip(outcome.apart());
                    let decided: Vec<_> = each.map(|(key, decision)| Decided { key, decision }).collect();
                    let each = decided.iter();
                    let held =
                        each.filter_map(|each| Held::of(&self.limiter, &each.key, &each.decision, sent)).collect();
                    return Ok(Passed { decided, fields: Some(fields), held });
                }
                let mut response = self.deny(request, &outcome.violated_policies(), state);
                describe(&mut response, &fields);
                Err(response)
            }
            Err(error) if error.is_unavailable() => match self.refusal_without(request, &call, sent, &error) {
                Some(response) => Err(response),
                None => Ok(Passed::default()),
            },
            Err(error) => Err(self.undecided(request, &error)),
        }
    }

    fn undecided(&self, request: &Parts, error: &Error) -> Response<String> {
        tracing::debug!(limiter = self.limiter.name(), %error, "a request could not be decided on, and was refused");
        self.refuse(request, StatusCode::INTERNAL_SERVER_ERROR, Some(error))
    }

    /// The answer while the server is unavailable, unless the request goes on.
    fn refusal_without(&self, request: &Parts, call: &Call, sent: Instant, error: &Error) -> Option<Response<String>> {
        match self.when_unavailable {
            WhenUnavailable::Open => None,
            WhenUnavailable::Closed => Some(self.refuse(request, UNAVAILABLE, Some(error))),
            WhenUnavailable::Local { .. } => {
                let (state, violated) = self.local.as_ref()?.decide(call);
                self.limiter.observe_call(call, Ok(state), sent);
                if state.allowed {
                    return None;
                }
                let mut response = self.deny(request, &violated, state);
                if let Some(wait) = state.retry_after {
                    let seconds = headers::whole_seconds(wait).max(1);
                    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
                }
                Some(response)
            }
        }
    }

    fn refuse(&self, request: &Parts, status: StatusCode, error: Option<&Error>) -> Response<String> {
        if let Some(handler) = &self.on_refused {
            return handler(&Refusal { request, status, error });
        }
        let (title, code) = (status.canonical_reason().unwrap_or_default(), status.as_u16());
        let problem = format!("{{\"type\":\"about:blank\",\"title\":\"{title}\",\"status\":{code}}}");
        answer(request, status, title, problem)
    }

    fn deny(&self, request: &Parts, violated_policies: &[String], state: State) -> Response<String> {
        if let Some(handler) = &self.on_denied {
            return handler(&Denial { request, violated_policies, state });
        }
        answer(request, DENIED, "quota exceeded", headers::problem(violated_policies))
    }
}

/// The status with a problem as its body; for a request of gRPC, the status that it has there.
fn answer(request: &Parts, status: StatusCode, message: &'static str, problem: String) -> Response<String> {
    let content_type = request.headers.get(CONTENT_TYPE);
    let Some(of_grpc) = content_type.filter(|value| value.as_bytes().starts_with(b"application/grpc")) else {
        let mut response = Response::new(problem);
        *response.status_mut() = status;
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM));
        return response;
    };
    // RESOURCE_EXHAUSTED, PERMISSION_DENIED, UNAVAILABLE, INTERNAL
    let code = match status {
        DENIED => "8",
        NO_IDENTITY => "7",
        UNAVAILABLE => "14",
        _ => "13",
    };
    let mut response = Response::new(String::new());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, of_grpc.clone());
    headers.insert(HeaderName::from_static("grpc-status"), HeaderValue::from_static(code));
    headers.insert(HeaderName::from_static("grpc-message"), HeaderValue::from_static(message));
    response
}

/// Adds the headers. There may be some of another layer; both then stand, as one list.
fn describe<T>(response: &mut Response<T>, fields: &Headers) {
    for (name, value) in fields.fields() {
        // Names of policies are printable ASCII, so that each value is one of a header.
        let (name, Ok(value)) = (HeaderName::from_static(name), HeaderValue::try_from(value)) else { continue };
        if name == RETRY_AFTER {
            response.headers_mut().insert(name, value);
        } else {
            response.headers_mut().append(name, value);
        }
    }
}
