//! The commands as methods.

use std::fmt;
use std::future::Future;
use std::io::ErrorKind::{NotConnected, TimedOut};
use std::pin::pin;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::{Duration, SystemTime};

use redis::Cmd;
use tokio::time::Instant;

use crate::breaker::Breakers;
use crate::call::Call;
use crate::connection::{Connection, Failure, Progress, To};
use crate::decision::{AllDecision, Attempt, Decision, Refund, State, count, unix_millis};
use crate::denials::{Asked, Denials, Denied};
use crate::error::{
    Error, InvalidRule, Meaning, is_broken, is_forbidden, is_function_not_found, is_unknown_command, meaning, no_answer,
};
use crate::lease::{self, Held};
use crate::mode::{LIBRARY, Mode};
use crate::options::{Event, Options, Stats};
use crate::reservation::Reservation;
use crate::rule::{Counting, Lease, Metered, Rule, Use, seconds};
use crate::wire::{Item, Reply};

/// The pause before a call is sent again whose keys are between two nodes, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// The pause before a lease is asked for again, at first and at most: one can be given back before it ends.
const FIRST_POLL: Duration = Duration::from_millis(20);
const LONGEST_POLL: Duration = Duration::from_millis(500);
/// For how long a probe of the server may take, which no call waits for.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often other tasks get their turn before a call is given up at its deadline.
const TURNS: usize = 8;

/// Decides on requests, by a server or a cluster. Cheap to clone; clones share the connection and what is known of the
/// server.
///
/// Every method is one call to the server, which decides by its own clock. Keys are any bytes.
///
/// No call takes longer than the [timeout](Options::timeout). After a failure that means that the server is unavailable,
/// calls fail at once for a second; then one of them probes the server. A denial is not an error. Errors are those of
/// [`Error`].
///
/// ```no_run
/// use redis_rl_client::{Limiter, Rule};
///
/// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
/// let limiter = Limiter::open("redis://127.0.0.1/")?;
/// let api = Rule::sliding("100/minute")?;
/// let decision = limiter.hit("user:7", &api).await?;
/// if !decision.allowed {
///     println!("again in {:?}", decision.retry_after);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Limiter {
    inner: Arc<Inner>,
    timeout: Duration,
    /// Whether this handle answers from remembered denials.
    remembers: bool,
}

struct Inner {
    connection: Connection,
    options: Options,
    /// The mode in which the server answered last; that of `Mode::Auto` before.
    mode: AtomicU8,
    probes: Probes,
    breakers: Breakers,
    denials: OnceLock<Denials>,
    stats: Stats,
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner { connection, options, .. } = &*self.inner;
        let mut debug = f.debug_struct("Limiter");
        debug.field("connection", connection).field("options", options).field("mode", &self.mode());
        debug.field("timeout", &self.timeout).finish_non_exhaustive()
    }
}

/// When the server was last asked whether it has something better.
struct Probes {
    since: Instant,
    /// The millisecond, counted from `since`, of the last probe.
    last: AtomicU64,
    /// Connections made until then.
    made: AtomicU64,
}

impl Probes {
    /// Whether it is time for another, after a while or a reconnection. Says so once.
    fn is_due(&self, every: Duration, made: u64) -> bool {
        let now = u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        let last = self.last.load(Relaxed);
        let due = u128::from(now.saturating_sub(last)) >= every.as_millis() || self.made.load(Relaxed) != made;
        due && self.last.compare_exchange(last, now, Relaxed, Relaxed).is_ok() && {
            self.made.store(made, Relaxed);
            true
        }
    }
}

impl Limiter {
    /// A limiter on one server. Nothing is sent before the first call: a server that is unavailable keeps no program
    /// from starting.
    ///
    /// # Errors
    /// If the URL cannot be read.
    pub fn open(url: &str) -> Result<Self, Error> {
        Ok(Self::new(redis::Client::open(url).map_err(Error::Refused)?))
    }

