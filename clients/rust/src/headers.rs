//! The header fields of draft-ietf-httpapi-ratelimit-headers-11, and its problem type.
//!
//! Times are rounded up to seconds, so that a client that waits as long as it is told is let in.

use std::collections::HashSet;
use std::fmt::Write;
use std::slice;
use std::time::Duration;

use crate::decision::{Decision, State};
use crate::rates::Seconds;
use crate::rule::Rule;

/// An integer of a structured field has at most 15 digits. A larger quota is understated.
const MOST: u64 = 999_999_999_999_999;

/// The problem type of a request that was denied.
const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// What a response says of a decision, after draft-ietf-httpapi-ratelimit-headers-11.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Headers {
    /// The value of `RateLimit-Policy`: each policy with its quota `q`, its window `w` in seconds (left out where it is
    /// not a whole number of them, of calendars and of leases), and its unit `qu` where that is not requests.
    pub policy: String,
    /// The value of `RateLimit`: for each policy the units `r` that are free, and the seconds `t` until more are.
    pub limit: String,
    /// The value of `Retry-After` in seconds: for a denied request that will fit one day, else `None`.
    pub retry_after: Option<u64>,
}

impl Headers {
    /// The headers for rules whose states were put together by the caller, and the problem if the request was denied. A
    /// rule whose own state does not allow the request may be one of a request that was allowed: a rule that is not enforced.
    pub fn of(allowed: bool, rules: &[(Rule, State)]) -> (Self, Option<String>) {
        let denying = rules.iter().filter(|(_, state)| !state.allowed);
        let waits: Option<Vec<_>> = denying.map(|(_, state)| state.retry_after).collect();
        let policies = policies(rules.iter().map(|(rule, state)| (rule, slice::from_ref(state))));
        let headers = headers(&policies, allowed, waits.and_then(|waits| waits.into_iter().max()));
        (headers, (!allowed).then(|| problem(&violated(policies))))
    }

    /// The fields' names, in lower case, and their values.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, String)> {
        let fields = [("ratelimit-policy", self.policy.clone()), ("ratelimit", self.limit.clone())];
        fields.into_iter().chain(self.retry_after.map(|seconds| ("retry-after", seconds.to_string())))
    }
}

impl Decision {
    /// The values of `RateLimit-Policy`, `RateLimit` and, if the request is denied and will fit one day, `Retry-After`. Of
    /// policies with one name, the later ones get a number behind it: `60s`, `60s-2`.
    pub fn headers(&self) -> Headers {
        headers(&policies(self.by_rule()), self.allowed, self.retry_after)
    }

    /// The names of the policies that the request did not fit into. In [`Limiter::all`](crate::Limiter::all) a forced rule
    /// denies nothing.
    pub fn violated_policies(&self) -> Vec<String> {
        let (alone, mut policies) = (self.rules().len() == 1, policies(self.by_rule()));
        policies.retain(|policy| !self.allowed && (alone || !policy.is_forced));
        violated(policies)
    }

    /// The body of a denial, `application/problem+json` of type `quota-exceeded`. `None` if the request was allowed.
    pub fn problem(&self) -> Option<String> {
        (!self.allowed).then(|| problem(&self.violated_policies()))
    }
}

/// A quota policy as a response names it.
#[derive(Debug)]
pub(crate) struct Policy<'a> {
    pub name: String,
    pub quota: u64,
    /// Milliseconds. None for calendars, of which no two need be as long, and for leases: a quota of requests at a time is
    /// not bound to a time.
    pub window: Option<u64>,
    unit: Option<&'a str>,
    is_forced: bool,
    /// Not known of the windows that were not asked for.
    pub state: Option<&'a State>,
}

/// The policies that rules stand for, with the states that are known, each of its own name.
pub(crate) fn policies<'a>(rules: impl IntoIterator<Item = (&'a Rule, &'a [State])>) -> Vec<Policy<'a>> {
    let mut all: Vec<Policy<'a>> = Vec::new();
    for (rule, states) in rules {
        policies_of(rule, states, &mut all);
    }
    let mut taken = HashSet::new();
    for policy in &mut all {
        let alike = policy.name.clone();
        let mut number = 2;
        while !taken.insert(policy.name.clone()) {
            policy.name = format!("{alike}-{number}");
            number += 1;
        }
    }
    all
}

