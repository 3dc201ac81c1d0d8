//! Requests that are decided here, from blocks of units that the server has reserved.

use std::time::Duration;

use redis_rl_client::{Blocks, Error, Limiter, Options, Rule, redis};

use crate::support::{Has, Server, T0, patient, until};

const HOUR: Duration = Duration::from_secs(3600);
/// Longer than any test takes: a block ends only where a test says so.
const LONG: Duration = Duration::from_secs(600);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

async fn process(server: &Server, limit: u64, units: u64, within: Duration) -> Blocks {
    Blocks::new(&server.limiter().await, &Rule::sliding((limit, HOUR)).unwrap(), units, within).unwrap()
}

async fn used(server: &Server, blocks: &Blocks) -> i64 {
    let limiter = server.limiter().await;
    limiter.peek(blocks.key("k"), blocks.rule().clone().cost(0)).await.unwrap().used
}

/// By several processes at once, in each of the three modes, and in the next window as well.
#[tokio::test]
async fn processes_use_the_limit_and_no_more() {
    for has in Has::EACH {
        let server = Server::frozen(has).await;
        let mut processes = Vec::new();
        for _ in 0..4 {
            processes.push(process(&server, 500, 10, LONG).await);
        }
        let hour = 3_600_000;
        // A window, the time in which a block is spent, and a millisecond for the rounding of stamps.
        for (at, expected) in [(T0, 500), (T0 + hour + 600_000, 0), (T0 + hour + 600_001, 500)] {
            server.set_time(at).await;
            let callers = processes.iter().flat_map(|blocks| [blocks.clone(), blocks.clone()]).map(|blocks| {
                tokio::spawn(async move {
                    let mut allowed = 0;
                    // Denials are believed for a second.
                    let mut denied = 0;
                    while denied < 3 {
                        let decision = blocks.hit("k", 1).await.unwrap();
                        if decision.allowed {
                            (allowed, denied) = (allowed + 1, 0);
                        } else {
                            denied += 1;
                            tokio::time::sleep(ms(600)).await;
                        }
                    }
                    allowed
                })
            });
            let mut allowed = 0;
            for caller in callers.collect::<Vec<_>>() {
                allowed += caller.await.unwrap();
            }
            assert_eq!(allowed, expected, "{has:?} at {at}");
        }
        let command = ["rl.sliding", "fcall", "evalsha"][Has::EACH.iter().position(|each| *each == has).unwrap()];
        let calls = server.calls(command).await;
        assert!(calls <= 400, "{calls} calls for 1000 requests");
    }
}

#[tokio::test]
async fn the_answer_speaks_of_the_rule_that_was_given() {
    let server = Server::frozen(Has::Module).await;
    let rule = Rule::sliding("20/minute, 30/hour").unwrap().name("api").unwrap();
    let blocks = Blocks::new(&server.limiter().await, &rule, 10, ms(60_000)).unwrap();
    for expected in 1..=20_i64 {
        let decision = blocks.hit("k", 1).await.unwrap();
        assert!(decision.allowed);
        let shown = (decision.limit, decision.used, decision.remaining, decision.window);
        assert_eq!(shown, (20, expected, 20 - expected.unsigned_abs(), ms(60_000)));
        assert_eq!((decision.retry_after, decision.each().len()), (Some(ms(0)), 2));
    }
    assert!(server.calls("rl.sliding").await < 10);
    let denied = blocks.hit("k", 1).await.unwrap();
    assert_eq!((denied.allowed, denied.used, denied.remaining), (false, 20, 0));
    // Two minutes and a millisecond.
    assert!(denied.retry_after.unwrap() > ms(119_000), "{denied:?}");
    assert_eq!(blocks.key("k"), b"k:block:10:60000");
    assert_eq!(blocks.rule().windows()[1].length(), HOUR + ms(60_001));
    // A heavier request than a block, and one that never fits.
    assert!(!blocks.hit("k", 15).await.unwrap().allowed);
    assert!(blocks.hit("heavy", 15).await.unwrap().allowed);
    assert_eq!(blocks.hit("never", 31).await.unwrap().retry_after, None);
}

#[tokio::test]
async fn what_is_left_is_given_back() {
    let server = Server::start(Has::Module).await;
    let blocks = process(&server, 1000, 10, ms(300)).await;
    let mut allowed = 0;
    // Until a block has units left.
    while used(&server, &blocks).await == allowed {
        allowed += i64::from(blocks.hit("k", 1).await.unwrap().allowed);
    }
    until("they are given back", async || used(&server, &blocks).await == allowed).await;
}

