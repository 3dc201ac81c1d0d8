//! A layer for tower services, such as axum's routers.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use http_body::Body;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
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
/// Whether requests pass that have no identity, unless set.
pub(crate) const WITHOUT_IDENTITY: bool = false;
pub(crate) const DENIED: StatusCode = StatusCode::TOO_MANY_REQUESTS;
pub(crate) const NO_IDENTITY: StatusCode = StatusCode::FORBIDDEN;
pub(crate) const UNAVAILABLE: StatusCode = StatusCode::SERVICE_UNAVAILABLE;
pub(crate) const PROBLEM: &str = "application/problem+json";

/// What happens to a request while the server is unavailable. A `tracing` event of level `WARN` of the limiter says when
/// that begins, one of level `INFO` when it ends. After an error that is permanent the answer is 500, whatever is set here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum WhenUnavailable {
    /// It is let through, without RateLimit headers.
    #[default]
    Open,
    /// It is answered with 503 Service Unavailable.
    Closed,
    /// The same rules hold in this process' memory, more roughly: see [In axum](crate#in-axum).
    Local {
        /// How many processes share the limits, at least 1.
        processes: u32,
    },
}

/// What was decided on a request that a [`RateLimitLayer`] let through, in the request's extensions: for each rule that it was
/// counted by on the server, those of outer layers first, its key without the limiter's own prefix (for a refund, for example)
/// and the decision. It is there with every request, and empty where nothing was counted: while the server is unavailable, for
/// example.
#[derive(Debug, Clone, Default)]
pub struct Decisions(pub Vec<(Vec<u8>, Decision)>);

/// A request that is refused, as [`RateLimitLayer::on_refused`] is told of it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Refusal<'a> {
    /// The request.
    pub request: &'a Parts,
    /// 429 for a denial, 403 without an identity, 503 while the server is unavailable, 500 after an error that is permanent.
    pub status: StatusCode,
    /// Of a denial, the window that denies.
    pub state: Option<State>,
    /// The names of the policies that the request did not fit into.
    pub violated_policies: &'a [String],
    /// Why the server has not decided; `None` if it has, or was not asked.
    pub error: Option<&'a Error>,
}

