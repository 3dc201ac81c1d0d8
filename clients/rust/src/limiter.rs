//! The commands as methods.

use std::fmt;
use std::future::Future;
use std::io::ErrorKind::TimedOut;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use redis::Cmd;
use tokio::runtime::Handle;
use tokio::sync;
use tokio::time::Instant;

use crate::breaker::Breakers;
use crate::calendar::Clock;
use crate::call::Call;
use crate::connection::{Connection, Failure, Progress, Shows, Stage, To};
use crate::decision::{Admission, AllDecision, Decision, Refund, Settled, State, count, unix_millis};
use crate::denials::{Asked, Denials, Denied};
use crate::error::{
    Error, InvalidArgument, Meaning, SHORTEST_PATIENCE, is_forbidden, is_function_not_found, is_moving,
    is_unknown_command, is_window_over, meaning, no_answer,
};
use crate::mode::{LIBRARY, Mode};
use crate::options::{Event, Options, Stats};
use crate::rule::{Counting, Rule, Use, seconds};
use crate::waits::{Lines, Wait};
use crate::wire::{Item, Reply};

/// The pause before a call is sent again whose keys are between two nodes, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// For how long a probe of the server may take, which no call waits for.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// For how long a reply that has arrived is looked for before a call is given up at its deadline.
const TURNS: Duration = Duration::from_millis(5);
/// For how long a call has to wait for its reply, at most, before the server is taken for one that hangs.
const LONGEST_PATIENCE: Duration = Duration::from_secs(1);
/// How long calls fail at once after a failure, at least and at most: for as long as one of them may take.
const SHORTEST_OUTAGE_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_OUTAGE_PAUSE: Duration = Duration::from_secs(1);
/// How many denied keys are remembered where a layer has it so, and the options do not say how many.
#[cfg(feature = "tower")]
const DENY_CACHE: usize = 10_000;

