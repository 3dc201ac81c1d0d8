//! Totals of calls and replies, which the module's own totals must equal.

use std::fmt;

use super::calls::Call;
use super::seen::Seen;
use crate::support::Client;
use crate::support::call::{Call as Asked, Report, Rule};
use crate::support::grammar::Verdict;
use crate::support::holds::{OTHER_COST, SETTLED};
use crate::support::model::{self, Reply, Value};

/// Calls and replies so far.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Totals {
    pub calls: u64,
    pub checked: u64,
    pub plants: u64,
    pub sliding: Outcomes,
    pub fixed: Outcomes,
    pub throttle: Outcomes,
    pub peek: Outcomes,
    pub acquire: Outcomes,
    pub all: Outcomes,
    pub refunded: u64,
    pub settled: u64,
    /// Refused since the holder has settled, or holds another number of units.
    pub unheld: u64,
    pub released: u64,
    /// Checked calls of RL.SLIDING and RL.PEEK that were answered from a compact log.
    pub compact: Outcomes,
    /// Refused for a compact log that is damaged or of another version.
    pub flawed: u64,
    pub resets: u64,
    pub reset_keys: u64,
    pub refused: u64,
    /// Of the refused calls, those that the server refused by itself.
    pub uncalled: u64,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Outcomes {
    pub allowed: u64,
    pub denied: u64,
}

impl Outcomes {
    fn add(&mut self, allowed: bool) {
        *if allowed { &mut self.allowed } else { &mut self.denied } += 1;
    }
}

impl fmt::Display for Outcomes {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} / {}", self.allowed, self.denied)
    }
}

impl Totals {
    /// Adds a call and its reply.
    pub(super) fn count(&mut self, call: &Call, before: Option<&Seen>, reply: &Reply) {
        self.calls += 1;
        self.checked += u64::from(call.is_checked);
        if let Reply::Error(line) = reply {
            self.refused += 1;
            self.unheld += u64::from([SETTLED, OTHER_COST].contains(&&**line));
            self.flawed += u64::from([model::DAMAGED, model::OTHER_VERSION].contains(&&**line));
            self.uncalled += u64::from(matches!(call.verdict, Verdict::Uncalled(_)));
            return;
        }
        let Verdict::Call(asked) = &call.verdict else { panic!("{reply:?} for what is refused") };
        let first = first_integer(reply).unwrap_or_default();
        let allowed = |rule: &Rule, report: Report| match (rule, report) {
            (Rule::Throttle { .. }, Report::Short) => first == 0,
            // Each map is about one window; the call is allowed if all windows have room.
            (_, Report::Each) => match reply {
                Reply::Array(maps) => maps.iter().all(|map| first_integer(map) == Some(1)),
                _ => false,
            },
            _ => first == 1,
        };
        let (outcomes, rule, allowed) = match asked {
            Asked::Reset { .. } => {
                self.resets += 1;
                self.reset_keys += first.unsigned_abs();
                return;
            }
            Asked::Release { .. } => {
                self.released += first.unsigned_abs();
                return;
            }
            Asked::Refund { .. } => {
                self.refunded += 1;
                return;
            }
            Asked::Settle { .. } => {
                self.settled += 1;
                return;
            }
            Asked::All { .. } => {
                self.all.add(first == 1);
                return;
            }
            Asked::Peek { rule, report, .. } => (&mut self.peek, rule, allowed(rule, *report)),
            Asked::Take { rule, report, .. } => {
                let outcomes = match rule {
                    Rule::Sliding { .. } => &mut self.sliding,
                    Rule::Fixed { .. } => &mut self.fixed,
                    Rule::Throttle { quantity: Some(0), .. } => &mut self.peek,
                    Rule::Throttle { .. } => &mut self.throttle,
                    Rule::Acquire { .. } => &mut self.acquire,
                };
                (outcomes, rule, allowed(rule, *report))
            }
        };
        outcomes.add(allowed);
        let is_compact = |before: &Seen| {
            matches!(before.keys.first().and_then(|key| key.as_ref()), Some(stored)
                if matches!(stored.value, Value::Compact(_) | Value::Doubtful(_)))
        };
        if matches!(rule, Rule::Sliding { .. }) && before.is_some_and(is_compact) {
            self.compact.add(allowed);
        }
    }

    /// The module's own totals must equal these, and it has not panicked.
    pub(super) fn compare(&self, client: &mut Client, seed: u64) {
        let field = |client: &mut Client, name: &str| -> u64 {
            client.info_field("rl", &format!("rl_{name}")).parse().expect("a number")
        };
        for (name, seen) in [
            ("sliding_allowed", self.sliding.allowed),
            ("sliding_denied", self.sliding.denied),
            ("fixed_allowed", self.fixed.allowed),
            ("fixed_denied", self.fixed.denied),
            ("throttle_allowed", self.throttle.allowed),
            ("throttle_denied", self.throttle.denied),
            ("peek_allowed", self.peek.allowed),
            ("peek_denied", self.peek.denied),
            ("acquire_allowed", self.acquire.allowed),
            ("acquire_denied", self.acquire.denied),
            ("all_allowed", self.all.allowed),
            ("all_denied", self.all.denied),
            ("refunded_calls", self.refunded),
            ("settled_calls", self.settled),
            ("released_leases", self.released),
            ("reset_keys", self.reset_keys),
            ("errors", self.refused - self.uncalled),
            ("panics", 0),
        ] {
            assert_eq!(field(client, name), seen, "seed {seed}: {name}");
        }
    }
}

/// `allowed` is the first integer of every reply.
fn first_integer(reply: &Reply) -> Option<i64> {
    match reply {
        Reply::Array(parts) => parts.iter().find_map(first_integer),
        Reply::Integer(integer) | Reply::Map([integer, ..], _) => Some(*integer),
        _ => None,
    }
}
