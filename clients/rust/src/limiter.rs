//! The commands as methods.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::io::ErrorKind::TimedOut;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync;
use tokio::time::Instant;

use crate::breaker::Breakers;
use crate::call::{Call, Few, unix_millis};
use crate::command::Command;
use crate::connection::{Connection, Failure, Progress, Shows, Stage, To};
use crate::decision::{Admission, Decision, Refund, State, count};
use crate::denials::Denials;
use crate::error::{
    Error, FUNCTION_NOT_FOUND, Meaning, SHORTEST_PATIENCE, WINDOW_OVER, is_forbidden, is_unknown_command, meaning,
    no_answer, says,
};
use crate::lines::Lines;
use crate::mode::{LIBRARY, Mode};
use crate::options::{Event, Options, Stats};
use crate::rates::Seconds;
use crate::rule::{Counting, Rule, Turning, Use};

/// The pause before a call is sent again whose keys are between two nodes, at first and at most.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// For how long a probe of the server may take, which no call waits for.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// For how long a reply that has arrived is looked for before a call is given up at its deadline.
const LAST_LOOK: Duration = Duration::from_millis(5);
/// For how long a call has to wait for its reply, at most, before the server is taken for one that hangs.
const LONGEST_PATIENCE: Duration = Duration::from_secs(1);
/// For how long a call is listened to that its caller has left: what it takes then is given back.
const LINGER: Duration = Duration::from_secs(60);
/// The last call of a wait has at least this part of the limiter's deadline: a tenth.
pub(crate) const LAST_CALL_SHARE: u32 = 10;
/// The longest wait for a turn.
pub(crate) const LONGEST_TURN: Duration = Duration::from_secs(3600);

/// Decides on requests, by a server or a cluster. Cheap to clone; clones share the connection and what is known of the
/// server.
///
/// Every method is one call to the server, which decides by its own clock. Keys are any bytes.
///
/// No call takes longer than the [timeout](Options::timeout). After a failure that means that the server is unavailable,
/// calls fail at once for a second; then one of them probes the server. A denial is not an error. Errors are those of
/// [`Error`].
///
/// A call whose future is dropped is not sent any more, or, if it was sent, goes on in a task that sees what becomes of it:
/// the connection is replaced if it is dead, and a lease, a reservation or a turn that nobody takes is given back. Calls are
/// made on a Tokio runtime, and there may be several.
///
/// [A first minute](crate#a-first-minute) shows how it is used.
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
    /// When the server was last asked whether it has something better, and how many connections were made until then.
    probed: Mutex<(Instant, u64)>,
    breakers: Breakers,
    denials: OnceLock<Denials>,
    stats: Mutex<Stats>,
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
        debug.field("name", &options.name).field("server", &connection.server).finish_non_exhaustive()
    }
}

impl Inner {
    /// Whether it is time to ask again, after a while or a reconnection. Says so once.
    fn is_probe_due(&self, every: Duration) -> bool {
        let (now, made) = (Instant::now(), self.connection.made());
        let mut probed = self.probed.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, made_then) = *probed;
        let due = now.duration_since(last) >= every || made != made_then;
        if due {
            *probed = (now, made);
        }
        due
    }
}

impl Limiter {
    /// A limiter on one server. Nothing is sent before the first call: a server that is unavailable keeps no program
    /// from starting.
    pub fn open(url: &str) -> Result<Self, Error> {
        // Neither the URL nor a part of it is shown: it may hold a password.
        let client = redis::Client::open(url).map_err(|error| {
            Error::Invalid(if error.to_string().contains("the feature is not enabled") {
                "the URL is one of TLS, for which the redis crate needs a feature such as tokio-rustls-comp".to_owned()
            } else {
                "the URL cannot be read; one looks like redis://user:password@host:6379/0".to_owned()
            })
        })?;
        Ok(Self::new(client))
    }

    /// A limiter on a client or a connection of the `redis` crate. See [`Connection`].
    pub fn new(connection: impl Into<Connection>) -> Self {
        Self::with_options(connection, Options::default())
    }

    /// A limiter with options.
    pub fn with_options(connection: impl Into<Connection>, options: Options) -> Self {
        let (connection, timeout) = (connection.into(), options.timeout);
        let inner = Inner {
            mode: AtomicU8::new(Mode::Auto.index()),
            probed: Mutex::new((Instant::now(), 0)),
            breakers: Breakers::new(&options.name, &connection.server),
            denials: OnceLock::new(),
            stats: Mutex::default(),
            lines: Lines::default(),
            loading: sync::Mutex::default(),
            loads: AtomicU64::new(0),
            connection,
            options,
        };
        Self { inner: Arc::new(inner), timeout, remembers: false }
    }

