use super::*;
use crate::rule::Use;
use redis::Value;

fn denied(rule: &Rule, retry_after: i64) -> Decision {
    let names = ["allowed", "limit", "used", "remaining", "retry-after-ms", "next-after-ms", "reset-after-ms"];
    let numbers = [0, 5, 5, 0, retry_after, retry_after.max(0), retry_after.max(0)];
    let fields = names.into_iter().zip(numbers).chain([("window-ms", 60_000), ("at-ms", 1_700_000_000_000)]);
    let words = fields.flat_map(|(name, number)| [Value::BulkString(name.into()), Value::Int(number)]);
    Decision::read(&asked("k", rule), &Value::Array(words.collect())).unwrap()
}

fn asked(key: &str, rule: impl Into<Rule>) -> Call {
    Call::request([(key.into(), rule.into())], None, Use::Hit).unwrap()
}

/// For a call that begins now.
fn find(denials: &Denials, call: &Call) -> Option<Decision> {
    denials.find(call, Instant::now())
}

#[tokio::test(start_paused = true)]
async fn a_denial_holds_for_its_wait_and_a_second_at_most() {
    let rule = Rule::sliding("5/minute").unwrap();
    for (wait, held) in [(300, 300), (5000, 1000), (-1, 1000)] {
        let denials = Denials::new();
        let sent = Instant::now();
        denials.remember(&asked("k", &rule), &denied(&(&rule).into(), wait), sent);
        tokio::time::advance(Duration::from_millis(held - 1)).await;
        let Some(decision) = find(&denials, &asked("k", &rule)) else { panic!("forgotten after {wait}") };
        let left = wait - i64::try_from(held).unwrap() + 1;
        assert_eq!(
            decision.state().retry_after,
            (wait > 0).then(|| Duration::from_millis(u64::try_from(left).unwrap()))
        );
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(find(&denials, &asked("k", &rule)).is_none());
    }
}

#[tokio::test(start_paused = true)]
async fn the_wait_that_is_told_counts_from_the_reply() {
    let denials = Denials::new();
    let rule: Rule = Rule::sliding("5/minute").unwrap().into();
    let sent = Instant::now();
    tokio::time::advance(Duration::from_millis(200)).await;
    denials.remember(&asked("k", rule.clone()), &denied(&rule, 300), sent);
    tokio::time::advance(Duration::from_millis(99)).await;
    let Some(decision) = find(&denials, &asked("k", rule.clone())) else { panic!("forgotten") };
    assert_eq!(decision.state().retry_after, Some(Duration::from_millis(201)));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert!(find(&denials, &asked("k", rule)).is_none());
}

#[tokio::test(start_paused = true)]
async fn it_is_for_the_same_rule_at_the_same_key_and_heavier_requests() {
    let denials = Denials::new();
    let rule = Rule::sliding("5/minute").unwrap();
    let weighs = |cost| rule.clone().cost(cost);
    denials.remember(&asked("k", weighs(3)), &denied(&weighs(3).into(), 500), Instant::now());
    for cost in [3, 4, 5] {
        assert!(find(&denials, &asked("k", weighs(cost))).is_some(), "{cost}");
    }
    // A lighter request may fit, a request that never fits has another answer, and a forced one is always counted.
    for other in [weighs(1), weighs(2), rule.clone(), weighs(6), weighs(3).force()] {
        assert!(find(&denials, &asked("k", other)).is_none());
    }
    assert!(find(&denials, &asked("other", weighs(3))).is_none());
    assert!(find(&denials, &asked("k", Rule::sliding("6/minute").unwrap().cost(3))).is_none());
    assert!(find(&denials, &asked("k", Rule::fixed("5/minute").unwrap().cost(3))).is_none());
    denials.forget(b"k");
    assert!(find(&denials, &asked("k", weighs(3))).is_none());
    // Nor is a forced one remembered.
    denials.remember(&asked("k", weighs(3).force()), &denied(&weighs(3).into(), 500), Instant::now());
    assert!(find(&denials, &asked("k", weighs(3))).is_none());
}

#[tokio::test(start_paused = true)]
async fn the_room_that_it_takes_is_bounded() {
    let denials = Denials::new();
    let rule: Rule = Rule::sliding("5/minute").unwrap().into();
    for number in 0..2 * ENTRIES {
        let long = format!("{number}{}", "x".repeat(1000));
        denials.remember(&asked(&long, rule.clone()), &denied(&rule, 500), Instant::now());
    }
    assert!(denials.kept.len() <= ENTRIES && denials.kept.weight() <= BYTES, "{}", denials.kept.len());
    // Some of the last are there.
    let last =
        |number: &usize| find(&denials, &asked(&format!("{number}{}", "x".repeat(1000)), rule.clone())).is_some();
    assert!((ENTRIES..2 * ENTRIES).filter(last).count() > 0);
    // What a denial takes, as it is counted.
    let most = size_of::<Denial>() + size_of::<(Print, Rule)>() + size_of::<crate::State>();
    assert!(most as u64 <= 2 * A_WINDOW, "{most}");
}

/// One call asks then, and the others wait for its answer.
#[tokio::test(start_paused = true)]
async fn a_denial_is_doubted_from_the_second_to_the_end_of_its_wait() {
    let rule: Rule = Rule::sliding("5/minute").unwrap().into();
    for (wait, ends) in [(300, Some(300)), (5000, Some(5000)), (-1, None)] {
        let denials = Denials::new();
        let ask = asked("k", rule.clone());
        let began = Instant::now();
        denials.remember(&ask, &denied(&rule, wait), began);
        let (known, doubted) = (|| find(&denials, &ask).is_some(), || denials.doubted(&ask).is_some());
        let believed = ends.unwrap_or(u64::MAX).min(1000);
        tokio::time::advance(Duration::from_millis(believed - 1)).await;
        assert!(known() && !doubted());
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(!known());
        assert_eq!(doubted(), ends != Some(believed));
        // A call that had begun before the denial came believes it to the end.
        assert_eq!(denials.find(&ask, began).is_some(), ends != Some(believed));
        assert!(find(&denials, &ask).is_none());
        tokio::time::advance(Duration::from_millis(4000)).await;
        assert_eq!(doubted(), ends.is_none());
    }
}