    /// A limiter on a client or a connection of the `redis` crate. See [`Connection`].
    pub fn new(connection: impl Into<Connection>) -> Self {
        Self::with_options(connection, Options::default())
    }

    /// A limiter with options.
    pub fn with_options(connection: impl Into<Connection>, options: Options) -> Self {
        let connection = connection.into();
        let denials = OnceLock::new();
        let (timeout, remembers) = (options.timeout, options.deny_cache > 0);
        if remembers {
            let _ = denials.set(Denials::new(options.deny_cache));
        }
        let inner = Inner {
            mode: AtomicU8::new(Mode::Auto.index()),
            probes: Probes { since: Instant::now(), last: AtomicU64::new(0), made: AtomicU64::new(0) },
            breakers: Breakers::new(connection.is_cluster()),
            denials,
            stats: Stats::default(),
            connection,
            options,
        };
        Self { inner: Arc::new(inner), timeout, remembers }
    }

    /// The same limiter with another deadline for the calls of this handle.
    #[must_use]
    pub fn timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// The same limiter, whose calls on this handle are answered from remembered denials.
    #[cfg(feature = "tower")]
    pub(crate) fn remembering(&self, entries: usize) -> Self {
        let remembers = entries > 0;
        if remembers {
            self.inner.denials.get_or_init(|| Denials::new(entries));
        }
        Self { remembers, ..self.clone() }
    }

    /// The limiter's name, for log lines.
    pub(crate) fn name(&self) -> &str {
        &self.inner.options.name
    }

    /// The mode in use; `None` before the first answer.
    pub fn mode(&self) -> Option<Mode> {
        let mode = match self.inner.options.mode {
            Mode::Auto => Mode::of(self.inner.mode.load(Relaxed)),
            chosen => chosen,
        };
        (mode != Mode::Auto).then_some(mode)
    }

    /// What this limiter and its clones have counted since it was made.
    pub fn stats(&self) -> &Stats {
        &self.inner.stats
    }