/// The rules for a request, and by what it is counted.
type Asked = Vec<(Rule, Option<Vec<u8>>)>;
type By<T> = Arc<dyn Fn(&Parts) -> T + Send + Sync>;
type OnRefused = Arc<dyn Fn(&Refusal<'_>) -> Option<Response<String>> + Send + Sync>;

/// Puts rules before a service.
///
/// Every request is counted by the rules under its identity. One that fits goes on to the service, with [`Decisions`] in
/// its extensions, and the response gets the headers `RateLimit-Policy` and `RateLimit`. One that does not is answered
/// with 429, `Retry-After` and a problem of type `quota-exceeded`.
///
/// [In axum](crate#in-axum) shows how it is used, and says what keys are made of and what a [`Lease`](crate::Lease) does.
#[derive(Clone)]
pub struct RateLimitLayer {
    shared: Arc<Shared>,
}

#[derive(Clone)]
struct Shared {
    limiter: Limiter,
    checks: By<Asked>,
    prefix: Vec<u8>,
    cost: Option<By<u64>>,
    skip: Option<By<bool>>,
    on_refused: Option<OnRefused>,
    when_unavailable: WhenUnavailable,
    allows_without_identity: bool,
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
        let rule = rule.into();
        Self::per_request(limiter, move |request| vec![(rule.clone(), identity(request))])
    }

    /// Holds each request to the rules that a function has for it: those of the customer's plan, of the route, or none, each with
    /// by what the request is counted (an address, a user, an API key; `None` if it has none). Several are decided together, all
    /// or nothing; in a cluster their identities have to be the same, or the prefix has to have a hash tag.
    ///
    /// A limit on a route is best named by the route's template, such as that of axum's `MatchedPath`, and never by the
    /// path. (Outside of what is nested by `nest_service` a request has no template.) Making a rule for each request costs
    /// little; cloning a rule that was made before costs less.
    pub fn per_request<R: Into<Rule>, K: Into<Vec<u8>>>(
        limiter: Limiter,
        rules: impl Fn(&Parts) -> Vec<(R, Option<K>)> + Send + Sync + 'static,
    ) -> Self {
        let each = |(rule, identity): (R, Option<K>)| (rule.into(), identity.map(Into::into));
        let shared = Shared {
            limiter,
            checks: Arc::new(move |request| rules(request).into_iter().map(each).collect()),
            prefix: PREFIX.to_vec(),
            cost: None,
            skip: None,
            on_refused: None,
            when_unavailable: WhenUnavailable::default(),
            allows_without_identity: WITHOUT_IDENTITY,
            timeout: TIMEOUT,
            deny_cache: DENY_CACHE,
            local: None,
        };
        Self { shared: Arc::new(shared) }
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

    /// Makes the response to a request that is denied, or refused for another reason. Where it is `None`, the response has the
    /// [status](Refusal::status) and a problem as its body. A denial gets the headers in any case.
    #[must_use]
    pub fn on_refused(self, make: impl Fn(&Refusal<'_>) -> Option<Response<String>> + Send + Sync + 'static) -> Self {
        self.with(|shared| shared.on_refused = Some(Arc::new(make)))
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

    /// Does not hold requests to a rule that have no identity. Unless set they are answered with 403 Forbidden.
    #[must_use]
    pub fn allow_without_identity(self) -> Self {
        self.with(|shared| shared.allows_without_identity = true)
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

impl<S> Layer<S> for RateLimitLayer {
    type Service = RateLimit<S>;

    fn layer(&self, inner: S) -> Self::Service {
        let mut shared = Shared::clone(&self.shared);
        shared.limiter = shared.limiter.with_timeout(shared.timeout).remembering(shared.deny_cache);
        RateLimit { inner, shared: Arc::new(shared) }
    }
}

/// The service that a [`RateLimitLayer`] makes.
#[derive(Clone)]
pub struct RateLimit<S> {
    inner: S,
    shared: Arc<Shared>,
}

/// The body of a response: that of the service, or that of a denial. The places of the request end with it.
pub type ResponseBody<D> = UnsyncBoxBody<D, Box<dyn std::error::Error + Send + Sync>>;

impl<S, B, T> Service<Request<B>> for RateLimit<S>
where
    S: Service<Request<B>, Response = Response<T>> + Clone + Send + 'static,
    S::Future: Send,
    B: Send + 'static,
    T: Body + Send + 'static,
    T::Data: From<String> + Send,
    T::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    type Response = Response<ResponseBody<T::Data>>;
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
                    let body = |text| Full::new(T::Data::from(text)).map_err(|never| match never {});
                    return Ok(response.map(|text| body(text).boxed_unsync()));
                }
            };
            let mut decisions = parts.extensions.remove::<Decisions>().unwrap_or_default();
            decisions.0.extend(decided);
            parts.extensions.insert(decisions);
            let mut response = inner.call(Request::from_parts(parts, body)).await?;
            if let Some(fields) = fields {
                describe(&mut response, &fields);
            }
            Ok(response.map(|body| {
                let holding = body.map_err(Into::into).inspect_frame(move |_| {
                    let _ = &held;
                });
                holding.boxed_unsync()
            }))
        })
    }
}

/// What a request goes on to the service with: nothing where the server has not counted it.
#[derive(Default)]
struct Passed {
    decided: Vec<(Vec<u8>, Decision)>,
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
        for (rule, identity) in checks {
            let Some(identity) = identity.filter(|identity| !identity.is_empty()) else {
                if self.allows_without_identity {
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
        let call = Arc::new(call.map_err(|error| self.undecided(request, &error))?);
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
                    let keys = call.keys.iter().map(|key| self.limiter.bare(key).to_vec());
                    let decided: Vec<_> = keys.zip(outcome.apart()).collect();
                    let hold = |(key, decision): &(Vec<u8>, Decision)| Held::of(&self.limiter, key, decision, sent);
                    let held = decided.iter().filter_map(hold).collect();
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
        let (title, code) = (status.canonical_reason().unwrap_or_default(), status.as_u16());
        let problem = format!("{{\"type\":\"about:blank\",\"title\":\"{title}\",\"status\":{code}}}");
        self.answer(&Refusal { request, status, state: None, violated_policies: &[], error }, title, problem)
    }

    fn deny(&self, request: &Parts, violated_policies: &[String], state: State) -> Response<String> {
        let refusal = Refusal { request, status: DENIED, state: Some(state), violated_policies, error: None };
        self.answer(&refusal, "quota exceeded", headers::problem(violated_policies))
    }

    /// The status with a problem as its body; for a request of gRPC, the status that it has there.
    fn answer(&self, refusal: &Refusal<'_>, message: &'static str, problem: String) -> Response<String> {
        if let Some(response) = self.on_refused.as_ref().and_then(|make| make(refusal)) {
            return response;
        }
        let content_type = refusal.request.headers.get(CONTENT_TYPE);
        let Some(of_grpc) = content_type.filter(|value| value.as_bytes().starts_with(b"application/grpc")) else {
            let mut response = Response::new(problem);
            *response.status_mut() = refusal.status;
            response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(PROBLEM));
            return response;
        };
        // RESOURCE_EXHAUSTED, PERMISSION_DENIED, UNAVAILABLE, INTERNAL
        let code = match refusal.status {
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