fn policies_of<'a>(rule: &'a Rule, states: &'a [State], all: &mut Vec<Policy<'a>>) {
    let (common, is_forced) = (rule.common(), rule.is_forced());
    let by_window = |millis| format!("{}s", Seconds(millis));
    let named = |millis| common.name.as_deref().map_or_else(|| by_window(millis), str::to_owned);
    let unit = common.unit.as_deref().or(matches!(rule, Rule::Lease(_)).then_some("concurrent-requests"));
    let mut add = |name, quota, window, state| all.push(Policy { name, quota, window, unit, is_forced, state });
    match rule {
        Rule::Throttle(rule) => {
            let millis = rule.fill_millis();
            add(named(millis), rule.burst.saturating_add(1), Some(millis), states.first());
        }
        #[cfg(feature = "calendar")]
        Rule::Calendar(rule) => {
            let name = common.name.as_deref().unwrap_or_else(|| rule.unit.name());
            add(name.to_owned(), rule.limit, None, states.first());
        }
        Rule::Lease(rule) => add(named(rule.millis), rule.limit, None, states.first()),
        Rule::Sliding(_) | Rule::Fixed(_) => {
            let windows = rule.windows();
            for window in windows {
                let name = match &common.name {
                    Some(name) if windows.len() > 1 => format!("{name}-{}", by_window(window.millis)),
                    _ => named(window.millis),
                };
                let state = states.iter().find(|state| state.window == window.length());
                add(name, window.limit, Some(window.millis), state);
            }
        }
    }
}

/// The fields for these policies. `retry_after`: `None` if it never fits.
fn headers(policies: &[Policy<'_>], allowed: bool, retry_after: Option<Duration>) -> Headers {
    let retry_after = retry_after.filter(|_| !allowed).map(whole_seconds);
    let mut fields = Headers { policy: String::new(), limit: String::new(), retry_after };
    for policy in policies {
        let name = string(&policy.name);
        let list = item(&mut fields.policy, &name);
        // Writing into a String does not fail.
        let _ = write!(list, ";q={}", policy.quota.min(MOST));
        if let Some(unit) = policy.unit.filter(|unit| *unit != "requests") {
            let _ = write!(list, ";qu={}", string(unit));
        }
        if let Some(window) = policy.window.filter(|window| window.is_multiple_of(1000)) {
            let _ = write!(list, ";w={}", window / 1000);
        }
        let Some(state) = policy.state else { continue };
        let list = item(&mut fields.limit, &name);
        let _ = write!(list, ";r={}", state.remaining.min(MOST));
        // No `t` if nothing is used, or if no more will ever come. Retry-After should not be earlier than `t`, so a
        // policy that did not deny has no `t` that is later than Retry-After.
        let next = state.next_after.filter(|next| !next.is_zero()).map(whole_seconds);
        if let Some(next) = next.filter(|next| retry_after.is_none_or(|wait| *next <= wait)) {
            let _ = write!(list, ";t={}", next.min(MOST));
        }
    }
    fields
}

fn item<'a>(list: &'a mut String, name: &str) -> &'a mut String {
    if !list.is_empty() {
        list.push_str(", ");
    }
    list.push_str(name);
    list
}

/// Seconds, rounded up.
pub(crate) fn whole_seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// A string as structured fields and JSON write it. It is printable ASCII: see the rules' names.
fn string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The names of the policies that a request did not fit into.
fn violated(policies: Vec<Policy<'_>>) -> Vec<String> {
    let denies = |policy: &Policy<'_>| policy.state.is_some_and(|state| !state.allowed);
    policies.into_iter().filter(denies).map(|policy| policy.name).collect()
}

/// The body of a denial, `application/problem+json`.
pub(crate) fn problem(violated: &[String]) -> String {
    let names: Vec<_> = violated.iter().map(|name| string(name)).collect();
    format!(
        "{{\"type\":\"{QUOTA_EXCEEDED}\",\"title\":\"Request cannot be satisfied as assigned quota has been exceeded\",\
         \"status\":429,\"violated-policies\":[{}]}}",
        names.join(",")
    )
}