    /// The same limiter with another deadline for the calls of this handle.
    #[must_use]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// The deadline of this handle's calls.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The same limiter, whose calls on this handle are answered from remembered denials.
    #[cfg(feature = "tower")]
    pub(crate) fn remembering(&self, remembers: bool) -> Self {
        if remembers {
            self.inner.denials.get_or_init(Denials::new);
        }
        Self { remembers, ..self.clone() }
    }

    /// The limiter's name, for log lines.
    pub(crate) fn name(&self) -> &str {
        &self.inner.options.name
    }

    pub(crate) fn lines(&self) -> &Lines {
        &self.inner.lines
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
    pub fn stats(&self) -> Stats {
        *self.inner.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides on a request, and counts it if it fits: `RL.SLIDING`, `RL.FIXED`, `RL.THROTTLE` or `RL.ACQUIRE`, whichever
    /// the rule is.
    pub async fn hit(&self, key: impl AsRef<[u8]>, rule: impl Into<Rule>) -> Result<Decision, Error> {
        self.decide(&self.request([(key, rule.into())], None, Use::Hit)?.into(), None).await
    }

    /// As [`hit`](Self::hit), but a request that does not fit now, and will after a wait of at most `within` (up to an
    /// hour), is counted at the time at which it will fit, its *turn*: `WITHIN`. It is allowed then;
    /// [`wait`](crate::State::wait) says for how long to wait, from when the reply came, and [`at`](crate::State::at) when
    /// the turn is. Nobody overtakes, and nobody has to ask again.
    ///
    /// This is for those who schedule; [`wait`](Self::wait) sleeps, too. A turn that is not needed is given back by
    /// [`refund_at`](Self::refund_at), of a throttle only the last one. Where this future is dropped, it is given back. A
    /// rule that is forced or held has no turns.
    pub async fn turn(&self, key: impl AsRef<[u8]>, rule: impl Turning, within: Duration) -> Result<Decision, Error> {
        if within > LONGEST_TURN {
            return Err(Error::Invalid(format!("within must be from 0 to an hour, not {within:?}")));
        }
        self.take_turn(key.as_ref(), &rule.into(), within).await
    }

    pub(crate) async fn take_turn(&self, key: &[u8], rule: &Rule, within: Duration) -> Result<Decision, Error> {
        let within = within.min(LONGEST_TURN).as_millis().to_string();
        let call = self.request([(key, rule.clone())], None, Use::Turn)?.with(["WITHIN", &within]);
        let (key, rule) = (key.to_vec(), rule.clone());
        let leave = Leave::new(move |limiter, outcome| async move {
            if let Some(turn) = outcome {
                limiter.give_turn_back(&key, rule, turn.at).await;
            }
        });
        self.decide(&call.into(), Some(leave)).await
    }

    /// For a caller that has gone.
    pub(crate) async fn give_turn_back(&self, key: &[u8], rule: Rule, at: SystemTime) {
        if let Err(error) = self.refund_units(key, rule, Some(at)).await {
            tracing::warn!(limiter = self.name(), key = %key.escape_ascii(), %error, "a turn was not given back");
        }
    }

    /// What [`hit`](Self::hit) would answer, and changes nothing: `RL.PEEK`. With a cost of 0 it shows the state as it is.
    /// In a cluster whose client reads from replicas, a replica answers.
    pub async fn peek(&self, key: impl AsRef<[u8]>, rule: impl Into<Rule>) -> Result<Decision, Error> {
        let call = self.request([(key, rule.into())], Some(Command::PEEK), Use::Check)?;
        self.decide_anew(&call.into(), None).await
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
    pub async fn all<K: AsRef<[u8]>>(&self, rules: impl IntoIterator<Item = (K, Rule)>) -> Result<Decision, Error> {
        self.decide(&self.request(rules, Some(Command::ALL), Use::Check)?.into(), None).await
    }

    /// As [`all`](Self::all) for one rule, from a short reply, which costs the server a third less: for a caller that needs
    /// no headers. Nothing is remembered of a denial, and neither the hook nor the statistics are told.
    pub async fn admit(&self, key: impl AsRef<[u8]>, rule: impl Into<Rule>) -> Result<Admission, Error> {
        let call = self.request([(key, rule.into())], Some(Command::ADMIT), Use::Check)?;
        Admission::read(&self.send(&call.into(), None).await?)
    }

    /// Takes back what the same rule has counted, its cost or one unit: `RL.REFUND`. Of a sliding window, the newest
    /// units; of fixed windows, from the counters of the present windows; of a throttle, from what is owed now.
    pub async fn refund(&self, key: impl AsRef<[u8]>, rule: impl Counting) -> Result<Refund, Error> {
        self.refund_units(key.as_ref(), rule.into(), None).await
    }

    /// As [`refund`](Self::refund), of what was counted at a time: [`State::at`] of the call that counted it. A window
    /// that is over gets nothing back.
    pub async fn refund_at(&self, key: impl AsRef<[u8]>, rule: impl Counting, at: SystemTime) -> Result<Refund, Error> {
        let (ms, most) = (unix_millis(at), crate::rates::MOST_UNITS);
        if ms > most {
            return Err(Error::Invalid(format!("a refund must be at 0 to {most} ms after 1970, not {ms}")));
        }
        self.refund_units(key.as_ref(), rule.into(), Some(at)).await
    }

    async fn refund_units(&self, key: &[u8], rule: Rule, at: Option<SystemTime>) -> Result<Refund, Error> {
        let call = self.request([(key, rule)], Some(Command::REFUND), Use::Hit)?;
        let call = match at.map(unix_millis) {
            Some(at) => call.with(["AT", &at.to_string()]).at(at),
            None => call,
        };
        self.change(call, Refund::read).await
    }

    /// Gives the whole quota of a key back: `RL.RESET`, with the windows of a fixed rule, so that its counters and
    /// reservations go too. Answers how many keys were removed.
    pub async fn reset(&self, key: impl AsRef<[u8]>, rule: impl Into<Rule>) -> Result<u64, Error> {
        let call = Call::new(Command::RESET, [self.prefixed(key.as_ref())].into(), Few::new());
        let mut words: Vec<_> = match &rule.into() {
            Rule::Fixed(rule) => rule.windows().iter().map(|window| Seconds(window.millis).to_string()).collect(),
            #[cfg(feature = "calendar")]
            Rule::Calendar(rule) => vec![rule.period(call.time())],
            _ => Vec::new(),
        };
        if !words.is_empty() {
            // A hold that stayed would later give back units of requests that came after the reset.
            words.push("HOLD".to_owned());
        }
        self.change(call.with(words), count).await
    }

    /// Gives leases back before they end: `RL.RELEASE`. Answers how many of the holders had one; releasing twice is no
    /// error.
    pub async fn release<H: AsRef<[u8]>>(
        &self,
        key: impl AsRef<[u8]>,
        holders: impl IntoIterator<Item = H>,
    ) -> Result<u64, Error> {
        let holders: Vec<Vec<u8>> = holders.into_iter().map(|holder| holder.as_ref().to_vec()).collect();
        if holders.is_empty() || holders.iter().any(Vec::is_empty) {
            return Err(Error::Invalid("a release needs a holder of at least one byte".to_owned()));
        }
        let call = Call::new(Command::RELEASE, [self.prefixed(key.as_ref())].into(), Few::new());
        let released = self.change(call.with(holders), count).await;
        self.lines().freed(key.as_ref());
        released
    }

    pub(crate) fn prefixed(&self, key: &[u8]) -> Vec<u8> {
        [self.inner.options.prefix.as_slice(), key].concat()
    }

    /// A key without the prefix, as the caller knows it.
    pub(crate) fn bare<'a>(&self, key: &'a [u8]) -> &'a [u8] {
        key.get(self.inner.options.prefix.len()..).unwrap_or_default()
    }

    /// A call by this command, or by that of the one rule.
    pub(crate) fn request<K: AsRef<[u8]>>(
        &self,
        rules: impl IntoIterator<Item = (K, Rule)>,
        command: Option<Command>,
        wanted: Use,
    ) -> Result<Call, Error> {
        let prefixed = rules.into_iter().map(|(key, rule)| (self.prefixed(key.as_ref()), rule));
        Call::request(prefixed, command, wanted)
    }

    /// The decision, from memory or from the server. `leave` is for a caller that goes meanwhile.
    pub(crate) async fn decide(&self, call: &Arc<Call>, leave: Option<Leave>) -> Result<Decision, Error> {
        let (denials, started) = (self.inner.denials.get(), Instant::now());
        let observe = |outcome| self.observe_call(call, outcome, started);
        let denials = denials.filter(|_| self.remembers);
        let mut known = denials.and_then(|denials| denials.find(call, started));
        let (mut limiter, mut _place) = (self.clone(), None);
        if known.is_none()
            && let Some((denials, key)) = denials.and_then(|denials| Some((denials, denials.doubted(call)?)))
        {
            // One asks again, and the others wait for its answer.
            let deadline = started.checked_add(self.timeout);
            let place = self.lines().join(key, deadline).await;
            known = denials.find(call, started);
            // Until one of them has an answer.
            _place = denials.doubted(call).map(|_| place);
            let left = self.timeout.saturating_sub(started.elapsed());
            limiter = self.with_timeout(left.max(self.timeout / LAST_CALL_SHARE));
        }
        if let Some(outcome) = known {
            observe(Ok(outcome.state()));
            return Ok(outcome);
        }
        let outcome = limiter.decide_anew(call, leave).await;
        if outcome.as_ref().is_err_and(Error::is_unavailable)
            && let Some(known) = denials.and_then(|denials| denials.find(call, started))
        {
            // Another call has brought the answer meanwhile.
            observe(Ok(known.state()));
            return Ok(known);
        }
        observe(outcome.as_ref().map(Decision::state));
        if let (Some(denials), Ok(outcome)) = (denials, &outcome) {
            if outcome.allowed {
                denials.refute(call);
            } else {
                denials.remember(call, outcome, started);
            }
        }
        outcome
    }

    pub(crate) fn observe_call(&self, call: &Call, outcome: Result<State, &Error>, started: Instant) {
        let keys = call.keys.iter().map(|key| self.bare(key));
        self.observe(if call.command.several { "all" } else { "hit" }, keys, outcome, started);
    }

    /// Tells the statistics and the hook of a decision.
    pub(crate) fn observe<'a>(
        &self,
        call: &'static str,
        keys: impl Iterator<Item = &'a [u8]>,
        outcome: Result<State, &Error>,
        started: Instant,
    ) {
        let Inner { options, stats, .. } = &*self.inner;
        stats.lock().unwrap_or_else(PoisonError::into_inner).count(outcome);
        if let Some(hook) = &options.hook {
            let (keys, took) = (keys.collect::<Vec<_>>(), started.elapsed());
            let event = Event { limiter: &options.name, call, keys: &keys, outcome, took };
            // A request does not fail for its metrics, and what it was granted is not lost.
            if catch_unwind(AssertUnwindSafe(|| hook(&event))).is_err() {
                tracing::error!(limiter = options.name, "the hook panicked");
            }
        }
    }

