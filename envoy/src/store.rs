//! Redis, as the service asks it: the only file that knows the client package.

use std::collections::HashMap;
use std::sync::Once;
use std::time::{Duration, SystemTime};

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster_routing::Slot;
use redis::sentinel::{SentinelClient, SentinelClientBuilder, SentinelServerType};
use redis::{
    AsyncConnectionConfig, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, TlsCertificates,
    TlsMode,
};
use redis_rl_client::{Admission, Connection, Error, Limiter, Mode, Options, Rule};

use crate::config::tree::Kind;
use crate::reservations::Hold;
use crate::settings::{Redis, RedisType};

/// One key, its rule, and what the request wants of it.
#[derive(Debug, Clone)]
pub struct Item {
    pub key: Vec<u8>,
    pub kind: Kind,
    pub units: u64,
    /// Counted whether it fits or not.
    pub force: bool,
    /// Whose place it is, where places are counted; the request's id where units are reserved.
    pub holder: String,
    /// Under which the units are reserved, or settled.
    pub hold: Option<Hold>,
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
    /// Until more is free than now: zero if nothing is used, `None` if never.
    pub next_after: Option<Duration>,
    pub reset_after: Option<Duration>,
    pub window: Duration,
    /// The server's time of the decision.
    pub at: SystemTime,
}

/// Why Redis has not decided.
#[derive(Debug, Clone)]
pub enum Failure {
    /// It cannot decide now.
    Unavailable {
        reason: String,
        /// Whether the call may have been charged: it was sent, and no reply came.
        sent: bool,
    },
    /// It refuses the call for good: a key of another type, no permission. No policy lets such a request in.
    Permanent(String),
}

impl Failure {
    pub fn unavailable(reason: impl Into<String>) -> Self {
        Self::Unavailable { reason: reason.into(), sent: false }
    }

    pub fn reason(&self) -> &str {
        match self {
            Self::Unavailable { reason, .. } | Self::Permanent(reason) => reason,
        }
    }

    /// Whether a sliding log that is a sorted set does not take as many units.
    pub fn is_too_heavy(&self) -> bool {
        matches!(self, Self::Permanent(reason) if reason.contains("needs a compact log"))
    }

    pub fn may_have_charged(&self) -> bool {
        matches!(self, Self::Unavailable { sent: true, .. })
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        // That the service cannot log in is a matter of its connection, and not of the request.
        let login = matches!(&error, Error::Refused(error) if matches!(error.code(), Some("NOAUTH" | "WRONGPASS")));
        if error.is_unavailable() || login {
            Self::Unavailable { reason: error.to_string(), sent: error.may_have_counted() }
        } else {
            Self::Permanent(error.to_string())
        }
    }
}

impl From<redis_rl_client::State> for State {
    fn from(decision: redis_rl_client::State) -> Self {
        Self {
            allowed: decision.allowed,
            limit: decision.limit,
            used: u64::try_from(decision.used).unwrap_or(0),
            remaining: decision.remaining,
            retry_after: decision.retry_after,
            next_after: decision.next_after,
            reset_after: decision.reset_after,
            window: decision.window,
            at: decision.at,
        }
    }
}

impl Item {
    fn rule(&self) -> Result<Rule, Failure> {
        if let Some(hold) = &self.hold {
            return self.held(hold);
        }
        Ok(match &self.kind {
            Kind::Fixed(rule) if self.force && self.units > 0 => rule.clone().cost(self.units).force().into(),
            // One unit is what a call weighs that says nothing, and two words less.
            Kind::Fixed(rule) if self.units == 1 => rule.into(),
            Kind::Fixed(rule) => rule.clone().cost(self.units).into(),
            // With a cost, whatever it is, the log is the compact one, which takes requests of any weight.
            Kind::Sliding(rule) if self.force && self.units > 0 => rule.clone().cost(self.units).force().into(),
            Kind::Sliding(rule) => rule.clone().cost(self.units).into(),
            Kind::Calendar { rule, .. } if self.force && self.units > 0 => rule.clone().cost(self.units).force().into(),
            Kind::Calendar { rule, .. } => rule.clone().cost(self.units).into(),
            Kind::Throttle(rule) => rule.clone().cost(self.units).into(),
            Kind::Concurrency { rule, .. } => rule.clone().holder(&self.holder).into(),
        })
    }

