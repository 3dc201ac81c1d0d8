//! The limits of all domains, and which of them a descriptor meets.
//!
//! Descriptors are matched level by level, an entry of the request a level. At each level counts, in this order: the
//! entry's `key_value`, the first pattern (`*`) of the file that fits it, the entry's key alone. A limit counts only where
//! the request ends. All of this, and how statistics are named, is what Envoy's rate limit service does.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::RateLimit as Shown;
use envoy_types::pb::envoy::service::ratelimit::v3::rate_limit_response::rate_limit::Unit;
use envoy_types::pb::google::protobuf::Struct;
use redis_rl_client::{InvalidArgument, Rule, Window};

use super::definition::{self, Definition, HashTag, Rate};
use super::sources::Sources;
use crate::overrides::{self, Overrides, Table};
use crate::plan;
use crate::settings::duration;
use crate::stats::{LimitStats, Stats};

/// How limits count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Windows of the clock.
    Fixed,
    /// Any stretch of time as long as the window.
    Sliding,
    /// A steady rate with a burst.
    Throttle,
}

impl Algorithm {
    /// # Errors
    /// If no algorithm has this name.
    pub fn parse(name: &str) -> Result<Self, String> {
        match name {
            "fixed" => Ok(Self::Fixed),
            "sliding" => Ok(Self::Sliding),
            "throttle" => Ok(Self::Throttle),
            other => Err(format!("an algorithm is fixed, sliding or throttle, not '{other}'")),
        }
    }
}

/// What the environment says of all configurations.
#[derive(Debug, Clone)]
pub struct Options {
    /// Whether several files may speak of one domain.
    pub merge_domains: bool,
    /// Of limits that name none.
    pub algorithm: Algorithm,
}

/// A configuration that can be. Cheap to ask; never changed.
#[derive(Debug, Default)]
pub struct Config {
    domains: HashMap<String, Domain>,
}

#[derive(Debug, Default)]
pub struct Domain {
    hash_tag: Option<HashTag>,
    overrides: Option<Overriding>,
    http: Sources,
    level: Level,
}

/// Limits of Redis, in place of those of the configuration.
#[derive(Debug)]
struct Overriding {
    key: String,
    table: Arc<Table>,
}

/// The descriptors that stand beside each other.
#[derive(Debug, Default)]
struct Level {
    /// By `key_value`, or by the key alone.
    exact: HashMap<String, Entry>,
    /// Those with a `*`, in the order of the file.
    patterns: Vec<Pattern>,
}

#[derive(Debug)]
struct Pattern {
    key: String,
    /// What stands between the stars.
    parts: Vec<String>,
}

#[derive(Debug)]
struct Entry {
    limit: Option<Arc<Limit>>,
    below: Level,
    value_to_metric: bool,
    share_threshold: bool,
    metadata: Option<Arc<Struct>>,
}

/// One `rate_limit`.
#[derive(Debug, Clone)]
pub struct Limit {
    /// What statistics and /rlconfig call it: `domain.key_value.key`.
    pub full_key: String,
    pub stats: Arc<LimitStats>,
    pub rates: Vec<Shown>,
    /// How it is asked for in Redis. `None`: unlimited.
    pub rule: Option<Kind>,
    /// How its keys end: what they count by.
    pub suffix: String,
    pub shadow_mode: bool,
    pub quota_mode: bool,
    pub name: String,
    pub replaces: Vec<String>,
    pub reserve: Option<Reserve>,
    detailed_metric: bool,
}

/// Units that a check takes, until the hits of the same request are known. The value of the entry with the key `holder` names
/// the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reserve {
    pub estimate: u64,
    pub lease: Duration,
    pub holder: String,
}

/// The rule of a limit, without the units of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Kind {
    Fixed(redis_rl_client::Fixed),
    Sliding(redis_rl_client::Sliding),
    Calendar {
        rule: redis_rl_client::Calendar,
        unit: Unit,
        calendar: definition::Calendar,
    },
    Throttle(redis_rl_client::Throttle),
    /// A number of holders at a time. The value of the entry with the key `holder` names the holder.
    Concurrency {
        rule: redis_rl_client::Lease,
        holder: String,
    },
}

