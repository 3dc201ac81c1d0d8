//! Servers that hang, are gone, come late, or change: what a caller can rely on then.

use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use redis_rl_client::{Error, Limiter, Mode, Options, Rule, Sliding, Source, redis};

use crate::support::{Has, Server, free_port, patient, until};

fn client(port: u16) -> redis::Client {
    redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap()
}

fn rule() -> Sliding {
    Rule::sliding("1000/hour").unwrap()
}

/// Well above what a call takes here, and well below what the client library's own time-outs add up to.
const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_closed_port_is_unavailable_until_there_is_a_server() {
    let port = free_port();
    let limiter = Limiter::with_options(client(port), Options::default().timeout(SHORT));
    let started = Instant::now();
    for _ in 0..100 {
        let error = limiter.hit("k", rule()).await.unwrap_err();
        assert!(matches!(error, Error::Unavailable(_)) && error.is_unavailable(), "{error:?}");
    }
    assert!(started.elapsed() < LONG);
    let _server = Server::at(port, Has::Module).await;
    until("the server decides", || async { limiter.hit("k", rule()).await.is_ok() }).await;
    assert_eq!(limiter.hit("k", rule()).await.unwrap().used, 2);
}

#[tokio::test]
async fn no_call_outlasts_its_deadline_nor_waits_for_another() {
    let server = Server::start(Has::Module).await;
    let own = || Limiter::with_options(client(server.port), Options::default().timeout(SHORT));
    let warm = own();
    assert!(warm.with_timeout(LONG * 20).hit("k", rule()).await.unwrap().allowed);
    server.hang();
    // One that has asked before, some that have not: their first calls connect, or find out the mode.
    for limiter in [warm.clone(), own()] {
        let started = Instant::now();
        let calls: Vec<_> = (0..10)
            .map(|_| {
                let limiter = limiter.clone();
                tokio::spawn(async move { limiter.hit("k", rule()).await })
            })
            .collect();
        for call in calls {
            let error = call.await.unwrap().unwrap_err();
            assert!(error.is_unavailable(), "{error:?}");
        }
        // One after another: at once, but for one a second.
        for _ in 0..10 {
            assert!(limiter.hit("k", rule()).await.unwrap_err().is_unavailable());
        }
        assert!(started.elapsed() < LONG, "{limiter:?}: {:?}", started.elapsed());
    }
    server.resume();
    until("the server decides", || async { warm.hit("k", rule()).await.is_ok() }).await;
}

#[tokio::test]
async fn a_process_that_was_busy_reads_what_has_arrived() {
    let server = Server::start(Has::Module).await;
    let limiter = Limiter::with_options(client(server.port), Options::default().timeout(LONG));
    until("it is connected", || async { limiter.hit("k", rule()).await.is_ok() }).await;
    let before = limiter.hit("k", rule()).await.unwrap().used;
    let started = Instant::now();
    let calls: Vec<_> = (0..200)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.hit("k", rule()).await })
        })
        .collect();
    // The process gets to do little but to send them, and nothing at all once the server has decided on the last.
    let mut own = client(server.port).get_connection().unwrap();
    loop {
        tokio::task::yield_now().await;
        std::thread::sleep(Duration::from_millis(20));
        let peek = redis::cmd("RL.PEEK").arg(&["k", "SLIDING", "3600", "1000", "COST", "0"]).query(&mut own);
        let (_, used, _): (u64, i64, u64) = peek.unwrap();
        if used == before + 200 {
            break;
        }
    }
    std::thread::sleep((LONG + SHORT).saturating_sub(started.elapsed()));
    for call in calls {
        let _ = call.await.unwrap().unwrap();
    }
    assert_eq!(limiter.hit("k", rule()).await.unwrap().used, before + 201);
}

