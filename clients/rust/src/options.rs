//! How a limiter goes about its calls, and what it tells of them.

use std::sync::Arc;
use std::time::Duration;

use crate::decision::{Source, State};
use crate::error::Error;
use crate::mode::Mode;

/// How a [`Limiter`](crate::Limiter) goes about its calls.
#[derive(Clone)]
pub struct Options {
    pub(crate) name: String,
    pub(crate) prefix: Vec<u8>,
    pub(crate) mode: Mode,
    pub(crate) timeout: Duration,
    pub(crate) probe_every: Duration,
    pub(crate) hook: Option<Hook>,
}

pub(crate) type Hook = Arc<dyn Fn(&Event<'_>) + Send + Sync>;

impl Default for Options {
    fn default() -> Self {
        Self {
            name: "redis-rl".to_owned(),
            prefix: Vec::new(),
            mode: Mode::Auto,
            timeout: Duration::from_secs(1),
            probe_every: Duration::from_secs(60),
            hook: None,
        }
    }
}

impl Options {
    /// What log lines and the hook call the limiter. `redis-rl` unless set.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Put in front of every key. Empty unless set.
    #[must_use]
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.prefix = prefix.as_ref().to_vec();
        self
    }

    /// How the server is called: [`Mode::Auto`] unless set.
    #[must_use]
    pub fn mode(mut self, mode: Mode) -> Self {
        self.mode = mode;
        self
    }

    /// The longest that a call takes. One second unless set.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How often the server is asked, without delaying a call, whether it has a better mode by now. A minute unless set.
    #[must_use]
    pub fn probe_every(mut self, every: Duration) -> Self {
        self.probe_every = every;
        self
    }

    /// Calls a function with every decision, and with every error in place of one: for metrics. It runs within the call,
    /// and must not block. A panic in it is logged, and changes nothing.
    #[must_use]
    pub fn hook(mut self, hook: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.hook = Some(Arc::new(hook));
        self
    }
}

/// A decision, as the [hook](Options::hook) is told of it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Event<'a> {
    /// The limiter's [name](Options::name).
    pub limiter: &'a str,
    /// `hit`, also for turns and leases, or `all`.
    pub call: &'static str,
    /// The keys as the caller knows them, without the limiter's prefix.
    pub keys: &'a [&'a [u8]],
    /// The decision and [who made it](State::source), or the error in place of it.
    pub outcome: Result<State, &'a Error>,
    /// How long the caller waited for it.
    pub took: Duration,
}

/// How a limiter's calls of `hit` and `all` ended, since it was made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Allowed by the server, also from [blocks](crate::Blocks), or [in its place](Source::Local).
    pub allowed: u64,
    /// Denied by the server, or [in its place](Source::Local).
    pub denied: u64,
    /// Denied by what was remembered of the server's denials.
    pub denied_from_memory: u64,
    /// Not decided, for an error.
    pub failed: u64,
}

impl Stats {
    pub(crate) fn count(&mut self, outcome: Result<State, &Error>) {
        *match outcome {
            Ok(state) if state.allowed => &mut self.allowed,
            Ok(state) if state.source == Source::Memory => &mut self.denied_from_memory,
            Ok(_) => &mut self.denied,
            Err(_) => &mut self.failed,
        } += 1;
    }
}