    /// The decision of the server, which is not observed: also for the renewal of what is held.
    pub(crate) async fn decide_anew(&self, call: &Arc<Call>, leave: Option<Leave>) -> Result<Decision, Error> {
        Decision::read(call, &self.send(call, leave).await?)
    }

    /// A call about one key that gives something back.
    pub(crate) async fn change<T>(&self, call: Call, read: fn(&Value) -> Result<T, Error>) -> Result<T, Error> {
        let call = Arc::new(call);
        let forget = || {
            let denials = self.inner.denials.get();
            denials.into_iter().for_each(|denials| denials.forget(call.key()));
        };
        // Before and after: a denial that arrives meanwhile may be older than what is given back.
        forget();
        let answer = self.send(&call, None).await;
        forget();
        read(&answer?)
    }

    /// Makes a call, within the deadline.
    async fn send(&self, call: &Arc<Call>, leave: Option<Leave>) -> Result<Value, Error> {
        let (limiter, its) = (self.clone(), Arc::clone(call));
        let linger = if leave.is_some() { LINGER } else { Duration::ZERO };
        let making: Making = Box::pin(async move {
            let reply = limiter.run(&its).await;
            if let Some(Leave(give_back)) = leave.filter(|_| its.progress.is_abandoned()) {
                match &reply {
                    Err(error) if error.may_have_counted() => give_back(limiter, None),
                    Err(_) => {}
                    Ok(reply) => {
                        let outcome = Decision::read(&its, reply)?;
                        if outcome.allowed {
                            give_back(limiter, Some(outcome));
                        }
                    }
                }
            }
            reply
        });
        let (limiter, call, started) = (self.clone(), Arc::clone(call), Instant::now());
        UnderWay { limiter, call, started, linger, making: Some(making) }.finish().await
    }

