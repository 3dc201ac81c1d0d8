//! From a decision to the response: statuses, headers, dynamic metadata, and what statistics count of it.

use std::time::{Duration, SystemTime};

use envoy_types::pb::envoy::config::core::v3::HeaderValue;
use envoy_types::pb::google::protobuf;
use redis_rl_client::Rule;

use super::decide::{Outcome, used as units_in};
use super::metadata::dynamic_metadata;
use super::plan::{LimitUse, Plan};
use crate::limit::{Kind, Limit};
use crate::messages::{Code, DescriptorStatus, RateLimitRequest, RateLimitResponse, Shown};
use crate::redis::State;
use crate::settings::{OnError, Settings};
use crate::stats::Stats;

pub fn decided(
    request: &RateLimitRequest,
    plan: &Plan,
    outcome: &Outcome,
    settings: &Settings,
    stats: &Stats,
) -> RateLimitResponse {
    let mut statuses = Vec::with_capacity(plan.limits.len());
    let mut closest: Option<usize> = None;
    let mut fewest = u32::MAX;
    let (mut denied, mut quotas, mut failed_quotas) = (false, 0, 0);
    let mut passed = Vec::new();
    for (index, limit) in plan.limits.iter().enumerate() {
        let status = match limit {
            Some(used) if used.is_unlimited() => {
                statuses.push(unlimited_status());
                continue;
            }
            None => DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() },
            Some(used) if used.returns => {
                let state = &outcome.refunded[used.part];
                if plan.refunds[used.part].lease.is_some() {
                    used.found.stats.total_hits.add(used.hits);
                    used.found.stats.within(used.hits, units_in(state), near(state, settings.near_limit_ratio));
                }
                status_of(used, state, true)
            }
            Some(used) => {
                count(used, plan, outcome, settings.near_limit_ratio);
                let state = &outcome.states[used.part];
                status_of(used, state, state.allowed || used.found.limit.shadow_mode)
            }
        };
        if status.current_limit.is_some() && status.limit_remaining < fewest {
            (closest, fewest) = (Some(index), status.limit_remaining);
        }
        let quota = settings.quota_mode || limit.as_ref().is_some_and(|used| used.found.limit.quota_mode);
        quotas += usize::from(quota);
        if status.code() != Code::OverLimit {
            passed.extend(settings.dynamic_metadata.then_some(index));
        } else if quota {
            failed_quotas += 1;
        } else {
            denied = true;
            (closest, fewest) = (Some(index), 0);
        }
        statuses.push(status);
    }
    denied |= quotas > 0 && quotas == failed_quotas;
    if denied && settings.shadow_mode {
        denied = false;
        stats.service.global_shadow_mode.inc();
    }
    let response_headers_to_add = match (&settings.headers, closest.and_then(|index| statuses.get(index))) {
        (Some(names), Some(status)) => headers_of(names, status),
        _ => Vec::new(),
    };
    let metadata = plan.limits.iter().map(|limit| limit.as_ref()?.found.metadata.as_deref());
    let dynamic_metadata =
        settings.dynamic_metadata.then(|| dynamic_metadata(request, &passed, &metadata.collect::<Vec<_>>()));
    RateLimitResponse {
        overall_code: if denied { Code::OverLimit } else { Code::Ok }.into(),
        statuses,
        response_headers_to_add,
        dynamic_metadata,
        ..RateLimitResponse::default()
    }
}

/// The limits that are enforced, and their states, for the headers of HTTP.
pub fn enforced(plan: &Plan, outcome: &Outcome, settings: &Settings) -> Vec<(Rule, State)> {
    let limits = plan.limits.iter().flatten();
    let described = limits.filter(|used| is_enforced(used, settings)).filter_map(|used| {
        let state = *outcome.states.get(used.part)?;
        Some((used.found.limit.shown_rule()?, state))
    });
    described.collect()
}

/// The response to a request that Redis could not decide, where ON_ERROR is `allow` or `deny`.
pub fn undecided(plan: &Plan, settings: &Settings) -> RateLimitResponse {
    let mut code = Code::Ok;
    let statuses = plan.limits.iter().map(|limit| match limit {
        Some(used) if used.is_unlimited() => unlimited_status(),
        Some(used) if settings.on_error == OnError::Deny => {
            let status = if is_enforced(used, settings) { Code::OverLimit } else { Code::Ok };
            code = code.max(status);
            let current_limit = used.found.limit.rates.first().cloned();
            DescriptorStatus { code: status.into(), current_limit, ..DescriptorStatus::default() }
        }
        _ => DescriptorStatus { code: Code::Ok.into(), ..DescriptorStatus::default() },
    });
    let statuses = statuses.collect();
    RateLimitResponse { overall_code: code.into(), statuses, ..RateLimitResponse::default() }
}

