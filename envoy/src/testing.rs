//! What unit tests share: configurations, requests and states in few words.

mod variables;

use std::time::{Duration, SystemTime};

use crate::limits::definition::Definition;
use crate::limits::overrides::Overrides;
use crate::limits::tree::Config;
use crate::messages::{Entry, RateLimitDescriptor, RateLimitRequest, UInt64Value};
use crate::redis::State;
use crate::settings::Settings;
use crate::stats::Stats;

pub fn settings(variables: &[(&str, &str)]) -> Settings {
    Settings::read(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()).unwrap()
}

/// The configuration of the domain `d` with these descriptors.
pub fn config(descriptors: &str, stats: &Stats) -> Config {
    let definition = Definition::parse("file", &format!("domain: d\ndescriptors:\n{descriptors}")).unwrap();
    Config::load(&[definition], &Overrides::default(), stats, &settings(&[]).options).unwrap()
}

/// A descriptor of `key=value` entries.
pub fn descriptor(entries: &str) -> RateLimitDescriptor {
    let entries = entries.split(',').map(|entry| {
        let (key, value) = entry.split_once('=').unwrap_or((entry, ""));
        Entry { key: key.to_owned(), value: value.to_owned() }
    });
    RateLimitDescriptor { entries: entries.collect(), ..Default::default() }
}

pub fn hits(entries: &str, value: u64) -> RateLimitDescriptor {
    RateLimitDescriptor { hits_addend: Some(UInt64Value { value }), ..descriptor(entries) }
}

pub fn request(descriptors: impl Into<Vec<RateLimitDescriptor>>) -> RateLimitRequest {
    RateLimitRequest { domain: "d".to_owned(), descriptors: descriptors.into(), hits_addend: 0 }
}

/// The state of a limit a minute in which this many units are in use.
pub fn state(allowed: bool, limit: u64, used: u64) -> State {
    let mut state = State::new(limit, Duration::from_secs(60));
    state.allowed = allowed;
    state.used = i64::try_from(used).unwrap();
    state.remaining = limit.saturating_sub(used);
    state.retry_after = Some(Duration::from_secs(if allowed { 0 } else { 30 }));
    state.next_after = Some(Duration::from_secs(30));
    state.reset_after = Some(Duration::from_secs(60));
    state.at = SystemTime::UNIX_EPOCH + Duration::from_secs(90);
    state
}