impl Kind {
    /// The rule with a name for HTTP headers, if it can be one there.
    pub fn named(&self, name: &str) -> Rule {
        match self {
            Self::Fixed(rule) => rule.clone().name(name).unwrap_or_else(|_| rule.clone()).into(),
            Self::Sliding(rule) => rule.clone().name(name).unwrap_or_else(|_| rule.clone()).into(),
            Self::Calendar { rule, .. } => rule.clone().name(name).unwrap_or_else(|_| rule.clone()).into(),
            Self::Throttle(rule) => rule.clone().name(name).unwrap_or_else(|_| rule.clone()).into(),
            Self::Concurrency { rule, .. } => rule.clone().name(name).unwrap_or_else(|_| rule.clone()).into(),
        }
    }

    /// Those of a rule that has windows by length.
    pub fn windows(&self) -> &[Window] {
        match self {
            Self::Fixed(rule) => rule.windows(),
            Self::Sliding(rule) => rule.windows(),
            Self::Calendar { .. } | Self::Throttle(_) | Self::Concurrency { .. } => &[],
        }
    }

    /// What a key ends with: two rules that count differently never share it.
    fn suffix(&self, rates: &[Shown]) -> String {
        let lengths = |windows: &[Window]| {
            let seconds = windows.iter().map(|window| window.length().as_secs().to_string());
            seconds.collect::<Vec<_>>().join("+")
        };
        match self {
            Self::Fixed(rule) => format!("|{}", lengths(rule.windows())),
            Self::Sliding(rule) => format!("|sliding {}", lengths(rule.windows())),
            Self::Calendar { unit, calendar: definition::Calendar { zone, starts }, .. } => {
                format!("|calendar {} {zone} {}", unit.as_str_name(), starts.unwrap_or(1))
            }
            Self::Throttle(_) => format!("|throttle {}", rates.first().map_or("", |rate| rate.unit().as_str_name())),
            Self::Concurrency { .. } => "|concurrency".to_owned(),
        }
    }
}

/// The limit that a descriptor meets.
#[derive(Debug, Clone)]
pub struct Found {
    pub limit: Arc<Limit>,
    /// Those of the limit, or of the value at hand.
    pub stats: Arc<LimitStats>,
    pub metadata: Option<Arc<Struct>>,
    /// By entry: the pattern that stands in for the value, where all values share a threshold.
    pub shared: Vec<Option<String>>,
    pub hash_tag: Option<String>,
}

/// Why a descriptor cannot be served.
#[derive(Debug, PartialEq, Eq)]
pub struct UnknownUnit;

