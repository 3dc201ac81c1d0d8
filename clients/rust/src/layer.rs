//! A layer for tower services, such as axum's routers.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use tower_layer::Layer;
use tower_service::Service;

use crate::decision::Decision;
use crate::headers;
use crate::limiter::Limiter;
use crate::rule::Rule;

/// What happens to a request when the server cannot be asked. Either way a `tracing` event of level `WARN` says why.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnFailure {
    /// It is let in, without RateLimit headers.
    #[default]
    Allow,
    /// It is answered with 503 Service Unavailable.
    Deny,
}

/// Puts a rule before a service.
///
/// Every request is counted under the key that a function makes of it. One that fits goes on to the service, and its
/// response gets the headers `RateLimit-Policy` and `RateLimit`. One that does not is answered with 429, `Retry-After`
/// and a problem of type `quota-exceeded`. A request that the function has no key for is not limited.
///
/// The body of the service's responses has to be made of text, as that of axum is (`From<String>`).
///
/// ```no_run
/// # use redis_rl_client::{Limiter, RateLimitLayer, Rule};
/// use axum::extract::Request;
/// use axum::{Router, routing::get};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::connect("redis://127.0.0.1/").await?;
/// let by_api_key = |request: &Request| Some(request.headers().get("x-api-key")?.as_bytes().to_vec());
/// let layer = RateLimitLayer::new(limiter, Rule::sliding("100/minute")?, by_api_key);
/// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(layer);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RateLimitLayer<F> {
    shared: Arc<Shared<F>>,
}

struct Shared<F> {
    limiter: Limiter,
    rule: Rule,
    key: F,
    on_failure: OnFailure,
    timeout: Duration,
}

impl<F: Clone> RateLimitLayer<F> {
    /// A layer that holds requests to a rule, by the key that `key` makes of each. A rule of leases is not for this: use
    /// [`Limiter::acquire`] in the handler.
    pub fn new(limiter: Limiter, rule: impl Into<Rule>, key: F) -> Self {
        let timeout = Duration::from_secs(1);
        let shared = Shared { limiter, rule: rule.into(), key, on_failure: OnFailure::default(), timeout };
        Self { shared: Arc::new(shared) }
    }

    /// What happens when the server cannot be asked: [`OnFailure::Allow`] unless set.
    #[must_use]
    pub fn on_failure(self, on_failure: OnFailure) -> Self {
        self.with(|shared| shared.on_failure = on_failure)
    }

    /// For how long a request waits for the server's decision before that counts as a failure. One second unless set.
    #[must_use]
    pub fn timeout(self, timeout: Duration) -> Self {
        self.with(|shared| shared.timeout = timeout)
    }

    fn with(self, change: impl FnOnce(&mut Shared<F>)) -> Self {
        let Shared { limiter, rule, key, on_failure, timeout } = &*self.shared;
        let (limiter, rule, key) = (limiter.clone(), rule.clone(), key.clone());
        let mut shared = Shared { limiter, rule, key, on_failure: *on_failure, timeout: *timeout };
        change(&mut shared);
        Self { shared: Arc::new(shared) }
    }
}

impl<F> fmt::Debug for RateLimitLayer<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimitLayer").field("rule", &self.shared.rule).finish_non_exhaustive()
    }
}

impl<S, F> Layer<S> for RateLimitLayer<F> {
    type Service = RateLimit<S, F>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit { inner, shared: Arc::clone(&self.shared) }
    }
}

/// The service that a [`RateLimitLayer`] makes.
pub struct RateLimit<S, F> {
    inner: S,
    shared: Arc<Shared<F>>,
}

impl<S: Clone, F> Clone for RateLimit<S, F> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<S: fmt::Debug, F> fmt::Debug for RateLimit<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RateLimit").field("inner", &self.inner).field("rule", &self.shared.rule).finish_non_exhaustive()
    }
}

/// The future of a [`RateLimit`].
pub type ResponseFuture<R, E> = Pin<Box<dyn Future<Output = Result<R, E>> + Send>>;

impl<S, F, K, B, T> Service<Request<B>> for RateLimit<S, F>
where
    S: Service<Request<B>, Response = Response<T>> + Clone + Send + 'static,
    S::Future: Send,
    F: Fn(&Request<B>) -> Option<K> + Send + Sync + 'static,
    K: AsRef<[u8]> + Send + 'static,
    B: Send + 'static,
    T: From<String>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = ResponseFuture<S::Response, S::Error>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let shared = Arc::clone(&self.shared);
        // The one that is ready goes; its clone has to become ready itself.
        let clone = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, clone);
        let Some(key) = (shared.key)(&request) else { return Box::pin(inner.call(request)) };
        Box::pin(async move {
            match shared.decide(key.as_ref()).await {
                Some(decision) if decision.allowed => {
                    let mut response = inner.call(request).await?;
                    describe(&mut response, &decision);
                    Ok(response)
                }
                Some(decision) => {
                    let mut response = problem(StatusCode::TOO_MANY_REQUESTS, headers::problem(&violated(&decision)));
                    describe(&mut response, &decision);
                    Ok(response)
                }
                None if shared.on_failure == OnFailure::Allow => inner.call(request).await,
                None => {
                    let body = "{\"type\":\"about:blank\",\"title\":\"Service Unavailable\",\"status\":503}";
                    Ok(problem(StatusCode::SERVICE_UNAVAILABLE, body.to_owned()))
                }
            }
        })
    }
}

impl<F> Shared<F> {
    /// The decision, or `None` if there is none within the time.
    async fn decide(&self, key: &[u8]) -> Option<Decision> {
        let decision = self.limiter.check(key, &self.rule);
        match tokio::time::timeout(self.timeout, decision).await {
            Ok(Ok(decision)) => return Some(decision),
            Ok(Err(error)) => tracing::warn!(%error, on_failure = ?self.on_failure, "a request was not decided on"),
            Err(_) => tracing::warn!(on_failure = ?self.on_failure, "a request was not decided on in time"),
        }
        None
    }
}

fn violated(decision: &Decision) -> Vec<String> {
    decision.violated_policies()
}

fn problem<T: From<String>>(status: StatusCode, body: String) -> Response<T> {
    let mut response = Response::new(T::from(body));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    response
}

/// Adds the headers. There may be some of another layer; both then stand, as one list.
fn describe<T>(response: &mut Response<T>, decision: &Decision) {
    let fields = decision.headers();
    let list = [("ratelimit-policy", fields.policy), ("ratelimit", fields.limit)];
    for (name, value) in list {
        // Names of policies are printable ASCII, so that each value is one of a header.
        if let Ok(value) = HeaderValue::from_str(&value) {
            response.headers_mut().append(HeaderName::from_static(name), value);
        }
    }
    if let Some(seconds) = fields.retry_after {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(seconds));
    }
}
