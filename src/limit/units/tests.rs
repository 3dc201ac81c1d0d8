use super::*;

#[test]
fn a_window_keeps_to_its_range() {
    assert_eq!(Window::from_millis(0), None);
    assert_eq!(Window::from_millis(-1), None);
    assert!(Window::from_millis(1).is_some());
    assert!(Window::from_millis(2_147_483_647_000).is_some());
    assert_eq!(Window::from_millis(2_147_483_647_001), None);
}

fn quota(millis: i64, limit: i64) -> Quota {
    Quota::of(Window::from_millis(millis).unwrap(), Limit::new(limit).unwrap())
}

#[test]
fn quotas_increase_and_there_are_sixteen_at_most() {
    let mut quotas = Quotas::of(quota(1, 1));
    assert_eq!(quotas.single(), Some(quota(1, 1)));
    assert_eq!(quotas.push(quota(1, 9)), Err(Refusal::NotIncreasing));
    for millis in 2..=16 {
        assert_eq!(quotas.push(quota(millis, 1)), Ok(()));
        assert_eq!(quotas.longest().millis(), millis);
    }
    assert_eq!(quotas.push(quota(16, 1)), Err(Refusal::NotIncreasing));
    assert_eq!(quotas.push(quota(17, 1)), Err(Refusal::TooMany));
    assert_eq!(quotas.len(), 16);
    assert_eq!(quotas.single(), None);
}

#[test]
fn a_cost_keeps_to_its_range() {
    assert_eq!(Cost::new(-1), None);
    assert_eq!(Cost::new(0), Some(Cost::NOTHING));
    assert_eq!(Cost::new(1), Some(Cost::ONE));
    assert!(Cost::new((1 << 53) - 1).is_some());
    assert_eq!(Cost::new(1 << 53), None);
}

#[test]
fn seconds_are_rounded_up() {
    for (millis, seconds) in [(1, 1), (999, 1), (1000, 1), (1001, 2), (2_147_483_647_000, 2_147_483_647)] {
        assert_eq!(Window::from_millis(millis).unwrap().seconds(), seconds);
    }
}

#[test]
fn a_limit_keeps_to_its_range() {
    assert_eq!(Limit::new(-1), None);
    assert_eq!(Limit::new(0).unwrap().requests(), 0);
    assert!(Limit::new((1 << 53) - 1).is_some());
    assert_eq!(Limit::new(1 << 53), None);
}

#[test]
fn no_time_overflows() {
    let window = Window::from_millis(2_147_483_647_000).unwrap();
    let (earliest, latest) = (Time::from_millis(i64::MIN), Time::from_millis(i64::MAX));
    assert_eq!((latest.plus(window), latest.plus_millis(i64::MAX)), (latest, latest));
    assert_eq!((earliest.minus(window), earliest.plus_millis(i64::MIN)), (earliest, earliest));
    assert_eq!(latest.since(earliest), i64::MAX - 1);
    assert_eq!(Micros::from_micros(i64::MAX).time(), Time::from_millis(i64::MAX / 1000));
    assert_eq!(Micros::from_micros(i64::MAX / 1000 + 1).nanos(), None);
}