impl Config {
    /// Makes a configuration of all that was read.
    ///
    /// # Errors
    /// The first thing that cannot be, with its place.
    pub fn load(
        definitions: &[Definition],
        overrides: &Overrides,
        stats: &Stats,
        options: &Options,
    ) -> Result<Self, String> {
        let mut config = Self::default();
        let mut named = HashMap::new();
        for definition in definitions {
            let name = &definition.name;
            if definition.domain.is_empty() {
                return Err(format!("{name}: a configuration needs a domain"));
            }
            if let Some(other) = named.insert(&definition.domain, name).filter(|_| !options.merge_domains) {
                return Err(format!(
                    "{name}: the domain '{}' is in {other} already (MERGE_DOMAIN_CONFIG=true allows it)",
                    definition.domain
                ));
            }
            let domain = config.domains.entry(definition.domain.clone()).or_default();
            if definition.hash_tag.is_some() {
                domain.hash_tag.clone_from(&definition.hash_tag);
            }
            if !definition.overrides.is_empty() {
                let key = definition.overrides.clone();
                domain.overrides = Some(Overriding { table: overrides.table(&key), key });
            }
            domain.http.add(definition);
            let mut loader = Loader { stats, options, file: name, keys: Vec::new() };
            loader.load(&mut domain.level, &format!("{}.", definition.domain), &definition.descriptors)?;
        }
        for (name, domain) in &mut config.domains {
            domain.http.complete().map_err(|key| {
                format!("the domain '{name}': no limit can be found by '{key}' of 'http' and the other keys there")
            })?;
        }
        Ok(config)
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// The domains whose descriptors lie in several slots of a cluster.
    pub fn domains_without_hash_tag(&self) -> Vec<&str> {
        let without = self.domains.iter().filter(|(_, domain)| domain.hash_tag.is_none());
        let mut names: Vec<_> = without.map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }

    /// How many limits there are.
    pub fn limits(&self) -> usize {
        self.domains.values().map(|domain| domain.level.limits()).sum()
    }

    /// The domains, and the full keys of the limits.
    pub fn names(&self) -> HashSet<String> {
        let mut names: HashSet<_> = self.domains.keys().cloned().collect();
        self.domains.values().for_each(|domain| domain.level.names(&mut names));
        names
    }

    /// How many limits of Redis there are.
    pub fn overrides(&self) -> usize {
        self.domains.values().filter_map(|domain| domain.overrides.as_ref()).map(|of| of.table.len()).sum()
    }

    /// How many domains there are.
    pub fn domains(&self) -> usize {
        self.domains.len()
    }

    /// How a request of HTTP becomes descriptors of the domain, if that is said.
    pub fn http(&self, domain: &str) -> Option<&Sources> {
        self.domains.get(domain).map(|domain| &domain.http).filter(|http| !http.is_empty())
    }

    /// Whether addresses of clients are asked for.
    pub fn counts_addresses(&self) -> bool {
        self.domains.values().any(|domain| domain.http.have_address())
    }

    pub fn domain(&self, name: &str) -> Option<&Domain> {
        self.domains.get(name)
    }

    /// All limits, a line each.
    pub fn dump(&self) -> String {
        let mut lines = Vec::new();
        for (name, domain) in &self.domains {
            domain.level.dump(&mut lines);
            let Some(Overriding { key, table }) = &domain.overrides else { continue };
            for (field, rates) in table.all() {
                for rate in rates.into_iter().map(shown_rate) {
                    let (unit, requests) = (rate.unit().as_str_name(), rate.requests_per_unit);
                    lines.push(format!("{name}.{field}: unit={unit} requests_per_unit={requests}, overrides: {key}\n"));
                }
            }
        }
        lines.sort_unstable();
        lines.concat()
    }
}

impl Domain {
    /// The limit that the descriptor meets, if any: its own, where the request brings one, else that of the
    /// configuration.
    ///
    /// # Errors
    /// If the request's own limit has no unit.
    pub fn find(
        &self,
        name: &str,
        descriptor: &RateLimitDescriptor,
        stats: &Stats,
        options: &Options,
    ) -> Result<Option<Found>, UnknownUnit> {
        let found = match &descriptor.limit {
            Some(limit) => {
                let unit = Unit::try_from(limit.unit).map_err(|_| UnknownUnit)?;
                Some(overriding(name, descriptor, limit.requests_per_unit, unit, stats, options)?)
            }
            None => self.level.find(name, descriptor, stats).map(|found| match self.overrides(descriptor) {
                Some(rates) => found.with(&rates),
                None => found,
            }),
        };
        let tag = match &self.hash_tag {
            None => None,
            Some(HashTag::Domain) => Some(name.to_owned()),
            Some(HashTag::Entry(key)) => {
                descriptor.entries.iter().find(|entry| entry.key == *key).map(|entry| entry.value.clone())
            }
        };
        Ok(found.map(|found| Found { hash_tag: tag.filter(|tag| !tag.is_empty()), ..found }))
    }

