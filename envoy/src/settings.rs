//! What the environment says: the variables of Envoy's rate limit service by the same names and with the same defaults,
//! and those of this service.

use std::collections::HashMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;
use redis_rl_client::{ByAddress, Mode};

use crate::limit::{Algorithm, Options};

/// What happens to a request that Redis cannot decide in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    Allow,
    Deny,
    /// The call ends with an error, and Envoy's `failure_mode_deny` decides.
    Error,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RedisType {
    Single,
    Sentinel,
    Cluster,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sink {
    None,
    Log,
    Statsd(String),
    DogStatsd(String),
    Prometheus { address: String, path: String },
}

#[derive(Debug, Clone, Default)]
pub struct Tls {
    pub cert: String,
    pub key: String,
    pub ca: String,
    /// The name that the other side's certificate must have.
    pub san: String,
}

#[derive(Debug, Clone)]
pub struct Redis {
    pub kind: RedisType,
    pub socket_type: String,
    pub url: String,
    pub auth: String,
    pub sentinel_auth: String,
    pub tls: bool,
    pub tls_files: Tls,
    pub skip_hostname_verification: bool,
    pub health_check: bool,
    pub startup_initial: Duration,
    pub startup_max: Duration,
    /// Zero: without an end.
    pub startup_elapsed: Duration,
    /// No answer takes longer.
    pub deadline: Duration,
    pub deny_cache: usize,
    pub mode: Mode,
}

#[derive(Debug, Clone)]
pub struct Xds {
    pub url: String,
    pub node_id: String,
    pub node_metadata: Vec<(String, String)>,
    pub headers: Vec<(String, String)>,
    pub use_tls: bool,
    pub tls: Tls,
    pub backoff_initial: Duration,
    pub backoff_max: Duration,
    pub max_message: usize,
}

#[derive(Debug, Clone)]
pub struct Files {
    /// Where relative names start.
    pub root: PathBuf,
    pub app_directory: String,
    /// Whether everything below the root belongs to it whose name starts with the app directory's.
    pub watch_root: bool,
    pub ignore_dot_files: bool,
}

/// How long connections of gRPC last. A client is told when its connection has this age, sends new requests on another one,
/// and has the grace for answers that are still open. Zero: without an end.
#[derive(Debug, Clone, Copy)]
pub struct Ages {
    pub most: Duration,
    pub grace: Duration,
}

#[derive(Debug, Clone)]
pub struct Settings {
    pub http: String,
    pub debug: String,
    pub grpc: String,
    pub grpc_socket: Option<PathBuf>,
    pub grpc_tls: Option<Tls>,
    pub ages: Ages,
    pub log_level: String,
    pub log_json: bool,
    pub files: Files,
    pub xds: Option<Xds>,
    pub force_start: bool,
    pub healthy_with_config: bool,
    pub options: Options,
    pub on_error: OnError,
    pub redis: Redis,
    pub key_prefix: String,
    /// How requests of HTTP tell the address of a client.
    pub clients: ByAddress,
    /// Whether TRUSTED_PROXIES names any.
    pub trusts_proxies: bool,
    pub near_limit_ratio: f32,
    /// The names of the headers of an answer, if it has any: for the limit, what remains, and the seconds until the reset.
    pub headers: Option<[String; 3]>,
    pub shadow_mode: bool,
    pub quota_mode: bool,
    pub dynamic_metadata: bool,
    pub sink: Sink,
    pub flush_interval: Duration,
    pub extra_tags: Vec<(String, String)>,
    pub threads: usize,
    /// What is set and has no effect here: lines for the log.
    pub notes: Vec<String>,
}

/// What Envoy's service has and this one has no use for: how the names of the variables begin, and why.
pub const WITHOUT_EFFECT: [(&str, &str); 17] = [
    ("LOCAL_CACHE_SIZE_IN_BYTES", "denials are remembered by DENY_CACHE, as long as they hold"),
    ("EXPIRATION_JITTER_MAX_SECONDS", "counters end with their window"),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "a denied request never counts"),
    ("REDIS_POOL_", "one connection carries all calls at once"),
    ("REDIS_PIPELINE_", "one connection carries all calls at once"),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", "calls of several slots are always sent in parallel"),
    ("REDIS_TIMEOUT", "REDIS_DEADLINE bounds an answer (20ms unless set)"),
    ("REDIS_PERSECOND", "all limits are in one Redis, so that a request is one decision"),
    ("MEMCACHE_", "limits are enforced inside Redis"),
    ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "the waits are those of XDS_CLIENT_BACKOFF_INITIAL_INTERVAL"),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "each wait is twice the one before"),
    ("XDS_CLIENT_BACKOFF_JITTER", "each wait is twice the one before"),
    // Envoy Gateway sets it; Envoy's service knows no such variable, and asks its clients for no certificate then.
    ("GRPC_SERVER_TLS_CA_CERT", "clients need a certificate where GRPC_CLIENT_TLS_CACERT says whose"),
    ("PROMETHEUS_MAPPER_YAML", "the names of the metrics are fixed"),
    ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "response times are in seconds"),
    ("USE_DOG_STATSD_MOGRIFIERS", "the names of the metrics are fixed"),
    ("TRACING_", "traces are not sent"),
];

