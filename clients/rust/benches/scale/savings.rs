//! What makes calls fewer or cheaper, and what costs and memory grow with.

use std::convert::Infallible;
use std::fmt::Write;
use std::time::{Duration, Instant};

use http::{Request, Response};
use redis_rl_client::{Blocks, RateLimitLayer, Rule};
use tokio::task::JoinSet;
use tower::{Layer, Service, ServiceExt, service_fn};

use crate::load::{Cost, cost, drive, key, words};
use crate::support::{Has, Server};

const TIME: Duration = Duration::from_secs(2);

pub async fn run() -> String {
    let mut text =
        "| | commands for a request | processor time for a request | p99 of other clients |\n|---|--:|--:|--:|\n"
            .to_owned();
    let mut row = |name: &str, requests: u64, (cost, p99): (Cost, Duration)| {
        let (commands, micros) = (cost.calls as f64 / requests as f64, cost.processor * 1e6 / requests as f64);
        writeln!(text, "| {name} | {commands:.3} | {micros:.2} µs | {:.1} ms |", p99.as_secs_f64() * 1e3).unwrap();
    };
    for (name, remembers) in
        [("a flood at one key, denied by the server", false), ("by the deny cache of the layer", true)]
    {
        let server = Server::start(Has::Module).await;
        let mut requests = 0;
        let measured = beside(&server, async {
            requests = flood(&server, remembers).await;
            server.calls("rl.sliding").await
        });
        let measured = measured.await;
        row(name, requests, measured);
    }
    let limits = ["SLIDING 60 100000 COST 1", "SLIDING 3600 100000 COST 1", "FIXED 86400 10000000"];
    let server = Server::start(Has::Module).await;
    let measured = beside(
        &server,
        drive(&server, 8, 3, TIME, move |number| {
            let rule = limits[number as usize % 3];
            let (command, rest) = rule.split_once(' ').unwrap();
            words(&format!("RL.{command} {{{}}}:{} {rest}", key(number / 3, 1000), number % 3))
        }),
    )
    .await;
    row("three limits, a call each in one pipeline", measured.0.calls / 3, measured);
    let server = Server::start(Has::Module).await;
    let measured = beside(
        &server,
        drive(&server, 8, 1, TIME, move |number| {
            let k = key(number, 1000);
            words(&format!("RL.ALL 3 {{{k}}}:0 {{{k}}}:1 {{{k}}}:2 {}", limits.join(" ")))
        }),
    )
    .await;
    row("three limits by `RL.ALL`", measured.0.calls, measured);
    for (name, option) in [("a log of 1000 in a sorted set, moving", ""), ("compact", "COST 1")] {
        let server = Server::start(Has::Module).await;
        // A window that is always full, of which a request leaves with each that comes.
        let call = move |number| words(&format!("RL.SLIDING s:{} 0.2 1000 {option}", key(number, 8)));
        drive(&server, 8, 1, TIME / 4, call).await;
        let measured = beside(&server, drive(&server, 8, 1, TIME, call)).await;
        row(name, measured.0.calls, measured);
    }
    for (name, units) in [("64 callers at one key", 0), ("by blocks of at most 20 units within 20 ms", 20)] {
        let server = Server::start(Has::Module).await;
        let mut requests = 0;
        let measured = beside(&server, async {
            requests = crowd(&server, units).await;
            server.calls("rl.sliding").await + server.calls("rl.refund").await
        });
        let measured = measured.await;
        row(name, requests, measured);
    }
    text
}

/// Requests at one key that are let in, for a time.
async fn crowd(server: &Server, units: u64) -> u64 {
    let (limiter, rule) = (server.limiter().await, Rule::sliding((10_000_000, Duration::from_secs(60))).unwrap());
    let blocks = (units > 0).then(|| Blocks::new(&limiter, &rule, units, Duration::from_millis(20)).unwrap());
    let until = Instant::now() + TIME;
    let callers = (0..64).map(|_| {
        let (limiter, rule, blocks) = (limiter.clone(), rule.clone(), blocks.clone());
        async move {
            let mut requests = 0;
            while Instant::now() < until {
                let decision = match &blocks {
                    Some(blocks) => blocks.hit("k", 1).await.unwrap(),
                    None => limiter.hit("k", &rule).await.unwrap(),
                };
                requests += u64::from(decision.allowed);
                // What is decided in the process never waits.
                tokio::task::yield_now().await;
            }
            requests
        }
    });
    callers.collect::<JoinSet<_>>().join_all().await.into_iter().sum()
}