    /// The rates that Redis has for the descriptor, if any.
    fn overrides(&self, descriptor: &RateLimitDescriptor) -> Option<Vec<overrides::Rate>> {
        let Overriding { table, .. } = self.overrides.as_ref()?;
        if table.is_empty() {
            return None;
        }
        // As in the keys of counters.
        let mut field = String::new();
        for entry in &descriptor.entries {
            if !field.is_empty() {
                field.push('|');
            }
            plan::escape(&mut field, &entry.key);
            field.push('=');
            plan::escape(&mut field, &entry.value);
        }
        table.get(&field)
    }
}

impl Found {
    /// The same limit with other rates, where it counts any.
    fn with(self, rates: &[overrides::Rate]) -> Self {
        // In the unit of a calendar it is one of that calendar.
        if let (Some(Kind::Calendar { unit, calendar, .. }), [rate]) = (&self.limit.rule, rates)
            && seconds_of(*unit) == Some(rate.seconds.into())
            && let Ok(made) = of_calendar(rate.limit, *unit, calendar)
        {
            let rates = vec![Shown { name: String::new(), requests_per_unit: rate.limit, unit: (*unit).into() }];
            let limit = Limit { rates, rule: Some(made), ..(*self.limit).clone() };
            return Self { limit: Arc::new(limit), ..self };
        }
        let algorithm = match &self.limit.rule {
            Some(Kind::Fixed(_) | Kind::Calendar { .. }) => Algorithm::Fixed,
            Some(Kind::Sliding(_)) => Algorithm::Sliding,
            Some(Kind::Throttle(_)) => Algorithm::Throttle,
            Some(Kind::Concurrency { .. }) | None => return self,
        };
        let windows: Result<Vec<_>, _> = rates.iter().map(|rate| window(rate.limit, rate.seconds.into())).collect();
        let Ok(made) = windows.and_then(|windows| rule(algorithm, &windows, None)) else { return self };
        let rates: Vec<_> = rates.iter().copied().map(shown_rate).collect();
        let limit = Limit { suffix: made.suffix(&rates), rates, rule: Some(made), ..(*self.limit).clone() };
        Self { limit: Arc::new(limit), ..self }
    }
}

/// As it would be written: in the longest unit that its window is a multiple of.
fn shown_rate(rate: overrides::Rate) -> Shown {
    use Unit::{Day, Hour, Minute, Month, Second, Week, Year};
    let units = [Year, Month, Week, Day, Hour, Minute, Second].into_iter();
    let fits = |unit: &Unit| seconds_of(*unit).is_some_and(|seconds| u64::from(rate.seconds) % seconds == 0);
    let unit = units.into_iter().find(fits).unwrap_or(Second);
    Shown { name: String::new(), requests_per_unit: rate.limit, unit: unit.into() }
}

/// The limit that the request itself brings.
fn overriding(
    domain: &str,
    descriptor: &RateLimitDescriptor,
    requests_per_unit: u32,
    unit: Unit,
    stats: &Stats,
    options: &Options,
) -> Result<Found, UnknownUnit> {
    let seconds = seconds_of(unit).ok_or(UnknownUnit)?;
    let entries = descriptor.entries.iter().map(|entry| match entry.value.as_str() {
        "" => entry.key.clone(),
        value => format!("{}_{value}", entry.key),
    });
    let full_key = format!("{domain}.{}", entries.collect::<Vec<_>>().join("."));
    let stats = stats.limit_of_client(&full_key, domain);
    let window = window(requests_per_unit, seconds).map_err(|_| UnknownUnit)?;
    let rates = vec![Shown { name: String::new(), requests_per_unit, unit: unit.into() }];
    let rule = rule(options.algorithm, &[window], None).map_err(|_| UnknownUnit)?;
    let limit = Limit {
        full_key,
        stats: Arc::clone(&stats),
        suffix: rule.suffix(&rates),
        rates,
        rule: Some(rule),
        shadow_mode: false,
        quota_mode: false,
        name: String::new(),
        replaces: Vec::new(),
        reserve: None,
        detailed_metric: false,
    };
    Ok(Found { limit: Arc::new(limit), stats, metadata: None, shared: Vec::new(), hash_tag: None })
}

impl Level {
    /// The entry's `key_value`, the first pattern that fits it, or its key: and how it was found. `joined` is room for
    /// text.
    fn entry(&self, key: &str, value: &str, joined: &mut String) -> Option<(&Entry, How<'_>)> {
        joined.clear();
        joined.reserve(key.len() + 1 + value.len());
        joined.extend([key, "_", value]);
        if let Some(entry) = self.exact.get(joined.as_str()) {
            return Some((entry, How::Value));
        }
        if let Some(pattern) = self.patterns.iter().find(|pattern| pattern.fits(joined)) {
            return self.exact.get(&pattern.key).map(|entry| (entry, How::Pattern(&pattern.key)));
        }
        self.exact.get(key).map(|entry| (entry, How::Key))
    }

