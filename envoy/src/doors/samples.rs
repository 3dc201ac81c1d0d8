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
        let statistics = 0..LimitStats::default().each().len();
        let limits = statistics.flat_map(move |index| {
            let limits = limits.clone();
            limits.into_iter().map(move |(name, stats)| of_limit(&name, &stats, index))
        });
        limits.chain(domains.into_iter().map(|(name, counter)| of_domain(&name, &counter))).chain(self.single())
    }

    /// The rows of the process as a whole.
    fn single(&self) -> Vec<Sample> {
        let Self { service, ports } = self;
        let (stats, store) = (&service.stats, service.store());
        let counter = |name: &str, help, labels: &[(&'static str, &str)], flat: &str, counter: &Counter| Sample {
            name: name.to_owned(),
            help,
            labels: labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect(),
            flat: flat.to_owned(),
            value: Value::Counter(counter.get()),
        };
        let errors = ("ratelimit_service_should_rate_limit_error", "Requests that ended with an error.");
        let mut rows = vec![
            counter(
                errors.0,
                errors.1,
                &[("err_type", "redis_error")],
                "ratelimit.service.call.should_rate_limit.redis_error",
                &stats.redis_error,
            ),
            counter(
                errors.0,
                errors.1,
                &[("err_type", "service_error")],
                "ratelimit.service.call.should_rate_limit.service_error",
                &stats.service_error,
            ),
            counter(
                "ratelimit_service_total_requests",
                "Requests.",
                &[("grpc_method", "ShouldRateLimit")],
                "ratelimit_server.ShouldRateLimit.total_requests",
                &stats.total_requests,
            ),
        ];
        for (name, help, of) in [
            ("config_load_success", "Configurations taken.", &stats.config_load_success),
            ("config_load_error", "Configurations refused.", &stats.config_load_error),
            ("global_shadow_mode", "Denials that SHADOW_MODE let in.", &stats.global_shadow_mode),
        ] {
            let (name, flat) = (format!("ratelimit_service_{name}"), format!("ratelimit.service.{name}"));
            rows.push(counter(&name, help, &[], &flat, of));
        }
        for (name, help, of) in stats.own.each() {
            rows.push(counter(&format!("redis_rl_{name}_total"), help, &[], &format!("redis_rl.{name}"), of));
        }
        let mut gauge = |name: &str, help, label: Option<(&'static str, &str)>, value| {
            let (labels, part) = match label {
                Some((name, value)) => (vec![(name, value.to_owned())], format!(".{value}")),
                None => (Vec::new(), String::new()),
            };
            let (name, flat) = (format!("redis_rl_{name}"), format!("redis_rl.{name}{part}"));
            rows.push(Sample { name, help, labels, flat, value: Value::Gauge(value) });
        };
        for (name, help, value) in [
            ("redis_available", "1 if Redis can be asked, 0 in an outage.", f64::from(store.is_available())),
            ("redis_connections_made", "Connections to Redis since the start.", store.connections() as f64),
            ("deny_cache_entries", "Denied requests that are remembered.", service.remembered() as f64),
            (
                "config_refused",
                "1 while the last configuration is refused, and the one before holds.",
                f64::from(stats.config_refused.load(Relaxed)),
            ),
            (
                "config_loaded_timestamp_seconds",
                "When a configuration was loaded last.",
                stats.config_loaded_at.load(Relaxed) as f64,
            ),
            ("overrides", "Limits of Redis, in place of those.", service.overrides() as f64),
            ("limits", "Limits of the configuration.", service.limits() as f64),
        ] {
            gauge(name, help, None, value);
        }
        for (port, slots) in
            [("grpc", &ports.grpc), ("http", &ports.http), ("debug", &ports.debug), ("metrics", &ports.metrics)]
        {
            gauge("connections", "Open connections of clients.", Some(("port", port)), slots.taken() as f64);
        }
        for mode in ["module", "functions", "script"] {
            let is = f64::from(store.mode() == Some(mode));
            gauge("redis_mode", "1 for the way in which Redis is asked.", Some(("mode", mode)), is);
        }
        rows
    }
}

/// A statistic of a limit. Labels are those of Envoy's rate limit service, which has none for deeper keys.
fn of_limit(name: &str, stats: &LimitStats, index: usize) -> Sample {
    let (statistic, help, counter) = stats.each()[index];
    let mut keys = name.splitn(4, '.');
    let label = |name, text: Option<&str>| (name, text.unwrap_or_default().to_owned());
    let mut labels = vec![label("domain", keys.next()), label("key1", keys.next())];
    labels.extend(keys.next().map(|key| label("key2", Some(key))));
    Sample {
        name: format!("ratelimit_service_rate_limit_{statistic}"),
        help,
        labels,
        flat: format!("ratelimit.service.rate_limit.{name}.{statistic}"),
        value: Value::Counter(counter.get()),
    }
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