    /// The rule by which units are reserved.
    fn held(&self, Hold { holder, lease, .. }: &Hold) -> Result<Rule, Failure> {
        let (units, force) = (self.units, self.force);
        macro_rules! held {
            ($rule:expr) => {{
                let rule = $rule.clone().cost(units).held_by(holder, *lease).map_err(Error::from)?;
                if force { rule.force().into() } else { rule.into() }
            }};
        }
        Ok(match &self.kind {
            Kind::Fixed(rule) => held!(rule),
            Kind::Sliding(rule) => held!(rule),
            Kind::Calendar { rule, .. } => held!(rule),
            Kind::Throttle(_) | Kind::Concurrency { .. } => {
                return Err(Failure::Permanent("it cannot be held".to_owned()));
            }
        })
    }

    /// Whether the rule can count what does not fit.
    pub fn can_be_forced(&self) -> bool {
        matches!(self.kind, Kind::Fixed(_) | Kind::Sliding(_) | Kind::Calendar { .. })
    }
}

impl From<&State> for redis_rl_client::State {
    fn from(state: &State) -> Self {
        let mut shown = Self::new(state.limit, state.window);
        shown.allowed = state.allowed;
        shown.used = i64::try_from(state.used).unwrap_or(i64::MAX);
        shown.remaining = state.remaining;
        shown.retry_after = state.retry_after;
        shown.next_after = state.next_after;
        shown.reset_after = state.reset_after;
        shown.at = state.at;
        shown
    }
}

/// How long a call that gives units back may take at least: the response has its own deadline and does not wait for it.
const GIVING_BACK: Duration = Duration::from_secs(1);

/// The most keys that one decision takes.
pub const MOST_KEYS: usize = 64;
/// The most units that one decision adds to sliding logs which are sorted sets.
const MOST_ADDED: u64 = 1000;
/// How long Redis may take to answer for the first time.
const PATIENCE: Duration = Duration::from_secs(5);

/// A decision that is charged, so that it fails where those of requests fail: without memory, at a replica.
async fn probe(limiter: &Limiter, key: &str) -> Result<(), Failure> {
    limiter.admit(key, Rule::fixed("1000000/second").map_err(Error::from)?).await?;
    Ok(())
}

#[derive(Debug)]
pub struct Store {
    limiter: Limiter,
    /// The same with more time, for what gives units back.
    giving_back: Limiter,
    cluster: bool,
    probe_key: String,
}

impl Store {
    /// Connects.
    ///
    /// # Errors
    /// If there is no server, or the settings do not say where.
    pub async fn connect(settings: &Redis, prefix: &str) -> Result<Self, Failure> {
        let failed = |error: redis::RedisError| Failure::unavailable(error.to_string());
        let connection: Connection = match settings.kind {
            RedisType::Single => client(settings, &settings.url)?.into(),
            RedisType::Sentinel => sentinels(settings)?.into(),
            RedisType::Cluster => {
                let nodes =
                    settings.url.split(',').map(|node| address(settings, node)).collect::<Result<Vec<_>, _>>()?;
                // The deadline is what bounds a call; a node that hangs is given up by the client, too.
                let patience = settings.deadline.max(Duration::from_secs(1));
                let mut builder = ClusterClient::builder(nodes)
                    .use_protocol(redis::ProtocolVersion::RESP3)
                    .connection_timeout(patience)
                    .response_timeout(patience);
                if let Some(files) = tls(settings)? {
                    builder = builder.certs(files);
                }
                builder.build().map_err(failed)?.into()
            }
        };
        let options = Options::default().name("redis-rl-envoy").mode(settings.mode).timeout(settings.deadline);
        let limiter = Limiter::with_options(connection, options);
        // The first call finds out how the server is asked; no request should have to wait for it.
        let probe_key = format!("{prefix}redis-rl-envoy:probe");
        probe(&limiter.timeout(PATIENCE), &probe_key).await?;
        let giving_back = limiter.timeout(settings.deadline.max(GIVING_BACK));
        Ok(Self { limiter, giving_back, cluster: settings.kind == RedisType::Cluster, probe_key })
    }

