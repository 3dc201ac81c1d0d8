//! Redis, as the service asks it: the only file that knows the client package.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant, SystemTime};

use redis::cluster::ClusterClient;
use redis::cluster_routing::Slot;
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, TlsCertificates};
use redis_rl_client::{Connection, Decision, Error, Limiter, Rule, Way};

use crate::config::tree::Kind;
use crate::settings::{Redis, RedisType};

/// One key, its rule, and what the request wants of it.
#[derive(Debug, Clone)]
pub struct Item {
    pub key: Vec<u8>,
    pub kind: Kind,
    pub units: u64,
    /// Counted whether it fits or not.
    pub force: bool,
    /// Whose place it is, where places are counted.
    pub holder: String,
}

/// One limit after a call, or as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct State {
    pub allowed: bool,
    pub limit: u64,
    pub used: u64,
    pub remaining: u64,
    /// Until the same request fits; `None`: it never does.
    pub retry_after: Option<Duration>,
    pub reset_after: Option<Duration>,
    pub window: Duration,
    /// The server's time of the decision.
    pub at: SystemTime,
}

/// Why Redis has not decided.
#[derive(Debug, Clone)]
pub struct Failure(pub String);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

impl From<Decision> for State {
    fn from(decision: Decision) -> Self {
        Self {
            allowed: decision.allowed,
            limit: decision.limit,
            used: u64::try_from(decision.used).unwrap_or(0),
            remaining: decision.remaining,
            retry_after: decision.retry_after,
            reset_after: decision.reset_after,
            window: decision.window,
            at: decision.at,
        }
    }
}

impl Item {
    fn rule(&self) -> Rule {
        match &self.kind {
            Kind::Fixed(rule) if self.force && self.units > 0 => rule.clone().cost(self.units).force().into(),
            Kind::Fixed(rule) => rule.clone().cost(self.units).into(),
            // With a cost, whatever it is, the log is the compact one, which takes requests of any weight.
            Kind::Sliding(rule) if self.force && self.units > 0 => rule.clone().cost(self.units).force().into(),
            Kind::Sliding(rule) => rule.clone().cost(self.units).into(),
            Kind::Throttle(rule) => rule.clone().quantity(self.units).into(),
            Kind::Concurrency { rule, .. } => rule.clone().holder(&self.holder).into(),
        }
    }

    /// Whether the rule can count what does not fit.
    pub fn can_be_forced(&self) -> bool {
        matches!(self.kind, Kind::Fixed(_) | Kind::Sliding(_))
    }
}

/// The most keys that one decision takes.
pub const MOST_KEYS: usize = 64;
/// How long Redis is left alone after it could not be asked.
const REST: Duration = Duration::from_secs(1);

/// A key that nobody counts at.
const PROBE: &str = "redis-rl-envoy:probe";

#[derive(Debug)]
pub struct Store {
    limiter: Limiter,
    cluster: bool,
    breaker: Breaker,
}