/// The cost, and how long others wait meanwhile that ask for nothing.
async fn beside(server: &Server, work: impl Future<Output = u64>) -> (Cost, Duration) {
    let mut connection = server.connection().await;
    let probe = tokio::spawn(async move {
        let mut waits = Vec::new();
        loop {
            let started = Instant::now();
            if words("PING").query_async::<()>(&mut connection).await.is_err() || waits.len() == 1500 {
                return waits;
            }
            waits.push(started.elapsed());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
    let cost = cost(server, work).await;
    let mut waits = probe.await.unwrap();
    waits.sort_unstable();
    (cost, waits[waits.len() * 99 / 100])
}

/// Requests at one key through the layer, for a time.
async fn flood(server: &Server, remembers: bool) -> u64 {
    let layer = RateLimitLayer::new(server.limiter().await, Rule::sliding("10/hour").unwrap(), |_| Some("one"));
    let layer = layer.deny_cache(remembers);
    let until = Instant::now() + TIME;
    let callers = (0..8).map(|_| {
        let inner = service_fn(|_: Request<String>| async { Ok::<_, Infallible>(Response::new(String::new())) });
        let mut service = layer.layer(inner);
        async move {
            let mut requests = 0;
            while Instant::now() < until {
                let service = ServiceExt::<Request<String>>::ready(&mut service).await.unwrap();
                let _ = service.call(Request::new(String::new())).await;
                requests += 1;
                if requests % 64 == 0 {
                    tokio::task::yield_now().await;
                }
            }
            requests
        }
    });
    callers.collect::<JoinSet<_>>().join_all().await.into_iter().sum()
}

/// By the entries in a window, the keys, the windows of a rule, and the connections.
pub async fn growth() -> String {
    let mut text = "| | processor time a call | bytes a key |\n|---|--:|--:|\n".to_owned();
    let mut row = |name: String, cost: Cost, bytes: u64| {
        writeln!(text, "| {name} | {:.2} µs | {bytes} |", cost.micros()).unwrap();
    };
    for entries in [10_u64, 100, 1000, 10_000, 100_000] {
        let server = Server::start(Has::Module).await;
        let filled = words(&format!("RL.SLIDING k:0 3600 {} COST 1", entries + 10_000_000));
        let mut connection = server.connection().await;
        for _ in 0..entries / 10 {
            let mut pipe = redis::pipe();
            (0..10).for_each(|_| {
                pipe.add_command(filled.clone());
            });
            let _: () = pipe.query_async(&mut connection).await.unwrap();
            // So that the entries lie apart in time.
            if entries <= 1000 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        let bytes: u64 = server.run("MEMORY USAGE k:0").await;
        let call = move |_| words(&format!("RL.SLIDING k:0 3600 {entries} COST 1"));
        let peek = cost(&server, drive(&server, 4, 32, TIME / 4, call)).await;
        row(format!("{entries} in the log, denied"), peek, bytes);
    }
    for keys in [1000_u64, 100_000, 1_000_000] {
        let server = Server::start(Has::Module).await;
        let empty: u64 = used_memory(&server).await;
        let measured = cost(&server, async {
            let mut calls = 0;
            while calls < keys {
                let call =
                    move |number| words(&format!("RL.SLIDING user:{} 3600 1000000 COST 1", (calls + number) % keys));
                calls += drive(&server, 4, 32, TIME / 4, call).await;
            }
            calls
        });
        let measured = measured.await;
        let there: u64 = server.run("DBSIZE").await;
        row(format!("{there} keys, a few requests each"), measured, (used_memory(&server).await - empty) / there);
    }
    for windows in [1, 2, 4, 8] {
        let server = Server::start(Has::Module).await;
        let rule = (0..windows).map(|window| format!(" {} {}", 60 << window, 100_000 << window)).collect::<String>();
        let call = move |number| words(&format!("RL.SLIDING user:{}{rule} COST 1", key(number, 1000)));
        let measured = cost(&server, drive(&server, 4, 32, TIME / 4, call)).await;
        let bytes: u64 = server.run("MEMORY USAGE user:0").await;
        row(format!("{windows} windows"), measured, bytes);
    }
    for connections in [4, 64, 512] {
        let server = Server::start(Has::Module).await;
        let call = move |number| words(&format!("RL.SLIDING user:{} 3600 1000000 COST 1", key(number, 1000)));
        let measured = cost(&server, drive(&server, connections, 1, TIME / 4, call)).await;
        let bytes: u64 = server.run("MEMORY USAGE user:0").await;
        row(format!("{connections} connections, one call at a time on each"), measured, bytes);
    }
    text
}

async fn used_memory(server: &Server) -> u64 {
    let info: String = server.run("INFO memory").await;
    let field =
        |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().parse::<u64>().unwrap();
    field("used_memory:") - field("mem_clients_normal:")
}
