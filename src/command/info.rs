//! `INFO rl`: the counters since the module was loaded.

use super::registry;
use crate::metrics::{self, Total};
use crate::server::{Section, panics};

/// Every counter with its name.
fn totals() -> impl Iterator<Item = (String, &'static Total)> {
    let of_rules = registry::rules().map(|rule| (rule.name, (rule.outcomes)()));
    let decisions = of_rules.chain([("ALL", &metrics::ALL), ("PEEK", &metrics::PEEK)]).flat_map(|(name, outcomes)| {
        let name = name.to_lowercase();
        [(format!("{name}_allowed"), &outcomes.allowed), (format!("{name}_denied"), &outcomes.denied)]
    });
    let others = [
        ("reset_keys", &metrics::RESET),
        ("released_leases", &metrics::RELEASED),
        ("refunded_calls", &metrics::REFUND),
        ("errors", &metrics::ERRORS),
    ];
    decisions.chain(others.map(|(name, total)| (name.to_owned(), total)))
}

/// Fills the section. The server puts `rl_` before each field.
pub fn fill(section: &Section) {
    section.text("version", env!("CARGO_PKG_VERSION"));
    for (name, total) in totals() {
        section.number(&name, total.get());
    }
    section.number("panics", panics());
}
