//! Everything that is published, in one table: what Prometheus, statsd and /stats show are its rows.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use redis_rl_client::Mode;

use super::listen::Ports;
use crate::limits::tree::Config;
use crate::request::Service;
use crate::stats::{Counter, LimitStats};

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    Counter(u64),
    Gauge(f64),
}

#[derive(Debug)]
pub struct Sample {
    pub name: String,
    pub help: &'static str,
    pub labels: Vec<(&'static str, String)>,
    pub flat: String,
    pub value: Value,
}

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
        let limits = stats.limits.all();
        let domains = stats.unknown_domains.all();
        let statistics = 0..LimitStats::default().each().count();
        let limits = statistics.flat_map(move |index| {
            let limits = limits.clone();
            limits.into_iter().filter_map(move |(name, stats)| of_limit(&name, &stats, index))
        });
        let domains = domains.into_iter().map(|(domain, counter)| {
            let name = "ratelimit_service_rate_limit_domain_not_found".to_owned();
            let flat = format!("ratelimit.service.rate_limit.{domain}.domain_not_found");
            let help = "Requests of domains without a configuration.";
            Sample::counter(name, flat, help, &[("domain", &domain)], &counter)
        });
        limits.chain(domains).chain(self.single())
    }

    fn single(&self) -> Vec<Sample> {
        let Self { service, ports } = self;
        let (stats, store, config) = (&service.stats, service.store(), service.config());
        let mut rows = Vec::new();
        for (kind, of) in [("redis_error", &stats.redis_error), ("service_error", &stats.service_error)] {
            let flat = format!("ratelimit.service.call.should_rate_limit.{kind}");
            let (name, labels) = ("ratelimit_service_should_rate_limit_error", &[("err_type", kind)]);
            rows.push(Sample::counter(name.to_owned(), flat, "Requests that ended with an error.", labels, of));
        }
        let flat = "ratelimit_server.ShouldRateLimit.total_requests".to_owned();
        let (name, labels) = ("ratelimit_service_total_requests", &[("grpc_method", "ShouldRateLimit")]);
        rows.push(Sample::counter(name.to_owned(), flat, "Requests.", labels, &stats.total_requests));
        rows.extend(stats.service.each().map(|(name, help, of)| {
            let (name, flat) = (format!("ratelimit_service_{name}"), format!("ratelimit.service.{name}"));
            Sample::counter(name, flat, help, &[], of)
        }));
        rows.extend(stats.own.each().map(|(name, help, of)| {
            Sample::counter(format!("redis_rl_{name}_total"), format!("redis_rl.{name}"), help, &[], of)
        }));
        let mut gauge = |name: &str, help, label: Option<(&'static str, &str)>, value| {
            let labels: Vec<_> = label.map(|(name, value)| (name, value.to_owned())).into_iter().collect();
            let part = label.map(|(_, value)| format!(".{value}")).unwrap_or_default();
            let (name, flat) = (format!("redis_rl_{name}"), format!("redis_rl.{name}{part}"));
            rows.push(Sample { name, help, labels, flat, value: Value::Gauge(value) });
        };
        let refused = f64::from(stats.config_refused.load(Relaxed));
        let loaded = stats.config_loaded_at.load(Relaxed) as f64;
        let of_config = |count: fn(&Config) -> usize| config.as_deref().map_or(0, count) as f64;
        gauge("redis_available", "1 if Redis can be asked, 0 in an outage.", None, f64::from(store.is_available()));
        gauge("redis_connections_made", "Connections to Redis since the start.", None, store.connections() as f64);
        gauge("deny_cache_entries", "Denied requests that are remembered.", None, service.remembered() as f64);
        gauge("config_refused", "1 while the last configuration is refused, and the one before holds.", None, refused);
        gauge("config_loaded_timestamp_seconds", "When a configuration was loaded last.", None, loaded);
        gauge("overrides", "Limits of Redis, in place of those.", None, of_config(Config::overrides));
        gauge("limits", "Limits of the configuration.", None, of_config(Config::limits));
        let Ports { grpc, http, debug, metrics } = &**ports;
        for (port, slots) in [("grpc", grpc), ("http", http), ("debug", debug), ("metrics", metrics)] {
            gauge("connections", "Open connections of clients.", Some(("port", port)), slots.taken() as f64);
        }
        for (mode, known) in [("module", Mode::Module), ("functions", Mode::Functions), ("script", Mode::Script)] {
            let is = f64::from(store.mode() == Some(known));
            gauge("redis_mode", "1 for the way in which Redis is asked.", Some(("mode", mode)), is);
        }
        rows
    }
}

impl Sample {
    fn counter(name: String, flat: String, help: &'static str, labels: &[(&'static str, &str)], of: &Counter) -> Self {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Self { name, help, labels, flat, value: Value::Counter(of.get()) }
    }
}

/// A statistic of a limit. Labels are those of Envoy's rate limit service, which has none for deeper keys.
fn of_limit(name: &str, stats: &LimitStats, index: usize) -> Option<Sample> {
    let (statistic, help, counter) = stats.each().nth(index)?;
    let mut keys = name.splitn(4, '.');
    let mut labels = vec![("domain", keys.next()?), ("key1", keys.next().unwrap_or_default())];
    // To Prometheus an empty label is the same as no label.
    labels.extend(keys.next().filter(|key| !key.is_empty()).map(|key| ("key2", key)));
    let flat = format!("ratelimit.service.rate_limit.{name}.{statistic}");
    Some(Sample::counter(format!("ratelimit_service_rate_limit_{statistic}"), flat, help, &labels, counter))
}