impl Store {
    /// Connects.
    ///
    /// # Errors
    /// If there is no server, or the settings do not say where.
    pub async fn connect(settings: &Redis) -> Result<Self, Failure> {
        let failed = |error: redis::RedisError| Failure(error.to_string());
        let connection: Connection = match settings.kind {
            RedisType::Single => {
                let client = match tls(settings)? {
                    Some(files) => redis::Client::build_with_tls(address(settings, &settings.url)?, files),
                    None => redis::Client::open(address(settings, &settings.url)?),
                };
                // A call ends at its deadline; the connection is given up a little later.
                let config = ConnectionManagerConfig::new()
                    .set_connection_timeout(Some(Duration::from_secs(1)))
                    .set_response_timeout(Some(Duration::from_secs(1)))
                    .set_max_delay(Duration::from_secs(1));
                ConnectionManager::new_with_config(client.map_err(failed)?, config).await.map_err(failed)?.into()
            }
            RedisType::Cluster => {
                let nodes = settings.url.split(',').map(|node| address(settings, node)).collect::<Result<Vec<_>, _>>()?;
                let mut builder = ClusterClient::builder(nodes)
                    .use_protocol(redis::ProtocolVersion::RESP3)
                    .connection_timeout(Duration::from_secs(1))
                    .response_timeout(Duration::from_secs(1));
                if let Some(files) = tls(settings)? {
                    builder = builder.certs(files);
                }
                Connection::cluster(&builder.build().map_err(failed)?).await.map_err(failed)?
            }
            RedisType::Sentinel => return Err(Failure("REDIS_TYPE=SENTINEL is not supported yet".to_owned())),
        };
        let way = match settings.mode.as_str() {
            "auto" => None,
            "module" => Some(Way::Module),
            "functions" => Some(Way::Functions),
            "script" => Some(Way::Script),
            other => {
                return Err(Failure(format!("REDIS_RL_MODE must be auto, module, functions or script, not '{other}'")));
            }
        };
        let mut options = redis_rl_client::Options::default().patience(settings.deadline);
        options.way = way;
        let limiter = Limiter::with_options(connection, options);
        // The first call finds out how the server is asked; no request should have to wait for it.
        limiter.peek(PROBE, &Rule::fixed("1/second").map_err(Error::from)?).await?;
        Ok(Self { limiter, cluster: settings.kind == RedisType::Cluster, breaker: Breaker::default() })
    }

    /// Whether Redis can be asked now.
    pub async fn answers(&self) -> bool {
        let probe = async {
            let rule = Rule::fixed("1/second").map_err(Error::from)?;
            self.limiter.peek(PROBE, &rule).await
        };
        matches!(tokio::time::timeout(REST, probe).await, Ok(Ok(_)))
    }

    /// The items that can be decided together, by their positions: those of one slot, at most 64.
    pub fn batches(&self, items: &[&Item]) -> Vec<Vec<usize>> {
        let mut slots: Vec<(Option<Slot>, Vec<usize>)> = Vec::new();
        for (index, item) in items.iter().enumerate() {
            let slot = self.cluster.then(|| Slot::for_key(&item.key));
            match slots.iter_mut().find(|(there, batch)| *there == slot && batch.len() < MOST_KEYS) {
                Some((_, batch)) => batch.push(index),
                None => slots.push((slot, vec![index])),
            }
        }
        slots.into_iter().map(|(_, batch)| batch).collect()
    }

    /// One decision, all or nothing.
    pub async fn decide(&self, items: &[&Item]) -> Result<(bool, Vec<State>), Failure> {
        let decided = async {
            if let [item] = items
                // The plain form of a fixed window would count its denials.
                && !matches!(item.kind, Kind::Fixed(_))
            {
                let state = State::from(self.limiter.check(&item.key, item.rule()).await?);
                return Ok((state.allowed || item.force, vec![state]));
            }
            let decision = self.limiter.all(items.iter().map(|item| (&item.key, item.rule()))).await?;
            Ok((decision.allowed, decision.each.into_iter().map(State::from).collect()))
        };
        self.guarded(decided).await
    }

    /// The state as it is; `allowed` says whether the units fit, or any unit if there are none.
    pub async fn peek(&self, item: &Item) -> Result<State, Failure> {
        let peeked = async { Ok(State::from(self.limiter.peek(&item.key, item.rule()).await?)) };
        let mut state = self.guarded(peeked).await?;
        if item.units == 0 {
            state.allowed = state.remaining > 0;
        }
        Ok(state)
    }

    /// Gives units back: the newest, or those of a time. Answers how many, and how many are still in use.
    pub async fn refund(&self, item: &Item, at: Option<SystemTime>) -> Result<(u64, u64), Failure> {
        let refunded = async {
            let refund = match (&item.kind, at) {
                (Kind::Fixed(rule), None) => self.limiter.refund(&item.key, rule.clone().cost(item.units)).await?,
                (Kind::Fixed(rule), Some(at)) => {
                    self.limiter.refund_at(&item.key, rule.clone().cost(item.units), at).await?
                }
                (Kind::Sliding(rule), None) => self.limiter.refund(&item.key, rule.clone().cost(item.units)).await?,
                (Kind::Sliding(rule), Some(at)) => {
                    self.limiter.refund_at(&item.key, rule.clone().cost(item.units), at).await?
                }
                (Kind::Throttle(rule), _) => {
                    self.limiter.refund(&item.key, rule.clone().quantity(item.units)).await?
                }
                (Kind::Concurrency { .. }, _) => {
                    let released = self.limiter.release(&item.key, [&item.holder]).await?;
                    return Ok((released, 0));
                }
            };
            Ok((refund.units, u64::try_from(refund.used).unwrap_or(0)))
        };
        self.guarded(refunded).await
    }