    fn find(&self, domain: &str, descriptor: &RateLimitDescriptor, stats: &Stats) -> Option<Found> {
        let entries = &descriptor.entries;
        let mut level = self;
        let mut joined = String::new();
        let mut path = Vec::with_capacity(entries.len());
        for (index, entry) in entries.iter().enumerate() {
            let (found, how) = level.entry(&entry.key, &entry.value, &mut joined)?;
            path.push((found, how));
            if index + 1 < entries.len() && found.below.exact.is_empty() {
                return None;
            }
            level = &found.below;
        }
        let (entry, _) = path.last()?;
        let limit = entry.limit.as_ref()?;
        let shared = |index: usize| match path[index] {
            (found, How::Pattern(pattern)) if found.share_threshold => Some(under_key(pattern, &entries[index].key)),
            _ => None,
        };
        let any_shared = (0..path.len()).any(|index| shared(index).is_some());
        // What statistics are named after, piece by piece, with values where they are asked for.
        let name = |piece: &mut dyn FnMut(&str)| {
            piece(domain);
            for (index, ((found, how), entry)) in path.iter().zip(entries).enumerate() {
                let value: &str = match (shared(index), how) {
                    (Some(pattern), _) => pattern,
                    (None, _) if limit.detailed_metric => &entry.value,
                    (None, How::Pattern(pattern)) if !found.value_to_metric => under_key(pattern, &entry.key),
                    (None, How::Key) if !found.value_to_metric => "",
                    (None, How::Value | How::Pattern(_) | How::Key) => &entry.value,
                };
                piece(".");
                piece(&entry.key);
                // Without values of its own a detailed name ends its keys like this.
                if !value.is_empty() || limit.detailed_metric && !any_shared {
                    piece("_");
                    piece(value);
                }
            }
        };
        let mut rest = Some(limit.full_key.as_str());
        name(&mut |piece| rest = rest.and_then(|rest| rest.strip_prefix(piece)));
        let same = rest == Some("");
        let keeps_metadata = if limit.detailed_metric {
            // Envoy's service loses metadata here, and so does a client that knows it see none.
            !level.exact.is_empty()
        } else {
            same
        };
        Some(Found {
            stats: if same {
                Arc::clone(&limit.stats)
            } else {
                let mut named = String::new();
                name(&mut |piece| named.push_str(piece));
                stats.limit_of_client(&named, &limit.full_key)
            },
            limit: Arc::clone(limit),
            metadata: entry.metadata.clone().filter(|_| keeps_metadata),
            shared: if any_shared {
                (0..path.len()).map(|index| shared(index).map(str::to_owned)).collect()
            } else {
                Vec::new()
            },
            hash_tag: None,
        })
    }

    fn limits(&self) -> usize {
        self.exact.values().map(|entry| usize::from(entry.limit.is_some()) + entry.below.limits()).sum()
    }

    fn names(&self, names: &mut HashSet<String>) {
        for entry in self.exact.values() {
            names.extend(entry.limit.iter().map(|limit| limit.full_key.clone()));
            entry.below.names(names);
        }
    }

    fn dump(&self, lines: &mut Vec<String>) {
        for entry in self.exact.values() {
            if let Some(limit) = &entry.limit {
                for rate in &limit.rates {
                    lines.push(format!(
                        "{}: unit={} requests_per_unit={}, shadow_mode: {}, quota_mode: {}\n",
                        limit.full_key,
                        rate.unit().as_str_name(),
                        rate.requests_per_unit,
                        limit.shadow_mode,
                        limit.quota_mode
                    ));
                }
            }
            entry.below.dump(lines);
        }
    }
}

/// What a pattern says of the value.
fn under_key<'a>(pattern: &'a str, key: &str) -> &'a str {
    pattern.strip_prefix(key).and_then(|rest| rest.strip_prefix('_')).unwrap_or(pattern)
}

/// How an entry was found.
#[derive(Clone, Copy)]
enum How<'a> {
    Value,
    Pattern(&'a str),
    Key,
}

impl Pattern {
    fn new(key: &str) -> Self {
        Self { key: key.to_owned(), parts: key.split('*').map(str::to_owned).collect() }
    }

    /// Each star stands for any text, the empty one too.
    fn fits(&self, text: &str) -> bool {
        let [first, middle @ .., last] = self.parts.as_slice() else {
            return false;
        };
        let Some(mut rest) = text.strip_prefix(first.as_str()).and_then(|rest| rest.strip_suffix(last.as_str())) else {
            return false;
        };
        for part in middle {
            match rest.find(part.as_str()) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        true
    }
}

struct Loader<'a> {
    stats: &'a Stats,
    options: &'a Options,
    file: &'a str,
    /// The keys down to the descriptor at hand.
    keys: Vec<&'a str>,
}

impl<'a> Loader<'a> {
    fn refuse(&self, line: usize, reason: impl std::fmt::Display) -> String {
        if line == 0 { format!("{}: {reason}", self.file) } else { format!("{}:{line}: {reason}", self.file) }
    }

