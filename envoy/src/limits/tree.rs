//! The limits of all domains, and which of them a descriptor meets.
//!
//! Descriptors are matched level by level, an entry of the request a level. At each level counts, in this order: the
//! entry's `key_value`, the first pattern (`*`) of the file that fits it, the entry's key alone. A limit counts only where
//! the request ends. All of this, and how statistics are named, is what Envoy's rate limit service does.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use super::definition::HashTag;
use super::overrides::{self, Table};
use super::sources::{Source, Sources};
use crate::few::Few;
use crate::keys::escape;
use crate::limit::{Found, Kind, Limit, Options, UNITS, of_calendar, rule, seconds_of, window};
use crate::messages::{RateLimitDescriptor, RateLimitOverride, Shown, Struct, Unit};
use crate::stats::Stats;

/// How many limits of a hash in Redis are shown.
const SHOWN: usize = 1000;

/// A configuration that can be. Cheap to ask; never changed.
#[derive(Debug, Default)]
pub struct Config {
    pub domains: HashMap<String, Domain>,
}

#[derive(Debug, Default)]
pub struct Domain {
    pub(super) hash_tag: Option<HashTag>,
    /// Limits of Redis, in place of those here.
    pub(super) overrides: Option<Arc<Table>>,
    pub(super) http: Sources,
    pub(super) level: Level,
}

/// The descriptors that stand beside each other.
#[derive(Debug, Default)]
pub(super) struct Level {
    /// By `key_value`, or by the key alone.
    pub(super) exact: HashMap<String, Entry>,
    /// Those with a `*`, and what stands between its stars, in the order of the file.
    pub(super) patterns: Vec<(String, Vec<String>)>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) limit: Option<Arc<Limit>>,
    pub(super) below: Level,
    pub(super) value_to_metric: bool,
    pub(super) share_threshold: bool,
    pub(super) metadata: Option<Arc<Struct>>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct UnknownUnit;

impl Config {
    pub fn domains_without_hash_tag(&self) -> Vec<&str> {
        let without = self.domains.iter().filter(|(_, domain)| domain.hash_tag.is_none());
        let mut names: Vec<_> = without.map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }

    fn all(&self) -> impl Iterator<Item = &Arc<Limit>> {
        self.domains.values().flat_map(|domain| domain.level.limits())
    }

    pub fn limits(&self) -> usize {
        self.all().count()
    }

    /// The domains, and the full keys of the limits.
    pub fn names(&self) -> HashSet<String> {
        self.domains.keys().chain(self.all().map(|limit| &limit.full_key)).cloned().collect()
    }

    /// How many limits of Redis there are.
    pub fn overrides(&self) -> usize {
        self.domains.values().filter_map(|domain| domain.overrides.as_ref()).map(|table| table.len()).sum()
    }

    /// How long units of a block may stay unspent.
    pub fn longest_block(&self) -> Duration {
        self.all().filter_map(|limit| limit.block.as_ref()).map(|block| block.within).max().unwrap_or_default()
    }

    /// How a request of HTTP becomes descriptors of the domain, if that is said.
    pub fn http(&self, domain: &str) -> Option<&Sources> {
        self.domains.get(domain).map(|domain| &domain.http).filter(|http| !http.sources.is_empty())
    }

    pub fn counts_addresses(&self) -> bool {
        self.domains.values().any(|domain| domain.http.sources.values().any(|source| *source == Source::Address))
    }