    async fn guarded<T>(&self, call: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        if !self.breaker.lets_in() {
            return Err(Failure("Redis could not be asked a moment ago".to_owned()));
        }
        call.await
    }

    /// A request has got no answer in time, or has got one.
    pub fn report(&self, answered: bool) {
        if answered { self.breaker.close() } else { self.breaker.open() }
    }
}

/// After a failure lets nothing through for a second, then one call a second, until one succeeds.
#[derive(Debug, Default)]
struct Breaker {
    /// Milliseconds since `origin` at which the next call is let in; 0 while all are.
    next: AtomicU64,
}

fn millis() -> u64 {
    static ORIGIN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
    u64::try_from(ORIGIN.elapsed().as_millis()).unwrap_or(u64::MAX)
}

impl Breaker {
    fn lets_in(&self) -> bool {
        let next = self.next.load(Relaxed);
        if next == 0 {
            return true;
        }
        let now = millis();
        let later = now.saturating_add(u64::try_from(REST.as_millis()).unwrap_or(u64::MAX));
        now >= next && self.next.compare_exchange(next, later, Relaxed, Relaxed).is_ok()
    }

    fn open(&self) {
        self.next.store(millis().saturating_add(u64::try_from(REST.as_millis()).unwrap_or(u64::MAX)).max(1), Relaxed);
    }

    fn close(&self) {
        if self.next.load(Relaxed) != 0 {
            self.next.store(0, Relaxed);
        }
    }
}

fn address(settings: &Redis, text: &str) -> Result<ConnectionInfo, Failure> {
    let text = text.trim();
    if text.contains("://") {
        return text.into_connection_info().map_err(|error| Failure(format!("REDIS_URL: {error}")));
    }
    let address = if settings.socket_type == "unix" && settings.kind == RedisType::Single {
        ConnectionAddr::Unix(text.into())
    } else {
        let (host, port) = text
            .rsplit_once(':')
            .and_then(|(host, port)| Some((host.trim_matches(['[', ']']), port.parse().ok()?)))
            .ok_or_else(|| Failure(format!("REDIS_URL must be host:port, not '{text}'")))?;
        let host = if host.is_empty() { "localhost" } else { host }.to_owned();
        if settings.tls {
            ConnectionAddr::TcpTls { host, port, insecure: settings.skip_hostname_verification, tls_params: None }
        } else {
            ConnectionAddr::Tcp(host, port)
        }
    };
    let mut login = RedisConnectionInfo::default().set_protocol(redis::ProtocolVersion::RESP3);
    match settings.auth.split_once(':') {
        _ if settings.auth.is_empty() => {}
        Some((user, password)) => login = login.set_username(user).set_password(password),
        None => login = login.set_password(&settings.auth),
    }
    let info = address.into_connection_info().map_err(|error| Failure(format!("REDIS_URL: {error}")))?;
    Ok(info.set_redis_settings(login))
}

/// The files of TLS, where any is named.
fn tls(settings: &Redis) -> Result<Option<TlsCertificates>, Failure> {
    let read = |path: &str| std::fs::read(path).map_err(|error| Failure(format!("{path}: {error}")));
    let files = &settings.tls_files;
    if !settings.tls || (files.cert.is_empty() && files.ca.is_empty()) {
        return Ok(None);
    }
    let client_tls = if files.cert.is_empty() || files.key.is_empty() {
        None
    } else {
        Some(ClientTlsConfig { client_cert: read(&files.cert)?, client_key: read(&files.key)? })
    };
    let root_cert = if files.ca.is_empty() { None } else { Some(read(&files.ca)?) };
    Ok(Some(TlsCertificates { client_tls, root_cert }))
}