/// Decides on requests, by a server or a cluster. Cheap to clone; clones share the connection and what is known of the
/// server.
///
/// Every method is one call to the server, which decides by its own clock. Keys are any bytes.
///
/// No call takes longer than the [timeout](Options::timeout). After a failure that means that the server is unavailable,
/// calls fail at once for as long as a call may take (50 ms to a second); then one of them probes the server. A denial is
/// not an error. Errors are those of [`Error`].
///
/// A call whose future is dropped is not sent any more, or, if it was sent, goes on in a task that sees what becomes of it:
/// the connection is replaced if it is dead, and a lease or a reservation that nobody takes is given back. Calls are made on
/// a Tokio runtime, and there may be several.
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
    /// Callers that wait for a place.
    lines: Lines,
    /// Loads the function library for all calls that miss it.
    loading: sync::Mutex<()>,
    /// How often it was loaded.
    loads: AtomicU64,
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
    /// [`Error::Invalid`] if the URL cannot be read.
    pub fn open(url: &str) -> Result<Self, Error> {
        let client = redis::Client::open(url);
        let client = client.map_err(|error| {
            InvalidArgument(format!("a URL looks like redis://user:password@host:6379/0, not {url:?}: {error}"))
        })?;
        Ok(Self::new(client))
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
            breakers: Breakers::new(connection.is_cluster(), &options.name, connection.server()),
            denials,
            stats: Stats::default(),
            lines: Lines::default(),
            loading: sync::Mutex::default(),
            loads: AtomicU64::new(0),
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

    pub(crate) async fn begin_wait<'a>(&'a self, key: &'a [u8], rule: &Rule, timeout: Duration) -> Wait<'a> {
        Wait::begin(&self.inner.lines, key, rule, timeout).await
    }

    /// The same limiter for the next call of a wait.
    pub(crate) fn during(&self, wait: &Wait<'_>) -> Self {
        self.timeout(wait.left().map_or(self.timeout, |left| left.min(self.timeout)))
    }

    /// The same limiter, whose calls on this handle are answered from remembered denials.
    #[cfg(feature = "tower")]
    pub(crate) fn remembering(&self, remembers: bool) -> Self {
        if remembers {
            self.inner.denials.get_or_init(|| Denials::new(DENY_CACHE));
        }
        Self { remembers, ..self.clone() }
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.timeout
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

    /// Whether calls are sent, as far as is known: false from a failure that means that the server is unavailable until it
    /// answers again. Of a cluster, one node is enough.
    pub fn is_available(&self) -> bool {
        self.inner.breakers.are_closed()
    }

    /// How many connections this limiter has made, for a cluster of all nodes together; 0 if it was given one.
    pub fn connections(&self) -> u64 {
        self.inner.connection.made()
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
        self.hit_or(self.one(key.as_ref(), rule.into())?, Arc::new(Clock::now()), Duration::ZERO, None).await
    }

    /// One key, with its rule.
    pub(crate) fn one(&self, key: &[u8], rule: Rule) -> Result<Together, InvalidArgument> {
        rule.check(Use::Hit)?;
        Ok(Arc::new(vec![(self.prefixed(key), rule)]))
    }

    /// As [`hit`](Self::hit), of one key. Where the caller goes while the call is under way, `give_back` is called if it was
    /// allowed, also if the reply comes `linger` later than a server may take that does not hang.
    pub(crate) async fn hit_or(
        &self,
        asked: Together,
        clock: Arc<Clock>,
        linger: Duration,
        give_back: Option<GiveBack>,
    ) -> Result<Decision, Error> {
        let started = Instant::now();
        if let Some(Denied::One(decision)) = self.remembered(&asked) {
            self.observe("hit", &asked, Ok(decision.state()), started, true);
            return Ok(decision);
        }
        let decision = self.decide_one(Arc::clone(&asked), clock, linger, give_back).finish().await;
        self.observe("hit", &asked, decision.as_ref().map(Decision::state), started, false);
        if let Ok(decision) = &decision {
            self.learn(&asked, decision.allowed, || Denied::One(decision.clone()), started);
        }
        decision
    }

    fn decide_one(
        &self,
        asked: Together,
        clock: Arc<Clock>,
        linger: Duration,
        give_back: Option<GiveBack>,
    ) -> UnderWay<Decision> {
        self.begin(self.slot_of(&asked), false, linger, move |limiter, progress| async move {
            let Some((key, rule)) = asked.first() else { return Err(Error::Unexpected("no key".to_owned())) };
            let words = |cmd: &mut Cmd| {
                rule.write(cmd, &clock);
                cmd.arg(form(rule));
            };
            let call = Call {
                command: rule.command(),
                counted: false,
                reads: false,
                decides: true,
                // A holder that asks again renews its lease, or what it has reserved.
                repeatable: matches!(rule, Rule::Lease(_)) || rule.is_reserved(),
                clock: Some(&clock),
                keys: &[key],
                words: &words,
            };
            let decision = Decision::read(rule.clone(), &limiter.run(&call, &progress).await?)?;
            limiter.give_back_if_left(decision.allowed, &progress, give_back).await;
            Ok(decision)
        })
    }

    /// The same call once more, by the holder of a reservation. Answers whether it is held.
    pub(crate) async fn renew_one(&self, asked: Together, clock: Arc<Clock>) -> Result<bool, Error> {
        Ok(self.decide_one(asked, clock, Duration::ZERO, None).finish().await?.allowed)
    }

    /// As `renew_one`, of several keys.
    pub(crate) async fn renew_all(&self, asked: Together, clock: Arc<Clock>) -> Result<bool, Error> {
        Ok(self.decide_all(asked, clock, Duration::ZERO, None).finish().await?.allowed)
    }

    /// Settles what a holder has reserved at a key, in the period of the calendar at that time.
    pub(crate) async fn settle_at(
        &self,
        (key, rule): (Vec<u8>, Rule),
        clock: Arc<Clock>,
        actual: u64,
    ) -> Result<Settled, Error> {
        let words = move |cmd: &mut Cmd| {
            cmd.arg(rule.word());
            rule.write(cmd, &clock);
            cmd.arg("ACTUAL").arg(actual);
        };
        Settled::read(&self.change(("RL.SETTLE", "rl_settle", "settle"), true, key, words).await?)
    }

    async fn give_back_if_left(&self, allowed: bool, progress: &Progress, give_back: Option<GiveBack>) {
        if allowed
            && progress.is_abandoned()
            && let Some(give_back) = give_back
        {
            give_back(self.clone()).await;
        }
    }

    /// Remembers a denial, or forgets those of keys that have let a call in.
    fn learn(&self, asked: Asked<'_>, allowed: bool, denied: impl FnOnce() -> Denied, started: Instant) {
        let Some(denials) = self.denials() else { return };
        if allowed {
            asked.iter().for_each(|(key, _)| denials.forget(key));
        } else {
            denials.remember(asked, denied(), started);
        }
    }

    /// What [`hit`](Self::hit) would answer, and changes nothing: `RL.PEEK`. With a cost of 0 it shows the state as it is.
    /// In a cluster whose client reads from replicas, a replica answers.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn peek(&self, key: impl AsRef<[u8]>, rule: impl Into<Rule>) -> Result<Decision, Error> {
        let rule = rule.into();
        rule.check(Use::Check)?;
        let key = self.prefixed(key.as_ref());
        let slot = self.inner.connection.slot(&key);
        let peek = self.begin(slot, true, Duration::ZERO, move |limiter, progress| async move {
            let clock = Clock::now();
            let words = |cmd: &mut Cmd| {
                cmd.arg(rule.word());
                rule.write(cmd, &clock);
                cmd.arg(form(&rule));
            };
            let call = Call { clock: Some(&clock), keys: &[&key], words: &words, ..PEEK };
            let reply = limiter.run(&call, &progress).await?;
            Decision::read(rule, &reply)
        });
        peek.finish().await
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
        let asked = self.several(rules, Use::Check)?;
        self.all_or(asked, Arc::new(Clock::now()), Duration::ZERO, None).await
    }

    /// Several keys, with their rules.
    pub(crate) fn several<K: AsRef<[u8]>>(
        &self,
        rules: impl IntoIterator<Item = (K, Rule)>,
        wanted: Use,
    ) -> Result<Together, InvalidArgument> {
        let asked: Vec<_> = rules.into_iter().map(|(key, rule)| (self.prefixed(key.as_ref()), rule)).collect();
        if !(1..=64).contains(&asked.len()) {
            return Err(InvalidArgument(format!("a call takes 1 to 64 keys, not {}", asked.len())));
        }
        asked.iter().try_for_each(|(_, rule)| rule.check(wanted))?;
        Ok(Arc::new(asked))
    }

    /// As [`all`](Self::all); `give_back` as in `hit_or`.
    pub(crate) async fn all_or(
        &self,
        asked: Together,
        clock: Arc<Clock>,
        linger: Duration,
        give_back: Option<GiveBack>,
    ) -> Result<AllDecision, Error> {
        let started = Instant::now();
        if let Some(Denied::All(decision)) = self.remembered(&asked) {
            self.observe("all", &asked, Ok(decision.state()), started, true);
            return Ok(decision);
        }
        let decision = self.decide_all(Arc::clone(&asked), clock, linger, give_back).finish().await;
        self.observe("all", &asked, decision.as_ref().map(AllDecision::state), started, false);
        if let Ok(decision) = &decision {
            self.learn(&asked, decision.allowed, || Denied::All(decision.clone()), started);
        }
        decision
    }

    fn decide_all(
        &self,
        asked: Together,
        clock: Arc<Clock>,
        linger: Duration,
        give_back: Option<GiveBack>,
    ) -> UnderWay<AllDecision> {
        self.begin(self.slot_of(&asked), false, linger, move |limiter, progress| async move {
            let words = |cmd: &mut Cmd| {
                for (_, rule) in &*asked {
                    cmd.arg(rule.word());
                    rule.write(cmd, &clock);
                }
                cmd.arg("FULL");
            };
            let keys: Vec<&[u8]> = asked.iter().map(|(key, _)| key.as_slice()).collect();
            let repeatable = asked.iter().any(|(_, rule)| rule.is_reserved());
            let call = Call { repeatable, clock: Some(&clock), keys: &keys, words: &words, ..ALL };
            let reply = limiter.run(&call, &progress).await?;
            let decision = AllDecision::read(asked.iter().map(|(_, rule)| rule.clone()), &reply)?;
            limiter.give_back_if_left(decision.allowed, &progress, give_back).await;
            Ok(decision)
        })
    }

    /// As [`all`](Self::all) for one rule, from a short reply, which costs the server a third less: for a caller that needs
    /// no headers. Nothing is remembered of a denial, and neither the hook nor the statistics are told.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn admit(&self, key: impl AsRef<[u8]>, rule: impl Into<Rule>) -> Result<Admission, Error> {
        let rule = rule.into();
        rule.check(Use::Check)?;
        let key = self.prefixed(key.as_ref());
        let slot = self.inner.connection.slot(&key);
        let admission = self.begin(slot, false, Duration::ZERO, move |limiter, progress| async move {
            let clock = Clock::now();
            let words = |cmd: &mut Cmd| {
                cmd.arg(rule.word());
                rule.write(cmd, &clock);
            };
            let call = Call { clock: Some(&clock), keys: &[&key], words: &words, ..ALL };
            Admission::read(&limiter.run(&call, &progress).await?)
        });
        admission.finish().await
    }

    /// Hits until the request is allowed, and sleeps for the exact wait between. Answers with the last denial at once
    /// where the wait is longer than what is left of `timeout`, or has no end. A place of a lease can be given back before
    /// the lease ends, so it is asked for with growing pauses until `timeout`, by one of all callers of this limiter that
    /// wait for it.
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
        let mut wait = self.begin_wait(key, &rule, timeout).await;
        loop {
            let decision = self.during(&wait).hit(key, &rule).await?;
            if decision.allowed || !wait.again(decision.retry_after).await {
                return Ok(decision);
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
        let clock = at.map_or_else(Clock::now, Clock::at);
        let words = move |cmd: &mut Cmd| {
            cmd.arg(rule.word());
            rule.write(cmd, &clock);
            if let Some(at) = at {
                cmd.arg("AT").arg(at);
            }
        };
        Refund::read(&self.change(("RL.REFUND", "rl_refund", "refund"), false, self.prefixed(key), words).await?)
    }

    /// Gives the whole quota of a key back: `RL.RESET`, with the windows of a fixed rule, so that its counters and
    /// reservations go too. Answers how many keys were removed.
    ///
    /// # Errors
    /// As [`Error`] says.
    pub async fn reset(&self, key: impl AsRef<[u8]>, rule: impl Into<Rule>) -> Result<u64, Error> {
        let rule = rule.into();
        let words = move |cmd: &mut Cmd| {
            match &rule {
                Rule::Fixed(rule) => {
                    for window in rule.windows() {
                        cmd.arg(seconds(window.millis));
                    }
                }
                Rule::Calendar(rule) => {
                    cmd.arg(format!("@{}", Clock::now().end(&rule.periods)));
                }
                _ => return,
            }
            // A hold that stayed would later give back units of requests that came after the reset.
            cmd.arg("HOLD");
        };
        count(&self.change(("RL.RESET", "rl_reset", "reset"), true, self.prefixed(key.as_ref()), words).await?)
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
            return Err(InvalidArgument("a release needs a holder of at least one byte".to_owned()).into());
        }
        let words = move |cmd: &mut Cmd| {
            cmd.arg(&holders);
        };
        count(&self.change(("RL.RELEASE", "rl_release", "release"), true, self.prefixed(key.as_ref()), words).await?)
    }

    fn prefixed(&self, key: &[u8]) -> Vec<u8> {
        [self.inner.options.prefix.as_slice(), key].concat()
    }

    /// The slot of the first key, where the call goes.
    fn slot_of(&self, asked: Asked<'_>) -> u16 {
        asked.first().map_or(0, |(key, _)| self.inner.connection.slot(key))
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
        outcome: Result<State, &Error>,
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
        key: Vec<u8>,
        words: impl Fn(&mut Cmd) + Send + Sync + 'static,
    ) -> Result<Reply, Error> {
        let key: Arc<[u8]> = key.into();
        let forget = |key: &[u8]| {
            if let Some(denials) = self.inner.denials.get() {
                denials.forget(key);
            }
        };
        // Before and after: a denial that arrives meanwhile may be older than what is given back.
        forget(&key);
        let (this, slot) = (Arc::clone(&key), self.inner.connection.slot(&key));
        let reply = self.begin(slot, false, Duration::ZERO, move |limiter, progress| async move {
            let (counted, reads, decides) = (false, false, false);
            let clock = None;
            let call = Call { command, counted, reads, decides, repeatable, clock, keys: &[&this], words: &words };
            limiter.run(&call, &progress).await
        });
        let reply = reply.finish().await;
        forget(&key);
        reply
    }

    /// How long a call has to wait for its reply before that says something about the server, whatever the deadline of this
    /// handle is.
    fn patience(&self) -> Duration {
        self.inner.options.timeout.clamp(SHORTEST_PATIENCE, LONGEST_PATIENCE)
    }

    /// How long calls fail at once after a failure.
    fn pause(&self) -> Duration {
        self.timeout.clamp(SHORTEST_OUTAGE_PAUSE, LONGEST_OUTAGE_PAUSE)
    }

    /// Prepares a call. Nothing happens before it is awaited.
    fn begin<T: Send + 'static, F>(
        &self,
        slot: u16,
        reads: bool,
        linger: Duration,
        call: impl FnOnce(Self, Arc<Progress>) -> F,
    ) -> UnderWay<T>
    where
        F: Future<Output = Result<T, Error>> + Send + 'static,
    {
        let (started, progress) = (Instant::now(), Arc::new(Progress::default()));
        let call: Calling<T> = Box::pin(call(self.clone(), Arc::clone(&progress)));
        UnderWay { limiter: self.clone(), slot, reads, progress, started, linger, call: Some(call) }
    }

    /// Nothing has come for as long as a call waits that says something about the server.
    fn hangs(&self, slot: u16, progress: &Progress) {
        let shows = match progress.stage() {
            Stage::Idle => false,
            Stage::Connecting => true,
            Stage::Sent => progress.give_up(),
        };
        if shows {
            let error = no_answer(TimedOut, "the server does not answer".to_owned());
            self.inner.breakers.failed(slot, self.pause(), &Error::Unavailable(error));
        }
    }

    /// Sends the call unless the server is known to be unavailable, and again where that is needed and can be done.
    async fn run(&self, call: &Call<'_>, progress: &Progress) -> Result<Reply, Error> {
        let Inner { breakers, connection, .. } = &*self.inner;
        let slot = connection.slot(call.key());
        breakers.admit(slot, self.pause())?;
        let deadline = Instant::now().checked_add(self.timeout);
        let mut pause = FIRST_PAUSE;
        let (mut repeated, mut went_on) = (false, false);
        loop {
            let Failure { error, sent, shows } = match self.ask(call, progress).await {
                Ok(reply) => {
                    breakers.answered(slot, call.decides);
                    return Ok(reply);
                }
                Err(failure) => failure,
            };
            if is_window_over(&error) && !went_on && call.clock.is_some_and(Clock::go_on) {
                went_on = true;
                continue;
            }
            let is_moving = is_moving(&error, connection.is_cluster());
            let error = match meaning(&error, connection.is_cluster()) {
                _ if is_moving => {
                    let wake = Instant::now() + pause;
                    if deadline.is_none_or(|deadline| wake < deadline) {
                        tokio::time::sleep_until(wake).await;
                        pause = (pause * 2).min(LONGEST_PAUSE);
                        continue;
                    }
                    Error::Unavailable(error)
                }
                Meaning::Lost if sent && call.repeatable && !repeated => {
                    repeated = true;
                    continue;
                }
                Meaning::Lost if sent && !call.reads => Error::ReplyLost(error),
                Meaning::Lost | Meaning::Unavailable | Meaning::TryAgain => Error::Unavailable(error),
                Meaning::Unexpected => Error::Unexpected(error.to_string()),
                Meaning::Missing | Meaning::Permanent => Error::Refused(error),
            };
            match shows {
                Shows::NoConnection => breakers.failed(slot, self.pause(), &error),
                // A node that says that keys are on their way is there.
                Shows::Server if error.is_unavailable() && !is_moving => {
                    breakers.failed(slot, self.pause(), &error);
                }
                Shows::Server => breakers.answered(slot, call.decides),
                Shows::Nothing => {}
            }
            return Err(error);
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
        let mut loads = self.inner.loads.load(Relaxed);
        let mut reply = self.send(call.cmd(Mode::Functions, call.reads), call.to(), progress).await;
        for to in [call.to_primary(), To::Everyone] {
            let missing = reply.as_ref().is_err_and(|failure| is_function_not_found(&failure.error));
            if !missing || !options.load_functions || matches!(to, To::Everyone) && !connection.is_cluster() {
                break;
            }
            {
                // One of all calls that miss it loads it.
                let _turn = self.inner.loading.lock().await;
                if self.inner.loads.load(Relaxed) == loads {
                    let mut load = redis::cmd("FUNCTION");
                    load.arg("LOAD").arg(LIBRARY);
                    // Refused where another client was faster, or where it may not be loaded. The call itself says which.
                    if let Err(Failure { error, .. }) = self.send(load, to, progress).await {
                        tracing::debug!(limiter = options.name, %error, "the function library was not loaded");
                    }
                    self.inner.loads.fetch_add(1, Relaxed);
                }
                loads = self.inner.loads.load(Relaxed);
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

/// The keys of a call with their rules, for the call and for those who go on with it.
pub(crate) type Together = Arc<Vec<(Vec<u8>, Rule)>>;

/// Gives back what a call has taken whose caller has gone.
pub(crate) type GiveBack = Box<dyn FnOnce(Limiter) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send>;

/// A call under way, whose future may be dropped at any time: by the limiter at its deadline, or by its caller.
///
/// It then goes on in a task, for as long as it takes to know whether the server answers. So the connection that a dropped
/// call has used is judged as that of any other, and what it has taken can be given back. What was not sent by then is not
/// sent any more.
struct UnderWay<T: Send + 'static> {
    limiter: Limiter,
    slot: u16,
    reads: bool,
    progress: Arc<Progress>,
    started: Instant,
    /// For how much longer it matters what comes of it.
    linger: Duration,
    /// None once it has ended.
    call: Option<Calling<T>>,
}

type Calling<T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send>>;

impl<T: Send + 'static> UnderWay<T> {
    /// When no reply says something about the server.
    fn until(&self) -> Instant {
        self.started + self.limiter.patience()
    }

    /// What the call comes to, within the deadline.
    async fn finish(mut self) -> Result<T, Error> {
        let timeout = self.limiter.timeout;
        let deadline = self.started.checked_add(timeout);
        if let Some(call) = &mut self.call
            && let Some(result) = within(deadline, call.as_mut()).await
        {
            self.call = None;
            return result;
        }
        let error = no_answer(TimedOut, format!("no reply within {timeout:?}"));
        // Not sent until now is not sent at all: what goes on knows that nobody waits.
        let is_sent = self.progress.stage() == Stage::Sent;
        // What has come by now would have been read, so the next call knows at once that the server hangs.
        if self.until() <= Instant::now() && self.linger.is_zero() {
            self.call = None;
            self.progress.abandon();
            self.limiter.hangs(self.slot, &self.progress);
        }
        Err(if is_sent && !self.reads { Error::ReplyLost(error) } else { Error::Unavailable(error) })
    }
}

impl<T: Send + 'static> Drop for UnderWay<T> {
    fn drop(&mut self) {
        let Some(mut call) = self.call.take() else { return };
        self.progress.abandon();
        let (limiter, slot, linger, until) = (self.limiter.clone(), self.slot, self.linger, self.until());
        let (Ok(runtime), progress) = (Handle::try_current(), Arc::clone(&self.progress)) else { return };
        runtime.spawn(async move {
            if within(Some(until), call.as_mut()).await.is_none() {
                limiter.hangs(slot, &progress);
                let _ = tokio::time::timeout(linger, call).await;
            }
        });
    }
}

/// What all calls of RL.ALL have in common.
const ALL: Call<'static> = Call {
    command: ("RL.ALL", "rl_all", "all"),
    counted: true,
    reads: false,
    decides: true,
    repeatable: false,
    clock: None,
    keys: &[],
    words: &|_| {},
};

/// What all calls of RL.PEEK have in common.
const PEEK: Call<'static> = Call {
    command: ("RL.PEEK", "rl_peek", "peek"),
    counted: false,
    reads: true,
    decides: false,
    repeatable: true,
    clock: None,
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
/// for the task that reads it, or the connection may not have been made: the time by which this process was late does not
/// count, up to a second.
async fn within<F: Future>(deadline: Option<Instant>, future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    let Some(deadline) = deadline else { return Some(future.await) };
    if let Ok(output) = tokio::time::timeout_at(deadline, future.as_mut()).await {
        return Some(output);
    }
    let late = deadline.elapsed().min(LONGEST_PATIENCE);
    tokio::time::timeout(late + TURNS, future).await.ok()
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
