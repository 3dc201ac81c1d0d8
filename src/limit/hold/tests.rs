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
