//! A primary that fails under load.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::load::{key, words};
use crate::support::{Has, Server, until};

const KEYS: u64 = 200;

/// What the primary has allowed and its replica does not know would be let in again.
pub async fn failover() -> String {
    let mut text = "| | allowed before the primary failed | let in again | as time |\n|---|--:|--:|--:|\n".to_owned();
    for (name, connections, waits) in [
        ("4 connections", 4, false),
        ("64 connections", 64, false),
        ("64 connections, `WAIT 1 1000` behind each call", 64, true),
    ] {
        let (mut allowed, mut forgotten, mut seconds) = (0, 0, 0.0);
        for _ in 0..5 {
            let run = fail(connections, waits).await;
            (allowed, forgotten, seconds) = (allowed + run.0, forgotten + run.1, seconds + run.2);
        }
        let millis = forgotten as f64 / 5.0 / (allowed as f64 / seconds) * 1e3;
        writeln!(text, "| {name}, five times | {allowed} | {forgotten} | {millis:.2} ms of the load each time |")
            .unwrap();
    }
    text
}

/// How many were allowed, how many of them the replica has not heard of, and in how many seconds.
async fn fail(connections: usize, waits: bool) -> (u64, u64, f64) {
    let mut primary = Server::start(Has::Module).await;
    let mut arguments = Has::Module.arguments();
    arguments.extend(["--replicaof", "127.0.0.1", &primary.port.to_string()].map(str::to_owned));
    let replica = Server::with(&arguments, None).await;
    until("the replica is in step", || async {
        replica.run::<String>("INFO replication").await.contains("master_link_status:up")
    })
    .await;
    let allowed = Arc::new(Mutex::new(vec![0_u64; KEYS as usize]));
    let started = Instant::now();
    let mut callers = JoinSet::new();
    for caller in 0..connections {
        let (mut connection, allowed) = (primary.connection().await, Arc::clone(&allowed));
        callers.spawn(async move {
            for number in 0.. {
                let key = key(number * connections as u64 + caller as u64, KEYS);
                let mut pipe = redis::pipe();
                pipe.add_command(words(&format!("RL.SLIDING user:{key} 3600 1000000 COST 1")));
                if waits {
                    pipe.add_command(words("WAIT 1 1000"));
                }
                let reply: Result<Vec<redis::Value>, _> = pipe.query_async(&mut connection).await;
                let Ok(reply) = reply else { return };
                // Without the replica's word a caller with WAIT does not go on.
                if !waits || reply.get(1) == Some(&redis::Value::Int(1)) {
                    allowed.lock().unwrap()[key as usize] += 1;
                }
            }
        });
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    primary.kill();
    let seconds = started.elapsed().as_secs_f64();
    callers.join_all().await;
    let _: () = replica.run("REPLICAOF NO ONE").await;
    let allowed = allowed.lock().unwrap().clone();
    let mut forgotten = 0;
    for (key, allowed) in allowed.iter().enumerate() {
        let reply: Vec<u64> = replica.run(&format!("RL.PEEK user:{key} SLIDING 3600 1000000 COST 0")).await;
        forgotten += allowed.saturating_sub(reply[1]);
    }
    (allowed.iter().sum(), forgotten, seconds)
}