    fn load(&mut self, level: &mut Level, parent: &str, from: &'a [definition::Descriptor]) -> Result<(), String> {
        for descriptor in from {
            let refuse = |reason: String| self.refuse(descriptor.line, reason);
            if descriptor.key.is_empty() {
                return Err(refuse(format!("a descriptor of '{}' has no key", parent.trim_end_matches('.'))));
            }
            let key = match descriptor.value.as_str() {
                "" => descriptor.key.clone(),
                value => format!("{}_{value}", descriptor.key),
            };
            let full_key = format!("{parent}{key}");
            if level.exact.contains_key(&key) {
                return Err(refuse(format!("the descriptor '{full_key}' is there already")));
            }
            if descriptor.share_threshold && !key.contains('*') {
                return Err(refuse(format!("share_threshold needs a value with '*', which '{key}' is not")));
            }
            self.keys.push(&descriptor.key);
            let limit = descriptor.limit.as_ref().map(|limit| self.limit(descriptor, limit, &full_key)).transpose()?;
            if key.contains('*') {
                level.patterns.push(Pattern::new(&key));
            }
            let mut entry = Entry {
                limit: limit.map(Arc::new),
                below: Level::default(),
                value_to_metric: descriptor.value_to_metric,
                share_threshold: descriptor.share_threshold,
                metadata: descriptor.metadata.clone().map(Arc::new),
            };
            self.load(&mut entry.below, &format!("{full_key}."), &descriptor.descriptors)?;
            self.keys.pop();
            level.exact.insert(key, entry);
        }
        Ok(())
    }

    fn limit(
        &self,
        descriptor: &definition::Descriptor,
        limit: &definition::Limit,
        full_key: &str,
    ) -> Result<Limit, String> {
        let refuse = |reason: String| match limit.line {
            // Without a line the name has to tell which it is.
            0 => self.refuse(0, format!("'{full_key}': {reason}")),
            line => self.refuse(line, reason),
        };
        let (rates, rule) = self.rule(limit, &descriptor.key).map_err(refuse)?;
        let reserve = limit.reserve.as_ref().map(|reserve| self.reserve(reserve)).transpose().map_err(refuse)?;
        if reserve.is_some() && !matches!(rule, Some(Kind::Fixed(_) | Kind::Sliding(_) | Kind::Calendar { .. })) {
            return Err(refuse("only fixed and sliding windows and calendars can reserve".to_owned()));
        }
        for replaced in &limit.replaces {
            if replaced.is_empty() {
                return Err(refuse(format!("'{full_key}' replaces something without a name")));
            }
            if *replaced == limit.name {
                return Err(refuse(format!("'{full_key}' replaces itself")));
            }
        }
        Ok(Limit {
            stats: self.stats.limit(full_key),
            full_key: full_key.to_owned(),
            suffix: rule.as_ref().map(|rule| rule.suffix(&rates)).unwrap_or_default(),
            rates,
            rule,
            shadow_mode: descriptor.shadow_mode,
            quota_mode: descriptor.quota_mode,
            name: limit.name.clone(),
            replaces: limit.replaces.clone(),
            reserve,
            detailed_metric: descriptor.detailed_metric,
        })
    }

    fn reserve(&self, reserve: &definition::Reserve) -> Result<Reserve, String> {
        if reserve.estimate == 0 {
            return Err("an estimate is at least 1".to_owned());
        }
        let lease = if reserve.lease.is_empty() { LEASE } else { lease(&reserve.lease)? };
        Rule::lease(1, lease).map_err(|error| error.to_string())?;
        let holder = if reserve.holder.is_empty() { REQUEST_ID } else { &reserve.holder };
        if !self.keys.contains(&holder) {
            return Err(format!("a reservation is by '{holder}', which has to be a key of the descriptor"));
        }
        Ok(Reserve { estimate: reserve.estimate.into(), lease, holder: holder.to_owned() })
    }