    /// All limits, a line each, and some of those of Redis.
    pub fn dump(&self) -> String {
        let mut lines = Vec::new();
        let line = |name: &str, rate: &Shown, rest: &str| {
            let (unit, requests) = (rate.unit().as_str_name(), rate.requests_per_unit);
            format!("{name}: unit={unit} requests_per_unit={requests}, {rest}\n")
        };
        for limit in self.all() {
            let modes = format!("shadow_mode: {}, quota_mode: {}", limit.shadow_mode, limit.quota_mode);
            lines.extend(limit.rates.iter().map(|rate| line(&limit.full_key, rate, &modes)));
        }
        for (name, domain) in &self.domains {
            let Some(table) = &domain.overrides else { continue };
            let (key, fields) = (&table.key, table.some(SHOWN));
            let more = table.len().saturating_sub(fields.len());
            if more > 0 {
                lines.push(format!("{name}: {more} more in {key}\n"));
            }
            for (field, rates) in fields {
                let (name, place) = (format!("{name}.{field}"), format!("overrides: {key}"));
                lines.extend(rates.into_iter().map(|rate| line(&name, &shown_rate(rate), &place)));
            }
        }
        lines.sort_unstable();
        lines.concat()
    }
}

impl Domain {
    /// The limit that the descriptor meets, if any: its own, where the request brings one, else that of the
    /// configuration.
    pub fn find(
        &self,
        name: &str,
        descriptor: &RateLimitDescriptor,
        stats: &Stats,
        options: &Options,
    ) -> Result<Option<Found>, UnknownUnit> {
        let found = match &descriptor.limit {
            Some(limit) => Some(overriding(name, descriptor, limit, stats, options)?),
            None => self.level.find(name, descriptor, stats).map(|found| match self.overrides(descriptor) {
                Some(rates) => found.with(&rates),
                None => found,
            }),
        };
        let tag = self.hash_tag.as_ref().and_then(|tag| match tag {
            HashTag::Domain => Some(name),
            HashTag::Entry(key) => {
                descriptor.entries.iter().find(|entry| entry.key == *key).map(|entry| entry.value.as_str())
            }
        });
        let tag = tag.filter(|tag| !tag.is_empty()).map(str::to_owned);
        Ok(found.map(|found| Found { hash_tag: tag, ..found }))
    }

    /// The rates that Redis has for the descriptor, if any.
    fn overrides(&self, descriptor: &RateLimitDescriptor) -> Option<Vec<overrides::Rate>> {
        let table = self.overrides.as_ref()?;
        if table.len() == 0 {
            return None;
        }
        // As in the keys of counters.
        let mut field = String::new();
        for entry in &descriptor.entries {
            if !field.is_empty() {
                field.push('|');
            }
            escape(&mut field, &entry.key);
            field.push('=');
            escape(&mut field, &entry.value);
        }
        table.get(&field)
    }
}

impl Found {
    /// The same limit with other rates, where it counts any.
    fn with(self, rates: &[overrides::Rate]) -> Self {
        let made = match (&self.limit.rule, rates) {
            // In the unit of a calendar it is one of that calendar.
            (Some(Kind::Calendar { unit, calendar, .. }), [rate]) if seconds_of(*unit) == Some(rate.seconds.into()) => {
                of_calendar(rate.limit, *unit, calendar)
            }
            (Some(Kind::Concurrency { .. }) | None, _) => return self,
            (Some(_), _) => {
                let windows: Result<Vec<_>, _> =
                    rates.iter().map(|rate| window(rate.limit, rate.seconds.into())).collect();
                windows.and_then(|windows| rule(self.limit.algorithm, &windows, None))
            }
        };
        let Ok(made) = made else { return self };
        let rates: Vec<_> = rates.iter().copied().map(shown_rate).collect();
        let limit =
            Limit { suffix: made.suffix(&rates), rates, rule: Some(made), block: None, ..(*self.limit).clone() };
        Self { limit: Arc::new(limit), ..self }
    }
}

/// As it would be written: in the longest unit that its window is a multiple of.
fn shown_rate(rate: overrides::Rate) -> Shown {
    let unit = UNITS.iter().rev().find(|(_, seconds)| u64::from(rate.seconds) % seconds == 0);
    let unit = unit.map_or(Unit::Second, |(unit, _)| *unit);
    Shown { name: String::new(), requests_per_unit: rate.limit, unit: unit.into() }
}

