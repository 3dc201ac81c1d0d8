//! The header fields of draft-ietf-httpapi-ratelimit-headers-11, and its problem type.
//!
//! Times are rounded up to seconds, so that a client that waits as long as it is told is let in.

use std::fmt::Write;
use std::time::Duration;

use crate::decision::State;
use crate::error::InvalidRule;
use crate::rule::{Rule, seconds};

/// An integer of a structured field has at most 15 digits. A larger quota is understated.
const MOST: u64 = 999_999_999_999_999;

/// The problem type of a request that was denied.
#[cfg(feature = "tower")]
pub(crate) const QUOTA_EXCEEDED: &str = "https://iana.org/assignments/http-problem-types#quota-exceeded";

/// What a response says of a decision, after draft-ietf-httpapi-ratelimit-headers-11.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Headers {
    /// The value of `RateLimit-Policy`: each policy with its quota `q`, its window `w` in seconds (left out where it is
    /// not a whole number of them, and of leases), and its unit `qu` where that is not requests.
    pub policy: String,
    /// The value of `RateLimit`: for each policy the units `r` that are free, and the seconds `t` until more are.
    pub limit: String,
    /// The value of `Retry-After` in seconds: for a denied request that will fit one day, else `None`.
    pub retry_after: Option<u64>,
}

impl Headers {
    /// The fields' names, in lower case, and their values.
    pub fn fields(&self) -> impl Iterator<Item = (&'static str, String)> {
        let fields = [("ratelimit-policy", self.policy.clone()), ("ratelimit", self.limit.clone())];
        fields.into_iter().chain(self.retry_after.map(|seconds| ("retry-after", seconds.to_string())))
    }
}

/// A quota policy as a response names it.
#[derive(Debug)]
pub(crate) struct Policy<'a> {
    pub name: String,
    quota: u64,
    window: Option<u64>,
    unit: Option<&'a str>,
    /// Not known of the windows that were not asked for.
    pub state: Option<&'a State>,
}

/// The policies that a rule stands for, with the states that are known.
pub(crate) fn policies<'a>(rule: &'a Rule, fallback: &str, states: &'a [State]) -> Vec<Policy<'a>> {
    let label = rule.label();
    let name = label.name.as_deref().unwrap_or(fallback);
    let unit = label.unit.as_deref();
    let several = rule.windows().len() > 1;
    if several {
        let policy = |window: &crate::Window| Policy {
            name: format!("{name}-{}s", seconds(window.millis)),
            quota: window.limit,
            window: Some(window.millis),
            unit,
            state: states.iter().find(|state| state.window == window.length()),
        };
        return rule.windows().iter().map(policy).collect();
    }
    let (window, unit) = match rule {
        // A quota of requests at a time is not bound to a time.
        Rule::Lease(_) => (None, unit.or(Some("concurrent-requests"))),
        _ => (states.first().map(|state| millis(state.window)), unit),
    };
    let quota = states.first().map_or(0, |state| state.limit);
    vec![Policy { name: name.to_owned(), quota, window, unit, state: states.first() }]
}

/// The fields for these policies. `retry_after`: `None` if it never fits.
pub(crate) fn headers(policies: &[Policy<'_>], allowed: bool, retry_after: Option<Duration>) -> Headers {
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
        // Nothing to say where nothing is used, and where no more will ever come. Retry-After should not be earlier
        // than `t`, so a policy that did not deny is left without one that is later.
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

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn whole_seconds(time: Duration) -> u64 {
    time.as_secs().saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// The name, if it can be a string of a structured field.
pub(crate) fn checked(name: &str) -> Result<&str, InvalidRule> {
    if name.is_empty() || !name.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        return Err(InvalidRule(format!("a name in a header must be printable ASCII, not {name:?}")));
    }
    Ok(name)
}

/// A string as structured fields and JSON write it. It is printable ASCII: see `checked`.
fn string(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

/// The body of a denial, `application/problem+json`.
#[cfg(feature = "tower")]
pub(crate) fn problem(violated: &[String]) -> String {
    let names: Vec<_> = violated.iter().map(|name| string(name)).collect();
    format!(
        "{{\"type\":\"{QUOTA_EXCEEDED}\",\"title\":\"Request cannot be satisfied as assigned quota has been exceeded\",\
         \"status\":429,\"violated-policies\":[{}]}}",
        names.join(",")
    )
}
