//! The reference of the environment: every variable that `settings.rs` reads, its default and what it says. `--variables`
//! prints it, and tests compare it with the settings and with docs/ENVIRONMENT.md.

use crate::settings::WITHOUT_EFFECT;

/// Name, default, and what it says. An empty default is nothing.
type Variable = (&'static str, &'static str, &'static str);

const GROUPS: [(&str, &[Variable]); 9] = [
    (
        "Redis",
        &[
            ("REDIS_SOCKET_TYPE", "unix", "`tcp` or `unix`"),
            (
                "REDIS_URL",
                "/var/run/nutcracker/ratelimit.sock",
                "`host:port`, the path of a socket, or a URL (`redis://host:port/db`); of sentinels `name,host:port,…`, of a cluster `host:port,…`",
            ),
            ("REDIS_TYPE", "SINGLE", "`SINGLE`, `SENTINEL` or `CLUSTER`"),
            ("REDIS_AUTH", "", "`password` or `user:password`"),
            ("REDIS_SENTINEL_AUTH", "", "the same for the sentinels"),
            ("REDIS_TLS", "false", "TLS to Redis"),
            ("REDIS_TLS_CACERT", "", "the file of the authorities; the system's unless set"),
            ("REDIS_TLS_CLIENT_CERT", "", "the file of the client's certificate"),
            ("REDIS_TLS_CLIENT_KEY", "", "the file of its key"),
            ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "false", "whether the certificate may be of another name"),
            ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "false", "unhealthy while Redis does not answer"),
            (
                "REDIS_STARTUP_INITIAL_INTERVAL",
                "1s",
                "the first wait where Redis is not there at the start; each is twice the one before",
            ),
            ("REDIS_STARTUP_MAX_INTERVAL", "30s", "the longest of these waits"),
            ("REDIS_STARTUP_MAX_ELAPSED_TIME", "0", "when the service gives up; 0: never"),
            (
                "REDIS_DEADLINE",
                "20ms",
                "the longest that a call of Redis takes; a request that needs several has twice as long for all. *Not in envoyproxy/ratelimit*",
            ),
            (
                "REDIS_RL_MODE",
                "auto",
                "how Redis is asked: `module`, `functions`, `script`, or the first of them that is there. *Not in envoyproxy/ratelimit*",
            ),
            ("CACHE_KEY_PREFIX", "", "stands before all keys"),
            ("BACKEND_TYPE", "redis", "nothing else is taken"),
        ],
    ),
    (
        "Decisions",
        &[
            (
                "ON_ERROR",
                "error",
                "a request that Redis cannot decide now: `error` (Envoy's `failure_mode_deny` decides), `allow` or `deny`. *Not in envoyproxy/ratelimit*",
            ),
            (
                "DENY_CACHE",
                "10000",
                "how many denied requests are remembered, each for its wait and at most a second; 0: none. *Not in envoyproxy/ratelimit*",
            ),
            (
                "DEFAULT_ALGORITHM",
                "fixed",
                "of limits that name none: `fixed`, `sliding` or `throttle`. *Not in envoyproxy/ratelimit*",
            ),
            ("SHADOW_MODE", "false", "decides and counts, and lets everything in"),
            ("QUOTA_MODE", "false", "all limits are quotas"),
            (
                "NEAR_LIMIT_RATIO",
                "0.8",
                "the share of a limit from which on hits are counted as near it: above 0, at most 1",
            ),
            ("LIMIT_RESPONSE_HEADERS_ENABLED", "false", "headers in the answer"),
            ("LIMIT_LIMIT_HEADER", "RateLimit-Limit", "the name of the header with the limit"),
            ("LIMIT_REMAINING_HEADER", "RateLimit-Remaining", "that of what is left"),
            ("LIMIT_RESET_HEADER", "RateLimit-Reset", "that of the time until the window ends"),
            ("RESPONSE_DYNAMIC_METADATA", "false", "dynamic metadata in the answer"),
        ],
    ),
    (
        "Configuration from files",
        &[
            ("RUNTIME_ROOT", "/srv/runtime_data/current", "where the files are"),
            ("RUNTIME_SUBDIRECTORY", "", "the folder below it"),
            ("RUNTIME_APPDIRECTORY", "config", "the folder below that"),
            (
                "RUNTIME_WATCH_ROOT",
                "true",
                "files beside the last folder count, too, if their names begin with its name and a dot",
            ),
            (
                "RUNTIME_IGNOREDOTFILES",
                "true",
                "leaves out files and folders whose names begin with a dot. *`false` in envoyproxy/ratelimit*",
            ),
            ("MERGE_DOMAIN_CONFIG", "false", "a domain may be in several files"),
            ("FORCE_START_WITHOUT_INITIAL_CONFIG", "false", "listens before a configuration was read"),
            ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "false", "unhealthy until a configuration is loaded"),
        ],
    ),
    (
        "Configuration by xDS",
        &[
            ("CONFIG_TYPE", "FILE", "`FILE` or `GRPC_XDS_SOTW`"),
            ("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000", "the server"),
            ("CONFIG_GRPC_XDS_NODE_ID", "default", "the node that asks"),
            ("CONFIG_GRPC_XDS_NODE_METADATA", "", "its metadata, `k1=v1,k2=v2`"),
            ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "", "headers of the request, `k1:v1,k2:v2`"),
            ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "false", "TLS to the server"),
            ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "", "the file of the authorities; the system's unless set"),
            ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", "", "the name in the server's certificate, where it is not the URL's"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "", "the file of the client's certificate"),
            ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "", "the file of its key"),
            (
                "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
                "10s",
                "the first wait after a failure; each is twice the one before",
            ),
            ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "60s", "the longest of these waits"),
            ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "", "the most bytes of a message; 4 MiB unless set"),
        ],
    ),
    (
        "gRPC",
        &[
            ("GRPC_HOST", "0.0.0.0", "the address"),
            ("GRPC_PORT", "8081", "the port"),
            ("GRPC_UDS", "", "a Unix socket in place of both"),
            ("GRPC_SERVER_USE_TLS", "false", "TLS; needs certificate and key"),
            ("GRPC_SERVER_TLS_CERT", "", "the file of the certificate"),
            ("GRPC_SERVER_TLS_KEY", "", "the file of its key"),
            ("GRPC_CLIENT_TLS_CACERT", "", "clients need a certificate of these authorities"),
            ("GRPC_CLIENT_TLS_SAN", "", "and with this name"),
            ("GRPC_MAX_CONNECTION_AGE", "24h", "how long a connection lasts, a tenth more or less; 0: without an end"),
            ("GRPC_MAX_CONNECTION_AGE_GRACE", "1h", "how long its last requests may take; 0: without an end"),
        ],
    ),
    (
        "HTTP and debugging",
        &[
            ("HOST", "0.0.0.0", "the address of `/json`, `/check` and `/healthcheck`"),
            ("PORT", "8080", "the port"),
            (
                "TRUSTED_PROXIES",
                "",
                "addresses and networks of the gateways whose `X-Forwarded-For` is believed, separated by commas. *Not in envoyproxy/ratelimit*",
            ),
            ("DEBUG_HOST", "0.0.0.0", "the address of `/rlconfig` and `/stats`"),
            ("DEBUG_PORT", "6070", "the port"),
        ],
    ),
    (
        "Statistics",
        &[
            ("USE_STATSD", "true", "sends them to statsd, over TCP"),
            ("USE_DOG_STATSD", "false", "sends them to DogStatsD, over UDP, with EXTRA_TAGS as its tags"),
            (
                "USE_PROMETHEUS",
                "false",
                "shows them to Prometheus. Only one of the three can be true; with none they are lines of the log, at level `info`",
            ),
            ("STATSD_HOST", "localhost", "the server of statsd"),
            ("STATSD_PORT", "8125", "its port"),
            ("STATS_FLUSH_INTERVAL", "10s", "how often they are sent"),
            ("PROMETHEUS_ADDR", ":9090", "where Prometheus asks"),
            ("PROMETHEUS_PATH", "/metrics", "by which path"),
            ("EXTRA_TAGS", "", "tags of all statistics, `k1:v1,k2:v2`; of Prometheus labels"),
            ("DISABLE_STATS", "false", "no statistics"),
        ],
    ),
    (
        "The log",
        &[
            ("LOG_LEVEL", "WARN", "`trace`, `debug`, `info`, `warn` or `error`"),
            ("LOG_FORMAT", "text", "`text` or `json`"),
        ],
    ),
    ("The process", &[("WORKER_THREADS", "1", "threads for requests. *Not in envoyproxy/ratelimit*")]),
];