fn overriding(
    domain: &str,
    descriptor: &RateLimitDescriptor,
    brought: &RateLimitOverride,
    stats: &Stats,
    options: &Options,
) -> Result<Found, UnknownUnit> {
    let &RateLimitOverride { requests_per_unit, unit } = brought;
    let seconds = Unit::try_from(unit).ok().and_then(seconds_of).ok_or(UnknownUnit)?;
    let entries = descriptor.entries.iter().map(|entry| match entry.value.as_str() {
        "" => entry.key.clone(),
        value => format!("{}_{value}", entry.key),
    });
    let full_key = format!("{domain}.{}", entries.collect::<Vec<_>>().join("."));
    let stats = stats.limits.get(&full_key, Some(domain));
    let window = window(requests_per_unit, seconds).map_err(|_| UnknownUnit)?;
    let rates = vec![Shown { name: String::new(), requests_per_unit, unit }];
    let rule = rule(options.algorithm, &[window], None).map_err(|_| UnknownUnit)?;
    let limit = Limit {
        full_key,
        stats: Arc::clone(&stats),
        suffix: rule.suffix(&rates),
        rates,
        rule: Some(rule),
        ..Limit::default()
    };
    Ok(Found { limit: Arc::new(limit), stats, ..Found::default() })
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
        if let Some((pattern, _)) = self.patterns.iter().find(|(_, parts)| fits(parts, joined)) {
            return self.exact.get(pattern).map(|entry| (entry, How::Pattern(pattern)));
        }
        self.exact.get(key).map(|entry| (entry, How::Key))
    }

    fn find(&self, domain: &str, descriptor: &RateLimitDescriptor, stats: &Stats) -> Option<Found> {
        let entries = &descriptor.entries;
        let mut level = self;
        let mut joined = String::new();
        let mut path = Few::new();
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
        // What statistics are named after, with values where they are asked for.
        let mut name = joined;
        name.clear();
        name.push_str(domain);
        for (index, ((found, how), entry)) in path.iter().zip(entries).enumerate() {
            let value: &str = match (shared(index), how) {
                (Some(pattern), _) => pattern,
                (None, _) if limit.detailed_metric => &entry.value,
                (None, How::Pattern(pattern)) if !found.value_to_metric => under_key(pattern, &entry.key),
                (None, How::Key) if !found.value_to_metric => "",
                (None, How::Value | How::Pattern(_) | How::Key) => &entry.value,
            };
            name.extend([".", &entry.key]);
            // Without values of its own a detailed name ends its keys like this.
            if !value.is_empty() || limit.detailed_metric && !any_shared {
                name.extend(["_", value]);
            }
        }
        let same = name == limit.full_key;
        // Envoy's service loses it in a detailed name, and so does a client that knows it see none.
        let keeps_metadata = if limit.detailed_metric { !level.exact.is_empty() } else { same };
        Some(Found {
            stats: if same { Arc::clone(&limit.stats) } else { stats.limits.get(&name, Some(&limit.full_key)) },
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

    /// Those of the entries here and below.
    fn limits(&self) -> Vec<&Arc<Limit>> {
        self.exact.values().flat_map(|entry| entry.limit.iter().chain(entry.below.limits())).collect()
    }
}

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

/// Between the parts stands any text, the empty one too.
fn fits(parts: &[String], text: &str) -> bool {
    let [first, parts @ .., last] = parts else { return false };
    let Some(mut rest) = text.strip_prefix(first).and_then(|rest| rest.strip_suffix(last)) else { return false };
    parts.iter().all(|part| {
        let behind = rest.find(part).map(|at| &rest[at + part.len()..]);
        rest = behind.unwrap_or_default();
        behind.is_some()
    })
}

#[cfg(test)]
mod tests {
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
        config.domains["d"].find("d", descriptor, &Stats::default(), &settings(&[]).options)
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
