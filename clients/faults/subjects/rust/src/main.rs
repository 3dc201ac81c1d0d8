//! The subject of the package for Rust. Without an argument it makes calls on tokio; with `axum` it serves an application
//! with the layer. The protocol is in ../../../README.md.

mod app;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt::{Debug, Write as _};
use std::io::Write as _;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::{Duration, Instant, SystemTime};

use redis_rl_client::redis::cluster::ClusterClient;
use redis_rl_client::redis::sentinel::{SentinelClient, SentinelServerType};
use redis_rl_client::redis::{Client, RedisResult};
use redis_rl_client::{Connection, Decision, Error, Limiter, Mode, Options, Reservation, Rule};
use serde_json::{Map, Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::AbortHandle;

const CAN: &str = "hit peek all wait refund reset acquire release hold reserve lease-of-reserve settle crowd flood burn \
                   cancel within cluster sentinel modes turn each hook event-loop threads loops";

type Reply = Map<String, Value>;
type Reserved = Arc<tokio::sync::Mutex<Reservation>>;

static LIMITERS: LazyLock<Mutex<HashMap<String, Limiter>>> = LazyLock::new(Mutex::default);
static CLIENTS: LazyLock<Mutex<HashMap<String, Connection>>> = LazyLock::new(Mutex::default);
static RESERVATIONS: LazyLock<Mutex<HashMap<String, Reserved>>> = LazyLock::new(Mutex::default);
static UNDER_WAY: LazyLock<Mutex<HashMap<u64, AbortHandle>>> = LazyLock::new(Mutex::default);
/// When the timer went off last, and by how much too late it was.
static LAGS: LazyLock<Mutex<VecDeque<(Instant, Duration)>>> = LazyLock::new(Mutex::default);

fn tell(line: &Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

/// What ends a command in place of a decision.
enum Failure {
    Of(Error),
    Argument(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Of(error)
    }
}

fn reply(fields: Value) -> Reply {
    match fields {
        Value::Object(fields) => fields,
        _ => Reply::new(),
    }
}

fn done() -> Reply {
    reply(json!({"outcome": "done"}))
}

fn text<'a>(c: &'a Value, name: &str) -> &'a str {
    c[name].as_str().unwrap_or_default()
}

fn seconds(value: &Value) -> Duration {
    Duration::from_secs_f64(value.as_f64().unwrap_or_default())
}

pub(crate) fn rule_of(c: &Value) -> Result<Rule, Failure> {
    let described = &c["rule"];
    let number = |name: &str| c[name].as_u64().or(described[name].as_u64());
    let is = |name: &str| c[name].as_bool().or(described[name].as_bool()).unwrap_or(false);
    let rates: Vec<_> = described["rates"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    Ok(match text(described, "kind") {
        "sliding" => {
            let mut rule = Rule::sliding(rates)?;
            if let Some(cost) = number("cost") {
                rule = rule.cost(cost);
            }
            if is("force") { rule.force().into() } else { rule.into() }
        }
        "fixed" => {
            let mut rule = Rule::fixed(rates)?;
            if let Some(cost) = number("cost") {
                rule = rule.cost(cost);
            }
            if is("anchored") {
                rule = rule.anchored();
            }
            if is("force") { rule.force().into() } else { rule.into() }
        }
        "throttle" => {
            let mut rule = Rule::throttle(text(described, "rate"))?;
            if let Some(burst) = number("burst") {
                rule = rule.burst(burst);
            }
            if let Some(cost) = number("cost") {
                rule = rule.cost(cost);
            }
            rule.into()
        }
        _ => {
            let mut rule = Rule::lease(number("limit").unwrap_or_default(), seconds(&described["ttl"]))?;
            if let Some(holder) = c["holder"].as_str() {
                rule = rule.holder(holder);
            }
            rule.into()
        }
    })
}

pub(crate) fn connection_of(connect: &Value) -> RedisResult<Connection> {
    let list = |name: &str| {
        let nodes = connect[name].as_array().into_iter().flatten().filter_map(Value::as_str);
        nodes.map(|node| format!("redis://{node}")).collect::<Vec<_>>()
    };
    if connect["cluster"].is_array() {
        return Ok(ClusterClient::new(list("cluster"))?.into());
    }
    if connect["sentinel"].is_array() {
        let service = text(connect, "service").to_owned();
        return Ok(SentinelClient::build(list("sentinel"), service, None, SentinelServerType::Master)?.into());
    }
    Ok(Client::open(text(connect, "url"))?.into())
}

fn make(c: &Value) -> Result<Reply, Failure> {
    let mut clients = CLIENTS.lock().unwrap();
    let connection = match clients.get(text(c, "client")) {
        Some(connection) => connection.clone(),
        None => connection_of(&c["connect"]).map_err(|error| Failure::Argument(error.to_string()))?,
    };
    clients.insert(text(c, "client").to_owned(), connection.clone());
    let mut options = Options::default().name(text(c, "name"));
    if c["timeout"].is_number() {
        options = options.timeout(seconds(&c["timeout"]));
    }
    if let Some(prefix) = c["prefix"].as_str() {
        options = options.prefix(prefix);
    }
    if c["hook"] == json!(true) {
        options = options.hook(|event| {
            for key in event.keys {
                tell(&json!({"hook": {"call": event.call, "key": String::from_utf8_lossy(key)}}));
            }
        });
    }
    options = options.mode(match text(c, "mode") {
        "module" => Mode::Module,
        "functions" => Mode::Functions,
        "script" => Mode::Script,
        _ => Mode::Auto,
    });
    LIMITERS.lock().unwrap().insert(text(c, "name").to_owned(), Limiter::with_options(connection, options));
    Ok(done())
}

fn millis(wait: Option<Duration>) -> i64 {
    wait.map_or(-1, |wait| i64::try_from(wait.as_millis()).unwrap_or(i64::MAX))
}

fn word(allowed: bool) -> &'static str {
    if allowed { "allowed" } else { "denied" }
}

