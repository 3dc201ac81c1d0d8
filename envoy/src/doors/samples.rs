//! Everything that is published, in one table: what Prometheus, statsd and /stats show are its rows.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use super::listen::Ports;
use crate::request::Service;
use crate::stats::{Counter, LimitStats};

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// It only grows.
    Counter(u64),
    Gauge(f64),
}

/// One number.
#[derive(Debug)]
pub struct Sample {
    /// The name for Prometheus.
    pub name: String,
    pub help: &'static str,
    pub labels: Vec<(&'static str, String)>,
    /// The name for statsd and /stats.
    pub flat: String,
    pub value: Value,
}

/// Where the rows come from.
pub struct Samples {
    pub service: Arc<Service>,
    pub ports: Arc<Ports>,
}

impl Samples {
    /// The rows, those of one name of Prometheus one after the other, and of these the ones with the same labels. They are
    /// made one by one: ten thousand names with all their rows would be many megabytes.
    pub fn rows(&self) -> impl Iterator<Item = Sample> + Send + use<> {
        let stats = &self.service.stats;
        // In the order of their parts: no other name comes between those that Prometheus adds up.
        let limits = stats.limits();
        let domains = stats.unknown_domains();
        let statistics = 0..LimitStats::default().each().count();
        let limits = statistics.flat_map(move |index| {
            let limits = limits.clone();
            limits.into_iter().filter_map(move |(name, stats)| of_limit(&name, &stats, index))
        });
        limits.chain(domains.into_iter().map(|(name, counter)| of_domain(&name, &counter))).chain(self.single())
    }

    /// The rows of the process as a whole.
    fn single(&self) -> Vec<Sample> {
        let Self { service, ports } = self;
        let (stats, store) = (&service.stats, service.store());
        let counter = |name: String, help, labels: &[(&'static str, &str)], flat: String, counter: &Counter| {
            let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
            Sample { name, help, labels, flat, value: Value::Counter(counter.get()) }
        };
        let errors = [("redis_error", &stats.redis_error), ("service_error", &stats.service_error)];
        let errors = errors.map(|(kind, of)| {
            let flat = format!("ratelimit.service.call.should_rate_limit.{kind}");
            let name = "ratelimit_service_should_rate_limit_error".to_owned();
            counter(name, "Requests that ended with an error.", &[("err_type", kind)], flat, of)
        });
        let requests = counter(
            "ratelimit_service_total_requests".to_owned(),
            "Requests.",
            &[("grpc_method", "ShouldRateLimit")],
            "ratelimit_server.ShouldRateLimit.total_requests".to_owned(),
            &stats.total_requests,
        );
        let of_service = stats.service.each().map(|(name, help, of)| {
            counter(format!("ratelimit_service_{name}"), help, &[], format!("ratelimit.service.{name}"), of)
        });
        let own = stats.own.each().map(|(name, help, of)| {
            counter(format!("redis_rl_{name}_total"), help, &[], format!("redis_rl.{name}"), of)
        });
        let gauge = |name: &str, help, label: Option<(&'static str, &str)>, value| {
            let (labels, part) = match label {
                Some((name, value)) => (vec![(name, value.to_owned())], format!(".{value}")),
                None => (Vec::new(), String::new()),
            };
            let (name, flat) = (format!("redis_rl_{name}"), format!("redis_rl.{name}{part}"));
            Sample { name, help, labels, flat, value: Value::Gauge(value) }
        };
        let refused = f64::from(stats.config_refused.load(Relaxed));
        let loaded = stats.config_loaded_at.load(Relaxed) as f64;
        let gauges = [
            ("redis_available", "1 if Redis can be asked, 0 in an outage.", f64::from(store.is_available())),
            ("redis_connections_made", "Connections to Redis since the start.", store.connections() as f64),
            ("deny_cache_entries", "Denied requests that are remembered.", service.remembered() as f64),
            ("config_refused", "1 while the last configuration is refused, and the one before holds.", refused),
            ("config_loaded_timestamp_seconds", "When a configuration was loaded last.", loaded),
            ("overrides", "Limits of Redis, in place of those.", service.overrides() as f64),
            ("limits", "Limits of the configuration.", service.limits() as f64),
        ];
        let gauges = gauges.map(|(name, help, value)| gauge(name, help, None, value));
        let ports =
            [("grpc", &ports.grpc), ("http", &ports.http), ("debug", &ports.debug), ("metrics", &ports.metrics)];
        let ports = ports.map(|(port, slots)| {
            gauge("connections", "Open connections of clients.", Some(("port", port)), slots.taken() as f64)
        });
        let modes = ["module", "functions", "script"].map(|mode| {
            let is = f64::from(store.mode() == Some(mode));
            gauge("redis_mode", "1 for the way in which Redis is asked.", Some(("mode", mode)), is)
        });
        let counters = errors.into_iter().chain([requests]).chain(of_service).chain(own);
        counters.chain(gauges).chain(ports).chain(modes).collect()
    }
}

/// A statistic of a limit. Labels are those of Envoy's rate limit service, which has none for deeper keys.
fn of_limit(name: &str, stats: &LimitStats, index: usize) -> Option<Sample> {
    let (statistic, help, counter) = stats.each().nth(index)?;
    let mut keys = name.splitn(4, '.');
    let label = |name, text: Option<&str>| (name, text.unwrap_or_default().to_owned());
    let mut labels = vec![label("domain", keys.next()), label("key1", keys.next())];
    labels.extend(keys.next().map(|key| label("key2", Some(key))));
    Some(Sample {
        name: format!("ratelimit_service_rate_limit_{statistic}"),
        help,
        labels,
        flat: format!("ratelimit.service.rate_limit.{name}.{statistic}"),
        value: Value::Counter(counter.get()),
    })
}

fn of_domain(domain: &str, counter: &Counter) -> Sample {
    Sample {
        name: "ratelimit_service_rate_limit_domain_not_found".to_owned(),
        help: "Requests of domains without a configuration.",
        flat: format!("ratelimit.service.rate_limit.{domain}.domain_not_found"),
        labels: vec![("domain", domain.to_owned())],
        value: Value::Counter(counter.get()),
    }
}
