//! `INFO rl`: the counters since the module was loaded.

use redis_module::{InfoContext, RedisResult};
use redis_module_macros::info_command_handler;

use super::rules::RULES;
use crate::config;
use crate::metrics::{self, Total};
use crate::server::{errors, panics};

fn totals() -> impl Iterator<Item = (String, &'static Total)> {
    let of_rules = RULES.iter().map(|rule| (rule.grammar.name, (rule.outcomes)()));
    let decisions = of_rules.chain([("ALL", &metrics::ALL), ("PEEK", &metrics::PEEK)]).flat_map(|(name, outcomes)| {
        let name = name.to_lowercase();
        [(format!("{name}_allowed"), &outcomes.allowed), (format!("{name}_denied"), &outcomes.denied)]
    });
    let others = [
        ("reset_keys", &metrics::RESET),
        ("released_leases", &metrics::RELEASED),
        ("refunded_calls", &metrics::REFUND),
        ("settled_calls", &metrics::SETTLED),
    ];
    decisions.chain(others.map(|(name, total)| (name.to_owned(), total)))
}

/// Fills the module's section. The server puts the module's name and `_` in front of each field.
#[info_command_handler]
fn fill(ctx: &InfoContext, _for_crash_report: bool) -> RedisResult<()> {
    let section = ctx.builder().add_section("").field("version", env!("CARGO_PKG_VERSION"))?;
    let section = section.field("enforce", u64::from(config::enforces()))?;
    let section = totals().try_fold(section, |section, (name, total)| section.field(&name, total.get()))?;
    section.field("errors", errors())?.field("panics", panics())?.build_section()?.build_info()?;
    Ok(())
}