    /// How long a call has to wait for its reply before that says something about the server, whatever the deadline of this
    /// handle is.
    fn patience(&self) -> Duration {
        self.inner.options.timeout.clamp(SHORTEST_PATIENCE, LONGEST_PATIENCE)
    }

    /// Nothing has come for as long as a call waits that says something about the server.
    fn hangs(&self, call: &Call) {
        let shows = match call.progress.stage() {
            Stage::Idle => false,
            Stage::Connecting => true,
            Stage::Sent => call.progress.give_up(),
        };
        if shows {
            let (slot, error) = (self.slot(call), no_answer(TimedOut, "the server does not answer".to_owned()));
            self.inner.breakers.failed(slot, &Error::Unavailable(error));
        }
    }

    fn slot(&self, call: &Call) -> u16 {
        self.inner.connection.slot(call.key())
    }

    /// Sends the call unless the server is known to be unavailable, and again where that is needed and can be done.
    async fn run(&self, call: &Call) -> Result<Value, Error> {
        let (Inner { breakers, connection, .. }, slot, progress) = (&*self.inner, self.slot(call), &call.progress);
        breakers.admit(slot)?;
        let deadline = Instant::now().checked_add(self.timeout);
        let mut pause = FIRST_PAUSE;
        let mut went_on = false;
        loop {
            let Failure { error, sent, shows } = match self.ask_in_mode(call).await {
                Ok(reply) => {
                    breakers.answered(slot, call.command.decides);
                    return Ok(reply);
                }
                Err(failure) => failure,
            };
            if says(&error, WINDOW_OVER) && !went_on && call.goes_on() {
                went_on = true;
                continue;
            }
            let meaning = meaning(&error, connection.is_cluster());
            // The keys are between two nodes: the client follows a limited number of redirections.
            let is_redirected = connection.is_cluster() && matches!(error.code(), Some("MOVED" | "ASK"));
            let is_moving = is_redirected || meaning == Meaning::TryAgain;
            // By an earlier one, too.
            let may_have_counted = !call.command.reads && (progress.is_repeated() || sent && meaning == Meaning::Lost);
            let undecided = if may_have_counted { Error::ReplyLost } else { Error::Unavailable };
            let error = match meaning {
                _ if is_moving => {
                    let wake = Instant::now() + pause;
                    if deadline.is_none_or(|deadline| wake < deadline) {
                        tokio::time::sleep_until(wake).await;
                        pause = (pause * 2).min(LONGEST_PAUSE);
                        continue;
                    }
                    undecided(error)
                }
                Meaning::Lost if sent && call.is_repeatable() && !progress.repeat() => continue,
                Meaning::Lost | Meaning::Unavailable | Meaning::TryAgain => undecided(error),
                Meaning::Unexpected => Error::Unexpected(error.to_string()),
                Meaning::Missing | Meaning::Permanent => Error::Refused(error),
            };
            match shows {
                Shows::NoConnection => breakers.failed(slot, &error),
                // A node that says that keys are on their way is there.
                Shows::Server if error.is_unavailable() && !is_moving => breakers.failed(slot, &error),
                Shows::Server => breakers.answered(slot, call.command.decides),
                Shows::Nothing => {}
            }
            return Err(error);
        }
    }