struct Env(HashMap<String, String>);

impl Env {
    /// The variable's value. Set to nothing is set, as there.
    fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    fn text(&self, name: &str, default: &str) -> String {
        self.get(name).unwrap_or(default).to_owned()
    }

    fn read<T>(&self, name: &str, default: T, read: impl Fn(&str) -> Option<T>, wanted: &str) -> Result<T, String> {
        match self.get(name) {
            None => Ok(default),
            Some(value) => read(value).ok_or_else(|| format!("{name} must be {wanted}, not '{value}'")),
        }
    }

    fn parsed<T: FromStr>(&self, name: &str, default: T, wanted: &str) -> Result<T, String> {
        self.read(name, default, |value| value.parse().ok(), wanted)
    }

    fn one_of<T: Copy>(&self, name: &str, default: T, words: &[(&str, T)]) -> Result<T, String> {
        let taken = words.iter().map(|(word, _)| *word).collect::<Vec<_>>().join(", ");
        let read = |value: &str| words.iter().find(|(word, _)| word.eq_ignore_ascii_case(value)).map(|(_, it)| *it);
        self.read(name, default, read, &format!("one of {taken}"))
    }

    fn boolean(&self, name: &str, default: bool) -> Result<bool, String> {
        let words = ["1", "t", "true", "0", "f", "false"].map(|word| (word, matches!(word, "1" | "t" | "true")));
        self.one_of(name, default, &words)
    }

    fn duration(&self, name: &str, default: Duration) -> Result<Duration, String> {
        self.read(name, default, |value| duration(value).ok(), "a time such as 10s or 250ms")
    }

    /// `k1:v1,k2:v2`
    fn pairs(&self, name: &str) -> Result<Vec<(String, String)>, String> {
        let pairs = self.get(name).unwrap_or_default().split(',').filter(|pair| !pair.trim().is_empty());
        let read = pairs.map(|pair| match pair.split_once(':') {
            Some((key, value)) => Ok((key.trim().to_owned(), value.trim().to_owned())),
            // It may be a secret.
            None => Err(format!("{name} must be k1:v1,k2:v2")),
        });
        read.collect()
    }
}

impl Settings {
    pub fn from_env() -> Result<Self, String> {
        // No variable here is text that is not UTF-8; one with such a value is refused as what it becomes.
        let text = |text: OsString| text.to_string_lossy().into_owned();
        Self::read(std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect())
    }