    /// Decides on a request, and counts it if it fits: `RL.SLIDING`, `RL.FIXED`, `RL.THROTTLE` or `RL.ACQUIRE`, whichever
    /// the rule is.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn hit(&self, key: impl AsRef<[u8]>, rule: impl Into<Rule>) -> Result<Decision, Error> {
        let asked = [(self.prefixed(key.as_ref()), rule.into())];
        let [(key, rule)] = &asked;
        rule.check(Use::Hit)?;
        let started = Instant::now();
        if let Some(Denied::One(decision)) = self.remembered(&asked) {
            self.observe("hit", &asked, Ok(&decision), started, true);
            return Ok(decision);
        }
        let words = |cmd: &mut Cmd| {
            rule.write(cmd);
            cmd.arg(form(rule));
        };
        let call = Call {
            command: rule.command(),
            counted: false,
            reads: false,
            // A holder that asks again renews its lease.
            repeatable: matches!(rule, Rule::Lease(_)),
            keys: &[key],
            words: &words,
        };
        let decision = self.run(&call).await.and_then(|reply| Decision::read(rule.clone(), &reply));
        self.observe("hit", &asked, decision.as_deref(), started, false);
        if let Ok(decision) = &decision
            && !decision.allowed
            && let Some(denials) = self.denials()
        {
            denials.remember(&asked, Denied::One(decision.clone()), started);
        }
        decision
    }

    /// What [`hit`](Self::hit) would answer, and changes nothing: `RL.PEEK`. With a cost of 0 it shows the state as it is.
    /// In a cluster whose client reads from replicas, a replica answers.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn peek(&self, key: impl AsRef<[u8]>, rule: impl Into<Rule>) -> Result<Decision, Error> {
        let rule = rule.into();
        rule.check(Use::Check)?;
        let words = |cmd: &mut Cmd| {
            cmd.arg(rule.word());
            rule.write(cmd);
            cmd.arg(form(&rule));
        };
        let key = self.prefixed(key.as_ref());
        let call = Call { keys: &[&key], words: &words, ..PEEK };
        let reply = self.run(&call).await?;
        Decision::read(rule, &reply)
    }

    /// One decision over several keys, with a rule for each: `RL.ALL`. Allowed, and counted by all, only if every rule has
    /// room; else nothing is counted anywhere. A rule with a cost of 0 denies if no unit is left, and counts nothing.
    ///
    /// 1 to 64 keys, each once. In a cluster they must lie in one slot: give them one hash tag, as in `{org7}:rpm`.
    ///
    /// ```no_run
    /// # use redis_rl_client::{Limiter, Rule};
    /// # use std::time::Duration;
    /// # async fn run(limiter: Limiter) -> Result<(), Box<dyn std::error::Error>> {
    /// let decision = limiter
    ///     .all([
    ///         ("{org7}:rpm", Rule::sliding("500/minute")?.name("rpm")?.into()),
    ///         ("{org7}:tpm", Rule::sliding("200_000/minute")?.cost(1800).name("tpm")?.into()),
    ///         ("{org7}:busy", Rule::lease(16, Duration::from_secs(120))?.holder("req-81f3").into()),
    ///     ])
    ///     .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn all<K: AsRef<[u8]>>(&self, rules: impl IntoIterator<Item = (K, Rule)>) -> Result<AllDecision, Error> {
        let asked: Vec<_> = rules.into_iter().map(|(key, rule)| (self.prefixed(key.as_ref()), rule)).collect();
        if !(1..=64).contains(&asked.len()) {
            return Err(InvalidRule(format!("a call takes 1 to 64 keys, not {}", asked.len())).into());
        }
        asked.iter().try_for_each(|(_, rule)| rule.check(Use::Check))?;
        let started = Instant::now();
        if let Some(Denied::All(decision)) = self.remembered(&asked) {
            self.observe("all", &asked, Ok(&decision), started, true);
            return Ok(decision);
        }
        let words = |cmd: &mut Cmd| {
            for (_, rule) in &asked {
                cmd.arg(rule.word());
                rule.write(cmd);
            }
            cmd.arg("FULL");
        };
        let keys: Vec<&[u8]> = asked.iter().map(|(key, _)| key.as_slice()).collect();
        let call = Call { keys: &keys, words: &words, ..ALL };
        let rules = asked.iter().map(|(_, rule)| rule.clone());
        let decision = self.run(&call).await.and_then(|reply| AllDecision::read(rules, &reply));
        self.observe("all", &asked, decision.as_deref(), started, false);
        if let Ok(decision) = &decision
            && !decision.allowed
            && let Some(denials) = self.denials()
        {
            denials.remember(&asked, Denied::All(decision.clone()), started);
        }
        decision
    }

    /// As [`all`](Self::all) for one rule, from the short reply, which costs the server a third less. Answers whether the
    /// request is allowed, the units that remain, and until when the same request waits. For redis-rl-envoy, which knows
    /// the rest.
    ///
    /// # Errors
    /// As [`Error`] says.
    #[doc(hidden)]
    pub async fn all_short(&self, key: impl AsRef<[u8]>, rule: Rule) -> Result<(bool, u64, Option<Duration>), Error> {
        rule.check(Use::Check)?;
        let key = self.prefixed(key.as_ref());
        let words = |cmd: &mut Cmd| {
            cmd.arg(rule.word());
            rule.write(cmd);
        };
        AllDecision::read_short(&self.run(&Call { keys: &[&key], words: &words, ..ALL }).await?)
    }

    /// Hits until the request is allowed, and sleeps for the exact wait between. Answers with the last denial at once
    /// where the wait is longer than what is left of `timeout`, or has no end.
    ///
    /// # Errors
    /// As [`Error`] says, at the first error.
    pub async fn wait(
        &self,
        key: impl AsRef<[u8]>,
        rule: impl Into<Rule>,
        timeout: Duration,
    ) -> Result<Decision, Error> {
        let (key, rule) = (key.as_ref(), rule.into());
        let deadline = Instant::now().checked_add(timeout);
        loop {
            let decision = self.hit(key, &rule).await?;
            let wake = decision.retry_after.and_then(|wait| Instant::now().checked_add(wait));
            match wake {
                Some(wake) if !decision.allowed && deadline.is_none_or(|deadline| wake <= deadline) => {
                    tokio::time::sleep_until(wake).await;
                }
                _ => return Ok(decision),
            }
        }
    }

    /// Takes back what the same rule has counted, its cost or one unit: `RL.REFUND`. Of a sliding window, the newest
    /// units; of fixed windows, from the counters of the present windows; of a throttle, from what is owed now.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn refund(&self, key: impl AsRef<[u8]>, rule: impl Counting) -> Result<Refund, Error> {
        self.refund_units(key.as_ref(), rule.into(), None).await
    }

    /// As [`refund`](Self::refund), of what was counted at a time: [`State::at`] of the call that counted it. A window
    /// that is over gets nothing back.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn refund_at(&self, key: impl AsRef<[u8]>, rule: impl Counting, at: SystemTime) -> Result<Refund, Error> {
        self.refund_units(key.as_ref(), rule.into(), Some(unix_millis(at))).await
    }

    async fn refund_units(&self, key: &[u8], rule: Rule, at: Option<u64>) -> Result<Refund, Error> {
        rule.check(Use::Hit)?;
        let words = |cmd: &mut Cmd| {
            cmd.arg(rule.word());
            rule.write(cmd);
            if let Some(at) = at {
                cmd.arg("AT").arg(at);
            }
        };
        Refund::read(&self.change(("RL.REFUND", "rl_refund", "refund"), false, key, &words).await?)
    }

    /// Gives the whole quota of a key back: `RL.RESET`, with the windows of a fixed rule, so that its counters go too.
    /// Answers how many keys were removed.
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
        count(&self.change(("RL.RESET", "rl_reset", "reset"), true, key.as_ref(), &words).await?)
    }

    /// Asks for a lease: `RL.ACQUIRE`. A lease rule without a holder gets a random one.
    ///
    /// What is granted is given back by [`Held::release`], when the [`Held`] is dropped, or by itself when the lease ends.
    ///
    /// # Errors
    /// As [`Error`] says. After [`Error::ReplyLost`] the lease may be held, and ends by itself.
    pub async fn acquire(&self, key: impl AsRef<[u8]>, rule: &Lease) -> Result<Attempt<Held>, Error> {
        let rule = if rule.holder.is_some() { rule.clone() } else { rule.clone().holder(lease::random_holder()) };
        let sent = Instant::now();
        let decision = self.hit(key.as_ref(), &rule).await?;
        if !decision.allowed {
            return Ok(Attempt::Denied(decision));
        }
        Ok(Attempt::Granted(Held::new(self.clone(), key.as_ref().to_vec(), rule, decision, sent)))
    }

    /// A lease for a block of work: waits up to `timeout` for a place, and renews the lease for as long as the [`Held`]
    /// lives. Must be called on a Tokio runtime.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    pub async fn hold(&self, key: impl AsRef<[u8]>, rule: &Lease, timeout: Duration) -> Result<Attempt<Held>, Error> {
        let key = key.as_ref();
        let rule = if rule.holder.is_some() { rule.clone() } else { rule.clone().holder(lease::random_holder()) };
        let deadline = Instant::now().checked_add(timeout);
        let mut pause = FIRST_POLL;
        loop {
            let decision = match self.acquire(key, &rule).await? {
                Attempt::Granted(mut held) => {
                    held.keep_alive();
                    return Ok(Attempt::Granted(held));
                }
                Attempt::Denied(decision) => decision,
            };
            let Some(wait) = decision.retry_after else { return Ok(Attempt::Denied(decision)) };
            let wake = Instant::now() + pause.min(wait);
            if deadline.is_some_and(|deadline| wake > deadline) {
                return Ok(Attempt::Denied(decision));
            }
            tokio::time::sleep_until(wake).await;
            pause = (pause * 2).min(LONGEST_POLL);
        }
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
        if holders.is_empty() || holders.iter().any(Vec::is_empty) {
            return Err(InvalidRule("a release needs a holder of at least one byte".to_owned()).into());
        }
        let words = |cmd: &mut Cmd| {
            cmd.arg(&holders);
        };
        count(&self.change(("RL.RELEASE", "rl_release", "release"), true, key.as_ref(), &words).await?)
    }

    /// Reserves units of a budget whose true cost is known only afterwards, such as the tokens of a language model, if
    /// all of them fit (1 to 2^53 − 1). See [`Reservation`].
    ///
    /// # Errors
    /// As [`Error`] says. After [`Error::ReplyLost`] they may be charged.
    pub async fn reserve<R: Metered>(
        &self,
        key: impl AsRef<[u8]>,
        rule: &R,
        units: u64,
    ) -> Result<Attempt<Reservation<R>>, Error> {
        let key = key.as_ref();
        let decision = self.hit(key, rule.clone().with_cost(units)).await?;
        if !decision.allowed {
            return Ok(Attempt::Denied(decision));
        }
        Ok(Attempt::Granted(Reservation::new(self.clone(), key.to_vec(), rule.clone(), units, decision)))
    }

    fn prefixed(&self, key: &[u8]) -> Vec<u8> {
        [self.inner.options.prefix.as_slice(), key].concat()
    }

    fn denials(&self) -> Option<&Denials> {
        self.inner.denials.get().filter(|_| self.remembers)
    }

    fn remembered(&self, asked: Asked<'_>) -> Option<Denied> {
        self.denials().and_then(|denials| denials.find(asked))
    }

    fn observe(
        &self,
        call: &'static str,
        asked: Asked<'_>,
        outcome: Result<&State, &Error>,
        started: Instant,
        from_memory: bool,
    ) {
        let Inner { options, stats, .. } = &*self.inner;
        stats.count(outcome, from_memory);
        if let Some(hook) = &options.hook {
            let keys: Vec<&[u8]> = asked.iter().map(|(key, _)| key.as_slice()).collect();
            let took = started.elapsed();
            hook(&Event { limiter: &options.name, call, keys: &keys, outcome, took, from_memory });
        }
    }

    /// A call about one key that gives something back.
    async fn change(
        &self,
        command: (&'static str, &'static str, &'static str),
        repeatable: bool,
        key: &[u8],
        words: &(dyn Fn(&mut Cmd) + Send + Sync),
    ) -> Result<Reply, Error> {
        let key = self.prefixed(key);
        let forget = |key: &[u8]| {
            if let Some(denials) = self.inner.denials.get() {
                denials.forget(key);
            }
        };
        let call = Call { command, counted: false, reads: false, repeatable, keys: &[&key], words };
        // Before and after: a denial that arrives meanwhile may be older than what is given back.
        forget(&key);
        let reply = self.run(&call).await;
        forget(&key);
        reply
    }

    /// Makes the call within the deadline, unless the server is known to be unavailable.
    async fn run(&self, call: &Call<'_>) -> Result<Reply, Error> {
        let Inner { breakers, connection, .. } = &*self.inner;
        let slot = connection.slot(call.key());
        if !breakers.admits(slot) {
            let what = "the server was unavailable less than a second ago";
            return Err(Error::Unavailable(no_answer(NotConnected, what.to_owned())));
        }
        let progress = Progress::default();
        let deadline = Instant::now().checked_add(self.timeout);
        let result = match within(deadline, self.attempts(call, &progress, deadline)).await {
            Some(result) => result,
            None => {
                progress.give_up();
                let error = no_answer(TimedOut, format!("no reply within {:?}", self.timeout));
                Err(if progress.is_sent() && !call.reads { Error::ReplyLost(error) } else { Error::Unavailable(error) })
            }
        };
        match &result {
            // That a connection broke says nothing about the server: the next call makes a new one, or fails to.
            Err(Error::ReplyLost(error)) if is_broken(error) => {}
            Err(error) if error.is_unavailable() => breakers.failed(slot),
            _ => breakers.answered(slot),
        }
        result
    }

    /// Sends the call, and again where that is needed and can be done.
    async fn attempts(&self, call: &Call<'_>, progress: &Progress, deadline: Option<Instant>) -> Result<Reply, Error> {
        let mut pause = FIRST_PAUSE;
        let mut repeated = false;
        loop {
            let Failure { error, sent } = match self.ask(call, progress).await {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            match meaning(&error, self.inner.connection.is_cluster()) {
                Meaning::TryAgain => {
                    let wake = Instant::now() + pause;
                    if deadline.is_some_and(|deadline| wake >= deadline) {
                        return Err(Error::Unavailable(error));
                    }
                    tokio::time::sleep_until(wake).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                Meaning::Lost if sent && call.repeatable && !repeated => repeated = true,
                Meaning::Lost if sent && !call.reads => return Err(Error::ReplyLost(error)),
                Meaning::Lost | Meaning::Unavailable => return Err(Error::Unavailable(error)),
                Meaning::Unexpected => return Err(Error::Unexpected(error.to_string())),
                Meaning::Missing | Meaning::Permanent => return Err(Error::Refused(error)),
            }
        }
    }

    /// Sends the call in the mode that is known. If that is gone, or not known yet, finds out which there is.
    async fn ask(&self, call: &Call<'_>, progress: &Progress) -> Result<Reply, Failure> {
        let chosen = self.inner.options.mode;
        if let Some(mode) = self.mode() {
            let reply = self.ask_in(mode, call, progress).await;
            if chosen != Mode::Auto {
                return self.keep(mode, call, reply);
            }
            if !is_missing(&reply) {
                if mode != Mode::Module {
                    self.probe_if_due(call.key());
                }
                return reply;
            }
        }
        for mode in [Mode::Module, Mode::Functions] {
            let reply = self.ask_in(mode, call, progress).await;
            let forbidden = reply.as_ref().is_err_and(|failure| is_forbidden(&failure.error));
            if is_missing(&reply) || mode == Mode::Functions && forbidden {
                continue;
            }
            return self.keep(mode, call, reply);
        }
        let reply = self.ask_in(Mode::Script, call, progress).await;
        self.keep(Mode::Script, call, reply)
    }

    /// Remembers the mode if the server answered in it: an error of its own says that it is there, too.
    fn keep(&self, mode: Mode, call: &Call<'_>, reply: Result<Reply, Failure>) -> Result<Reply, Failure> {
        let Inner { options, connection, probes, .. } = &*self.inner;
        if self.inner.mode.load(Relaxed) != mode.index() && has_answered(&reply) {
            self.inner.mode.store(mode.index(), Relaxed);
            tracing::info!(limiter = options.name, ?mode, "the server is called in this mode");
            // Not before it is time again.
            probes.is_due(Duration::ZERO, connection.made());
            if mode == Mode::Functions && options.load_functions {
                let (limiter, key) = (self.clone(), call.key().to_vec());
                tokio::spawn(async move { tokio::time::timeout(PROBE_TIMEOUT, limiter.replace_older(&key)).await });
            }
        }
        reply
    }

    /// Replaces a function library of ours that is older than the one of this package; never a newer one.
    async fn replace_older(&self, key: &[u8]) {
        let Inner { connection, options, .. } = &*self.inner;
        let (here, progress) = (To::Primary(key), Progress::default());
        let mut list = redis::cmd("FUNCTION");
        list.arg("LIST").arg("LIBRARYNAME").arg("rl").arg("WITHCODE");
        let Ok(list) = self.send(list, here, &progress).await else { return };
        if code(&list).is_none_or(|code| library_version(code) >= library_version(LIBRARY)) {
            return;
        }
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg("REPLACE").arg(LIBRARY);
        let to = if connection.is_cluster() { To::Everyone } else { here };
        match self.send(load, to, &progress).await {
            Ok(_) => tracing::info!(limiter = options.name, "an older function library was replaced"),
            Err(Failure { error, .. }) => {
                tracing::warn!(limiter = options.name, %error, "the function library is older, and was not replaced");
            }
        }
    }

    /// Asks in a task of its own, which no call waits for, whether the server has something better by now.
    fn probe_if_due(&self, key: &[u8]) {
        let Inner { options, connection, probes, .. } = &*self.inner;
        if probes.is_due(options.probe_every, connection.made()) {
            let (limiter, key) = (self.clone(), key.to_vec());
            tokio::spawn(async move {
                // An error is that of a server that is unavailable, which calls notice.
                let _ = tokio::time::timeout(PROBE_TIMEOUT, limiter.probe(key)).await;
            });
        }
    }

    async fn probe(&self, key: Vec<u8>) {
        let words = |cmd: &mut Cmd| {
            cmd.arg(&["SLIDING", "1", "1", "COST", "0"]);
        };
        let call = Call { keys: &[&key], words: &words, ..PEEK };
        let progress = Progress::default();
        for mode in [Mode::Module, Mode::Functions] {
            if self.mode() == Some(mode) {
                return;
            }
            let reply = self.ask_in(mode, &call, &progress).await;
            if has_answered(&reply) {
                let _ = self.keep(mode, &call, reply);
                return;
            }
        }
    }

    async fn ask_in(&self, mode: Mode, call: &Call<'_>, progress: &Progress) -> Result<Reply, Failure> {
        match mode {
            Mode::Functions => self.by_functions(call, progress).await,
            Mode::Script => self.by_script(call, progress).await,
            Mode::Module | Mode::Auto => self.send(call.cmd(Mode::Module, call.reads), call.to(), progress).await,
        }
    }

    async fn send(&self, cmd: Cmd, to: To<'_>, progress: &Progress) -> Result<Reply, Failure> {
        self.inner.connection.send(cmd, to, progress).await
    }

    /// Calls the function, and loads the library where it is missing. It is loaded where the key is, as a cluster does
    /// not bring it to nodes that join; while the key moves, that can be the wrong node, and then into all of them.
    async fn by_functions(&self, call: &Call<'_>, progress: &Progress) -> Result<Reply, Failure> {
        let Inner { connection, options, .. } = &*self.inner;
        let mut reply = self.send(call.cmd(Mode::Functions, call.reads), call.to(), progress).await;
        for to in [call.to_primary(), To::Everyone] {
            let missing = reply.as_ref().is_err_and(|failure| is_function_not_found(&failure.error));
            if !missing || !options.load_functions || matches!(to, To::Everyone) && !connection.is_cluster() {
                break;
            }
            let mut load = redis::cmd("FUNCTION");
            load.arg("LOAD").arg(LIBRARY);
            // Refused where another client was faster, or where it may not be loaded. The call itself says which.
            if let Err(Failure { error, .. }) = self.send(load, to, progress).await {
                tracing::debug!(limiter = options.name, %error, "the function library was not loaded");
            }
            reply = self.send(call.cmd(Mode::Functions, call.reads), call.to(), progress).await;
        }
        reply
    }

    /// Calls the script by its digest, and sends it whole where the server does not have it.
    async fn by_script(&self, call: &Call<'_>, progress: &Progress) -> Result<Reply, Failure> {
        let mut reads = call.reads;
        let mut reply = self.send(call.cmd(Mode::Script, reads), call.to(), progress).await;
        // Redis 6.2 has no command for scripts that only read.
        if reads && reply.as_ref().is_err_and(|failure| is_unknown_command(&failure.error)) {
            reads = false;
            reply = self.send(call.cmd(Mode::Script, reads), call.to_primary(), progress).await;
        }
        if is_missing(&reply) {
            let to = if reads { call.to() } else { call.to_primary() };
            reply = self.send(call.whole_script(reads), to, progress).await;
        }
        reply
    }
}

/// What all calls of RL.ALL have in common.
const ALL: Call<'static> = Call {
    command: ("RL.ALL", "rl_all", "all"),
    counted: true,
    reads: false,
    repeatable: false,
    keys: &[],
    words: &|_| {},
};

/// What all calls of RL.PEEK have in common.
const PEEK: Call<'static> = Call {
    command: ("RL.PEEK", "rl_peek", "peek"),
    counted: false,
    reads: true,
    repeatable: true,
    keys: &[],
    words: &|_| {},
};

