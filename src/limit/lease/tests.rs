use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Holders and when their leases end, in its simplest form.
#[derive(Clone, Default)]
struct Naive {
    ends: BTreeMap<u8, i64>,
}

impl Naive {
    fn held(&self, now: i64) -> i64 {
        self.ends.values().filter(|&&end| end > now).count() as i64
    }

    fn request(&mut self, holder: u8, limit: i64, lease: i64, now: i64) -> bool {
        self.ends.retain(|_, end| *end > now);
        let allowed = self.ends.contains_key(&holder) || self.held(now) < limit;
        if allowed {
            self.ends.insert(holder, now + lease);
        }
        allowed
    }
}

/// As a request of one of the holders finds them.
struct Asked {
    ends: Vec<End>,
    own: Option<End>,
}

impl Leases for Asked {
    fn held(&self) -> i64 {
        self.ends.len() as i64
    }

    fn own(&self) -> Option<End> {
        self.own
    }

    fn end_of(&self, rank: i64) -> Option<End> {
        let mut ends = self.ends.clone();
        ends.sort_unstable();
        ends.iter().rev().nth(rank as usize).copied()
    }

    fn ending_after(&self, end: End) -> i64 {
        self.ends.iter().filter(|&&other| other > end).count() as i64
    }
}

proptest! {
    #[test]
    fn decisions_and_waits_are_those_of_the_naive_leases(
        steps in proptest::collection::vec((0i64..40, 0u8..9, 0i64..6, 1i64..100), 1..100),
    ) {
        let mut naive = Naive::default();
        let mut now = 1_700_000_000_000;
        for (step, holder, limit, lease) in steps {
            now += step;
            let live = |end: &i64| (*end > now).then_some(End::At(Time::from_millis(*end)));
            let ends = naive.ends.values().filter_map(live).collect();
            let own = naive.ends.get(&holder).and_then(live);
            let (limited, window) = (Limit::new(limit).unwrap(), Window::from_millis(lease).unwrap());
            let asked = Asked { ends, own };
            let decision = decide(&asked, limited, window, Detail::Full, true, Time::from_millis(now));

            let allowed = naive.request(holder, limit, lease, now);
            prop_assert_eq!((decision.allowed(), decision.status.used), (allowed, naive.held(now)));
            prop_assert_eq!(decision.counted, allowed);
            let latest = naive.ends.values().max().copied().unwrap_or(now);
            let free = |after: i64| (limit - naive.held(now + after)).max(0);
            let first = |wanted: i64| (0..=latest - now).find(|&after| free(after) >= wanted);
            let Waits { next, reset } = decision.status.waits.unwrap();
            prop_assert_eq!(reset, Some(latest - now));
            prop_assert_eq!(next, if naive.held(now) == 0 { Some(0) } else { first(free(0) + 1) });
            if !allowed {
                prop_assert_eq!(decision.status.retry, first(1).map_or(Retry::Never, Retry::After));
            }
        }
    }
}

fn decided(leases: &Asked, limit: i64, may_count: bool) -> Decision {
    let (limit, lease) = (Limit::new(limit).unwrap(), Window::from_millis(1_000).unwrap());
    decide(leases, limit, lease, Detail::Full, may_count, Time::from_millis(5_000))
}

#[test]
fn a_peek_takes_no_lease() {
    let decision = decided(&Asked { ends: vec![], own: None }, 1, false);
    assert_eq!((decision.allowed(), decision.status.used, decision.counted), (true, 0, false));
}

#[test]
fn a_lease_that_never_ended_is_renewed_to_one_that_does() {
    let decision = decided(&Asked { ends: vec![End::Never], own: Some(End::Never) }, 1, true);
    assert!(decision.counted);
    assert_eq!(decision.status.waits, Some(Waits { next: Some(1_000), reset: Some(1_000) }));
    // Another holder waits for ever.
    let decision = decided(&Asked { ends: vec![End::Never], own: None }, 1, true);
    assert_eq!(decision.status.retry, Retry::Never);
    assert_eq!(decision.status.waits, Some(Waits { next: None, reset: None }));
}
