//! Budgets: reserved before the work, settled after it.

use redis_rl_client::{Attempt, Error, Rule, Settlement};

use crate::support::{Has, Server, T0};

#[tokio::test]
async fn what_is_reserved_counts_at_once() {
    for has in Has::EACH {
        let server = Server::frozen(has).await;
        let limiter = server.limiter().await;
        let rule = Rule::sliding("100/minute").unwrap();
        let asked = (0..50).map(|_| {
            let (limiter, rule) = (limiter.clone(), rule.clone());
            tokio::spawn(async move { limiter.reserve("tokens", &rule, 10).await.unwrap() })
        });
        let mut granted = Vec::new();
        for attempt in asked.collect::<Vec<_>>() {
            granted.extend(attempt.await.unwrap().granted());
        }
        assert_eq!(granted.len(), 10);
        for mut reservation in granted {
            reservation.settle(7).await.unwrap();
        }
        let state = limiter.peek("tokens", rule.cost(0)).await.unwrap();
        assert_eq!((state.used, state.remaining), (70, 30));
    }
}

#[tokio::test]
async fn a_settlement_gives_back_or_charges() {
    for has in Has::EACH {
        let server = Server::frozen(has).await;
        let limiter = server.limiter().await;
        let rule = Rule::fixed("100000/minute, 1000000/hour").unwrap();
        let reserve = async |units| limiter.reserve("tokens", &rule, units).await.unwrap();
        let used = async || limiter.peek("tokens", rule.clone().cost(0)).await.unwrap().used;

        let mut first = reserve(4096).await.granted().unwrap();
        assert_eq!((first.units(), first.decision().allowed), (4096, true));
        let Settlement::Refunded(refund) = first.settle(1000).await.unwrap() else { panic!("3096 are left") };
        assert_eq!((refund.refunded, used().await), (3096, 1000));

        let mut second = reserve(10).await.granted().unwrap();
        assert_eq!(second.settle(10).await.unwrap(), Settlement::Even);
        let mut third = reserve(10).await.granted().unwrap();
        let Settlement::Charged(charged) = third.settle(200_010).await.unwrap() else { panic!("200000 more") };
        assert!(!charged.allowed);
        assert_eq!(used().await, 201_020);
        let Attempt::Denied(denied) = reserve(1).await else { panic!("it is overdrawn") };
        assert_eq!(denied.remaining, 0);

        // In the next minute; what was reserved in this one is not given back to the next.
        server.set_time(T0 + 40_000).await;
        let mut late = reserve(50_000).await.granted().unwrap();
        server.set_time(T0 + 100_000).await;
        let Settlement::Refunded(refund) = late.cancel().await.unwrap() else { panic!("all is left") };
        assert_eq!(refund.used, 0, "the minute is over");
        assert_eq!(limiter.hit("tokens", rule.cost(5).force()).await.unwrap().used, 5);
    }
}

#[tokio::test]
async fn a_settlement_that_failed_can_be_made_again_and_counts_once() {
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter().await;
    let rule = Rule::sliding("100/hour").unwrap();
    let used = async || limiter.peek("tokens", rule.clone().cost(0)).await.unwrap().used;
    let mut reservation = limiter.reserve("tokens", &rule, 50).await.unwrap().granted().unwrap();
    let _: () = server.run("ACL SETUSER default -rl.refund").await;
    for _ in 0..2 {
        assert!(matches!(reservation.settle(20).await, Err(Error::Refused(_))));
    }
    let _: () = server.run("ACL SETUSER default +rl.refund").await;
    for _ in 0..3 {
        let Settlement::Refunded(refund) = reservation.settle(20).await.unwrap() else { panic!("30 are left") };
        assert_eq!((refund.refunded, used().await), (30, 20));
    }
    // What cannot be denied is no reservation, and charges nothing.
    let forced = limiter.reserve("tokens", &rule.clone().force(), 90).await;
    assert!(matches!(forced, Err(Error::Invalid(_))));
    assert_eq!(used().await, 20);
}
