//! Callers that wait for their turn, also where the server is away meanwhile.

use std::time::{Duration, Instant};

use redis_rl_client::{Error, Limiter, Options, Rule};

use crate::support::{Has, Server, free_port, patient, until};

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// In each of the three modes: the wait is told, and the turn can be given back.
#[tokio::test]
async fn a_turn_is_told_and_given_back() {
    for has in Has::EACH {
        let server = Server::frozen(has).await;
        let limiter = server.limiter().await;
        let rules = [Rule::from(Rule::sliding("1/minute").unwrap()), Rule::from(Rule::throttle("1/minute").unwrap())];
        for (key, rule) in ["sliding", "throttle"].into_iter().zip(rules) {
            let turn = async |within| match &rule {
                Rule::Sliding(rule) => limiter.turn(key, rule, within).await.unwrap(),
                Rule::Throttle(rule) => limiter.turn(key, rule, within).await.unwrap(),
                _ => panic!("{rule:?}"),
            };
            let first = turn(ms(0)).await;
            assert_eq!((first.allowed, first.wait), (true, ms(0)), "{has:?} {key}");
            let second = turn(ms(60_000)).await;
            assert_eq!((second.allowed, second.wait), (true, ms(60_000)), "{has:?} {key}");
            assert_eq!(second.at, first.at + ms(60_000));
            let denied = turn(ms(100_000)).await;
            assert_eq!((denied.allowed, denied.wait, denied.retry_after), (false, ms(0), Some(ms(20_000))));
            let refund = match &rule {
                Rule::Sliding(rule) => limiter.refund_at(key, rule, second.at).await,
                Rule::Throttle(rule) => limiter.refund_at(key, rule, second.at).await,
                _ => panic!("{rule:?}"),
            };
            assert_eq!(refund.unwrap().refunded, 1, "{has:?} {key}");
            assert_eq!(turn(ms(60_000)).await.wait, ms(60_000), "{has:?} {key}");
        }
        let forced = Rule::sliding("1/minute").unwrap().force();
        for (rule, within) in [(forced.clone(), ms(0)), (forced, ms(3_600_001))] {
            assert!(matches!(limiter.turn("k", rule, within).await, Err(Error::Invalid(_))));
        }
    }
}

/// Each that waits makes one call, and none is let in before its turn.
#[tokio::test]
async fn a_crowd_is_let_in_by_one_call_each() {
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter().await;
    let rule = Rule::sliding("10/0.2s").unwrap();
    let started = Instant::now();
    let waiting = (0..50).map(|_| {
        let (limiter, rule) = (limiter.clone(), rule.clone());
        tokio::spawn(async move {
            let decision = limiter.wait("k", &rule, Duration::from_secs(60)).await.unwrap();
            let late = decision.at.elapsed();
            (decision, late)
        })
    });
    for caller in waiting.collect::<Vec<_>>() {
        let (decision, late) = caller.await.unwrap();
        assert!(decision.allowed && late.is_ok(), "let in before its turn: {late:?}");
    }
    assert!(started.elapsed() >= ms(780), "{:?}", started.elapsed());
    assert_eq!(server.calls("rl.sliding").await, 50);
    // What cannot be had in time is known at once.
    let hour = Rule::sliding("1/hour").unwrap();
    assert!(limiter.hit("long", &hour).await.unwrap().allowed);
    for rule in [hour.clone(), hour.cost(2)] {
        assert!(!limiter.wait("long", rule, Duration::from_secs(60)).await.unwrap().allowed);
    }
    assert_eq!(server.calls("rl.sliding").await, 53);
}

/// Callers that go while they sleep, and while their call is under way.
#[tokio::test]
async fn the_turns_of_callers_that_have_gone_are_given_back() {
    let server = Server::start(Has::Module).await;
    let limiter =
        Limiter::with_options(redis_rl_client::redis::Client::open(server.url()).unwrap(), patient(Options::default()));
    let rule = Rule::sliding("1/minute").unwrap();
    assert!(limiter.hit("k", &rule).await.unwrap().allowed);
    let wait = || {
        let (limiter, rule) = (limiter.clone(), rule.clone());
        tokio::spawn(async move { limiter.wait("k", rule, Duration::from_secs(600)).await.unwrap() })
    };
    let sleeps = wait();
    until("it sleeps", async || server.calls("rl.sliding").await == 2).await;
    tokio::time::sleep(ms(100)).await;
    sleeps.abort();
    until("its turn is given back", async || server.calls("rl.refund").await == 1).await;
    server.hang();
    let under_way = wait();
    tokio::time::sleep(ms(100)).await;
    under_way.abort();
    tokio::time::sleep(ms(100)).await;
    server.resume();
    until("its turn is given back, too", async || server.calls("rl.refund").await == 2).await;
    let turn = limiter.turn("k", &rule, Duration::from_secs(600)).await.unwrap();
    assert!(turn.allowed && turn.wait <= Duration::from_secs(60), "{:?}", turn.wait);
}

/// Each second, until its time is over.
#[tokio::test]
async fn an_outage_is_waited_out() {
    let port = free_port();
    let client = redis_rl_client::redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
    let limiter = Limiter::new(client);
    let (rule, lease) = (Rule::sliding("1/minute").unwrap(), Rule::lease(1, Duration::from_secs(60)).unwrap());
    let started = Instant::now();
    assert!(limiter.wait("k", &rule, ms(1200)).await.unwrap_err().is_unavailable());
    assert!(started.elapsed() >= ms(1200), "{:?}", started.elapsed());
    let started = Instant::now();
    assert!(limiter.hold("busy", &lease, ms(1200)).await.unwrap_err().is_unavailable());
    assert!(started.elapsed() >= ms(1200), "{:?}", started.elapsed());
    let waiting = {
        let (limiter, rule) = (limiter.clone(), rule.clone());
        tokio::spawn(async move { limiter.wait("k", rule, Duration::from_secs(60)).await })
    };
    let _server = Server::at(port, Has::Module).await;
    assert!(waiting.await.unwrap().unwrap().allowed);
    assert!(limiter.hold("busy", &lease, Duration::from_secs(60)).await.unwrap().is_ok());
}

/// What is known before the last call is a denial, and no error.
#[tokio::test]
async fn a_denial_that_is_known_is_the_answer() {
    let server = Server::start(Has::Module).await;
    let limiter = Limiter::with_options(
        redis_rl_client::redis::Client::open(server.url()).unwrap(),
        Options::default().timeout(Duration::from_secs(20)),
    );
    let lease = Rule::lease(1, Duration::from_secs(600)).unwrap();
    let _held = limiter.acquire("busy", &lease).await.unwrap().unwrap();
    let waiting = {
        let (limiter, lease) = (limiter.clone(), lease.clone());
        tokio::spawn(async move { limiter.hold("busy", &lease, Duration::from_secs(2)).await })
    };
    until("it was denied", async || server.calls("rl.acquire").await >= 2).await;
    server.hang();
    let attempt = waiting.await.unwrap();
    server.resume();
    assert!(matches!(attempt, Ok(Err(_))), "{attempt:?}");
}