fn decided(decision: &Decision) -> Reply {
    let at = decision.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    reply(json!({
        "outcome": word(decision.allowed), "limit": decision.limit, "used": decision.used,
        "remaining": decision.remaining, "retry_ms": millis(decision.retry_after),
        "at_ms": u64::try_from(at.as_millis()).unwrap_or(u64::MAX), "wait_ms": millis(Some(decision.wait)),
    }))
}

fn decided_all(decision: &Decision) -> Reply {
    let retry_ms = millis(decision.retry_after);
    reply(json!({"outcome": word(decision.allowed), "remaining": decision.remaining, "retry_ms": retry_ms}))
}

async fn carry_out(limiter: &Limiter, c: &Value) -> Result<Reply, Failure> {
    let key = text(c, "key");
    match text(c, "do") {
        "hit" => Ok(decided(&limiter.hit(key, rule_of(c)?).await?)),
        "peek" => Ok(decided(&limiter.peek(key, rule_of(c)?).await?)),
        "wait" => {
            let rule = match rule_of(c)? {
                Rule::Lease(rule) if !c["holder"].is_string() => rule.holder(next_holder()).into(),
                rule => rule,
            };
            Ok(decided(&limiter.wait(key, rule, seconds(&c["timeout"])).await?))
        }
        "turn" => Ok(decided(&match rule_of(c)? {
            Rule::Sliding(rule) => limiter.turn(key, rule, seconds(&c["ahead"])).await?,
            Rule::Throttle(rule) => limiter.turn(key, rule, seconds(&c["ahead"])).await?,
            _ => return Err(Failure::Argument("no turns by this rule".to_owned())),
        })),
        "all" => {
            let rules = c["rules"].as_array().into_iter().flatten();
            let rules =
                rules.map(|each| Ok((text(each, "key"), rule_of(each)?))).collect::<Result<Vec<_>, Failure>>()?;
            Ok(decided_all(&limiter.all(rules).await?))
        }
        "refund" => {
            let at = c["at_ms"].as_u64().map(|at| SystemTime::UNIX_EPOCH + Duration::from_millis(at));
            let refund = match (rule_of(c)?, at) {
                (Rule::Sliding(rule), None) => limiter.refund(key, rule).await?,
                (Rule::Sliding(rule), Some(at)) => limiter.refund_at(key, rule, at).await?,
                (Rule::Fixed(rule), None) => limiter.refund(key, rule).await?,
                (Rule::Fixed(rule), Some(at)) => limiter.refund_at(key, rule, at).await?,
                (Rule::Throttle(rule), None) => limiter.refund(key, rule).await?,
                (Rule::Throttle(rule), Some(at)) => limiter.refund_at(key, rule, at).await?,
                _ => return Err(Failure::Argument("a lease is not refunded".to_owned())),
            };
            Ok(reply(json!({"outcome": "done", "count": refund.refunded})))
        }
        "reset" => Ok(reply(json!({"outcome": "done", "count": limiter.reset(key, rule_of(c)?).await?}))),
        "release" => {
            let count = limiter.release(key, [text(c, "holder")]).await?;
            Ok(reply(json!({"outcome": "done", "count": count})))
        }
        "acquire" => {
            let Rule::Lease(rule) = rule_of(c)? else { return Err(Failure::Argument("no lease".to_owned())) };
            Ok(match limiter.acquire(key, &rule).await? {
                Ok(held) => {
                    let mut reply = decided(held.decision());
                    reply.insert("holder".to_owned(), String::from_utf8_lossy(held.holder()).into());
                    // It is kept until it is released by its name.
                    std::mem::forget(held);
                    reply
                }
                Err(decision) => decided(&decision),
            })
        }
        "hold" => hold(limiter, c).await,
        "reserve" => {
            let lease = if c["lease"].is_number() { seconds(&c["lease"]) } else { Duration::from_secs(60) };
            let units = c["units"].as_u64().unwrap_or_default();
            let attempt = match rule_of(c)? {
                Rule::Sliding(rule) => limiter.reserve(key, &rule, units, lease).await?,
                Rule::Fixed(rule) => limiter.reserve(key, &rule, units, lease).await?,
                _ => return Err(Failure::Argument("only sliding and fixed rules are reserved".to_owned())),
            };
            Ok(match attempt {
                Ok(reservation) => {
                    let reply = decided(reservation.decision());
                    let reservation = Arc::new(tokio::sync::Mutex::new(reservation));
                    RESERVATIONS.lock().unwrap().insert(text(c, "as").to_owned(), reservation);
                    reply
                }
                Err(decision) => decided(&decision),
            })
        }
        "settle" => {
            let reservation = RESERVATIONS.lock().unwrap().get(text(c, "of")).cloned();
            let Some(reservation) = reservation else { return Err(Failure::Argument("no reservation".to_owned())) };
            reservation.lock().await.settle(c["units"].as_u64().unwrap_or_default()).await?;
            Ok(done())
        }
        "crowd" => Ok(crowd(limiter, c).await),
        "flood" => Ok(flood(limiter, c).await),
        "loops" => Ok(loops(limiter, c).await),
        other => Err(Failure::Argument(format!("{other} is not known"))),
    }
}