    /// Sends the call in the mode that is known. If that is gone, or not known yet, finds out which there is.
    async fn ask_in_mode(&self, call: &Call) -> Result<Value, Failure> {
        let chosen = self.inner.options.mode;
        if let Some(mode) = self.mode() {
            let reply = self.ask_in(mode, call).await;
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
            let reply = self.ask_in(mode, call).await;
            let forbidden = reply.as_ref().is_err_and(|failure| is_forbidden(&failure.error));
            if is_missing(&reply) || mode == Mode::Functions && forbidden {
                continue;
            }
            return self.keep(mode, call, reply);
        }
        let reply = self.ask_in(Mode::Script, call).await;
        self.keep(Mode::Script, call, reply)
    }

    /// Remembers the mode if the server answered in it: an error of its own says that it is there, too.
    fn keep(&self, mode: Mode, call: &Call, reply: Result<Value, Failure>) -> Result<Value, Failure> {
        let options = &self.inner.options;
        if self.inner.mode.load(Relaxed) != mode.index() && has_answered(&reply) {
            self.inner.mode.store(mode.index(), Relaxed);
            tracing::info!(limiter = options.name, ?mode, "the server is called in this mode");
            // Not before it is time again.
            self.inner.is_probe_due(Duration::ZERO);
            if mode == Mode::Functions {
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
        let Ok(list) = self.ask_once(list, here, &progress).await else { return };
        let libraries: Vec<HashMap<String, Value>> = redis::from_redis_value(list).unwrap_or_default();
        let code = libraries.first().and_then(|library| library.get("library_code"));
        let code = code.and_then(|code| redis::from_redis_value_ref::<String>(code).ok());
        if code.is_none_or(|code| !code.contains("redis-rl") || library_version(&code) >= library_version(LIBRARY)) {
            return;
        }
        let mut load = redis::cmd("FUNCTION");
        load.arg("LOAD").arg("REPLACE").arg(LIBRARY);
        let to = if connection.is_cluster() { To::Everyone } else { here };
        match self.ask_once(load, to, &progress).await {
            Ok(_) => tracing::info!(limiter = options.name, "an older function library was replaced"),
            Err(Failure { error, .. }) => {
                tracing::warn!(limiter = options.name, %error, "the function library is older, and was not replaced");
            }
        }
    }

    /// Asks in a task of its own, which no call waits for, whether the server has something better by now.
    fn probe_if_due(&self, key: &[u8]) {
        if self.inner.is_probe_due(self.inner.options.probe_every) {
            let (limiter, key) = (self.clone(), key.to_vec());
            tokio::spawn(async move {
                // An error is that of a server that is unavailable, which calls notice.
                let _ = tokio::time::timeout(PROBE_TIMEOUT, limiter.probe(key)).await;
            });
        }
    }

    async fn probe(&self, key: Vec<u8>) {
        let call = Call::new(Command::PEEK, [key].into(), Few::new()).with(["SLIDING", "1", "1", "COST", "0"]);
        for mode in [Mode::Module, Mode::Functions] {
            if self.mode() == Some(mode) {
                return;
            }
            let reply = self.ask_in(mode, &call).await;
            if has_answered(&reply) {
                let _ = self.keep(mode, &call, reply);
                return;
            }
        }
    }

    async fn ask_in(&self, mode: Mode, call: &Call) -> Result<Value, Failure> {
        match mode {
            Mode::Functions => self.by_functions(call).await,
            Mode::Script => self.by_script(call).await,
            Mode::Module | Mode::Auto => {
                self.ask_once(call.by_module(), call.to(call.command.reads), &call.progress).await
            }
        }
    }

    async fn ask_once(&self, cmd: Cmd, to: To<'_>, progress: &Progress) -> Result<Value, Failure> {
        self.inner.connection.send(cmd, to, progress).await
    }

    /// Calls the function, and loads the library where it is missing. It is loaded where the key is, as a cluster does
    /// not bring it to nodes that join; while the key moves, that can be the wrong node, and then into all of them.
    async fn by_functions(&self, call: &Call) -> Result<Value, Failure> {
        let Inner { connection, options, .. } = &*self.inner;
        let mut loads = self.inner.loads.load(Relaxed);
        let ask = || self.ask_once(call.by_function(), call.to(call.command.reads), &call.progress);
        let mut reply = ask().await;
        for to in [call.to(false), To::Everyone] {
            let missing = reply.as_ref().is_err_and(|failure| says(&failure.error, FUNCTION_NOT_FOUND));
            if !missing || matches!(to, To::Everyone) && !connection.is_cluster() {
                break;
            }
            {
                // One of all calls that miss it loads it.
                let _turn = self.inner.loading.lock().await;
                if self.inner.loads.load(Relaxed) == loads {
                    let mut load = redis::cmd("FUNCTION");
                    load.arg("LOAD").arg(LIBRARY);
                    // Refused where another client was faster, or where it may not be loaded. The call itself says which.
                    if let Err(Failure { error, .. }) = self.ask_once(load, to, &call.progress).await {
                        tracing::debug!(limiter = options.name, %error, "the function library was not loaded");
                    }
                    self.inner.loads.fetch_add(1, Relaxed);
                }
                loads = self.inner.loads.load(Relaxed);
            }
            reply = ask().await;
        }
        reply
    }

    /// Calls the script by its digest, and sends it whole where the server does not have it.
    async fn by_script(&self, call: &Call) -> Result<Value, Failure> {
        let ask = |whole, reads| self.ask_once(call.by_script(whole, reads), call.to(reads), &call.progress);
        let mut reads = call.command.reads;
        let mut reply = ask(false, reads).await;
        // Redis 6.2 has no command for scripts that only read.
        if reads && reply.as_ref().is_err_and(|failure| is_unknown_command(&failure.error)) {
            reads = false;
            reply = ask(false, reads).await;
        }
        if is_missing(&reply) { ask(true, reads).await } else { reply }
    }
}

/// What happens where the caller goes while its call is under way, and it is allowed, or nobody knows, as the reply was lost.
pub(crate) struct Leave(Box<dyn FnOnce(Limiter, Option<Decision>) + Send>);

impl Leave {
    pub fn new<F: Future<Output = ()> + Send + 'static>(
        give_back: impl FnOnce(Limiter, Option<Decision>) -> F + Send + 'static,
    ) -> Self {
        Self(Box::new(move |limiter, outcome| drop(tokio::spawn(give_back(limiter, outcome)))))
    }
}

/// A call under way, whose future may be dropped at any time: by the limiter at its deadline, or by its caller.
///
/// It then goes on in a task, for as long as it takes to know whether the server answers. So the connection that a dropped
/// call has used is judged as that of any other, and what it has taken can be given back. What was not sent by then is not
/// sent any more.
struct UnderWay {
    limiter: Limiter,
    call: Arc<Call>,
    started: Instant,
    /// For how much longer than a server may take that does not hang it matters what comes of it.
    linger: Duration,
    /// None once it has ended.
    making: Option<Making>,
}

type Making = Pin<Box<dyn Future<Output = Result<Value, Error>> + Send>>;

impl UnderWay {
    /// When no reply says something about the server.
    fn until(&self) -> Instant {
        self.started + self.limiter.patience()
    }