    fn rule(&self, limit: &definition::Limit, key: &str) -> Result<(Vec<Shown>, Option<Kind>), String> {
        let shown = |rate: &Rate, unit: Unit| Shown {
            name: limit.name.clone(),
            requests_per_unit: rate.requests_per_unit,
            unit: unit.into(),
        };
        // What only this service has is not ignored, as it would be there.
        let counts = limit.algorithm.is_some() || limit.burst.is_some() || !limit.rates.is_empty();
        if limit.unlimited {
            if unit_of(&limit.rate.unit).is_some() {
                return Err("what is unlimited has no unit".to_owned());
            }
            if counts || limit.concurrency.is_some() || limit.calendar.is_some() {
                return Err("what is unlimited counts nothing".to_owned());
            }
            return Ok((vec![shown(&limit.rate, Unit::Unknown)], None));
        }
        if let Some(concurrency) = &limit.concurrency {
            if counts || limit.rate != Rate::default() || limit.calendar.is_some() {
                return Err("concurrency stands alone; a rate needs a descriptor of its own".to_owned());
            }
            if concurrency.limit == 0 {
                return Err("concurrency needs a limit of at least 1".to_owned());
            }
            let rule =
                Rule::lease(concurrency.limit.into(), lease(&concurrency.lease)?).map_err(|error| error.to_string())?;
            let rate = Rate { requests_per_unit: concurrency.limit, ..Rate::default() };
            return Ok((
                vec![shown(&rate, Unit::Unknown)],
                Some(Kind::Concurrency {
                    rule,
                    // Unless it says otherwise, the descriptor itself is the entry that says whose place it is.
                    holder: if concurrency.holder.is_empty() { key.to_owned() } else { concurrency.holder.clone() },
                }),
            ));
        }
        let named = limit.algorithm.as_deref().map(Algorithm::parse).transpose()?;
        if let Some(calendar) = &limit.calendar {
            let plain = named.is_none_or(|algorithm| algorithm == Algorithm::Fixed)
                && limit.burst.is_none()
                && limit.rates.is_empty()
                && limit.rate.unit_multiplier.is_none();
            if !plain {
                return Err("a calendar has one rate of fixed windows, one unit long".to_owned());
            }
            let unit = unit_of(&limit.rate.unit).map_or(Unit::Unknown, |(unit, _)| unit);
            let rule = of_calendar(limit.rate.requests_per_unit, unit, calendar)?;
            return Ok((vec![shown(&limit.rate, unit)], Some(rule)));
        }
        let algorithm = named.unwrap_or(self.options.algorithm);
        // The first rate stands in the limit itself, unless they are all in the list.
        let own = if limit.rate == Rate::default() && !limit.rates.is_empty() { None } else { Some(&limit.rate) };
        let (mut rates, mut windows, mut lengths) = (Vec::new(), Vec::new(), HashSet::new());
        for rate in own.into_iter().chain(&limit.rates) {
            let Some((unit, seconds)) = unit_of(&rate.unit) else {
                return Err(format!("a unit is second, minute, hour, day, week, month or year, not '{}'", rate.unit));
            };
            let seconds = match rate.unit_multiplier {
                Some(0) => return Err("a unit_multiplier is at least 1".to_owned()),
                multiplier => seconds.saturating_mul(multiplier.unwrap_or(1).into()),
            };
            if !lengths.insert(seconds) {
                return Err(format!("two rates have the same length of {seconds} seconds"));
            }
            windows.push(window(rate.requests_per_unit, seconds)?);
            rates.push(shown(rate, unit));
        }
        Ok((rates, Some(rule(algorithm, &windows, limit.burst)?)))
    }
}

/// How long a reservation lasts that says nothing of it, and the entry that names its request.
const LEASE: Duration = Duration::from_secs(300);
const REQUEST_ID: &str = "request_id";

/// A number of seconds, or a time with a unit.
fn lease(text: &str) -> Result<Duration, String> {
    match text.parse() {
        Ok(seconds) => Ok(Duration::from_secs(seconds)),
        Err(_) => duration(text).map_err(|_| format!("a lease is a time such as 60s, not '{text}'")),
    }
}

fn of_calendar(limit: u32, unit: Unit, calendar: &definition::Calendar) -> Result<Kind, String> {
    let name = match unit {
        Unit::Day => "day",
        Unit::Week => "week",
        Unit::Month => "month",
        Unit::Year => "year",
        _ => return Err("the unit of a calendar is day, week, month or year".to_owned()),
    };
    let make = || {
        let mut rule = Rule::calendar(&format!("{limit}/{name}"))?;
        if !calendar.zone.is_empty() {
            rule = rule.zone(&calendar.zone)?;
        }
        // What is too much for the type is too much for any unit.
        rule.starts(u8::try_from(calendar.starts.unwrap_or(1)).unwrap_or(u8::MAX))
    };
    let rule = make().map_err(|error: InvalidArgument| error.to_string())?;
    Ok(Kind::Calendar { rule, unit, calendar: calendar.clone() })
}

fn window(limit: u32, seconds: u64) -> Result<Window, String> {
    Window::new(limit.into(), Duration::from_secs(seconds)).map_err(|error| error.to_string())
}

fn rule(algorithm: Algorithm, windows: &[Window], burst: Option<u32>) -> Result<Kind, String> {
    if burst.is_some() && algorithm != Algorithm::Throttle {
        return Err("a burst belongs to 'algorithm: throttle'".to_owned());
    }
    let made = match algorithm {
        Algorithm::Fixed => Rule::fixed(windows).map(Kind::Fixed),
        Algorithm::Sliding => Rule::sliding(windows).map(Kind::Sliding),
        Algorithm::Throttle => {
            let [window] = windows else {
                return Err("a throttle has one rate".to_owned());
            };
            // A limit of 0 denies everything, which a steady rate cannot say.
            if window.limit() == 0 {
                return Rule::fixed(windows).map(Kind::Fixed).map_err(|error| error.to_string());
            }
            Rule::throttle(*window)
                .map(|rule| match burst {
                    // The command counts what may come beyond the first.
                    Some(burst) => rule.burst(u64::from(burst).saturating_sub(1)),
                    None => rule,
                })
                .map(Kind::Throttle)
        }
    };
    made.map_err(|error| error.to_string())
}

