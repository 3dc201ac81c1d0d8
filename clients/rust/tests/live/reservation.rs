//! Budgets: reserved before the work, settled after it.

use std::time::{Duration, SystemTime};

use redis_rl_client::{Error, Limiter, Options, Reservation, Rule, Sliding};

use crate::support::{Events, Has, Server, T0, until};

const LEASE: Duration = Duration::from_secs(60);
/// In milliseconds.
const DAY: i64 = 86_400_000;

fn rule() -> Sliding {
    Rule::sliding("100/hour").unwrap()
}

/// Unix milliseconds.
fn now() -> i64 {
    i64::try_from(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

async fn reserve(limiter: &Limiter, units: u64) -> Reservation {
    limiter.reserve("tokens", rule(), units, LEASE).await.unwrap().unwrap()
}

async fn used(limiter: &Limiter) -> i64 {
    limiter.peek("tokens", rule().cost(0)).await.unwrap().used
}

#[tokio::test]
async fn what_is_reserved_counts_at_once() {
    for has in Has::EACH {
        let server = Server::frozen(has).await;
        let limiter = server.limiter().await;
        let asked = (0..50).map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.reserve("tokens", rule(), 10, LEASE).await.unwrap() })
        });
        let mut granted = Vec::new();
        for attempt in asked.collect::<Vec<_>>() {
            granted.extend(attempt.await.unwrap().ok());
        }
        assert_eq!(granted.len(), 10);
        for reservation in &mut granted {
            reservation.settle(7).await.unwrap();
        }
        assert_eq!(used(&limiter).await, 70);
    }
}

#[tokio::test]
async fn a_settlement_gives_back_or_charges_once() {
    for has in Has::EACH {
        let server = Server::frozen(has).await;
        let limiter = server.limiter().await;
        let mut first = reserve(&limiter, 50).await;
        assert_eq!((first.decision().used, first.is_lost()), (50, false));
        first.settle(20).await.unwrap();
        assert_eq!(used(&limiter).await, 20);
        first.settle(20).await.unwrap();
        assert!(matches!(first.settle(21).await, Err(Error::Invalid(_))));
        drop(first);

        let mut second = reserve(&limiter, 10).await;
        // What exceeds it is charged, over the limit as well.
        second.settle(110).await.unwrap();
        assert_eq!(used(&limiter).await, 130);
        let Err(denied) = limiter.reserve("tokens", rule(), 1, LEASE).await.unwrap() else { panic!("overdrawn") };
        assert_eq!((denied.used, denied.remaining), (130, 0));
        second.cancel().await.unwrap_err();
        assert_eq!(used(&limiter).await, 130);

        let forced = limiter.reserve("tokens", rule().force(), 9, LEASE).await;
        assert!(matches!(forced, Err(Error::Invalid(_))));
    }
}

/// Also after an error that says that nothing was done.
#[tokio::test]
async fn a_settlement_that_failed_can_be_made_again() {
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter().await;
    let mut reservation = reserve(&limiter, 50).await;
    let _: () = server.run("ACL SETUSER default -rl.settle").await;
    for _ in 0..2 {
        assert!(matches!(reservation.settle(20).await, Err(Error::Refused(_))));
    }
    assert_eq!(used(&limiter).await, 50);
    let _: () = server.run("ACL SETUSER default +rl.settle").await;
    for _ in 0..3 {
        reservation.settle(20).await.unwrap();
        assert_eq!(used(&limiter).await, 20);
    }
}

#[tokio::test]
async fn a_reservation_that_is_dropped_is_cancelled() {
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter().await;
    drop(reserve(&limiter, 50).await);
    until("it is cancelled", || async { used(&limiter).await == 0 }).await;
    // One whose settlement failed is settled once more.
    let mut reservation = reserve(&limiter, 50).await;
    let _: () = server.run("ACL SETUSER default -rl.settle").await;
    assert!(reservation.settle(20).await.is_err());
    let _: () = server.run("ACL SETUSER default +rl.settle").await;
    drop(reservation);
    until("it is settled", || async { used(&limiter).await == 20 }).await;
}

