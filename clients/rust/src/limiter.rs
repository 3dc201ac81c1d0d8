//! The commands as methods.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use redis::aio::ConnectionManager;
use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::time::Instant;

use crate::budget::Budget;
use crate::call::Call;
use crate::connection::{Connection, To};
use crate::decision::{AllDecision, Attempt, Decision, Refund, unix_millis, unsigned};
use crate::error::{Error, InvalidRule};
use crate::lease::Held;
use crate::rule::{Lease, Metered, Refundable, Rule, seconds};
use crate::way::{self, LIBRARY, Way};

/// The pause before a call is asked again, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// How a [`Limiter`] goes about its calls.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Options {
    /// Put in front of every key. Empty unless set.
    pub prefix: Vec<u8>,
    /// The only way to ask the server. `None`, the default: the best that it has, which is found out at the first call
    /// and again when it is gone.
    pub way: Option<Way>,
    /// Whether the function library may be loaded into a server that has functions and lacks it. `true` unless set. A
    /// library of that name that is there already is left alone.
    pub load_functions: bool,
    /// For how long a call is asked again, with growing pauses, while its keys are moved between the nodes of a cluster
    /// (`TRYAGAIN`). One second unless set. A plain `ClusterConnection` asks again by itself before that.
    pub patience: Duration,
    /// Whether a call is sent again if its reply was lost, within the same time. `false` unless set: the call may have
    /// been counted, and would be counted twice.
    pub resend: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { prefix: Vec::new(), way: None, load_functions: true, patience: Duration::from_secs(1), resend: false }
    }
}

impl Options {
    /// The same with a prefix in front of every key.
    #[must_use]
    pub fn prefix(mut self, prefix: impl AsRef<[u8]>) -> Self {
        self.prefix = prefix.as_ref().to_vec();
        self
    }

    /// The same with one way only to ask the server.
    #[must_use]
    pub fn way(mut self, way: Way) -> Self {
        self.way = Some(way);
        self
    }

    /// The same, with leave or none to load the function library.
    #[must_use]
    pub fn load_functions(mut self, load: bool) -> Self {
        self.load_functions = load;
        self
    }

    /// The same with another time for asking again.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The same, sending a call again whose reply was lost, or not.
    #[must_use]
    pub fn resend(mut self, resend: bool) -> Self {
        self.resend = resend;
        self
    }
}

/// Asks a server or a cluster. Cheap to clone; clones share the connection.
///
/// Every method is one call to the server, which decides by its own clock. Keys are any bytes.
///
/// Errors are those of [`Error`]: a rule that no server takes, a refusal by the server, no server, or a reply that was
/// lost. A denial is not an error.
///
/// ```no_run
/// use redis_rl_client::{Limiter, Rule};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::connect("redis://127.0.0.1/").await?;
/// let api = Rule::sliding("100/minute")?;
/// let decision = limiter.check("user:7", &api).await?;
/// if !decision.allowed {
///     println!("again in {:?}", decision.retry_after);
/// }
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Limiter {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    connection: Connection,
    options: Options,
    /// The way that served last; `UNKNOWN` before the first look at the server.
    way: AtomicU8,
}

const UNKNOWN: u8 = 0;
const WAYS: [Way; 3] = [Way::Module, Way::Functions, Way::Script];

impl Limiter {
    /// A limiter on a connection.
    pub fn new(connection: impl Into<Connection>) -> Self {
        Self::with_options(connection, Options::default())
    }

    /// A limiter on a connection, with options of one's own.
    pub fn with_options(connection: impl Into<Connection>, options: Options) -> Self {
        Self { inner: Arc::new(Inner { connection: connection.into(), options, way: AtomicU8::new(UNKNOWN) }) }
    }