/// Whether the reply says that the server does not have what the mode needs, and so that nothing was done.
fn is_missing(reply: &Result<Reply, Failure>) -> bool {
    reply.as_ref().is_err_and(|failure| meaning(&failure.error, false) == Meaning::Missing)
}

/// Whether the reply says that the server has what the mode needs, for this user.
fn has_answered(reply: &Result<Reply, Failure>) -> bool {
    match reply {
        Ok(_) => true,
        Err(Failure { error, .. }) => {
            !is_forbidden(error) && matches!(meaning(error, false), Meaning::TryAgain | Meaning::Permanent)
        }
    }
}

/// The source of a library of ours in the reply to FUNCTION LIST.
fn code(reply: &Reply) -> Option<&str> {
    reply.items().find_map(|item| match item {
        Item::Text(text) => std::str::from_utf8(text).ok().filter(|text| text.contains("redis-rl")),
        _ => None,
    })
}

/// The version that a library says it has; 0 for one from before there were versions.
fn library_version(code: &str) -> u64 {
    let version = code.lines().find_map(|line| line.strip_prefix("-- Version "));
    version.and_then(|version| version.trim().parse().ok()).unwrap_or(0)
}

/// The option that asks for everything that a decision holds.
fn form(rule: &Rule) -> &'static str {
    if rule.wants_each() { "EACH" } else { "FULL" }
}