    /// How Redis is asked; `None` before its first answer.
    pub fn mode(&self) -> Option<&'static str> {
        Some(match self.limiter.mode()? {
            Mode::Module => "module",
            Mode::Functions => "functions",
            _ => "script",
        })
    }

    /// Decides about a key of the service's own, as about any other: where nobody asks for a while, that is how an outage
    /// is noticed, and its end.
    pub async fn probe(&self) {
        // What came of it, the limiter knows, and says in the log.
        let _ = probe(&self.limiter, &self.probe_key).await;
    }

    /// Whether Redis is asked, and not left alone in an outage.
    pub fn is_available(&self) -> bool {
        self.limiter.is_available()
    }

    /// Connections made to Redis so far.
    pub fn connections(&self) -> u64 {
        self.limiter.connections()
    }

    /// As the function of this name.
    pub fn batches(&self, items: &[&Item]) -> Vec<Vec<usize>> {
        batches(items, self.cluster)
    }

    /// Whether they can be decided together.
    pub fn takes_at_once<'a>(&self, items: impl ExactSizeIterator<Item = &'a Item> + Clone) -> bool {
        takes_at_once(items, self.cluster)
    }

    /// One decision, all or nothing. What never fits for its weight alone is a denial.
    pub async fn decide(&self, items: &[&Item]) -> Result<(bool, Vec<State>), Failure> {
        match (self.ask(items).await, items) {
            (Err(failure), [item]) if failure.is_too_heavy() => Ok((false, vec![self.too_heavy(item).await?])),
            (decided, _) => decided,
        }
    }

    async fn ask(&self, items: &[&Item]) -> Result<(bool, Vec<State>), Failure> {
        if let [item] = items
            // The plain form of a fixed window would count its denials.
            && (item.hold.is_some() || !matches!(item.kind, Kind::Fixed(_) | Kind::Calendar { .. }))
        {
            let state = State::from(self.limiter.hit(&item.key, item.rule()?).await?.state());
            return Ok((state.allowed || item.force, vec![state]));
        }
        if let [item] = items
            && let Kind::Fixed(rule) = &item.kind
            && let [window] = rule.windows()
            && !item.force
        {
            // The short reply costs Redis a third less. It does not tell the time, which this process has, too.
            let Admission { allowed, remaining, retry_after, .. } = self.limiter.admit(&item.key, item.rule()?).await?;
            let (at, used) = (SystemTime::now(), window.limit().saturating_sub(remaining));
            let state = State {
                allowed,
                limit: window.limit(),
                used,
                remaining,
                retry_after,
                next_after: if used == 0 { Some(Duration::ZERO) } else { until_end(window.length(), at) },
                reset_after: None,
                window: window.length(),
                at,
            };
            return Ok((allowed, vec![state]));
        }
        let rules = items.iter().map(|item| Ok((&item.key, item.rule()?))).collect::<Result<Vec<_>, Failure>>()?;
        let decision = self.limiter.all(rules).await?;
        Ok((decision.allowed, decision.each.iter().map(|decision| State::from(decision.state())).collect()))
    }

    /// The state as it is; `allowed` says whether the units fit, or any unit if there are none. Of places, the state that
    /// the holder would make.
    pub async fn peek(&self, item: &Item) -> Result<State, Failure> {
        let mut state = match self.look(item).await {
            Err(failure) if failure.is_too_heavy() => return self.too_heavy(item).await,
            state => state?,
        };
        if item.units == 0 && !matches!(item.kind, Kind::Concurrency { .. }) {
            state.allowed = state.remaining > 0;
        }
        Ok(state)
    }

    async fn look(&self, item: &Item) -> Result<State, Failure> {
        Ok(State::from(self.limiter.peek(&item.key, item.rule()?).await?.state()))
    }

    /// The state of a log that does not take as many units, whether there is room or not.
    async fn too_heavy(&self, item: &Item) -> Result<State, Failure> {
        let state = self.look(&Item { units: 0, force: false, hold: None, ..item.clone() }).await?;
        Ok(State { allowed: false, retry_after: None, ..state })
    }

    /// Gives units back: the newest, or those of a time. Answers how many, and how many are still in use.
    pub async fn refund(&self, item: &Item, at: Option<SystemTime>) -> Result<(u64, u64), Failure> {
        let Item { key, kind, units, holder, hold, .. } = item;
        let limiter = &self.giving_back;
        if let Some(hold) = hold {
            let used = self.settle(item, hold, 0, at.unwrap_or(hold.at)).await?;
            return Ok((*units, used));
        }
        let refund = match (kind, at) {
            (Kind::Fixed(rule), None) => limiter.refund(key, rule.clone().cost(*units)).await?,
            (Kind::Fixed(rule), Some(at)) => limiter.refund_at(key, rule.clone().cost(*units), at).await?,
            (Kind::Sliding(rule), None) => limiter.refund(key, rule.clone().cost(*units)).await?,
            (Kind::Sliding(rule), Some(at)) => limiter.refund_at(key, rule.clone().cost(*units), at).await?,
            (Kind::Calendar { rule, .. }, None) => limiter.refund(key, rule.clone().cost(*units)).await?,
            (Kind::Calendar { rule, .. }, Some(at)) => limiter.refund_at(key, rule.clone().cost(*units), at).await?,
            (Kind::Throttle(rule), _) => limiter.refund(key, rule.clone().cost(*units)).await?,
            (Kind::Concurrency { .. }, _) => return Ok((limiter.release(key, [holder]).await?, 0)),
        };
        Ok((refund.refunded, u64::try_from(refund.used).unwrap_or(0)))
    }

    /// Makes this many units of what was reserved at that time. Answers how many are in use.
    pub async fn settle(&self, item: &Item, hold: &Hold, units: u64, at: SystemTime) -> Result<u64, Failure> {
        // The cost means nothing here, but that it is one.
        let held = Item { units: 1, force: false, ..item.clone() }.held(hold)?;
        let limiter = &self.giving_back;
        let settled = match held {
            Rule::Sliding(rule) => limiter.settle(&item.key, rule, units, at).await?,
            Rule::Fixed(rule) => limiter.settle(&item.key, rule, units, at).await?,
            Rule::Calendar(rule) => limiter.settle(&item.key, rule, units, at).await?,
            _ => return Err(Failure::Permanent("it cannot be settled".to_owned())),
        };
        Ok(u64::try_from(settled.used).unwrap_or(0))
    }
}