/// By the server's clock, step by step, while the work goes on; a process that dies holds for one lease.
#[tokio::test]
async fn a_reservation_is_renewed_until_it_is_settled() {
    let server = Server::frozen(Has::Module).await;
    let limiter = server.limiter().await;
    let lease = Duration::from_millis(600);
    let granted = limiter.reserve("tokens", rule(), 50, lease).await.unwrap().ok();
    let mut reservation = granted.unwrap();
    let ends = async || server.run::<Vec<(String, i64)>>("ZRANGE tokens:held 0 0 WITHSCORES").await[0].1;
    assert_eq!(ends().await, T0 + 600);
    for step in 1..=3 {
        server.set_time(T0 + step * 500).await;
        until("it is renewed", || async { ends().await == T0 + step * 500 + 600 }).await;
    }
    assert!(!reservation.is_lost());
    reservation.settle(30).await.unwrap();
    assert_eq!(used(&limiter).await, 30);
    let calls = server.calls("rl.sliding").await;
    tokio::time::sleep(lease).await;
    assert_eq!(server.calls("rl.sliding").await, calls, "it is renewed though it is settled");

    // As a process that dies.
    std::mem::forget(limiter.with_timeout(Duration::from_secs(1)).reserve("dead", rule(), 100, LEASE).await.unwrap());
    assert!(limiter.reserve("dead", rule(), 1, LEASE).await.unwrap().is_err());
}

/// A reservation that could not be renewed in time is lost, and can be settled.
#[tokio::test]
async fn what_is_lost_can_be_settled() {
    let events = Events::start();
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter_with(Options::default().name("lost")).await;
    let lease = Duration::from_millis(300);
    let mut reservation = limiter.reserve("tokens", rule(), 50, lease).await.unwrap().unwrap();
    let _: () = server.run("ACL SETUSER default -rl.sliding").await;
    reservation.lost().await;
    assert!(reservation.is_lost());
    until("it is logged", || async { events.of("lost").iter().any(|event| event.contains("a reservation was lost")) })
        .await;
    let _: () = server.run("ACL SETUSER default +rl.sliding").await;
    // The server counts it now, whether its own lease is over yet or not.
    reservation.settle(30).await.unwrap();
    until("what was held is given back", || async {
        let other = limiter.reserve("tokens", rule(), 1, LEASE).await.unwrap().ok();
        other.unwrap().cancel().await.unwrap();
        used(&limiter).await == 30
    })
    .await;
}

#[tokio::test]
async fn several_keys_are_reserved_together() {
    for has in Has::EACH {
        let server = Server::frozen(has).await;
        let limiter = server.limiter().await;
        let rules = |units| {
            [
                ("{o}:rpm", Rule::from(Rule::sliding("5/hour").unwrap())),
                ("{o}:tpm", Rule::sliding("100/hour").unwrap().reserved(units).into()),
                ("{o}:day", Rule::fixed("1000/day").unwrap().reserved(units).into()),
            ]
        };
        let reserve = async |units| limiter.reserve_all(rules(units), LEASE).await.unwrap();
        let used = async || {
            let mut all = Vec::new();
            for (key, rule) in rules(1) {
                let plain: Rule = match rule {
                    Rule::Fixed(_) => Rule::fixed("1000/day").unwrap().cost(0).into(),
                    _ if key == "{o}:rpm" => Rule::sliding("5/hour").unwrap().cost(0).into(),
                    _ => Rule::sliding("100/hour").unwrap().cost(0).into(),
                };
                all.push(limiter.peek(key, plain).await.unwrap().used);
            }
            all
        };
        let mut one = reserve(60).await.unwrap();
        assert_eq!((one.decision().each().len(), used().await), (3, vec![1, 60, 60]));
        let Err(denied) = reserve(60).await else { panic!("40 are left") };
        assert_eq!((denied.index, used().await), (1, vec![1, 60, 60]));
        assert!(matches!(one.settle_each([("{o}:tpm", 1)]).await, Err(Error::Invalid(_))));
        assert!(matches!(one.settle_each([("{o}:rpm", 1)]).await, Err(Error::Invalid(_))));
        one.settle_each([("{o}:tpm", 30), ("{o}:day", 70)]).await.unwrap();
        assert_eq!(used().await, [1, 30, 70]);
        let mut two = reserve(10).await.unwrap();
        two.settle(5).await.unwrap();
        assert_eq!(used().await, [2, 35, 75]);
        drop(reserve(10).await.ok());
        until("it is cancelled", || async { used().await == [3, 35, 75] }).await;
    }
}

/// It keeps neither the other keys from being settled, nor does the drop cancel these.
#[tokio::test]
async fn a_key_that_cannot_be_settled() {
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter().await;
    let rules = ["{k}1", "{k}2"].map(|key| (key, Rule::from(rule().reserved(5))));
    let mut reservation = limiter.reserve_all(rules, LEASE).await.unwrap().unwrap();
    let _: () = server.run("SET {k}1 broken").await;
    assert!(matches!(reservation.settle(30).await, Err(Error::Refused(_))));
    drop(reservation);
    until("the other one is charged", || async { limiter.peek("{k}2", rule().cost(0)).await.unwrap().used == 30 })
        .await;
}