/// What the future comes to before the deadline.
///
/// A deadline judges the server and not this process. When it was busy, the reply may have arrived long since, and wait
/// for the task that reads it: that gets its turns before the call is given up.
async fn within<F: Future>(deadline: Option<Instant>, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let Some(deadline) = deadline else { return Some(future.await) };
    if let Ok(output) = tokio::time::timeout_at(deadline, future.as_mut()).await {
        return Some(output);
    }
    for _ in 0..TURNS {
        tokio::task::yield_now().await;
        let polled = std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
        if let Poll::Ready(output) = polled {
            return Some(output);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_has_arrived_is_read_before_a_call_is_given_up() {
        let deadline = Instant::now() + Duration::from_secs(1);
        let (reply, arrived) = tokio::sync::oneshot::channel();
        // As the task that reads replies, which gets its turn late.
        tokio::spawn(async move {
            tokio::time::sleep_until(deadline).await;
            for _ in 0..3 {
                tokio::task::yield_now().await;
            }
            reply.send(7)
        });
        assert_eq!(within(Some(deadline), arrived).await, Some(Ok(7)));
        let started = Instant::now();
        let deadline = started + Duration::from_secs(1);
        assert_eq!(within(Some(deadline), std::future::pending::<()>()).await, None);
        assert_eq!(started.elapsed().as_secs(), 1);
    }
}
