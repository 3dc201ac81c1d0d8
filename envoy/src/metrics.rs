//! The counters as Prometheus reads them, with the names and labels that Envoy's rate limit service has by default:
//! `domain`, `key1`, `key2`, and nothing of deeper keys.

use std::collections::BTreeMap;

use prometheus::core::Collector;
use prometheus::proto::MetricFamily;
use prometheus::{Encoder, GaugeVec, IntCounter, IntCounterVec, Opts, TextEncoder};

use crate::gauges::Gauge;
use crate::stats::{Stats, sanitized};

/// The text of a scrape.
///
/// # Errors
/// If a name is not one that Prometheus takes.
pub fn scrape(stats: &Stats, gauges: &[Gauge]) -> prometheus::Result<Vec<u8>> {
    let mut families = Vec::new();
    limits(stats, &mut families)?;

    let unknown = IntCounterVec::new(
        Opts::new("ratelimit_service_rate_limit_domain_not_found", "Requests of domains without a configuration."),
        &["domain"],
    )?;
    for (domain, counter) in stats.unknown_domains() {
        unknown.with_label_values(&[&sanitized(&domain)]).inc_by(counter.get());
    }
    families.extend(unknown.collect());

    let errors = IntCounterVec::new(
        Opts::new("ratelimit_service_should_rate_limit_error", "Requests that ended with an error."),
        &["err_type"],
    )?;
    errors.with_label_values(&["redis_error"]).inc_by(stats.redis_error.get());
    errors.with_label_values(&["service_error"]).inc_by(stats.service_error.get());
    families.extend(errors.collect());

    let requests = IntCounterVec::new(Opts::new("ratelimit_service_total_requests", "Requests."), &["grpc_method"])?;
    requests.with_label_values(&["ShouldRateLimit"]).inc_by(stats.total_requests.get());
    families.extend(requests.collect());

    for (name, help, counter) in [
        ("ratelimit_service_config_load_success", "Configurations taken.", &stats.config_load_success),
        ("ratelimit_service_config_load_error", "Configurations refused.", &stats.config_load_error),
        ("ratelimit_service_global_shadow_mode", "Denials that SHADOW_MODE let in.", &stats.global_shadow_mode),
    ] {
        families.extend(single(name, help, counter.get())?);
    }
    for (name, help, counter) in stats.own.each() {
        families.extend(single(&format!("redis_rl_{name}_total"), help, counter.get())?);
    }
    families.extend(stats.response_time.0.collect());
    families.extend(stats.redis_time.0.collect());
    for of_name in gauges.chunk_by(|a, b| a.name == b.name) {
        families.extend(of_name.first().map(|first| gauge(first, of_name)).transpose()?.unwrap_or_default());
    }
    #[cfg(target_os = "linux")]
    families.extend(prometheus::process_collector::ProcessCollector::for_self().collect());

    families.retain(|family| !family.get_metric().is_empty());
    let mut text = Vec::new();
    TextEncoder::new().encode(&families, &mut text)?;
    Ok(text)
}

fn single(name: &str, help: &str, value: u64) -> prometheus::Result<Vec<MetricFamily>> {
    let counter = IntCounter::new(name, help)?;
    counter.inc_by(value);
    Ok(counter.collect())
}

fn gauge(first: &Gauge, of_name: &[Gauge]) -> prometheus::Result<Vec<MetricFamily>> {
    let names: Vec<_> = first.label.iter().map(|(name, _)| *name).collect();
    let family = GaugeVec::new(Opts::new(first.name, first.help), &names)?;
    for gauge in of_name {
        let values: Vec<_> = gauge.label.iter().map(|(_, value)| *value).collect();
        family.with_label_values(&values).set(gauge.value);
    }
    Ok(family.collect())
}

/// One line a statistic and pair of keys. Limits whose names differ only further down are added up.
fn limits(stats: &Stats, families: &mut Vec<MetricFamily>) -> prometheus::Result<()> {
    let mut sums: BTreeMap<(bool, &str), BTreeMap<Vec<String>, u64>> = BTreeMap::new();
    for (key, limit) in stats.limits() {
        let key = sanitized(&key);
        let labels: Vec<_> = key.split('.').take(3).map(str::to_owned).collect();
        for (name, counter) in limit.each() {
            let by_labels = sums.entry((labels.len() > 2, name)).or_default();
            *by_labels.entry(labels.clone()).or_default() += counter.get();
        }
    }
    // A family may have series of two and of three labels; the crate makes one kind at a time.
    let mut merged: BTreeMap<String, MetricFamily> = BTreeMap::new();
    for ((deep, name), by_labels) in sums {
        let options = Opts::new(format!("ratelimit_service_rate_limit_{name}"), help(name));
        let names: &[&str] = if deep { &["domain", "key1", "key2"] } else { &["domain", "key1"] };
        let counters = IntCounterVec::new(options, names)?;
        for (labels, sum) in by_labels {
            let mut labels: Vec<_> = labels.iter().map(String::as_str).collect();
            labels.resize(names.len(), "");
            counters.with_label_values(&labels).inc_by(sum);
        }
        for mut family in counters.collect() {
            match merged.get_mut(family.name()) {
                Some(there) => there.mut_metric().extend(family.take_metric()),
                None => drop(merged.insert(family.name().to_owned(), family)),
            }
        }
    }
    families.extend(merged.into_values());
    Ok(())
}

fn help(name: &str) -> &'static str {
    match name {
        "total_hits" => "Hits of a limit.",
        "over_limit" => "Hits above the limit.",
        "near_limit" => "Hits near the limit and within it.",
        "over_limit_with_local_cache" => "Hits above the limit that the deny cache answered.",
        "within_limit" => "Hits within the limit.",
        _ => "Hits above the limit that shadow_mode let in.",
    }
}