#[tokio::test]
async fn killed_connections_and_restarts_cost_no_call_that_comes_later() {
    let mut server = Server::start(Has::Module).await;
    let limiter = Limiter::with_options(client(server.port), patient(Options::default()));
    for round in 1..=5 {
        assert_eq!(limiter.hit("k", rule()).await.unwrap().used, round);
        let _: u64 = server.run("CLIENT KILL TYPE normal SKIPME yes").await;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // Restarted without the module, with it, without functions.
    for has in [Has::Functions, Has::Module, Has::Script, Has::Module] {
        server.restart(has).await;
        assert_eq!(limiter.hit("k", rule()).await.unwrap().used, 1);
        until("the mode is the best", || async {
            assert!(limiter.hit("other", rule()).await.unwrap().allowed);
            limiter.mode() == Some(has.mode())
        })
        .await;
    }
}

#[tokio::test]
async fn a_module_that_is_loaded_later_is_used() {
    for has in [Has::Functions, Has::Script] {
        let server = Server::start(has).await;
        let options = patient(Options::default()).probe_every(Duration::from_millis(50));
        let limiter = server.limiter_with(options).await;
        let fixed = Rule::fixed("1000/hour").unwrap();
        assert!(limiter.hit("k", &fixed).await.unwrap().allowed);
        assert_eq!(limiter.mode(), Some(has.mode()));
        let module = Has::Module.arguments().pop().unwrap();
        let _: () = server.run(&format!("MODULE LOAD {module}")).await;
        until("the module is noticed", || async {
            assert!(limiter.hit("k", &fixed).await.unwrap().allowed);
            limiter.mode() == Some(Mode::Module)
        })
        .await;
    }
}

#[tokio::test]
async fn what_says_unavailable_opens_the_breaker_and_what_is_permanent_does_not() {
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter().await;
    assert!(limiter.hit("k", rule()).await.unwrap().allowed);
    let _: () = server.run("LPUSH list x").await;
    for _ in 0..5 {
        let error = limiter.hit("list", rule()).await.unwrap_err();
        assert!(matches!(error, Error::Refused(_)), "{error:?}");
        assert!(limiter.hit("k", rule()).await.unwrap().allowed);
    }
    let _: () = server.run("CONFIG SET maxmemory 1").await;
    let Error::Unavailable(error) = limiter.hit("k", rule()).await.unwrap_err() else { panic!("it is out of memory") };
    assert_eq!(error.code(), Some("OOM"));
    let calls = server.calls("rl.sliding").await;
    for _ in 0..50 {
        assert!(limiter.hit("k", rule()).await.unwrap_err().is_unavailable());
    }
    assert!(server.calls("rl.sliding").await <= calls + 5, "calls go on in the pause");
    let _: () = server.run("CONFIG SET maxmemory 0").await;
    until("the server decides", || async { limiter.hit("k", rule()).await.is_ok() }).await;
    // A replica is no place to count, and its name may lead to another server soon.
    let _: () = server.run("REPLICAOF 127.0.0.1 1").await;
    assert!(limiter.hit("k", rule()).await.unwrap_err().is_unavailable());
}

#[tokio::test]
async fn a_lease_ends_by_the_clock_of_its_holder() {
    let server = Server::start(Has::Module).await;
    let limiter = Limiter::with_options(client(server.port), Options::default().timeout(SHORT));
    let rule = Rule::lease(1, Duration::from_secs(2)).unwrap();
    until("it is connected", || async { limiter.hit("k", self::rule()).await.is_ok() }).await;
    let before = Instant::now();
    let hold = limiter.with_timeout(LONG * 20).hold("busy", &rule, Duration::ZERO).await.unwrap();
    let Ok(held) = hold else { panic!("the place is free") };
    // Renewed beyond its length.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!held.is_lost());
    server.hang();
    let hung = Instant::now();
    held.lost().await;
    assert!(held.is_lost() && before.elapsed() > Duration::from_secs(2));
    assert!(hung.elapsed() < Duration::from_secs(2) + SHORT, "{:?}", hung.elapsed());
    // Neither a panic nor an error hides the work, and what is lost stays lost.
    let released = Instant::now();
    server.resume();
    assert!(!held.release().await);
    assert!(released.elapsed() < LONG);
    // Another holder is in time no sooner than it was lost.
    until("the place is free", || async {
        matches!(limiter.with_timeout(LONG * 20).acquire("busy", &rule).await, Ok(Ok(_)))
    })
    .await;
}

/// The reply to an earlier call by the same holder, which comes when the lease is held, does not give it back.
#[tokio::test]
async fn a_late_reply_gives_no_lease_back_that_is_held() {
    let server = Server::start(Has::Module).await;
    let limiter = Limiter::with_options(client(server.port), Options::default().mode(Mode::Module));
    until("it is connected", || async { limiter.hit("k", rule()).await.is_ok() }).await;
    let lease = Rule::lease(1, Duration::from_secs(600)).unwrap();
    server.hang();
    let waiting = {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.hold("busy", &lease, Duration::from_secs(60)).await })
    };
    // The first call is given up, and the second connects.
    until("it asks again", || async { limiter.connections() == 2 }).await;
    server.resume();
    let held = waiting.await.unwrap().unwrap().unwrap();
    for _ in 0..50 {
        assert_eq!(server.run::<u64>("ZCARD busy").await, 1);
    }
    assert_eq!(server.calls("rl.release").await, 0);
    assert!(held.release().await);
}

/// Nor does that to an earlier acquire by a name of the caller's own: with it, the next one is a renewal.
#[tokio::test]
async fn a_late_reply_gives_no_lease_back_of_a_holder_that_is_named() {
    let server = Server::start(Has::Module).await;
    let limiter = Limiter::with_options(client(server.port), Options::default().mode(Mode::Module));
    until("it is connected", || async { limiter.hit("k", rule()).await.is_ok() }).await;
    let lease = Rule::lease(1, Duration::from_secs(600)).unwrap().holder("me");
    server.hang();
    let late = limiter.with_timeout(SHORT).acquire("busy", &lease).await;
    assert!(matches!(late, Err(Error::ReplyLost(_))), "{late:?}");
    server.resume();
    let held = limiter.with_timeout(LONG * 20).acquire("busy", &lease).await.unwrap().unwrap();
    for _ in 0..50 {
        assert_eq!(server.run::<u64>("ZCARD busy").await, 1);
    }
    assert!(held.release().await);
}