/// The reference, in Markdown.
pub fn reference() -> String {
    let mut text = String::new();
    for (group, variables) in GROUPS {
        text += &format!("## {group}\n\n| variable | default | |\n|---|---|---|\n");
        for (name, default, says) in variables {
            let default = if default.is_empty() { String::new() } else { format!("`{default}`") };
            text += &format!("| `{name}` | {default} | {says} |\n");
        }
        text.push('\n');
    }
    text += "## Without effect\n\nVariables of envoyproxy/ratelimit that have no effect here. The log says so at the start where one is set.\n\n| variable | why |\n|---|---|\n";
    for (name, why) in WITHOUT_EFFECT {
        let more = if name.ends_with('_') { "…" } else { "" };
        text += &format!("| `{name}{more}` | {why} |\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::settings::Settings;

    fn variables() -> impl Iterator<Item = Variable> {
        GROUPS.into_iter().flat_map(|(_, variables)| variables.iter().copied())
    }

    fn read(variables: &[(&str, &str)]) -> Settings {
        Settings::read(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
            .unwrap()
    }

    #[test]
    fn every_variable_that_is_read_is_described() {
        let (source, _) = include_str!("settings.rs").split_once("#[cfg(test)]").unwrap();
        let (before, rest) = source.split_once("const WITHOUT_EFFECT").unwrap();
        let (_, after) = rest.split_once("];").unwrap();
        let values = ["TRUE", "FALSE", "FILE", "GRPC_XDS_SOTW", "SINGLE", "WARN"];
        let literals = before.split('"').skip(1).step_by(2).chain(after.split('"').skip(1).step_by(2));
        let read: BTreeSet<_> = literals
            .filter(|text| text.len() > 3 && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'))
            .filter(|text| !values.contains(text))
            .collect();
        let described: BTreeSet<_> = variables().map(|(name, ..)| name).collect();
        assert_eq!(read, described);
        assert_eq!(described.len(), variables().count(), "one is described twice");
    }

    #[test]
    fn the_defaults_are_those_of_the_settings() {
        // What is read only where something else is set.
        let bases: [&[(&str, &str)]; 4] = [
            &[],
            &[("CONFIG_TYPE", "GRPC_XDS_SOTW"), ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "true")],
            &[("USE_STATSD", "false"), ("USE_PROMETHEUS", "true")],
            &[("LIMIT_RESPONSE_HEADERS_ENABLED", "true")],
        ];
        for base in bases {
            let wanted = format!("{:?}", read(base));
            for (name, default, _) in variables().filter(|(name, ..)| base.iter().all(|(set, _)| set != name)) {
                let with = format!("{:?}", read(&[base, &[(name, default)]].concat()));
                assert_eq!(with, wanted, "{name}={default}");
            }
        }
    }

    #[test]
    fn the_page_is_the_reference() {
        let page = include_str!("../../docs/ENVIRONMENT.md");
        let (_, tables) = page.split_once("<!-- redis-rl-envoy --variables -->\n\n").unwrap();
        assert_eq!(tables, reference());
    }
}