    #[allow(clippy::too_many_lines)] // One line a variable.
    pub fn read(variables: HashMap<String, String>) -> Result<Self, String> {
        let env = Env(variables);
        let seconds = Duration::from_secs;
        let mut notes = Vec::new();
        for (name, value) in &env.0 {
            let without_effect = WITHOUT_EFFECT.iter().find(|(start, _)| name.starts_with(start));
            if let Some((_, why)) = without_effect
                && !matches!(value.as_str(), "" | "0" | "false")
            {
                notes.push(format!("{name} has no effect here: {why}"));
            }
        }
        notes.sort_unstable();
        let backend = env.text("BACKEND_TYPE", "redis");
        if !matches!(backend.as_str(), "redis" | "") {
            return Err(format!("BACKEND_TYPE must be redis, not '{backend}': limits are enforced inside Redis"));
        }
        let address = |host: &str, port: &str, default: u16| -> Result<String, String> {
            let host = env.text(host, "0.0.0.0");
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            Ok(format!("{host}:{}", env.parsed(port, default, "a port")?))
        };
        let tls = |cert: &str, key: &str, ca: &str, san: &str| Tls {
            cert: env.text(cert, ""),
            key: env.text(key, ""),
            ca: env.text(ca, ""),
            san: env.text(san, ""),
        };
        let grpc_tls = env.boolean("GRPC_SERVER_USE_TLS", false)?.then(|| {
            tls("GRPC_SERVER_TLS_CERT", "GRPC_SERVER_TLS_KEY", "GRPC_CLIENT_TLS_CACERT", "GRPC_CLIENT_TLS_SAN")
        });
        if grpc_tls.as_ref().is_some_and(|tls| tls.cert.is_empty() || tls.key.is_empty()) {
            return Err("GRPC_SERVER_USE_TLS needs GRPC_SERVER_TLS_CERT and GRPC_SERVER_TLS_KEY".to_owned());
        }
        let xds = match env.text("CONFIG_TYPE", "FILE").as_str() {
            "FILE" => None,
            "GRPC_XDS_SOTW" => Some(Xds {
                url: env.text("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000"),
                node_id: env.text("CONFIG_GRPC_XDS_NODE_ID", "default"),
                // What is no pair is passed over, as there.
                node_metadata: (env.text("CONFIG_GRPC_XDS_NODE_METADATA", "").split(','))
                    .filter_map(|pair| pair.split_once('='))
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect(),
                headers: env.pairs("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS")?,
                use_tls: env.boolean("CONFIG_GRPC_XDS_SERVER_USE_TLS", false)?,
                tls: tls(
                    "CONFIG_GRPC_XDS_CLIENT_TLS_CERT",
                    "CONFIG_GRPC_XDS_CLIENT_TLS_KEY",
                    "CONFIG_GRPC_XDS_SERVER_TLS_CACERT",
                    "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
                ),
                backoff_initial: env.duration("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", seconds(10))?,
                backoff_max: env.duration("XDS_CLIENT_BACKOFF_MAX_INTERVAL", seconds(60))?,
                max_message: match env.text("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "").as_str() {
                    // As gRPC has it.
                    "" | "0" => 4 << 20,
                    _ => env.parsed("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", 0, "a number of bytes")?,
                },
            }),
            other => return Err(format!("CONFIG_TYPE must be FILE or GRPC_XDS_SOTW, not '{other}'")),
        };
        let kinds = [("SINGLE", RedisType::Single), ("SENTINEL", RedisType::Sentinel), ("CLUSTER", RedisType::Cluster)];
        let modes =
            [("auto", Mode::Auto), ("module", Mode::Module), ("functions", Mode::Functions), ("script", Mode::Script)];
        let deadline = |value: &str| duration(value).ok().filter(|deadline| !deadline.is_zero());
        let redis = Redis {
            kind: env.one_of("REDIS_TYPE", RedisType::Single, &kinds)?,
            socket_type: env.text("REDIS_SOCKET_TYPE", "unix"),
            url: env.text("REDIS_URL", "/var/run/nutcracker/ratelimit.sock"),
            auth: env.text("REDIS_AUTH", ""),
            sentinel_auth: env.text("REDIS_SENTINEL_AUTH", ""),
            tls: env.boolean("REDIS_TLS", false)?,
            tls_files: tls("REDIS_TLS_CLIENT_CERT", "REDIS_TLS_CLIENT_KEY", "REDIS_TLS_CACERT", ""),
            skip_hostname_verification: env.boolean("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", false)?,
            health_check: env.boolean("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", false)?,
            startup_initial: env.duration("REDIS_STARTUP_INITIAL_INTERVAL", seconds(1))?,
            startup_max: env.duration("REDIS_STARTUP_MAX_INTERVAL", seconds(30))?,
            startup_elapsed: env.duration("REDIS_STARTUP_MAX_ELAPSED_TIME", Duration::ZERO)?,
            deadline: env.read("REDIS_DEADLINE", Duration::from_millis(20), deadline, "a time above 0 such as 20ms")?,
            deny_cache: env.parsed("DENY_CACHE", 10_000, "a number of entries")?,
            mode: env.one_of("REDIS_RL_MODE", Mode::Auto, &modes)?,
        };
        let proxies = env.text("TRUSTED_PROXIES", "");
        let proxies: Vec<_> = proxies.split(',').map(str::trim).filter(|proxy| !proxy.is_empty()).collect();
        let on_errors = [("allow", OnError::Allow), ("deny", OnError::Deny), ("error", OnError::Error)];
        let ratio = |value: &str| value.parse().ok().filter(|ratio| *ratio > 0.0 && *ratio <= 1.0);
        let threads = |value: &str| value.parse().ok().filter(|threads| (1..=1024).contains(threads));
        let root = PathBuf::from(env.text("RUNTIME_ROOT", "/srv/runtime_data/current"));
        Ok(Self {
            http: address("HOST", "PORT", 8080)?,
            debug: address("DEBUG_HOST", "DEBUG_PORT", 6070)?,
            grpc: address("GRPC_HOST", "GRPC_PORT", 8081)?,
            grpc_socket: env.get("GRPC_UDS").filter(|path| !path.is_empty()).map(PathBuf::from),
            grpc_tls,
            ages: Ages {
                most: env.duration("GRPC_MAX_CONNECTION_AGE", seconds(24 * 3600))?,
                grace: env.duration("GRPC_MAX_CONNECTION_AGE_GRACE", seconds(3600))?,
            },
            log_level: env.text("LOG_LEVEL", "WARN"),
            log_json: env.text("LOG_FORMAT", "text").eq_ignore_ascii_case("json"),
            files: Files {
                root: root.join(env.text("RUNTIME_SUBDIRECTORY", "")),
                app_directory: env.text("RUNTIME_APPDIRECTORY", "config"),
                watch_root: env.boolean("RUNTIME_WATCH_ROOT", true)?,
                // Editors and Kubernetes leave them, which nobody means as limits.
                ignore_dot_files: env.boolean("RUNTIME_IGNOREDOTFILES", true)?,
            },
            xds,
            force_start: env.boolean("FORCE_START_WITHOUT_INITIAL_CONFIG", false)?,
            healthy_with_config: env.boolean("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", false)?,
            options: Options {
                merge_domains: env.boolean("MERGE_DOMAIN_CONFIG", false)?,
                algorithm: Algorithm::parse(&env.text("DEFAULT_ALGORITHM", "fixed"))
                    .map_err(|error| format!("DEFAULT_ALGORITHM: {error}"))?,
            },
            on_error: env.one_of("ON_ERROR", OnError::Error, &on_errors)?,
            redis,
            key_prefix: env.text("CACHE_KEY_PREFIX", ""),
            clients: ByAddress::default()
                .trusted_proxies(&proxies)
                .map_err(|error| format!("TRUSTED_PROXIES: {error}"))?
                // A limit is never left out for want of an address.
                .or_proxy(),
            trusts_proxies: !proxies.is_empty(),
            near_limit_ratio: env.read("NEAR_LIMIT_RATIO", 0.8, ratio, "a number above 0 and at most 1")?,
            headers: env.boolean("LIMIT_RESPONSE_HEADERS_ENABLED", false)?.then(|| {
                [
                    env.text("LIMIT_LIMIT_HEADER", "RateLimit-Limit"),
                    env.text("LIMIT_REMAINING_HEADER", "RateLimit-Remaining"),
                    env.text("LIMIT_RESET_HEADER", "RateLimit-Reset"),
                ]
            }),
            shadow_mode: env.boolean("SHADOW_MODE", false)?,
            quota_mode: env.boolean("QUOTA_MODE", false)?,
            dynamic_metadata: env.boolean("RESPONSE_DYNAMIC_METADATA", false)?,
            sink: sink(&env)?,
            flush_interval: env.duration("STATS_FLUSH_INTERVAL", seconds(10))?,
            extra_tags: env.pairs("EXTRA_TAGS")?,
            threads: env.read("WORKER_THREADS", 1, threads, "a number of threads, at most 1024")?,
            notes,
        })
    }
}