#[tokio::test]
async fn waiting_for_quota_and_for_a_place() {
    let server = Server::start(Has::Module).await;
    let limiter = server.limiter().await;
    let rule = Rule::fixed("1/0.4s").unwrap().anchored();
    assert!(limiter.hit("k", &rule).await.unwrap().allowed);
    let started = Instant::now();
    assert!(limiter.wait("k", &rule, Duration::from_secs(60)).await.unwrap().allowed);
    assert!(started.elapsed() > Duration::from_millis(300));
    // Longer than is left, and for ever: at once.
    let calls = server.calls("rl.fixed").await;
    let hour = Rule::fixed("1/hour").unwrap();
    assert!(limiter.hit("long", &hour).await.unwrap().allowed);
    for (key, rule) in [("long", hour.clone()), ("never", hour.cost(2))] {
        assert!(!limiter.wait(key, &rule, Duration::from_millis(1)).await.unwrap().allowed);
    }
    assert_eq!(server.calls("rl.fixed").await, calls + 3);

    let lease = Rule::lease(1, Duration::from_secs(600)).unwrap();
    let first = limiter.acquire("busy", &lease).await.unwrap().unwrap();
    let none = limiter.hold("busy", &lease, Duration::from_millis(100)).await.unwrap();
    assert!(none.is_err());
    let waiting = {
        let (limiter, lease) = (limiter.clone(), lease.clone());
        tokio::spawn(async move { limiter.hold("busy", &lease, Duration::from_secs(60)).await })
    };
    let calls = server.calls("rl.acquire").await;
    until("it waits", || async { server.calls("rl.acquire").await >= calls + 2 }).await;
    assert!(first.release().await);
    assert!(waiting.await.unwrap().unwrap().is_ok());
}

#[tokio::test]
async fn the_hook_is_told_of_every_decision() {
    let server = Server::start(Has::Module).await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&seen);
    let options = Options::default().name("api").prefix("p:").hook(move |event| {
        let keys: Vec<_> = event.keys.iter().map(|key| String::from_utf8_lossy(key).into_owned()).collect();
        let allowed = event.outcome.map(|state| state.allowed).map_err(Error::is_unavailable);
        let source = event.outcome.map(|state| state.source).ok();
        keep.lock().unwrap().push((event.limiter.to_owned(), event.call, keys.join(" "), allowed, source));
    });
    let limiter = server.limiter_with(options).await;
    let rule = Rule::sliding("1/hour").unwrap();
    for _ in 0..2 {
        let _ = limiter.hit("k", &rule).await.unwrap();
    }
    let _ = limiter.hit("k", &rule).await.unwrap();
    let _ = limiter.all([("a", Rule::from(&rule)), ("b", Rule::from(&rule))]).await.unwrap();
    let _: () = server.run("LPUSH p:list x").await;
    limiter.hit("list", &rule).await.unwrap_err();
    let expected = [
        ("hit", "k", Ok(true)),
        ("hit", "k", Ok(false)),
        ("hit", "k", Ok(false)),
        ("all", "a b", Ok(true)),
        ("hit", "list", Err(false)),
    ];
    let seen = seen.lock().unwrap();
    for ((limiter, call, keys, allowed, _), expected) in seen.iter().zip(expected) {
        assert_eq!((limiter.as_str(), *call, keys.as_str(), *allowed), ("api", expected.0, expected.1, expected.2));
    }
    assert_eq!(seen.len(), 5);
    assert!(seen.iter().all(|seen| seen.4 != Some(Source::Memory)), "{seen:?}");
    let stats = limiter.stats();
    assert_eq!((stats.allowed, stats.denied, stats.failed), (2, 2, 1));
}

/// The words of the cases, on a live server.
#[tokio::test]
async fn the_words_of_the_cases_are_accepted() {
    let server = Server::start(Has::Module).await;
    let mut connection = server.connection().await;
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../cases/words.json");
    let file: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let groups = ["valid", "reserve", "calendar"].map(|group| file[group].as_array().unwrap());
    assert!(groups.iter().all(|cases| cases.len() > 10));
    for case in groups.into_iter().flatten() {
        let _: () = redis::cmd("FLUSHALL").query_async(&mut connection).await.unwrap();
        let mut cmd = redis::Cmd::new();
        for word in case["words"].as_array().unwrap() {
            cmd.arg(word.as_str().unwrap());
        }
        let reply: Result<redis::Value, _> = cmd.query_async(&mut connection).await;
        assert!(reply.is_ok(), "{reply:?}: {case}");
    }
}