    /// What the call comes to, within the deadline.
    async fn finish(mut self) -> Result<Value, Error> {
        let (timeout, progress) = (self.limiter.timeout, &self.call.progress);
        let deadline = self.started.checked_add(timeout);
        if let Some(making) = &mut self.making
            && let Some(result) = within(deadline, making.as_mut()).await
        {
            self.making = None;
            return result;
        }
        let error = no_answer(TimedOut, format!("no reply within {timeout:?}"));
        // Not sent until now is not sent at all: what goes on knows that nobody waits.
        let is_sent = progress.stage() == Stage::Sent || progress.is_repeated();
        // What has come by now would have been read, so the next call knows at once that the server hangs.
        if self.until() <= Instant::now() && self.linger.is_zero() {
            self.making = None;
            progress.abandon();
            self.limiter.hangs(&self.call);
        }
        Err(if is_sent && !self.call.command.reads { Error::ReplyLost(error) } else { Error::Unavailable(error) })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let Some(mut making) = self.making.take() else { return };
        self.call.progress.abandon();
        let (limiter, call, linger, until) = (self.limiter.clone(), Arc::clone(&self.call), self.linger, self.until());
        let Ok(runtime) = Handle::try_current() else { return };
        runtime.spawn(async move {
            if within(Some(until), making.as_mut()).await.is_none() {
                limiter.hangs(&call);
                let _ = tokio::time::timeout(linger, making).await;
            }
        });
    }
}

/// Whether the reply says that the server does not have what the mode needs, and so that nothing was done.
fn is_missing(reply: &Result<Value, Failure>) -> bool {
    reply.as_ref().is_err_and(|failure| meaning(&failure.error, false) == Meaning::Missing)
}

/// Whether the reply says that the server has what the mode needs, for this user.
fn has_answered(reply: &Result<Value, Failure>) -> bool {
    match reply {
        Ok(_) => true,
        Err(Failure { error, .. }) => {
            !is_forbidden(error) && matches!(meaning(error, false), Meaning::TryAgain | Meaning::Permanent)
        }
    }
}

/// The version that a library says it has; 0 for one from before there were versions.
fn library_version(code: &str) -> u64 {
    let version = code.lines().find_map(|line| line.strip_prefix("-- Version "));
    version.and_then(|version| version.trim().parse().ok()).unwrap_or(0)
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
    tokio::time::timeout(late + LAST_LOOK, future).await.ok()
}

#[cfg(test)]
#[path = "../tests/unit/limiter.rs"]
mod tests;