fn sink(env: &Env) -> Result<Sink, String> {
    if env.boolean("DISABLE_STATS", false)? {
        return Ok(Sink::None);
    }
    let statsd = env.boolean("USE_STATSD", true)?;
    let dog = env.boolean("USE_DOG_STATSD", false)?;
    let prometheus = env.boolean("USE_PROMETHEUS", false)?;
    let port: u16 = env.parsed("STATSD_PORT", 8125, "a port")?;
    let address = format!("{}:{port}", env.text("STATSD_HOST", "localhost"));
    Ok(match (statsd, dog, prometheus) {
        (false, false, false) => Sink::Log,
        (true, false, false) => Sink::Statsd(address),
        (false, true, false) => Sink::DogStatsd(address),
        (false, false, true) => {
            let address = env.text("PROMETHEUS_ADDR", ":9090");
            let path = |value: &str| value.starts_with('/').then(|| value.to_owned());
            let path = env.read("PROMETHEUS_PATH", "/metrics".to_owned(), path, "a path that begins with a slash")?;
            Sink::Prometheus { address, path }
        }
        _ => {
            let all = "USE_STATSD (true unless set), USE_DOG_STATSD and USE_PROMETHEUS";
            return Err(format!("only one of {all} can be true"));
        }
    })
}

/// Reads a time as Go writes it: `10s`, `1h30m`, `250ms`, `0`.
pub fn duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let time = text.parse().ok().and_then(|time: SignedDuration| Duration::try_from(time).ok());
    time.ok_or_else(|| format!("'{text}' is not a time"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, String> {
        Settings::read(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn times_are_those_of_go() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(duration("150us"), Ok(Duration::from_micros(150)));
        for bad in ["", "5", "s", "-1s", "1d", "1s2", "1..2s"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_defaults_are_those_of_envoys_service() {
        let settings = read(&[]).unwrap();
        assert_eq!((settings.http.as_str(), settings.grpc.as_str()), ("0.0.0.0:8080", "0.0.0.0:8081"));
        assert_eq!(settings.sink, Sink::Statsd("localhost:8125".to_owned()));
        assert_eq!(settings.redis.socket_type, "unix");
        assert!(settings.notes.is_empty());
    }

    #[test]
    fn what_cannot_be_is_said() {
        for (name, value) in [
            ("USE_PROMETHEUS", "true"),
            ("BACKEND_TYPE", "memcache"),
            ("PORT", "http"),
            ("SHADOW_MODE", "maybe"),
            ("REDIS_TYPE", "ring"),
            ("ON_ERROR", "panic"),
            ("DEFAULT_ALGORITHM", "leaky"),
            ("REDIS_RL_MODE", "lua"),
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_MAX_CONNECTION_AGE", "1d"),
            ("TRUSTED_PROXIES", "10.0.0.0/8,nginx"),
            ("NEAR_LIMIT_RATIO", "7"),
            ("NEAR_LIMIT_RATIO", "0"),
            ("NEAR_LIMIT_RATIO", "NaN"),
            // Each request would fail, and no system has as many threads.
            ("REDIS_DEADLINE", "0"),
            ("REDIS_DEADLINE", "0ms"),
            ("WORKER_THREADS", "0"),
            ("WORKER_THREADS", "1000000"),
        ] {
            assert!(read(&[(name, value)]).is_err(), "{name}={value}");
        }
        assert_eq!(read(&[("NEAR_LIMIT_RATIO", "1")]).unwrap().near_limit_ratio, 1.0);
        let settings = read(&[("LOCAL_CACHE_SIZE_IN_BYTES", "1000"), ("REDIS_PERSECOND", "false")]).unwrap();
        assert_eq!(settings.notes.len(), 1);
    }

    /// All variables of Envoy's service: each is read here, or named in the log as one that has no effect.
    #[test]
    fn every_variable_is_read_or_named() {
        let (source, _) = include_str!("settings.rs").split_once("#[cfg(test)]").unwrap();
        for name in include_str!("../tests/variables.txt").lines() {
            let noted = read(&[(name, "5"), ("USE_STATSD", "false")]).is_ok_and(|settings| !settings.notes.is_empty());
            assert!(noted || source.contains(&format!("\"{name}\"")), "{name}");
        }
    }

    #[test]
    fn odd_values_are_read_as_there() {
        let xds =
            |name: &str, value: &str| read(&[("CONFIG_TYPE", "GRPC_XDS_SOTW"), (name, value)]).unwrap().xds.unwrap();
        let pairs = xds("CONFIG_GRPC_XDS_NODE_METADATA", "a=b,c,d=e=f").node_metadata;
        assert_eq!(pairs, [("a", "b"), ("d", "e=f")].map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(xds("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "0").max_message, 4 << 20);
        assert_eq!(xds("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "100").max_message, 100);
    }
}
