//! What a call of Redis is about.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use redis_rl_client::Rule;

use super::reply::Failure;
use crate::limit::{Block, Kind};

#[derive(Debug, Clone)]
pub struct Item {
    pub key: Vec<u8>,
    pub kind: Kind,
    pub units: u64,
    /// Counted whether it fits or not.
    pub force: bool,
    /// Whose place it is, where places are counted; the request's id where units are reserved.
    pub holder: String,
    /// Under which the units are reserved, or settled.
    pub hold: Option<Hold>,
    /// Where units may be taken from a block.
    pub block: Option<Arc<Block>>,
}

/// Under which a request reserves units, or settles them.
#[derive(Debug, Clone)]
pub struct Hold {
    pub id: String,
    pub number: u64,
    pub holder: String,
    pub lease: Duration,
    /// When they were reserved, as far as is known.
    pub at: SystemTime,
}

impl Item {
    pub(super) fn rule(&self) -> Result<Rule, Failure> {
        /// With the units and what else the request says of a rule that has windows.
        macro_rules! weighed {
            ($rule:expr) => {{
                let mut rule = $rule.clone().cost(self.units);
                if let Some(Hold { holder, lease, .. }) = &self.hold {
                    rule = rule.held_by(holder, *lease)?;
                }
                if self.force && self.units > 0 { rule.force().into() } else { rule.into() }
            }};
        }
        Ok(match &self.kind {
            // One unit is what a call weighs that says nothing, and two words less.
            Kind::Fixed(rule) if self.units == 1 && !self.force && self.hold.is_none() => rule.into(),
            Kind::Fixed(rule) => weighed!(rule),
            // With a cost, whatever it is, the log is the compact one, which takes requests of any weight.
            Kind::Sliding(rule) => weighed!(rule),
            Kind::Calendar { rule, .. } => weighed!(rule),
            Kind::Throttle(rule) => rule.clone().cost(self.units).into(),
            Kind::Concurrency { rule, .. } => rule.clone().holder(&self.holder).into(),
        })
    }

    /// Whether the rule can count what does not fit.
    pub fn can_be_forced(&self) -> bool {
        matches!(self.kind, Kind::Fixed(_) | Kind::Sliding(_) | Kind::Calendar { .. })
    }
}