/// The items that can be decided together, by their positions: those of one slot, at most 64, and no key twice (two holders of
/// one limit, two ids that reserve).
fn batches(items: &[&Item], cluster: bool) -> Vec<Vec<usize>> {
    if items.len() > MOST_KEYS {
        static SAID: Once = Once::new();
        SAID.call_once(|| {
            tracing::warn!("a request meets more than {MOST_KEYS} limits, which takes several decisions");
        });
    }
    let mut batches: Vec<Vec<usize>> = Vec::new();
    // Of each slot the batch that still takes some, and of each key the batch that it was last put in.
    let mut open: HashMap<Option<Slot>, usize> = HashMap::new();
    let mut last = HashMap::with_capacity(items.len());
    for (index, item) in items.iter().enumerate() {
        let slot = cluster.then(|| Slot::for_key(&item.key));
        let there = open.get(&slot).copied();
        let again = last.get(item.key.as_slice()).copied();
        let batch = match there {
            Some(batch) if batches[batch].len() < MOST_KEYS && again != there => batch,
            _ => {
                batches.push(Vec::new());
                open.insert(slot, batches.len() - 1);
                batches.len() - 1
            }
        };
        batches[batch].push(index);
        last.insert(item.key.as_slice(), batch);
    }
    batches
}

fn takes_at_once<'a>(items: impl ExactSizeIterator<Item = &'a Item> + Clone, cluster: bool) -> bool {
    // Most are, which is seen without a look at each. Two of one key have holders.
    let plain = !cluster && items.len() <= MOST_KEYS && items.clone().all(|item| item.holder.is_empty());
    let light = || {
        let logs = items.clone().filter(|item| matches!(item.kind, Kind::Sliding(_)));
        logs.map(|item| item.units).fold(0, u64::saturating_add) <= MOST_ADDED
    };
    items.len() <= 1 || light() && (plain || batches(&items.collect::<Vec<_>>(), cluster).len() <= 1)
}