/// A holder of a lease that nobody else has.
fn next_holder() -> String {
    static LAST: AtomicU64 = AtomicU64::new(0);
    format!("{}-{}", std::process::id(), LAST.fetch_add(1, Relaxed))
}

async fn hold(limiter: &Limiter, c: &Value) -> Result<Reply, Failure> {
    let Rule::Lease(rule) = rule_of(c)? else { return Err(Failure::Argument("no lease".to_owned())) };
    let held = match limiter.hold(text(c, "key"), &rule, seconds(&c["timeout"])).await? {
        Ok(held) => held,
        Err(decision) => return Ok(decided(&decision)),
    };
    tell(&json!({"id": c["id"], "event": "held"}));
    let (began, work) = (Instant::now(), seconds(&c["seconds"]));
    let mut lost_after = Value::Null;
    tokio::select! {
        () = tokio::time::sleep(work) => {}
        () = held.lost() => {
            lost_after = json!(began.elapsed().as_secs_f64() * 1000.0);
            tell(&json!({"id": c["id"], "event": "lost"}));
            tokio::time::sleep(work.saturating_sub(began.elapsed())).await;
        }
    }
    held.release().await;
    Ok(reply(json!({"outcome": "allowed", "lost_after_ms": lost_after})))
}

/// One command, given up by its caller after `within` seconds where it says so.
fn within<'a>(limiter: Option<&'a Limiter>, c: &'a Value) -> Pin<Box<dyn Future<Output = Reply> + Send + 'a>> {
    Box::pin(answered(limiter, c))
}