/// And the settlement does not give it back once more.
#[tokio::test]
async fn a_reset_gives_back_what_is_reserved() {
    for has in Has::EACH {
        let server = Server::frozen(has).await;
        let limiter = server.limiter().await;
        let day = || Rule::fixed("1000/day").unwrap();
        let mut reservation = limiter.reserve("k", day(), 60, LEASE).await.unwrap().unwrap();
        limiter.reset("k", day()).await.unwrap();
        let _ = limiter.hit("k", day().cost(5)).await.unwrap();
        reservation.settle(3).await.unwrap();
        assert_eq!(limiter.peek("k", day().cost(0)).await.unwrap().used, 8);
    }
}

/// In the period in which it is reserved, and by the clock of the server.
#[tokio::test]
async fn a_calendar_can_be_reserved() {
    for has in Has::EACH {
        let tomorrow = (now() / DAY + 1) * DAY + 3_600_000;
        let server = Server::with(&has.arguments(), Some(tomorrow)).await;
        let limiter = server.limiter().await;
        let day = || Rule::calendar("100/day").unwrap();
        let used = async || limiter.peek("tokens", day().cost(0)).await.unwrap().used;
        let reserve = async |units| limiter.reserve("tokens", day(), units, LEASE).await.unwrap().unwrap();
        let mut first = reserve(50).await;
        first.settle(20).await.unwrap();
        assert_eq!(used().await, 20);
        // Where the period has ended meanwhile, the next one is not charged.
        let mut second = reserve(50).await;
        server.set_time(tomorrow + DAY - 3_600_000).await;
        second.settle(30).await.unwrap();
        let keys: Vec<String> = server.run("KEYS tokens:@*").await;
        assert_eq!((keys.len(), server.run::<u64>(&format!("GET {}", keys[0])).await), (1, 70));
    }
}

/// Nor is it taken along into the next period by its renewals.
#[tokio::test]
async fn a_renewal_stays_in_its_period() {
    for has in Has::EACH {
        let tomorrow = (now() / DAY + 1) * DAY + 3_600_000;
        let server = Server::with(&has.arguments(), Some(tomorrow)).await;
        let limiter = server.limiter().await;
        let (day, lease) = (Rule::calendar("100/day").unwrap(), Duration::from_secs(3));
        let mut reservation = limiter.reserve("tokens", &day, 50, lease).await.unwrap().unwrap();
        let before = server.errors("ERR").await;
        server.set_time(tomorrow + DAY - 3_600_000).await;
        until("it is renewed", || async { server.errors("ERR").await > before }).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        let counters = async || server.run::<Vec<String>>("KEYS tokens:@*").await;
        assert_eq!(counters().await.len(), 1, "{has:?}");
        assert!(!reservation.is_lost());
        reservation.settle(30).await.unwrap();
        assert_eq!(counters().await.len(), 1, "{has:?}");
    }
}

/// A process whose clock is behind that of the server goes on to the next period.
#[tokio::test]
async fn a_calendar_follows_the_clock_of_the_server() {
    for has in Has::EACH {
        let server = Server::start(has).await;
        let limiter = server.limiter().await;
        let month = || Rule::calendar("100/month").unwrap().zone("Europe/Berlin").unwrap();
        let first = limiter.hit("tokens", month()).await.unwrap();
        assert_eq!((first.allowed, first.used, first.window), (true, 1, Duration::ZERO));
        assert!(first.reset_after.unwrap() <= Duration::from_secs(31 * 86_400 + 3600));
        assert!(first.headers().policy.starts_with("\"month\";q=100"), "{}", first.headers().policy);
        let refund = limiter.refund_at("tokens", month().cost(1), first.at).await.unwrap();
        assert_eq!((refund.refunded, refund.used), (1, 0));
        assert_eq!(limiter.reset("tokens", month()).await.unwrap(), 1);

        // A server whose clock is in the next day already, and a server further ahead.
        let tomorrow = (now() / DAY + 1) * DAY + 3_600_000;
        let day = || Rule::calendar("5/day").unwrap();
        let ahead = Server::with(&has.arguments(), Some(tomorrow)).await;
        let limiter = ahead.limiter().await;
        let rules = || [("{k}a", Rule::from(rule())), ("{k}b", Rule::from(day()))];
        for used in 1..3 {
            assert_eq!(limiter.hit("tokens", day()).await.unwrap().used, used);
            assert_eq!(limiter.all(rules()).await.unwrap().each()[1].used, used);
        }
        assert_eq!(limiter.peek("tokens", day().cost(0)).await.unwrap().used, 2);
        ahead.set_time(tomorrow + 9 * DAY).await;
        let error = limiter.hit("tokens", day()).await.unwrap_err();
        assert!(
            matches!(&error, Error::Refused(error) if error.to_string().contains("the window has ended")),
            "{error}"
        );
    }
}