/// How long a window of the clock lasts from this time on.
fn until_end(window: Duration, at: SystemTime) -> Option<Duration> {
    let (at, length) = (at.duration_since(SystemTime::UNIX_EPOCH).ok()?.as_millis(), window.as_millis());
    Some(Duration::from_millis(u64::try_from(length - at.checked_rem(length)?).ok()?))
}

/// Says in the log which server it is.
pub async fn describe(settings: &Redis) {
    let asked = async {
        let client = match settings.kind {
            RedisType::Single => client(settings, &settings.url)?,
            RedisType::Sentinel => sentinels(settings)?
                .async_get_client()
                .await
                .map_err(|error| Failure::unavailable(error.to_string()))?,
            RedisType::Cluster => client(settings, settings.url.split(',').next().unwrap_or_default())?,
        };
        let address = client.get_connection_info().addr().to_string();
        let info = async {
            let mut connection = client.get_multiplexed_async_connection().await?;
            redis::cmd("INFO").arg("server").query_async::<String>(&mut connection).await
        };
        Ok::<_, Failure>((address, info.await))
    };
    let Ok(Ok((address, info))) = tokio::time::timeout(PATIENCE, asked).await else { return };
    let info = info.unwrap_or_default();
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let version = match (field("valkey_version"), field("redis_version")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, Some(version)) => format!("Redis {version}"),
        (None, None) => "a server that does not tell its version".to_owned(),
    };
    tracing::warn!("connected to {version} at {address}");
}

/// A connection of its own to the server that has a key.
///
/// # Errors
/// Why there is none, as a sentence.
pub async fn connection_for(
    settings: &Redis,
    key: &str,
    config: &AsyncConnectionConfig,
) -> Result<MultiplexedConnection, String> {
    let wrong = |error: redis::RedisError| error.to_string();
    let connect = async |client: redis::Client| client.get_multiplexed_async_connection_with_config(config).await;
    let client_of = |url: &str| client(settings, url).map_err(|failure| failure.reason().to_owned());
    match settings.kind {
        RedisType::Single => connect(client_of(&settings.url)?).await.map_err(wrong),
        RedisType::Sentinel => {
            let mut sentinels = sentinels(settings).map_err(|failure| failure.reason().to_owned())?;
            connect(sentinels.async_get_client().await.map_err(wrong)?).await.map_err(wrong)
        }
        RedisType::Cluster => {
            let mut last = "no node answers".to_owned();
            for node in settings.url.split(',') {
                let asked = async {
                    let mut connection = connect(client_of(node)?).await.map_err(wrong)?;
                    // Any node says which one has the key.
                    let asked = redis::cmd("HLEN").arg(key).exec_async(&mut connection).await;
                    match asked.as_ref().map_err(redis::RedisError::redirect_node) {
                        Err(Some((node, _))) => connect(client_of(node)?).await.map_err(wrong),
                        _ => asked.map(|()| connection).map_err(wrong),
                    }
                };
                match asked.await {
                    Ok(connection) => return Ok(connection),
                    Err(reason) => last = reason,
                }
            }
            Err(last)
        }
    }
}