async fn answered(limiter: Option<&Limiter>, c: &Value) -> Reply {
    let began = Instant::now();
    let call = async {
        match (text(c, "do"), limiter) {
            ("limiter", _) => make(c),
            ("burn", _) => Ok(burn(c).await),
            ("serve", _) => app::serve(c).await,
            (_, Some(limiter)) => carry_out(limiter, c).await,
            _ => Err(Failure::Argument("no such limiter".to_owned())),
        }
    };
    let result = if c["within"].is_number() {
        tokio::time::timeout(seconds(&c["within"]), call).await.ok()
    } else {
        Some(call.await)
    };
    let mut told = match result {
        None => reply(json!({"outcome": "gave_up"})),
        Some(Ok(told)) => told,
        Some(Err(failure)) => {
            let (outcome, error) = match failure {
                Failure::Argument(error) => ("argument", error),
                Failure::Of(error) if error.is_unavailable() => ("unavailable", error.to_string()),
                Failure::Of(error @ Error::Refused(_)) => ("permanent", error.to_string()),
                Failure::Of(error @ Error::Invalid(_)) => ("argument", error.to_string()),
                Failure::Of(error) => ("bug", error.to_string()),
            };
            reply(json!({"outcome": outcome, "error": error}))
        }
    };
    let lag = LAGS.lock().unwrap().iter().filter(|(at, _)| *at >= began).map(|(_, lag)| *lag).max();
    told.insert("ms".to_owned(), json!(began.elapsed().as_secs_f64() * 1000.0));
    told.insert("lag_ms".to_owned(), json!(lag.unwrap_or_default().as_secs_f64() * 1000.0));
    told
}

fn crowded(replies: &[Reply]) -> Reply {
    let (mut outcomes, mut errors, mut slowest) = (BTreeMap::new(), BTreeMap::new(), 0.0_f64);
    for reply in replies {
        *outcomes.entry(reply["outcome"].as_str().unwrap_or_default().to_owned()).or_insert(0) += 1;
        if let Some(error) = reply.get("error") {
            *errors.entry(error.as_str().unwrap_or_default().to_owned()).or_insert(0) += 1;
        }
        slowest = slowest.max(reply["ms"].as_f64().unwrap_or_default());
    }
    reply(json!({"outcome": "done", "outcomes": outcomes, "errors": errors, "slowest_ms": slowest}))
}

/// Unix milliseconds, with fractions.
fn clock() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64() * 1000.0
}

/// The n-th call begins at n times `pause`.
async fn crowd(limiter: &Limiter, c: &Value) -> Reply {
    let mut one = c.clone();
    one["do"] = c.get("call").cloned().unwrap_or_else(|| json!("hit"));
    let (began, pause) = (tokio::time::Instant::now(), seconds(&c["pause"]));
    let mut calls = Vec::new();
    for number in 0..u32::try_from(c["n"].as_u64().unwrap_or_default()).unwrap_or(u32::MAX) {
        if !pause.is_zero() {
            tokio::time::sleep_until(began + pause * number).await;
        }
        let (limiter, one) = (limiter.clone(), one.clone());
        calls.push(tokio::spawn(async move {
            let asked = clock();
            let mut reply = within(Some(&limiter), &one).await;
            reply.insert("asked_ms".to_owned(), json!(asked));
            reply.insert("ended_ms".to_owned(), json!(clock()));
            reply
        }));
    }
    let mut replies = Vec::new();
    for call in calls {
        replies.extend(call.await);
    }
    let mut told = crowded(&replies);
    if c["each"] == json!(true) {
        let fields = ["outcome", "at_ms", "wait_ms", "asked_ms", "ended_ms"];
        let each = replies.iter().map(|reply| fields.map(|name| (name, reply.get(name).cloned())));
        let each = each.map(|fields| fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))));
        told.insert("each".to_owned(), each.map(Map::from_iter).map(Value::Object).collect());
    }
    told
}

async fn flood(limiter: &Limiter, c: &Value) -> Reply {
    use futures_util::StreamExt;
    let (pad, key) = (c["pad"].as_u64().unwrap_or_default(), text(c, "key"));
    let replies = futures_util::stream::iter(0..c["n"].as_u64().unwrap_or_default())
        .map(|number| {
            let mut one = c.clone();
            one["do"] = json!("hit");
            let mut key = format!("{key}{number}");
            key.extend(std::iter::repeat_n('x', usize::try_from(pad).unwrap_or(0).saturating_sub(key.len())));
            one["key"] = json!(key);
            async move { within(Some(limiter), &one).await }
        })
        .buffer_unordered(16)
        .collect::<Vec<_>>()
        .await;
    crowded(&replies)
}