    /// A limiter on a new connection to one server, which reconnects by itself.
    ///
    /// # Errors
    /// If the URL cannot be read or the server cannot be reached.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        let unavailable = |error: RedisError| Error::of(error, false);
        let client = redis::Client::open(url).map_err(unavailable)?;
        Ok(Self::new(ConnectionManager::new(client).await.map_err(unavailable)?))
    }

    /// The way in which the server answered last; `None` before the first answer.
    pub fn way(&self) -> Option<Way> {
        let kept = usize::from(self.inner.way.load(Relaxed));
        kept.checked_sub(1).and_then(|index| WAYS.get(index).copied())
    }

    /// Decides on a request, and counts it if it fits: `RL.SLIDING`, `RL.FIXED`, `RL.THROTTLE` or `RL.ACQUIRE`, whichever
    /// the rule is.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn check(&self, key: impl AsRef<[u8]>, rule: impl Into<Rule>) -> Result<Decision, Error> {
        let rule = rule.into();
        rule.check(false)?;
        let words = |cmd: &mut Cmd| {
            rule.write(cmd);
            cmd.arg(form(&rule));
        };
        let reply = self.one(rule.command(), false, key.as_ref(), &words).await?;
        Decision::read(rule, reply)
    }

    /// What [`check`](Self::check) would answer, and changes nothing: `RL.PEEK`. With a cost of 0 it shows the state as it
    /// is. In a cluster whose client reads from replicas, a replica answers.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn peek(&self, key: impl AsRef<[u8]>, rule: impl Into<Rule>) -> Result<Decision, Error> {
        let rule = rule.into();
        rule.check(true)?;
        let words = |cmd: &mut Cmd| {
            cmd.arg(rule.word());
            rule.write(cmd);
            cmd.arg(form(&rule));
        };
        let reply = self.one(("RL.PEEK", "rl_peek", "peek"), true, key.as_ref(), &words).await?;
        Decision::read(rule, reply)
    }

    /// Takes back what the same rule has counted, its cost or one unit: `RL.REFUND`. Of a sliding window, the newest
    /// units; of fixed windows, from the counters of the present windows; of a throttle, from what is owed now.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn refund(&self, key: impl AsRef<[u8]>, rule: impl Refundable) -> Result<Refund, Error> {
        self.refund_units(key.as_ref(), rule.into(), None).await
    }

    /// As [`refund`](Self::refund), of what was counted at a time: [`Decision::at`] of the call that counted it. A window
    /// that is over gets nothing back.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn refund_at(
        &self,
        key: impl AsRef<[u8]>,
        rule: impl Refundable,
        at: SystemTime,
    ) -> Result<Refund, Error> {
        self.refund_units(key.as_ref(), rule.into(), Some(unix_millis(at))).await
    }

    async fn refund_units(&self, key: &[u8], rule: Rule, at: Option<u64>) -> Result<Refund, Error> {
        rule.check(false)?;
        let words = |cmd: &mut Cmd| {
            cmd.arg(rule.word());
            rule.write(cmd);
            if let Some(at) = at {
                cmd.arg("AT").arg(at);
            }
        };
        Refund::read(self.one(("RL.REFUND", "rl_refund", "refund"), false, key, &words).await?)
    }

    /// Gives the whole quota of a key back: `RL.RESET`, with the rule's windows, so that fixed counters go too. Answers
    /// how many keys were removed.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn reset(&self, key: impl AsRef<[u8]>, rule: impl Into<Rule>) -> Result<u64, Error> {
        let rule = rule.into();
        let words = |cmd: &mut Cmd| {
            if let Rule::Fixed(_) = rule {
                for window in rule.windows() {
                    cmd.arg(seconds(window.millis));
                }
            }
        };
        unsigned(&self.one(("RL.RESET", "rl_reset", "reset"), false, key.as_ref(), &words).await?)
    }

    /// Asks for a lease: `RL.ACQUIRE`. A lease rule without a holder gets one that nobody else has.
    ///
    /// What is granted is given back by [`Held::release`], when the [`Held`] is dropped, or by itself when the lease ends.
    ///
    /// # Errors
    /// As [`Error`] says. After [`Error::ReplyLost`] the lease may be held, and ends by itself.
    pub async fn acquire(&self, key: impl AsRef<[u8]>, rule: &Lease) -> Result<Attempt<Held>, Error> {
        let rule = if rule.holder.is_some() { rule.clone() } else { rule.clone().holder(new_holder()) };
        let decision = self.check(key.as_ref(), &rule).await?;
        if !decision.allowed {
            return Ok(Attempt::Denied(decision));
        }
        Ok(Attempt::Granted(Held::new(self.clone(), key.as_ref().to_vec(), rule, decision)))
    }

    /// Gives leases back before they end: `RL.RELEASE`. Answers how many of the holders had one; releasing twice is no
    /// error.
    ///
    /// # Errors
    /// As [`Error`] says; [`Error::Invalid`] if no holder is given.
    pub async fn release<H: AsRef<[u8]>>(
        &self,
        key: impl AsRef<[u8]>,
        holders: impl IntoIterator<Item = H>,
    ) -> Result<u64, Error> {
        let holders: Vec<Vec<u8>> = holders.into_iter().map(|holder| holder.as_ref().to_vec()).collect();
        if holders.is_empty() {
            return Err(InvalidRule("a release needs a holder".to_owned()).into());
        }
        let words = |cmd: &mut Cmd| {
            cmd.arg(&holders);
        };
        unsigned(&self.one(("RL.RELEASE", "rl_release", "release"), false, key.as_ref(), &words).await?)
    }

    /// One decision over several keys, with a rule for each: `RL.ALL`. Allowed, and counted by all, only if every rule has
    /// room; else nothing is counted anywhere.
    ///
    /// 1 to 64 keys, each once. In a cluster they must lie in one slot: give them one hash tag, as in `{org7}:rpm`.
    ///
    /// ```no_run
    /// # use redis_rl_client::{Limiter, Rule};
    /// # use std::time::Duration;
    /// # async fn run(limiter: Limiter) -> Result<(), Box<dyn std::error::Error>> {
    /// let decision = limiter
    ///     .all([
    ///         ("{org7}:rpm", Rule::sliding("500/minute")?.into()),
    ///         ("{org7}:tpm", Rule::sliding("200_000/minute")?.cost(1800).into()),
    ///         ("{org7}:busy", Rule::lease(16, Duration::from_secs(120))?.holder("req-81f3").into()),
    ///     ])
    ///     .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn all<K: AsRef<[u8]>>(&self, rules: impl IntoIterator<Item = (K, Rule)>) -> Result<AllDecision, Error> {
        let (keys, rules): (Vec<_>, Vec<_>) =
            rules.into_iter().map(|(key, rule)| (self.prefixed(key.as_ref()), rule)).unzip();
        if !(1..=64).contains(&keys.len()) {
            return Err(InvalidRule(format!("a call takes 1 to 64 keys, not {}", keys.len())).into());
        }
        rules.iter().try_for_each(|rule| rule.check(false))?;
        let words = |cmd: &mut Cmd| {
            for rule in &rules {
                cmd.arg(rule.word());
                rule.write(cmd);
            }
            cmd.arg("FULL");
        };
        let call = Call { command: ("RL.ALL", "rl_all", "all"), counted: true, reads: false, keys, words: &words };
        let reply = self.run(&call).await?;
        AllDecision::read(rules, reply)
    }

    /// A budget of units whose true cost is known only afterwards. See [`Budget`].
    pub fn budget<R: Metered>(&self, key: impl AsRef<[u8]>, rule: R) -> Budget<R> {
        Budget::new(self.clone(), key.as_ref().to_vec(), rule)
    }

    fn prefixed(&self, key: &[u8]) -> Vec<u8> {
        [self.inner.options.prefix.as_slice(), key].concat()
    }

    async fn one(
        &self,
        command: (&'static str, &'static str, &'static str),
        reads: bool,
        key: &[u8],
        words: &(dyn Fn(&mut Cmd) + Send + Sync),
    ) -> Result<Value, Error> {
        self.run(&Call { command, counted: false, reads, keys: vec![self.prefixed(key)], words }).await
    }

    /// Makes the call, again where it has to be asked again.
    async fn run(&self, call: &Call<'_>) -> Result<Value, Error> {
        let Inner { options, .. } = &*self.inner;
        let deadline = Instant::now().checked_add(options.patience);
        let mut pause = FIRST_PAUSE;
        loop {
            let error = match self.ask(call).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let try_again = way::is_try_again(&error);
            let error = Error::of(error, !call.reads);
            let again = try_again || options.resend && matches!(error, Error::ReplyLost(_));
            let wake = Instant::now() + pause;
            if !again || deadline.is_some_and(|deadline| wake > deadline) {
                return Err(error);
            }
            tokio::time::sleep_until(wake).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// Asks in the way that served last. If that is not there, or not known yet, looks which there is.
    async fn ask(&self, call: &Call<'_>) -> RedisResult<Value> {
        if let Some(way) = self.inner.options.way {
            return match way {
                Way::Module => self.keep(way, self.send(call, way).await),
                Way::Functions => self.by_functions(call).await,
                Way::Script => self.by_script(call).await,
            };
        }
        if let Some(way) = self.way() {
            let reply = self.send(call, way).await;
            if !reply.as_ref().is_err_and(|error| way.is_missing(error)) {
                return reply;
            }
        }
        let reply = self.send(call, Way::Module).await;
        if !reply.as_ref().is_err_and(|error| Way::Module.is_missing(error)) {
            return self.keep(Way::Module, reply);
        }
        let reply = self.by_functions(call).await;
        if !reply.as_ref().is_err_and(|error| Way::Functions.is_missing(error) || way::is_forbidden(error)) {
            return reply;
        }
        self.by_script(call).await
    }

    /// Remembers the way if the server answered: an error of its own says that it is there, too.
    fn keep(&self, way: Way, reply: RedisResult<Value>) -> RedisResult<Value> {
        let index = WAYS.iter().position(|each| *each == way).and_then(|index| u8::try_from(index).ok());
        let answered = match &reply {
            Ok(_) => true,
            Err(error) => matches!(error.kind(), redis::ErrorKind::Server(_)) && !way.is_missing(error),
        };
        if let (true, Some(index)) = (answered, index) {
            self.inner.way.store(index + 1, Relaxed);
        }
        reply
    }

    async fn send(&self, call: &Call<'_>, way: Way) -> RedisResult<Value> {
        let reply = self.inner.connection.send(call.cmd(way, call.reads), call.to()).await;
        match reply {
            // Redis 6.2 has no command for scripts that only read.
            Err(error) if way == Way::Script && call.reads && way::is_unknown_command(&error) => {
                self.inner.connection.send(call.cmd(way, false), call.to_primary()).await
            }
            reply => reply,
        }
    }

    /// Calls the function, and loads the library where it is missing. It is loaded where the key is, as a cluster does
    /// not bring it to nodes that join; while the key moves, that can be the wrong node, and then into all of them.
    async fn by_functions(&self, call: &Call<'_>) -> RedisResult<Value> {
        let mut reply = self.send(call, Way::Functions).await;
        for to in [call.to_primary(), To::Everyone] {
            let missing = reply.as_ref().is_err_and(way::is_function_not_found);
            if !missing || !self.inner.options.load_functions {
                break;
            }
            if matches!(to, To::Everyone) && !self.inner.connection.is_cluster() {
                break;
            }
            let mut load = redis::cmd("FUNCTION");
            load.arg("LOAD").arg(LIBRARY);
            // Refused where another client was faster, or where it may not be loaded. The call itself says which.
            if let Err(error) = self.inner.connection.send(load, to).await {
                tracing::debug!(%error, "the function library was not loaded");
            }
            reply = self.send(call, Way::Functions).await;
        }
        self.keep(Way::Functions, reply)
    }

    async fn by_script(&self, call: &Call<'_>) -> RedisResult<Value> {
        let mut reply = self.send(call, Way::Script).await;
        if reply.as_ref().is_err_and(|error| Way::Script.is_missing(error)) {
            reply = self.inner.connection.send(call.whole_script(call.reads), call.to()).await;
            if call.reads && reply.as_ref().is_err_and(way::is_unknown_command) {
                reply = self.inner.connection.send(call.whole_script(false), call.to_primary()).await;
            }
        }
        self.keep(Way::Script, reply)
    }
}

/// The option that asks for everything that a decision holds.
fn form(rule: &Rule) -> &'static str {
    if rule.wants_each() { "EACH" } else { "FULL" }
}

/// 128 bits that nobody else comes up with: hashes under random keys of the standard library's, of the time.
fn new_holder() -> String {
    let random = || {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u128(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos());
        hasher.write_u32(std::process::id());
        hasher.finish()
    };
    format!("{:016x}{:016x}", random(), random())
}
