//! What is counted, by the names of Envoy's rate limit service, so that dashboards go on working, and what only this
//! service counts beside them. How it is published is `samples.rs`, `metrics.rs` and `statsd.rs`.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, LazyLock};

use parking_lot::RwLock;
use prometheus::{DEFAULT_BUCKETS, Histogram, HistogramOpts};
use regex_lite::Regex;

#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, units: u64) {
        self.0.fetch_add(units, Relaxed);
    }

    pub fn inc(&self) {
        self.add(1);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
}

/// Counters that are published by the names of their fields, with what they count.
macro_rules! counters {
    ($(#[$about:meta])* $name:ident { $($field:ident: $help:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Default)]
        pub struct $name {
            $(#[doc = $help] pub $field: Counter,)*
        }

        impl $name {
            pub fn each(&self) -> impl Iterator<Item = (&'static str, &'static str, &Counter)> {
                [$((stringify!($field), $help, &self.$field)),*].into_iter()
            }
        }
    };
}

counters! {
    /// The hits of one limit.
    LimitStats {
        total_hits: "Hits of a limit.",
        over_limit: "Hits above the limit.",
        near_limit: "Hits near the limit and within it.",
        over_limit_with_local_cache: "Hits above the limit that the deny cache answered.",
        within_limit: "Hits within the limit.",
        shadow_mode: "Hits above the limit that shadow_mode let in.",
    }
}

counters! {
    /// What the whole process counts, beside errors and requests.
    ServiceStats {
        config_load_success: "Configurations taken.",
        config_load_error: "Configurations refused.",
        global_shadow_mode: "Denials that SHADOW_MODE let in.",
    }
}

counters! {
    /// What Envoy's rate limit service has no name for.
    OwnStats {
        failed_open: "Requests let in because Redis could not be asked.",
        failed_closed: "Requests denied because Redis could not be asked.",
        refunded_units: "Units given back by negative hits.",
        deny_cache_hits: "Requests answered by the deny cache.",
        block_hits: "Requests of limits with blocks that took no call.",
        redis_calls: "Calls of Redis.",
        undecided_units: "Units that are, or may be, charged for requests that were not let in.",
        refused_requests: "Requests refused because those before them take all that they may.",
    }
}

impl LimitStats {
    /// Hits that were within the limit. `after`: the units in use with them; `near`: from where on a hit is near it.
    pub fn within(&self, hits: u64, after: u64, near: u64) {
        self.within_limit.add(hits);
        self.near_limit.add(hits.min(after.saturating_sub(near)));
    }

    /// Hits that went over the limit. `before`: the units in use without them. Of hits that would have filled the limit
    /// on their way, only the rest counts as over it.
    pub fn over(&self, hits: u64, before: u64, limit: u64, near: u64) -> u64 {
        let over = hits.min(before.saturating_add(hits).saturating_sub(limit));
        self.over_limit.add(over);
        if before < limit {
            self.near_limit.add(limit.saturating_sub(near.max(before)));
        }
        over
    }
}

#[derive(Debug, Default)]
pub struct Stats {
    pub limits: Named<LimitStats>,
    pub unknown_domains: Named<Counter>,
    pub service: ServiceStats,
    /// Whether the last configuration was refused.
    pub config_refused: AtomicBool,
    /// When one was loaded last, in seconds since 1970.
    pub config_loaded_at: AtomicU64,
    pub redis_error: Counter,
    pub service_error: Counter,
    pub total_requests: Counter,
    pub times: Times,
    pub own: OwnStats,
}

/// How long answers took, in seconds: those of the service, and those of Redis.
#[derive(Debug)]
pub struct Times {
    pub response: Histogram,
    pub redis: Histogram,
}

impl Default for Times {
    fn default() -> Self {
        let histogram = |options: HistogramOpts| {
            let finer: &[f64] = &[0.00025, 0.0005, 0.001, 0.0025];
            #[allow(clippy::expect_used)] // The options are those here.
            Histogram::with_opts(options.buckets([finer, DEFAULT_BUCKETS].concat())).expect("valid options")
        };
        let response = HistogramOpts::new("ratelimit_service_response_time_seconds", "How long answers took.");
        let redis = HistogramOpts::new("redis_rl_redis_time_seconds", "How long decisions of Redis took.");
        Self { response: histogram(response.const_label("grpc_method", "ShouldRateLimit")), redis: histogram(redis) }
    }
}

impl Stats {
    /// Forgets what a new configuration, of these domains and full keys of limits, no longer has.
    pub fn keep(&self, names: &HashSet<String>) {
        self.limits.keep(|name, of| names.contains(of.unwrap_or(name)));
        self.unknown_domains.keep(|name, _| !names.contains(name));
    }
}

#[derive(Debug, Default)]
pub struct Named<T>(RwLock<Names<T>>);

/// The name as it is published, and what it names. Those of clients have beside them what of the configuration they belong to.
type Entry<T> = ((Arc<str>, Arc<T>), Option<Box<str>>);

#[derive(Debug, Default)]
struct Names<T> {
    named: HashMap<Arc<str>, Entry<T>>,
    of_clients: usize,
}

/// The most names that come from clients (`detailed_metric`, `value_to_metric`, limits of requests, unknown domains), and
/// the longest. All others share one, so that a client cannot fill the memory.
const MOST_NAMES: usize = 10_000;
const LONGEST_NAME: usize = 512;
const OTHER: &str = "other";

impl<T: Default> Named<T> {
    /// `of_client`: where the name has text of a client in it, the limit or the domain of the configuration that it belongs
    /// to.
    pub fn get(&self, name: &str, of_client: Option<&str>) -> Arc<T> {
        let read = self.0.read();
        // A name that the configuration has, too, is its own.
        if let Some(((_, found), _)) = read.named.get(name).filter(|(_, of)| of.is_none() || of_client.is_some()) {
            return Arc::clone(found);
        }
        drop(read);
        let Names { named, of_clients } = &mut *self.0.write();
        let shared = of_client.is_some() && (*of_clients >= MOST_NAMES || name.len() > LONGEST_NAME);
        // What all others share stays.
        let (name, of) = if shared { (OTHER, Some(OTHER)) } else { (name, of_client) };
        let name: Arc<str> = name.into();
        let ((_, stats), belongs) = named.entry(Arc::clone(&name)).or_insert_with(|| {
            *of_clients += usize::from(of.is_some());
            let clean = sanitized(&name);
            ((if *clean == *name { name } else { clean.into() }, Arc::default()), of.map(Into::into))
        });
        if of.is_none() && belongs.take().is_some() {
            *of_clients -= 1;
        }
        Arc::clone(stats)
    }

    fn keep(&self, keeps: impl Fn(&str, Option<&str>) -> bool) {
        let Names { named, of_clients } = &mut *self.0.write();
        named.retain(|name, (_, of)| **name == *OTHER || keeps(name, of.as_deref()));
        *of_clients = named.values().filter(|(_, of)| of.is_some()).count();
    }

    pub fn all(&self) -> Vec<(Arc<str>, Arc<T>)> {
        let read = self.0.read();
        let mut all: Vec<_> = read.named.values().map(|(published, _)| published.clone()).collect();
        drop(read);
        // By their parts: a dot comes before all that a part may have.
        all.sort_by_cached_key(|(name, _)| name.replace('.', "\0"));
        all
    }
}

/// Without the characters that mean something to statsd, such as the end of a line, and without the dots of IPv4 addresses,
/// which would look like further keys.
fn sanitized(name: &str) -> String {
    #[allow(clippy::expect_used)] // The pattern is this one.
    static ADDRESS: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})").expect("a pattern"));
    ADDRESS.replace_all(&name.replace([':', '|', '\n', '\0'], "_"), "${1}_${2}_${3}_${4}").into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_clean() {
        assert_eq!(sanitized("a.b_50.0.0.5.c:d|e\nf"), "a.b_50_0_0_5.c_d_e_f");
        assert_eq!(sanitized("1.2.3"), "1.2.3");
        assert_eq!(sanitized("1234.5.6.78901.2"), "1234_5_6_78901.2");
        assert_eq!(sanitized("über.x"), "über.x");
    }

    #[test]
    fn a_configuration_keeps_the_names_that_it_has() {
        let stats = Stats::default();
        stats.limits.get("d.a", None).total_hits.inc();
        stats.limits.get("d.b", None);
        stats.limits.get("d.a_1", Some("d.a")).total_hits.inc();
        stats.limits.get("d.b_1", Some("d.b"));
        stats.limits.get("d.c", Some("d"));
        stats.limits.get(&"x".repeat(LONGEST_NAME + 1), Some("d.b")).total_hits.inc();
        stats.unknown_domains.get("d", Some(""));
        stats.unknown_domains.get("e", Some(""));
        stats.keep(&["d", "d.a"].map(str::to_owned).into());
        let left = stats.limits.all().into_iter().map(|(name, stats)| (name.to_string(), stats.total_hits.get()));
        let named = [("d.a", 1), ("d.a_1", 1), ("d.c", 0), (OTHER, 1)].map(|(name, hits)| (name.to_owned(), hits));
        assert!(left.eq(named));
        assert_eq!(stats.unknown_domains.all().len(), 1);
        // What becomes a limit of the configuration is no longer of a client.
        assert_eq!(stats.limits.get("d.a_1", None).total_hits.get(), 1);
        stats.keep(&["d", "d.a", "d.a_1"].map(str::to_owned).into());
        assert_eq!(stats.limits.all().len(), 4);
        stats.keep(&HashSet::from(["d.a".to_owned()]));
        // There is room again.
        for number in 0..MOST_NAMES {
            stats.limits.get(&number.to_string(), Some("d"));
        }
        assert_eq!(stats.limits.all().len(), MOST_NAMES + 1);
        stats.keep(&HashSet::new());
        assert_eq!(stats.limits.all().len(), 1);
    }

    #[test]
    fn hits_are_split_at_the_limit() {
        let stats = LimitStats::default();
        // Limit 10, near from 8: five hits on seven are three near, two over.
        assert_eq!(stats.over(5, 7, 10, 8), 2);
        assert_eq!((stats.over_limit.get(), stats.near_limit.get()), (2, 2));
        stats.over(3, 12, 10, 8);
        assert_eq!((stats.over_limit.get(), stats.near_limit.get()), (5, 2));
        stats.within(4, 10, 8);
        assert_eq!((stats.within_limit.get(), stats.near_limit.get()), (4, 4));
    }
}
