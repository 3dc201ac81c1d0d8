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
mod tests {
    use super::*;

    fn cost(units: i64) -> Cost {
        Cost::new(units).unwrap()
    }

    const SETTLED: Known = Known::Settled { units: Cost::ONE };

    fn at() -> Time {
        Time::from_millis(1_700_000_000_000)
    }

    fn held(units: i64) -> Known {
        Known::Held { units: cost(units), at: at() }
    }

    #[test]
    fn a_request_is_counted_once() {
        assert_eq!(Known::Nothing.counted(cost(5)), Ok(false));
        assert_eq!(held(5).counted(cost(5)), Ok(true));
    }

    #[test]
    fn a_holder_names_one_request() {
        assert_eq!(held(5).counted(cost(6)), Err(Refused::OtherCost));
        assert_eq!(SETTLED.counted(Cost::ONE), Err(Refused::Settled));
    }

    #[test]
    fn the_difference_is_counted_or_given_back() {
        let charges = [
            (5, 7, Charge::Count(cost(2))),
            (5, 5, Charge::Count(Cost::NOTHING)),
            (5, 2, Charge::GiveBack(cost(3), at())),
            (5, 0, Charge::GiveBack(cost(5), at())),
        ];
        for (units, actual, charge) in charges {
            assert_eq!(held(units).settle(cost(actual)), Settlement { settled: 1, charge: Some(charge) });
            assert_eq!(charge.units().units(), (actual - units).abs());
        }
    }

    #[test]
    fn without_a_hold_all_is_counted() {
        let charge = Some(Charge::Count(cost(7)));
        assert_eq!(Known::Nothing.settle(cost(7)), Settlement { settled: 2, charge });
    }

    #[test]
    fn a_settlement_counts_once() {
        assert_eq!(SETTLED.settle(Cost::ONE), Settlement { settled: 3, charge: None });
        assert_eq!(SETTLED.settle(cost(2)), Settlement { settled: 0, charge: None });
    }
}
