//! From files and messages to limits that can be asked for, or the reason why they cannot be.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use redis_rl_client::Rule;

use super::definition::{self, Definition, Descriptor, Held, Rate};
use super::overrides::Overrides;
use super::tree::{Config, Entry, Level};
use crate::limit::{Algorithm, Kind, Limit, Options, Reserve, of_calendar, rule, unit_of, window};
use crate::messages::{Shown, Unit};
use crate::settings::duration;
use crate::stats::Stats;

impl Config {
    /// Makes a configuration of all that was read.
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
                domain.overrides = Some(overrides.table(&definition.overrides));
            }
            domain.http.sources.extend(definition.http.clone());
            let limits = &mut domain.http.limits;
            let mut loader = Loader { stats, options, file: name, keys: Vec::new(), limits };
            loader.load(&mut domain.level, &format!("{}.", definition.domain), &definition.descriptors)?;
        }
        for (name, domain) in &mut config.domains {
            domain.http.complete().map_err(|key| {
                format!("the domain '{name}': no limit can be found by '{key}' of 'http' and the other keys there")
            })?;
        }
        Ok(config)
    }
}

struct Loader<'a> {
    stats: &'a Stats,
    options: &'a Options,
    file: &'a str,
    /// The keys down to the descriptor at hand.
    keys: Vec<&'a str>,
    /// Those of all limits.
    limits: &'a mut BTreeSet<Vec<String>>,
}

impl<'a> Loader<'a> {
    fn refuse(&self, line: usize, reason: impl std::fmt::Display) -> String {
        if line == 0 { format!("{}: {reason}", self.file) } else { format!("{}:{line}: {reason}", self.file) }
    }

    fn load(&mut self, level: &mut Level, parent: &str, from: &'a [Descriptor]) -> Result<(), String> {
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
                level.patterns.push((key.clone(), key.split('*').map(str::to_owned).collect()));
            }
            let mut entry = Entry {
                limit: limit.map(Arc::new),
                below: Level::default(),
                value_to_metric: descriptor.value_to_metric,
                share_threshold: descriptor.share_threshold,
                metadata: descriptor.metadata.clone().map(Arc::new),
            };
            if entry.limit.is_some() {
                self.limits.insert(self.keys.iter().map(|key| (*key).to_owned()).collect());
            }
            self.load(&mut entry.below, &format!("{full_key}."), &descriptor.descriptors)?;
            self.keys.pop();
            level.exact.insert(key, entry);
        }
        Ok(())
    }

    fn limit(&self, descriptor: &Descriptor, limit: &definition::Limit, full_key: &str) -> Result<Limit, String> {
        let refuse = |reason: String| self.refuse(limit.line, format!("'{full_key}': {reason}"));
        let named = limit.algorithm.as_deref().map(Algorithm::parse).transpose().map_err(refuse)?;
        let algorithm =
            named.unwrap_or(if limit.calendar.is_some() { Algorithm::Fixed } else { self.options.algorithm });
        let (rates, rule) = rated(limit, algorithm, &descriptor.key).map_err(refuse)?;
        let reserve = limit.reserve.as_ref().map(|reserve| self.reserve(reserve)).transpose().map_err(refuse)?;
        if reserve.is_some() && !matches!(rule, Some(Kind::Fixed(_) | Kind::Sliding(_) | Kind::Calendar { .. })) {
            return Err(refuse("only fixed and sliding windows and calendars can reserve".to_owned()));
        }
        if limit.replaces.iter().any(String::is_empty) {
            return Err(refuse("it replaces something without a name".to_owned()));
        }
        if limit.replaces.contains(&limit.name) {
            return Err(refuse("it replaces itself".to_owned()));
        }
        let mut made = Limit {
            stats: self.stats.limits.get(full_key, None),
            full_key: full_key.to_owned(),
            algorithm,
            suffix: rule.as_ref().map(|rule| rule.suffix(&rates)).unwrap_or_default(),
            rates,
            rule,
            shadow_mode: descriptor.shadow_mode,
            quota_mode: descriptor.quota_mode,
            name: limit.name.clone(),
            replaces: limit.replaces.clone(),
            reserve,
            detailed_metric: descriptor.detailed_metric,
            block: None,
        };
        if let Some(Held { units, lease, .. }) = &limit.block {
            let taken = duration(lease).and_then(|within| made.take_blocks((*units).into(), within));
            taken.map_err(|reason| refuse(format!("block: {reason}")))?;
        }
        Ok(made)
    }

    fn reserve(&self, reserve: &Held) -> Result<Reserve, String> {
        if reserve.units == 0 {
            return Err("an estimate is at least 1".to_owned());
        }
        let lease = if reserve.lease.is_empty() { LEASE } else { lease(&reserve.lease)? };
        Rule::lease(1, lease).map_err(|error| error.to_string())?;
        let holder = if reserve.holder.is_empty() { REQUEST_ID } else { &reserve.holder };
        if !self.keys.contains(&holder) {
            return Err(format!("a reservation is by '{holder}', which has to be a key of the descriptor"));
        }
        Ok(Reserve { estimate: reserve.units.into(), lease, holder: holder.to_owned() })
    }
}

/// The rates of a limit, and its rule.
type Rated = (Vec<Shown>, Option<Kind>);

fn rated(limit: &definition::Limit, algorithm: Algorithm, key: &str) -> Result<Rated, String> {
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
        if concurrency.units == 0 {
            return Err("concurrency needs a limit of at least 1".to_owned());
        }
        let rule =
            Rule::lease(concurrency.units.into(), lease(&concurrency.lease)?).map_err(|error| error.to_string())?;
        let rate = Rate { requests_per_unit: concurrency.units, ..Rate::default() };
        // Unless it says otherwise, the descriptor itself is the entry that says whose place it is.
        let holder = if concurrency.holder.is_empty() { key.to_owned() } else { concurrency.holder.clone() };
        return Ok((vec![shown(&rate, Unit::Unknown)], Some(Kind::Concurrency { rule, holder })));
    }
    if let Some(calendar) = &limit.calendar {
        let plain = algorithm == Algorithm::Fixed
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
    // The first rate stands in the limit itself, unless they are all in the list.
    let own = if limit.rate == Rate::default() && !limit.rates.is_empty() { None } else { Some(&limit.rate) };
    // In the order of their lengths, as the windows of a rule are.
    let mut made = BTreeMap::new();
    for rate in own.into_iter().chain(&limit.rates) {
        let Some((unit, seconds)) = unit_of(&rate.unit) else {
            return Err(format!("a unit is second, minute, hour, day, week, month or year, not '{}'", rate.unit));
        };
        let seconds = match rate.unit_multiplier {
            Some(0) => return Err("a unit_multiplier is at least 1".to_owned()),
            multiplier => seconds.saturating_mul(multiplier.unwrap_or(1).into()),
        };
        if made.insert(seconds, (shown(rate, unit), window(rate.requests_per_unit, seconds)?)).is_some() {
            return Err(format!("two rates have the same length of {seconds} seconds"));
        }
    }
    let (rates, windows): (_, Vec<_>) = made.into_values().unzip();
    Ok((rates, Some(rule(algorithm, &windows, limit.burst)?)))
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