/// Callers that go, and others that wait for what they get.
#[tokio::test]
async fn a_caller_that_goes_takes_nothing_along() {
    let server = Server::start(Has::Module).await;
    let client = redis::Client::open(server.url()).unwrap();
    let limiter = Limiter::with_options(client, patient(Options::default()));
    let blocks = Blocks::new(&limiter, &Rule::sliding((1000, HOUR)).unwrap(), 10, LONG).unwrap();
    let hit = || {
        let blocks = blocks.clone();
        tokio::spawn(async move { blocks.hit("k", 1).await.unwrap().allowed })
    };
    // 1, 1, 2, 4 and 8 units are asked for.
    for _ in 0..16 {
        assert!(hit().await.unwrap());
    }
    assert_eq!(used(&server, &blocks).await, 16);
    server.hang();
    let asks = hit();
    tokio::time::sleep(ms(100)).await;
    let waits = hit();
    tokio::time::sleep(ms(100)).await;
    asks.abort();
    tokio::time::sleep(ms(100)).await;
    server.resume();
    assert!(waits.await.unwrap());
    // The block of the one that has gone is given back, and that of the other is held.
    until("it is given back", async || used(&server, &blocks).await == 26).await;
    for _ in 0..9 {
        assert!(hit().await.unwrap());
    }
    assert_eq!(used(&server, &blocks).await, 26);
}

#[tokio::test]
async fn what_is_held_is_spent_while_the_server_is_away() {
    let server = Server::start(Has::Module).await;
    let client = redis::Client::open(server.url()).unwrap();
    let limiter = Limiter::with_options(client, Options::default().timeout(Duration::from_secs(2)));
    let blocks = Blocks::new(&limiter, &Rule::sliding((1000, HOUR)).unwrap(), 10, LONG).unwrap();
    // 1, 1, 2, 4, 8, and one of 10.
    for _ in 0..17 {
        assert!(blocks.hit("k", 1).await.unwrap().allowed);
    }
    server.hang();
    for _ in 0..9 {
        assert!(blocks.hit("k", 1).await.unwrap().allowed);
    }
    // Then as any other call, for those that ask and those that wait.
    let callers = (0..20).map(|_| {
        let blocks = blocks.clone();
        tokio::spawn(async move { blocks.hit("k", 1).await.unwrap_err().is_unavailable() })
    });
    for caller in callers.collect::<Vec<_>>() {
        assert!(caller.await.unwrap());
    }
    server.resume();
    until("it is back", async || blocks.hit("k", 1).await.is_ok_and(|decision| decision.allowed)).await;
}

/// A server that takes longer than a block lasts.
#[tokio::test]
async fn units_that_come_too_late_are_given_back() {
    let server = Server::start(Has::Module).await;
    let blocks = process(&server, 1000, 10, ms(1)).await;
    let hit = tokio::spawn({
        let blocks = blocks.clone();
        server.hang();
        async move { blocks.hit("k", 1).await }
    });
    tokio::time::sleep(ms(300)).await;
    server.resume();
    // The second call may be in time.
    let allowed = i64::from(hit.await.unwrap().is_ok_and(|decision| decision.allowed));
    assert!(server.calls("rl.sliding").await == 2);
    until("it is given back", async || used(&server, &blocks).await == allowed).await;
}

#[tokio::test]
async fn wrong_arguments_are_refused_where_they_are_made() {
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter().await;
    let rule = Rule::sliding("100/s").unwrap();
    let held = rule.clone().held_by("me", HOUR).unwrap();
    for (rule, units, within) in [
        (rule.clone().cost(2), 10, ms(10)),
        (rule.clone().force(), 10, ms(10)),
        (held, 10, ms(10)),
        (rule.clone(), 1, ms(10)),
        (rule.clone(), 1001, ms(10)),
        (rule.clone(), 10, ms(0)),
        (rule.clone(), 10, ms(1001)),
        (rule.clone(), 10, Duration::from_micros(1500)),
    ] {
        assert!(Blocks::new(&limiter, &rule, units, within).is_err(), "{rule:?} {units} {within:?}");
    }
    let blocks = Blocks::new(&limiter, &rule, 10, ms(10)).unwrap();
    for cost in [0, 1 << 53] {
        assert!(matches!(blocks.hit("k", cost).await, Err(Error::Invalid(_))));
    }
    assert_eq!(server.calls("rl.sliding").await, 0);
}
