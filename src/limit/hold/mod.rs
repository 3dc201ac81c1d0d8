//! Holds: units that are counted before it is known how many they will be, and settled once.
//!
//! It is done as with a payment card. A request with a hold counts what it may cost, and that its holder has counted it is written
//! down. The same holder finds that and counts nothing again, so a call whose reply was lost can be sent again. A settlement makes
//! of it what it has cost: the difference is given back, or counted. That a holder has settled is written down as well, so that a
//! settlement counts once, too.

use super::{Cost, Time};

/// What is known of a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// It has no hold, or no longer.
    Nothing,
    /// It has counted these units at this time.
    Held { units: Cost, at: Time },
    /// It has settled, for these units.
    Settled { units: Cost },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Its holder has settled.
    Settled,
    /// Its holder has counted another cost.
    OtherCost,
}

impl Known {
    /// Whether a request of this cost was counted before.
    pub fn counted(self, cost: Cost) -> Result<bool, Refused> {
        match self {
            Self::Nothing => Ok(false),
            Self::Held { units, .. } if units == cost => Ok(true),
            Self::Held { .. } => Err(Refused::OtherCost),
            Self::Settled { .. } => Err(Refused::Settled),
        }
    }

    /// What makes it `actual` units.
    pub fn settle(self, actual: Cost) -> Settlement {
        match self {
            Self::Held { units, at } => Settlement { settled: 1, charge: Some(Charge::of(units, actual, at)) },
            Self::Nothing => Settlement { settled: 2, charge: Some(Charge::Count(actual)) },
            Self::Settled { units } if units == actual => Settlement { settled: 3, charge: None },
            Self::Settled { .. } => Settlement { settled: 0, charge: None },
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settlement {
    /// The reply: 1 where there is a hold, 2 without one, 3 if the holder has settled for as much before, 0 if for something else.
    pub settled: i64,
    /// `None` if the holder has settled before: then nothing changes.
    pub charge: Option<Charge>,
}

/// What changes for a holder that settles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge {
    /// These units are counted now, whether they fit or not.
    Count(Cost),
    /// These units, which were counted at a time, are given back.
    GiveBack(Cost, Time),
}

impl Charge {
    /// What makes `actual` units of some that were counted at a time.
    fn of(counted: Cost, actual: Cost, at: Time) -> Self {
        match counted.beyond(actual) {
            Cost::NOTHING => Self::Count(actual.beyond(counted)),
            less => Self::GiveBack(less, at),
        }
    }

    pub fn units(self) -> Cost {
        match self {
            Self::Count(units) | Self::GiveBack(units, _) => units,
        }
    }
}

#[cfg(test)]
mod tests;
