//! What a call of Redis is about.

use std::time::{Duration, SystemTime};

use redis_rl_client::{Error, Rule};

use super::reply::Failure;
use crate::limit::Kind;

/// One key, its rule, and what the request wants of it.
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
        if let Some(hold) = &self.hold {
            return self.held(hold);
        }
        Ok(match &self.kind {
            Kind::Fixed(rule) if self.force && self.units > 0 => rule.clone().cost(self.units).force().into(),
            // One unit is what a call weighs that says nothing, and two words less.
            Kind::Fixed(rule) if self.units == 1 => rule.into(),
            Kind::Fixed(rule) => rule.clone().cost(self.units).into(),
            // With a cost, whatever it is, the log is the compact one, which takes requests of any weight.
            Kind::Sliding(rule) if self.force && self.units > 0 => rule.clone().cost(self.units).force().into(),
            Kind::Sliding(rule) => rule.clone().cost(self.units).into(),
            Kind::Calendar { rule, .. } if self.force && self.units > 0 => rule.clone().cost(self.units).force().into(),
            Kind::Calendar { rule, .. } => rule.clone().cost(self.units).into(),
            Kind::Throttle(rule) => rule.clone().cost(self.units).into(),
            Kind::Concurrency { rule, .. } => rule.clone().holder(&self.holder).into(),
        })
    }

    /// The rule by which units are reserved.
    pub(super) fn held(&self, Hold { holder, lease, .. }: &Hold) -> Result<Rule, Failure> {
        let (units, force) = (self.units, self.force);
        macro_rules! held {
            ($rule:expr) => {{
                let rule = $rule.clone().cost(units).held_by(holder, *lease).map_err(Error::from)?;
                if force { rule.force().into() } else { rule.into() }
            }};
        }
        Ok(match &self.kind {
            Kind::Fixed(rule) => held!(rule),
            Kind::Sliding(rule) => held!(rule),
            Kind::Calendar { rule, .. } => held!(rule),
            Kind::Throttle(_) | Kind::Concurrency { .. } => {
                return Err(Failure::Permanent("it cannot be held".to_owned()));
            }
        })
    }

    /// Whether the rule can count what does not fit.
    pub fn can_be_forced(&self) -> bool {
        matches!(self.kind, Kind::Fixed(_) | Kind::Sliding(_) | Kind::Calendar { .. })
    }
}