fn is_enforced(used: &LimitUse, settings: &Settings) -> bool {
    !(settings.shadow_mode || used.found.limit.shadow_mode || used.returns)
}

fn near(state: &State, ratio: f32) -> u64 {
    (state.limit as f32 * ratio).floor() as u64
}

fn count(used: &LimitUse, plan: &Plan, outcome: &Outcome, near_limit_ratio: f32) {
    let (stats, hits) = (&used.found.stats, used.hits);
    let state = &outcome.states[used.part];
    // Those of all descriptors with this key.
    let units = plan.parts[used.part].item.units;
    stats.total_hits.add(hits);
    let in_use = units_in(state);
    let before = if outcome.charged[used.part] { in_use.saturating_sub(units) } else { in_use };
    let near = near(state, near_limit_ratio);
    if state.allowed {
        stats.within(hits, before.saturating_add(hits), near);
        return;
    }
    let over = if outcome.from_cache {
        stats.over_limit.add(hits);
        stats.over_limit_with_local_cache.add(hits);
        hits
    } else {
        stats.over(hits, before, state.limit, near)
    };
    if used.found.limit.shadow_mode {
        stats.shadow_mode.add(over);
    }
}

fn unlimited_status() -> DescriptorStatus {
    DescriptorStatus { code: Code::Ok.into(), limit_remaining: u32::MAX, ..DescriptorStatus::default() }
}

fn status_of(used: &LimitUse, state: &State, passes: bool) -> DescriptorStatus {
    let limit = &used.found.limit;
    DescriptorStatus {
        code: if passes { Code::Ok } else { Code::OverLimit }.into(),
        limit_remaining: u32::try_from(state.remaining).unwrap_or(u32::MAX),
        duration_until_reset: Some(protobuf::Duration { seconds: reset(&limit.rule, state), nanos: 0 }),
        current_limit: binding(limit, state),
        quota: None,
    }
}

/// The rate that the state is about: that of its window, where there are several.
fn binding(limit: &Limit, state: &State) -> Option<Shown> {
    let windows = limit.rule.as_ref().map_or(&[][..], Kind::windows);
    let binding = windows.iter().position(|window| window.length() == state.window);
    limit.rates.get(binding.unwrap_or(0)).cloned()
}

/// Seconds until there is more: of a window of the clock until it ends, else until the request fits or all is free.
fn reset(rule: &Option<Kind>, state: &State) -> i64 {
    let up = |wait: Duration| i64::try_from(wait.as_millis().div_ceil(1000)).unwrap_or(i64::MAX);
    if let Some(Kind::Fixed(_)) = rule {
        let at = state.at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs();
        let length = state.window.as_secs().max(1);
        return i64::try_from(length - at % length).unwrap_or(i64::MAX);
    }
    match (state.allowed, state.retry_after) {
        (false, Some(wait)) => up(wait),
        _ => state.reset_after.map_or_else(|| up(state.window), up),
    }
}