fn client(settings: &Redis, url: &str) -> Result<redis::Client, Failure> {
    let client = match tls(settings)? {
        Some(files) => redis::Client::build_with_tls(address(settings, url)?, files),
        None => redis::Client::open(address(settings, url)?),
    };
    client.map_err(|error| Failure::unavailable(error.to_string()))
}

/// `name,sentinel:port,sentinel:port`: the primary of this name, which the sentinels know.
fn sentinels(settings: &Redis) -> Result<SentinelClient, Failure> {
    let Some((name, nodes)) = settings.url.split_once(',') else {
        return Err(Failure::unavailable(
            "REDIS_URL must be the name of the primary and its sentinels: name,host:port,…".to_owned(),
        ));
    };
    let failed = |error: redis::RedisError| Failure::unavailable(error.to_string());
    let nodes = nodes.split(',').map(|node| address(settings, node).map(|info| info.addr().clone()));
    let nodes = nodes.collect::<Result<Vec<_>, _>>()?;
    let mut builder = SentinelClientBuilder::new(nodes, name, SentinelServerType::Master).map_err(failed)?;
    if settings.tls {
        let mode = if settings.skip_hostname_verification { TlsMode::Insecure } else { TlsMode::Secure };
        builder = builder.set_client_to_redis_tls_mode(mode).set_client_to_sentinel_tls_mode(mode);
    }
    if let Some(files) = tls(settings)? {
        builder = builder.set_client_to_redis_certificates(files.clone()).set_client_to_sentinel_certificates(files);
    }
    let (user, password) = login(&settings.auth);
    if let Some(user) = user {
        builder = builder.set_client_to_redis_username(user);
    }
    if let Some(password) = password {
        builder = builder.set_client_to_redis_password(password);
    }
    let (user, password) = login(&settings.sentinel_auth);
    if let Some(user) = user {
        builder = builder.set_client_to_sentinel_username(user);
    }
    if let Some(password) = password {
        builder = builder.set_client_to_sentinel_password(password);
    }
    builder.build().map_err(failed)
}

/// `password`, or `user:password`.
fn login(auth: &str) -> (Option<&str>, Option<&str>) {
    match auth.split_once(':') {
        _ if auth.is_empty() => (None, None),
        Some((user, password)) => (Some(user), Some(password)),
        None => (None, Some(auth)),
    }
}

/// A path, `host:port`, or a URL (`redis://user:password@host:port/db`). A password of the URL counts before REDIS_AUTH.
fn address(settings: &Redis, text: &str) -> Result<ConnectionInfo, Failure> {
    let text = text.trim();
    let wrong = |error: redis::RedisError| Failure::unavailable(format!("REDIS_URL: {error}"));
    let given = if text.contains("://") {
        text.into_connection_info()
    } else if settings.socket_type == "unix" && settings.kind == RedisType::Single {
        ConnectionAddr::Unix(text.into()).into_connection_info()
    } else {
        let (host, port) = text
            .rsplit_once(':')
            .and_then(|(host, port)| Some((host.trim_matches(['[', ']']), port.parse().ok()?)))
            .ok_or_else(|| Failure::unavailable(format!("REDIS_URL must be host:port, not '{text}'")))?;
        let host = if host.is_empty() { "localhost" } else { host }.to_owned();
        ConnectionAddr::Tcp(host, port).into_connection_info()
    };
    let mut info = given.map_err(wrong)?;
    if let ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } = info.addr()
        && (settings.tls || matches!(info.addr(), ConnectionAddr::TcpTls { .. }))
    {
        let (host, port, insecure) = (host.clone(), *port, settings.skip_hostname_verification);
        info = info.set_addr(ConnectionAddr::TcpTls { host, port, insecure, tls_params: None });
    }
    let mut redis = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP3);
    if redis.password().is_none() {
        let (user, password) = login(&settings.auth);
        if let Some(user) = user {
            redis = redis.set_username(user);
        }
        if let Some(password) = password {
            redis = redis.set_password(password);
        }
    }
    Ok(info.set_redis_settings(redis))
}

