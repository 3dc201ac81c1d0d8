//! What no caller should give: times of nothing and of ever, long keys. Nothing panics, hangs, or locks a key.

use std::time::{Duration, Instant, SystemTime};

use redis_rl_client::{Blocks, Error, Limiter, Options, Rule, redis};

use crate::support::{Has, Server, patient, until};

const TIMES: [Duration; 6] = [
    Duration::ZERO,
    Duration::from_nanos(1),
    Duration::from_micros(1500),
    Duration::from_secs(60),
    Duration::from_secs(u64::MAX / 1_000_000_000),
    Duration::MAX,
];

fn ended<T>(outcome: Result<T, Error>) {
    if let Err(error) = outcome {
        assert!(error.is_unavailable(), "{error:?}");
    }
}

#[tokio::test]
async fn deadlines_of_nothing_and_of_ever() {
    let server = Server::start(Has::Module).await;
    let client = redis::Client::open(server.url()).unwrap();
    let (sliding, fixed) = (Rule::sliding("1000/hour").unwrap(), Rule::fixed("1000/hour").unwrap());
    let lease = Rule::lease(1000, Duration::from_secs(1)).unwrap();
    for time in TIMES {
        let started = Instant::now();
        let limiter = Limiter::with_options(client.clone(), Options::default().timeout(time).probe_every(time));
        ended(limiter.hit("k", &sliding).await);
        ended(limiter.peek("k", &sliding).await);
        ended(limiter.admit("k", &sliding).await);
        ended(limiter.all([("a", Rule::from(&sliding)), ("f", Rule::from(&fixed))]).await);
        ended(limiter.refund("k", &sliding).await);
        ended(limiter.turn("t", &sliding, Duration::ZERO).await);
        ended(limiter.acquire("l", &lease).await);
        ended(limiter.release("l", ["nobody"]).await);
        ended(limiter.reserve("r", &sliding, 1, Duration::from_secs(1)).await);
        ended(limiter.reset("k", &fixed).await);
        // With as long to wait.
        ended(limiter.wait("w", &sliding, time).await);
        ended(limiter.wait("l", lease.clone().holder("me"), time).await);
        ended(limiter.hold("l", &lease, time).await);
        assert!(started.elapsed() < Duration::from_secs(20), "{time:?}: {:?}", started.elapsed());
    }
    let limiter = Limiter::with_options(client, patient(Options::default()));
    until("it is connected", || async { limiter.hit("k", &sliding).await.is_ok() }).await;
}

#[tokio::test]
async fn lengths_of_nothing_and_of_ever() {
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter().await;
    let sliding = Rule::sliding("1000/hour").unwrap();
    let longest = Duration::from_secs(2_147_483_647);
    for time in TIMES {
        let is_length = time >= Duration::from_millis(1) && time <= longest && time.subsec_nanos() % 1_000_000 == 0;
        assert_eq!(Rule::lease(1, time).is_ok(), is_length, "{time:?}");
        assert_eq!(Rule::sliding((1, time)).is_ok(), is_length, "{time:?}");
        assert_eq!(sliding.clone().held_by("me", time).is_ok(), is_length, "{time:?}");
        let reserved = limiter.reserve("r", &sliding, 1, time).await;
        assert_eq!(!matches!(reserved, Err(Error::Invalid(_))), is_length, "{time:?}");
        let turn = limiter.turn("t", &sliding, time).await;
        assert_eq!(turn.is_ok(), time <= Duration::from_secs(3600), "{time:?}");
        assert_eq!(Blocks::new(&limiter, &sliding, 10, time).is_ok(), is_length && time <= Duration::from_secs(3600));
    }
    let held = limiter.hold("l", &Rule::lease(1, longest).unwrap(), Duration::ZERO).await.unwrap().unwrap();
    assert!(!held.is_lost());
    assert!(held.release().await);
    // Times at which nothing can have been counted.
    let (day, far) = (Rule::calendar("100/day").unwrap(), Duration::from_secs(10_000_000_000_000));
    for at in [SystemTime::UNIX_EPOCH - Duration::from_secs(60), SystemTime::UNIX_EPOCH + far] {
        for outcome in [limiter.refund_at("k", &sliding, at).await, limiter.refund_at("k", &day, at).await] {
            assert!(matches!(&outcome, Ok(refund) if refund.refunded == 0) || outcome.is_err(), "{outcome:?}");
        }
        let settled = limiter.settle("k", day.clone().held_by("me", Duration::from_secs(60)).unwrap(), 5, at).await;
        assert!(settled.is_ok() || matches!(settled, Err(Error::Refused(_))), "{settled:?}");
    }
}

#[tokio::test]
async fn keys_of_any_length() {
    for has in Has::EACH {
        let server = Server::start(has).await;
        let limiter = server.limiter().await;
        let rule = Rule::sliding("2/hour").unwrap();
        let lease = Rule::lease(1, Duration::from_secs(60)).unwrap();
        for key in [Vec::new(), vec![0], b"a b\r\n{}".to_vec(), vec![b'k'; 60_000], vec![0xff; 60_000]] {
            assert_eq!(limiter.hit(&key, &rule).await.unwrap().used, 1, "{has:?}");
            assert_eq!(limiter.all([(&key, Rule::from(&rule))]).await.unwrap().used, 2);
            assert!(!limiter.wait(&key, &rule, Duration::from_millis(1)).await.unwrap().allowed);
            assert_eq!(limiter.refund(&key, &rule).await.unwrap().refunded, 1);
            assert_eq!(limiter.reset(&key, &rule).await.unwrap(), 1);
            let held = limiter.hold(&key, &lease, Duration::ZERO).await.unwrap().unwrap();
            assert!(held.release().await);
        }
        assert_eq!(server.run::<u64>("DBSIZE").await, 0, "{has:?}");
    }
}