fn unit_of(name: &str) -> Option<(Unit, u64)> {
    let unit = Unit::from_str_name(&name.to_uppercase())?;
    Some((unit, seconds_of(unit)?))
}

/// A month is 30 days and a year 365, both counted from the epoch.
pub fn seconds_of(unit: Unit) -> Option<u64> {
    Some(match unit {
        Unit::Unknown => return None,
        Unit::Second => 1,
        Unit::Minute => 60,
        Unit::Hour => 3600,
        Unit::Day => 86_400,
        Unit::Week => 604_800,
        Unit::Month => 2_592_000,
        Unit::Year => 31_536_000,
    })
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;

    use super::*;
    use crate::testing::{config, descriptor, settings};

    const LIMITS: &str = "
  - {key: a, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: a, value: v, rate_limit: {unit: day, requests_per_unit: 2}}
  - {key: a, value: none}
  - {key: a, value: 'x*', rate_limit: {unit: day, requests_per_unit: 3}}
  - {key: a, value: 'x*z', rate_limit: {unit: day, requests_per_unit: 4}}
  - {key: 'b*', rate_limit: {unit: day, requests_per_unit: 5}}
  - {key: c, descriptors: [{key: d, rate_limit: {unit: day, requests_per_unit: 6}}]}
  - {key: e, value: 'p*q*r', share_threshold: true, rate_limit: {unit: day, requests_per_unit: 7}}
  - {key: f, value_to_metric: true, rate_limit: {unit: day, requests_per_unit: 8}}
";

    fn found(config: &Config, descriptor: &RateLimitDescriptor) -> Result<Option<Found>, UnknownUnit> {
        config.domain("d").unwrap().find("d", descriptor, &Stats::default(), &settings(&[]).options())
    }

    #[test]
    fn the_entry_as_one_text_the_first_pattern_the_key_alone() {
        let config = config(LIMITS, &Stats::default());
        for (entries, limit) in [
            ("a=v", Some(2)),
            ("a=w", Some(1)),
            ("a", Some(1)),
            // Key and value are one text, and a key alone may be the text of both.
            ("a_v=w", Some(2)),
            ("a=none", None),
            ("a=xz", Some(3)),
            ("a=x", Some(3)),
            ("bc=", Some(5)),
            ("b=c", Some(5)),
            // Only at the depth of a limit.
            ("c=1", None),
            ("c=1,d=2", Some(6)),
            ("c=1,d=2,d=2", None),
            ("d=2", None),
            ("e=pqr", Some(7)),
            ("e=p1q2r", Some(7)),
            ("e=prq", None),
        ] {
            let found = found(&config, &descriptor(entries)).unwrap();
            assert_eq!(found.map(|found| found.limit.rates[0].requests_per_unit), limit, "{entries}");
        }
    }

    #[test]
    fn statistics_and_shared_thresholds_are_named_by_what_was_found() {
        let config = config(LIMITS, &Stats::default());
        let found = |entries: &str| found(&config, &descriptor(entries)).unwrap().unwrap();
        assert_eq!(found("e=p1q2r").shared, [Some("p*q*r".to_owned())]);
        assert!(found("a=v").shared.is_empty());
        assert!(Arc::ptr_eq(&found("a=w").stats, &found("a=w").limit.stats));
        assert!(!Arc::ptr_eq(&found("f=1").stats, &found("f=1").limit.stats));
    }

    #[test]
    fn a_request_may_bring_its_limit() {
        let config = config(LIMITS, &Stats::default());
        let brings = |unit| RateLimitDescriptor {
            limit: Some(RateLimitOverride { requests_per_unit: 9, unit }),
            ..descriptor("anything=v")
        };
        let limit = found(&config, &brings(Unit::Minute.into())).unwrap().unwrap().limit;
        assert_eq!((limit.full_key.as_str(), limit.suffix.as_str()), ("d.anything_v", "|60"));
        for unit in [0, 99] {
            assert_eq!(found(&config, &brings(unit)).unwrap_err(), UnknownUnit);
        }
    }
}
