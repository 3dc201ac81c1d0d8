//! What is as it is now, beside what is counted: the state of Redis, of the configuration, of connections.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::listen::Ports;
use crate::service::Service;

/// One number, by the name that Prometheus knows it by.
pub struct Gauge {
    pub name: &'static str,
    pub help: &'static str,
    pub label: Option<(&'static str, &'static str)>,
    pub value: f64,
}

impl Gauge {
    /// The name for statsd and /stats.
    pub fn flat_name(&self) -> String {
        let label = self.label.map(|(_, value)| format!(".{value}")).unwrap_or_default();
        format!("{}{label}", self.name.replacen("redis_rl_", "redis_rl.", 1))
    }
}

pub struct Gauges {
    pub service: Arc<Service>,
    pub ports: Arc<Ports>,
}

impl Gauges {
    pub fn read(&self) -> Vec<Gauge> {
        let Self { service, ports } = self;
        let (stats, store) = (&service.stats, service.store());
        let gauge = |name, help, value: f64| Gauge { name, help, label: None, value };
        let mut gauges = vec![
            gauge("redis_rl_redis_available", "1 if Redis can be asked, 0 in an outage.", store.is_available().into()),
            gauge(
                "redis_rl_redis_connections_made",
                "Connections to Redis since the start.",
                store.connections() as f64,
            ),
            gauge("redis_rl_deny_cache_entries", "Denied requests that are remembered.", service.remembered() as f64),
            gauge(
                "redis_rl_config_refused",
                "1 while the last configuration is refused, and the one before holds.",
                stats.config_refused.load(Relaxed).into(),
            ),
            gauge(
                "redis_rl_config_loaded_timestamp_seconds",
                "When a configuration was loaded last.",
                stats.config_loaded_at.load(Relaxed) as f64,
            ),
            gauge("redis_rl_overrides", "Limits of Redis, in place of those.", service.overrides() as f64),
            gauge("redis_rl_limits", "Limits of the configuration.", service.limits() as f64),
        ];
        for (port, slots) in
            [("grpc", &ports.grpc), ("http", &ports.http), ("debug", &ports.debug), ("metrics", &ports.metrics)]
        {
            let label = Some(("port", port));
            let help = "Open connections of clients.";
            gauges.push(Gauge { name: "redis_rl_connections", help, label, value: slots.taken() as f64 });
        }
        for mode in ["module", "functions", "script"] {
            let (label, is) = (Some(("mode", mode)), store.mode() == Some(mode));
            let help = "1 for the way in which Redis is asked.";
            gauges.push(Gauge { name: "redis_rl_redis_mode", help, label, value: f64::from(u8::from(is)) });
        }
        gauges
    }
}