fn headers_of(names: &[String; 3], status: &DescriptorStatus) -> Vec<HeaderValue> {
    let limit = status.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
    let reset = status.duration_until_reset.as_ref().map_or(0, |reset| reset.seconds);
    let values = [limit.to_string(), status.limit_remaining.to_string(), reset.to_string()];
    let headers = names.iter().cloned().zip(values);
    headers.map(|(key, value)| HeaderValue { key, value, ..HeaderValue::default() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::few::Few;
    use crate::request::reservations::Reservations;
    use crate::testing::{config, descriptor, hits, request, settings, state};

    const LIMITS: &str = "
  - {key: five, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: ten, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: quota, quota_mode: true, rate_limit: {unit: minute, requests_per_unit: 5}}
  - {key: free, rate_limit: {unlimited: true}}
";

    /// The response to descriptors whose limits have these states: the codes, what remains, the headers.
    fn response(variables: &[(&str, &str)], stats: &Stats, asked: &[(&str, Option<State>)]) -> RateLimitResponse {
        let (config, settings) = (config(LIMITS, stats), settings(variables));
        let request = request(asked.iter().map(|(entries, _)| hits(entries, 1)).collect::<Vec<_>>());
        let reservations = Reservations::default();
        let planned = Plan::new(&request, &config, &settings, stats, &reservations);
        let plan = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(planned).unwrap();
        let states: Few<_> = asked.iter().filter_map(|(_, state)| *state).collect();
        let charged = states.iter().map(|state| state.allowed).collect();
        decided(&request, &plan, &Outcome { states, charged, ..Outcome::default() }, &settings, stats)
    }

    fn codes(response: &RateLimitResponse) -> Vec<(Code, u32)> {
        response.statuses.iter().map(|status| (status.code(), status.limit_remaining)).collect()
    }

    const HEADERS: [(&str, &str); 1] = [("LIMIT_RESPONSE_HEADERS_ENABLED", "true")];

    #[test]
    fn statuses_and_headers_speak_of_the_limit_that_binds() {
        let stats = Stats::default();
        let values = |response: &RateLimitResponse| {
            response.response_headers_to_add.iter().map(|header| header.value.clone()).collect::<Vec<_>>().join(" ")
        };
        let passes =
            [("five=a", Some(state(true, 5, 2))), ("free", None), ("else", None), ("ten=a", Some(state(true, 10, 8)))];
        let passed = response(&HEADERS, &stats, &passes);
        assert_eq!(passed.overall_code(), Code::Ok);
        assert_eq!(codes(&passed), [(Code::Ok, 3), (Code::Ok, u32::MAX), (Code::Ok, 0), (Code::Ok, 2)]);
        // The first with the least left, and the end of the minute on the clock.
        assert_eq!(values(&passed), "10 2 30");
        let denies = [("ten=a", Some(state(false, 10, 9))), ("five=a", Some(state(true, 5, 5)))];
        let denied = response(&HEADERS, &stats, &denies);
        assert_eq!(denied.overall_code(), Code::OverLimit);
        assert_eq!((codes(&denied)[0], values(&denied).as_str()), ((Code::OverLimit, 1), "10 1 30"));
        assert!(response(&[], &stats, &passes).response_headers_to_add.is_empty());
        assert!(response(&HEADERS, &stats, &[("free", None)]).response_headers_to_add.is_empty());
    }

    #[test]
    fn shadows_and_single_quotas_deny_nothing() {
        let stats = Stats::default();
        let over = || Some(state(false, 5, 5));
        for (variables, asked, overall, first) in [
            (&[][..], vec![("shadow=a", over())], Code::Ok, Code::Ok),
            (&[], vec![("quota=a", over())], Code::OverLimit, Code::OverLimit),
            (&[], vec![("quota=a", over()), ("quota=b", Some(state(true, 5, 1)))], Code::Ok, Code::OverLimit),
            (&[("SHADOW_MODE", "true")], vec![("five=a", over())], Code::Ok, Code::OverLimit),
            (&[("QUOTA_MODE", "true")], vec![("five=a", over()), ("else", None)], Code::Ok, Code::OverLimit),
        ] {
            let response = response(variables, &stats, &asked);
            assert_eq!((response.overall_code(), response.statuses[0].code()), (overall, first), "{asked:?}");
        }
        assert_eq!(stats.service.global_shadow_mode.get(), 1);
        assert_eq!(stats.limits.get("d.shadow", None).shadow_mode.get(), 1);
        assert_eq!(
            (stats.limits.get("d.quota", None).over_limit.get(), stats.limits.get("d.quota", None).total_hits.get()),
            (2, 3)
        );
    }

    #[test]
    fn without_a_decision_what_is_enforced_is_denied_or_all_passes() {
        let stats = Stats::default();
        let config = config(LIMITS, &stats);
        let request = request([descriptor("five=a"), descriptor("shadow=a"), descriptor("free")]);
        for (on_error, overall) in [("deny", Code::OverLimit), ("allow", Code::Ok)] {
            let (settings, reservations) = (settings(&[("ON_ERROR", on_error)]), Reservations::default());
            let planned = Plan::new(&request, &config, &settings, &stats, &reservations);
            let plan = tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(planned).unwrap();
            let response = undecided(&plan, &settings);
            assert_eq!(response.overall_code(), overall);
            assert_eq!(codes(&response), [(overall, 0), (Code::Ok, 0), (Code::Ok, u32::MAX)]);
        }
    }
}