/// A crowd on each of several runtimes at once.
async fn loops(limiter: &Limiter, c: &Value) -> Reply {
    let threads = (0..c["loops"].as_u64().unwrap_or_default()).map(|_| {
        let (limiter, c) = (limiter.clone(), c.clone());
        tokio::task::spawn_blocking(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            // Its timer is measured on the main runtime.
            runtime.block_on(Box::pin(crowd(&limiter, &c)))
        })
    });
    let (mut outcomes, mut errors, mut slowest) = (BTreeMap::<String, u64>::new(), Map::new(), 0.0_f64);
    for thread in threads.collect::<Vec<_>>() {
        let Ok(reply) = thread.await else { continue };
        for (outcome, count) in reply["outcomes"].as_object().into_iter().flatten() {
            *outcomes.entry(outcome.clone()).or_insert(0) += count.as_u64().unwrap_or_default();
        }
        errors.extend(reply["errors"].as_object().cloned().unwrap_or_default());
        slowest = slowest.max(reply["slowest_ms"].as_f64().unwrap_or_default());
    }
    reply(json!({"outcome": "done", "outcomes": outcomes, "errors": errors, "slowest_ms": slowest}))
}

/// Computes: in threads, or where the calls are made, which is the runtime's only thread.
async fn burn(c: &Value) -> Reply {
    let until = Instant::now() + Duration::from_millis(c["ms"].as_u64().unwrap_or_default());
    let compute = move || {
        while Instant::now() < until {
            std::hint::black_box((0..1000).sum::<u64>());
        }
    };
    let threads = (0..c["threads"].as_u64().unwrap_or_default()).map(|_| tokio::task::spawn_blocking(compute));
    let threads: Vec<_> = threads.collect();
    tell(&json!({"id": c["id"], "event": "burning"}));
    if threads.is_empty() {
        compute();
    }
    for thread in threads {
        let _ = thread.await;
    }
    done()
}

/// Writes each log line of the package.
struct Logs;

impl tracing::Subscriber for Logs {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("redis_rl_client") && *metadata.level() <= tracing::Level::INFO
    }

    fn event(&self, event: &tracing::Event<'_>) {
        struct Text(String);
        impl tracing::field::Visit for Text {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn Debug) {
                let _ = write!(self.0, "{field}={value:?} ");
            }
        }
        let mut text = Text(String::new());
        event.record(&mut text);
        let level = match *event.metadata().level() {
            tracing::Level::ERROR => "error",
            tracing::Level::WARN => "warning",
            _ => "info",
        };
        tell(&json!({"log": level, "text": text.0}));
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

async fn measure() {
    const STEP: Duration = Duration::from_millis(10);
    loop {
        let began = Instant::now();
        tokio::time::sleep(STEP).await;
        let mut lags = LAGS.lock().unwrap();
        lags.push_back((Instant::now(), began.elapsed().saturating_sub(STEP)));
        if lags.len() > 10_000 {
            lags.pop_front();
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    tracing::subscriber::set_global_default(Logs).unwrap();
    tokio::spawn(measure());
    let can = if std::env::args().nth(1).as_deref() == Some("axum") { app::CAN } else { CAN };
    tell(&json!({"can": can.split_whitespace().collect::<Vec<_>>()}));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let c: Value = serde_json::from_str(&line).unwrap();
        let id = c["id"].as_u64().unwrap_or_default();
        if text(&c, "do") == "cancel" {
            if let Some(command) = c["of"].as_u64().and_then(|of| UNDER_WAY.lock().unwrap().remove(&of)) {
                command.abort();
            }
            tell(&json!({"id": id, "outcome": "done"}));
            continue;
        }
        let limiter = LIMITERS.lock().unwrap().get(text(&c, "limiter")).cloned();
        let began = Instant::now();
        let command = tokio::spawn(async move {
            let mut told = within(limiter.as_ref(), &c).await;
            told.insert("id".to_owned(), json!(id));
            told
        });
        UNDER_WAY.lock().unwrap().insert(id, command.abort_handle());
        tokio::spawn(async move {
            let told = match command.await {
                Ok(told) => Value::Object(told),
                Err(end) if end.is_cancelled() => {
                    json!({"id": id, "outcome": "gave_up", "ms": began.elapsed().as_secs_f64() * 1000.0, "lag_ms": 0})
                }
                Err(end) => json!({"id": id, "outcome": "bug", "error": end.to_string(), "ms": 0, "lag_ms": 0}),
            };
            UNDER_WAY.lock().unwrap().remove(&id);
            tell(&told);
        });
    }
}