/// The files of TLS, where any is named.
fn tls(settings: &Redis) -> Result<Option<TlsCertificates>, Failure> {
    let read = |path: &str| std::fs::read(path).map_err(|error| Failure::unavailable(format!("{path}: {error}")));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    /// Where this leads: address, user, password, database.
    fn leads(variables: &[(&str, &str)]) -> String {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let settings = Settings::read(variables.collect()).unwrap().redis;
        let info = address(&settings, &settings.url).unwrap();
        let redis = info.redis_settings();
        let tls = if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) { " TLS" } else { "" };
        format!("{}{tls} {:?} {:?} {}", info.addr(), redis.username(), redis.password(), redis.db())
    }

    fn item(key: &str, holder: &str) -> Item {
        let kind = Kind::Sliding(Rule::sliding("10/minute").unwrap());
        Item { key: key.into(), kind, units: 1, force: false, holder: holder.to_owned(), hold: None }
    }

    fn batches_of(items: &[Item], cluster: bool) -> Vec<Vec<usize>> {
        let batches = batches(&items.iter().collect::<Vec<_>>(), cluster);
        assert_eq!(takes_at_once(items.iter(), cluster), batches.len() == 1);
        batches
    }

    #[test]
    fn a_batch_has_one_slot_no_key_twice_and_at_most_64() {
        let keys: Vec<_> = (0..130).map(|number| item(&number.to_string(), "")).collect();
        let lengths = |batches: Vec<Vec<usize>>| batches.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(batches_of(&keys, false)), [64, 64, 2]);
        let holders: Vec<_> = (0..1000).map(|number| item("key", &number.to_string())).collect();
        assert_eq!(lengths(batches_of(&holders, false)), [1; 1000]);
        let mixed = [item("a", "1"), item("b", "1"), item("a", "2"), item("b", "2"), item("a", "2")];
        assert_eq!(batches_of(&mixed, false), [vec![0, 1], vec![2, 3], vec![4]]);
        let tagged = [item("{a}1", ""), item("{b}1", ""), item("{a}2", ""), item("{b}2", "")];
        assert_eq!(batches_of(&tagged, true), [[0, 2], [1, 3]]);
        assert_eq!(batches_of(&tagged, false), [[0, 1, 2, 3]]);
    }

    #[test]
    fn more_units_than_sorted_sets_take_may_need_several_calls() {
        let heavy = |units| Item { units, ..item(&units.to_string(), "") };
        assert!(takes_at_once([heavy(500), heavy(499)].iter(), false));
        assert!(!takes_at_once([heavy(500), heavy(501)].iter(), false));
        assert!(takes_at_once([heavy(1001)].iter(), false));
    }

    #[test]
    fn addresses_are_paths_hosts_and_urls() {
        let auth = ("REDIS_AUTH", "me:secret");
        let tcp = ("REDIS_SOCKET_TYPE", "tcp");
        assert_eq!(leads(&[("REDIS_URL", "/run/redis.sock"), auth]), "/run/redis.sock Some(\"me\") Some(\"secret\") 0");
        assert_eq!(leads(&[("REDIS_URL", "cache:6380"), tcp]), "cache:6380 None None 0");
        assert_eq!(
            leads(&[("REDIS_URL", "[::1]:6380"), tcp, auth, ("REDIS_TLS", "true")]),
            "::1:6380 TLS Some(\"me\") Some(\"secret\") 0"
        );
        // REDIS_AUTH and REDIS_TLS hold for a URL, too.
        assert_eq!(
            leads(&[("REDIS_URL", "redis://cache:6380/3"), auth, ("REDIS_TLS", "true")]),
            "cache:6380 TLS Some(\"me\") Some(\"secret\") 3"
        );
        assert_eq!(leads(&[("REDIS_URL", "rediss://:own@cache:6380"), auth]), "cache:6380 TLS None Some(\"own\") 0");
    }
}
