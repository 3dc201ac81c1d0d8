//! Leases: held, renewed, given back, lost.

use std::time::Duration;

use redis_rl_client::{Options, Rule};

use crate::support::{Has, Server, T0, until};

#[tokio::test]
async fn no_more_are_held_than_the_limit() {
    for has in Has::EACH {
        let server = Server::start(has).await;
        let limiter = server.limiter().await;
        let rule = Rule::lease(3, Duration::from_secs(600)).unwrap();
        let asked = (0..20).map(|_| {
            let (limiter, rule) = (limiter.clone(), rule.clone());
            tokio::spawn(async move { limiter.acquire("busy", &rule).await.unwrap() })
        });
        let mut held = Vec::new();
        for attempt in asked.collect::<Vec<_>>() {
            held.extend(attempt.await.unwrap().ok());
        }
        assert_eq!(held.len(), 3);
        let one = held.pop().unwrap();
        assert!(one.release().await);
        let Ok(next) = limiter.acquire("busy", &rule).await.unwrap() else { panic!("one is free") };
        assert_eq!(next.decision().used, 3);
        // The rest is dropped.
        drop(next);
        drop(held);
        until("what was dropped is given back", || async { server.run::<u64>("ZCARD busy").await == 0 }).await;
    }
}

/// A request does not fail for its metrics, and the place that it was given is held.
#[tokio::test]
async fn a_hook_that_panics_changes_nothing() {
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter_with(Options::default().hook(|_| panic!("metrics"))).await;
    let rule = Rule::lease(1, Duration::from_secs(600)).unwrap();
    let held = limiter.hold("busy", &rule, Duration::ZERO).await.unwrap().unwrap();
    assert!(held.release().await);
}

#[tokio::test]
async fn a_lease_is_renewed_and_lost() {
    let server = Server::frozen(Has::Module).await;
    let limiter = server.limiter().await;
    let rule = Rule::lease(1, Duration::from_secs(3)).unwrap();
    let held = limiter.hold("busy", &rule.clone().holder("a"), Duration::ZERO).await.unwrap();
    let held = held.unwrap();
    assert_eq!(held.holder(), b"a");
    for step in 1..=3 {
        let now = T0 + step * 2000;
        server.set_time(now).await;
        until("the lease is renewed", || async { server.run::<i64>("ZSCORE busy a").await == now + 3000 }).await;
        assert!(limiter.acquire("busy", &rule).await.unwrap().is_err());
    }
    // The clock steps over the end, and another holder is there before the renewal: put there by hand, as the renewal
    // goes on meanwhile.
    let mut pipe = redis::pipe();
    pipe.atomic().cmd("DEL").arg("busy").cmd("ZADD").arg("busy").arg(T0 + 9_000_000).arg("b");
    let _: () = pipe.query_async(&mut server.connection().await).await.unwrap();
    until("the loss is noticed", || async { held.is_lost() }).await;
    assert!(!held.release().await);
    assert_eq!(server.run::<u64>("ZCARD busy").await, 1);
}

/// A caller that waits for a place in the process of its holder need not wait for the next poll.
#[tokio::test]
async fn a_place_that_is_given_back_wakes_who_waits_for_it() {
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter().await;
    let rule = Rule::lease(1, Duration::from_secs(600)).unwrap();
    let mut held = limiter.acquire("busy", &rule).await.unwrap().unwrap();
    let mut waited = Duration::ZERO;
    for _ in 0..4 {
        let (its_limiter, its_rule) = (limiter.clone(), rule.clone());
        let next =
            tokio::spawn(async move { its_limiter.hold("busy", &its_rule, Duration::from_secs(60)).await.unwrap() });
        // Until polls are seldom.
        tokio::time::sleep(Duration::from_millis(1000)).await;
        let released = std::time::Instant::now();
        assert!(held.release().await);
        held = next.await.unwrap().unwrap();
        waited += released.elapsed();
    }
    assert!(waited < Duration::from_millis(400), "{waited:?}");
}

#[tokio::test]
async fn a_dropped_lease_is_not_renewed() {
    let server = Server::frozen(Has::Functions).await;
    let limiter = server.limiter().await;
    let rule = Rule::lease(2, Duration::from_millis(3)).unwrap();
    for _ in 0..20 {
        let held = limiter.hold("busy", &rule, Duration::ZERO).await.unwrap().unwrap();
        tokio::task::yield_now().await;
        // Whether it was still held by then depends on the machine.
        let _ = held.release().await;
        assert_eq!(server.run::<u64>("EXISTS busy").await, 0);
    }
    let calls = server.calls("fcall").await;
    let other = limiter.acquire("busy", &rule).await.unwrap().unwrap();
    let _ = other.release().await;
    assert_eq!(server.calls("fcall").await, calls + 2, "somebody still renews");
}

/// One of all that wait asks, and each gets its place.
#[tokio::test]
async fn callers_that_wait_for_a_place_ask_seldom() {
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter().await;
    let rule = Rule::lease(2, Duration::from_secs(600)).unwrap();
    let waiting = (0..60).map(|_| {
        let (limiter, rule) = (limiter.clone(), rule.clone());
        tokio::spawn(async move {
            let held = limiter.hold("busy", &rule, Duration::from_secs(300)).await.unwrap().unwrap();
            tokio::time::sleep(Duration::from_millis(2)).await;
            held.release().await
        })
    });
    for caller in waiting.collect::<Vec<_>>() {
        assert!(caller.await.unwrap());
    }
    // A denied and a granted call each, and some of the one whose turn it is.
    let calls = server.calls("rl.acquire").await;
    assert!((60..240).contains(&calls), "{calls} calls");

    // One that leaves while it is its turn, and one that has no time, hold nobody up; a place that is given back at last is taken.
    let places = [limiter.acquire("busy", &rule).await.unwrap(), limiter.acquire("busy", &rule).await.unwrap()];
    let hold = |timeout| {
        let (limiter, rule) = (limiter.clone(), rule.clone());
        tokio::spawn(async move { limiter.hold("busy", &rule, timeout).await.unwrap().is_ok() })
    };
    let (leaves, stays) = (hold(Duration::from_secs(300)), hold(Duration::from_secs(300)));
    assert!(!hold(Duration::ZERO).await.unwrap() && !hold(Duration::from_millis(50)).await.unwrap());
    leaves.abort();
    drop(places);
    assert!(stays.await.unwrap());
}
