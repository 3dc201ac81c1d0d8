//! Three primaries: keys spread over them, one hot key, and a slot that moves under it.

use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use redis::cluster::ClusterClient;
use redis_rl_client::{Limiter, Rule};
use tokio::task::JoinSet;

use crate::load::{key, spent};
use crate::support::{Has, Server, free_port, until};

const SLOTS: [(u16, u16); 3] = [(0, 5460), (5461, 10922), (10923, 16383)];

async fn start() -> Vec<Server> {
    let mut nodes: Vec<Server> = Vec::new();
    for (index, (first, last)) in SLOTS.into_iter().enumerate() {
        let bus = free_port().to_string();
        let mut arguments = Has::Module.arguments();
        arguments.extend(["--cluster-enabled", "yes", "--cluster-port", &bus].map(str::to_owned));
        let node = Server::with(&arguments, None).await;
        let _: () = node.run(&format!("CLUSTER ADDSLOTSRANGE {first} {last}")).await;
        let _: () = node.run(&format!("CLUSTER SET-CONFIG-EPOCH {}", index + 1)).await;
        if let Some(one) = nodes.first() {
            let _: () = one.run(&format!("CLUSTER MEET 127.0.0.1 {} {bus}", node.port)).await;
        }
        nodes.push(node);
    }
    for node in &nodes {
        until("a node sees the cluster working", || async {
            let info: String = node.run("CLUSTER INFO").await;
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
        })
        .await;
    }
    nodes
}

fn client(nodes: &[Server]) -> ClusterClient {
    ClusterClient::new(nodes.iter().map(Server::url).collect::<Vec<_>>()).unwrap()
}

/// Requests by tasks of one process, with the key of each; how many were allowed, and how many failed.
async fn ask(limiter: &Limiter, time: Duration, rule: &Rule, key: fn(u64) -> u64) -> (u64, u64, Duration) {
    let (numbers, allowed, failed) =
        (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let until = Instant::now() + time;
    let callers = (0..64).map(|_| {
        let (limiter, rule) = (limiter.clone(), rule.clone());
        let (numbers, allowed, failed) = (Arc::clone(&numbers), Arc::clone(&allowed), Arc::clone(&failed));
        async move {
            let mut longest = Duration::ZERO;
            while Instant::now() < until {
                let started = Instant::now();
                match limiter.hit(format!("user:{}", key(numbers.fetch_add(1, Relaxed))), &rule).await {
                    Ok(decision) => allowed.fetch_add(decision.allowed.into(), Relaxed),
                    Err(_) => {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                        failed.fetch_add(1, Relaxed)
                    }
                };
                longest = longest.max(started.elapsed());
            }
            longest
        }
    });
    let longest = callers.collect::<JoinSet<_>>().join_all().await.into_iter().max();
    (allowed.load(Relaxed), failed.load(Relaxed), longest.unwrap_or_default())
}

pub async fn run() -> String {
    let mut text =
        "| by one client process | decisions | of the busiest node | thousand decisions a second of one core |\n\
                    |---|--:|--:|--:|\n"
            .to_owned();
    let rule = Rule::from(Rule::sliding("1000000000/hour").unwrap());
    let spread: fn(u64) -> u64 = |number| key(number, 10_000);
    for (name, key) in [("10,000 keys", spread), ("one hot key", (|_| 7) as fn(u64) -> u64)] {
        let nodes = start().await;
        let limiter = Limiter::new(client(&nodes));
        ask(&limiter, Duration::from_millis(300), &rule, key).await;
        let (mut calls, mut processor) = (Vec::new(), 0.0);
        let mut before = Vec::new();
        for node in &nodes {
            before.push((node.calls("rl.sliding").await, spent(node).await.0));
        }
        ask(&limiter, Duration::from_secs(3), &rule, key).await;
        for (node, before) in nodes.iter().zip(before) {
            calls.push(node.calls("rl.sliding").await - before.0);
            // Of those that decide: a node that idles has its own housekeeping.
            processor += if calls.last() > Some(&100) { spent(node).await.0 - before.1 } else { 0.0 };
        }
        let (all, most) = (calls.iter().sum::<u64>(), calls.iter().max().unwrap());
        let thousands = all as f64 / processor / 1e3;
        writeln!(text, "| {name} | {all} | {:.0} % | {thousands:.0} |", *most as f64 / all as f64 * 100.0).unwrap();
    }
    text
}

pub async fn slot() -> String {
    let nodes = start().await;
    let limiter = Limiter::new(client(&nodes));
    const LIMIT: u64 = 20_000;
    let rule = Rule::from(Rule::sliding((LIMIT, Duration::from_secs(3600))).unwrap());
    let slot: u64 = nodes[0].run("CLUSTER KEYSLOT user:7").await;
    let from = SLOTS.iter().position(|(first, last)| (u64::from(*first)..=u64::from(*last)).contains(&slot)).unwrap();
    let (from, to) = (&nodes[from], &nodes[(from + 1) % 3]);
    let (from_id, to_id): (String, String) = (from.run("CLUSTER MYID").await, to.run("CLUSTER MYID").await);
    let asking = {
        let (limiter, rule) = (limiter.clone(), rule.clone());
        tokio::spawn(async move { ask(&limiter, Duration::from_secs(8), &rule, |_| 7).await })
    };
    // In the middle of the limit.
    until("half of the limit is used", async || from.calls("rl.sliding").await > LIMIT / 2).await;
    let before = from.calls("rl.sliding").await;
    let _: () = to.run(&format!("CLUSTER SETSLOT {slot} IMPORTING {from_id}")).await;
    let _: () = from.run(&format!("CLUSTER SETSLOT {slot} MIGRATING {to_id}")).await;
    let _: String = from.run(&format!("MIGRATE 127.0.0.1 {} user:7 0 5000", to.port)).await;
    for node in [to, from] {
        let _: () = node.run(&format!("CLUSTER SETSLOT {slot} NODE {to_id}")).await;
    }
    let (allowed, failed, longest) = asking.await.unwrap();
    let after = to.calls("rl.sliding").await;
    format!(
        "| limit | calls before the slot moved | after | allowed | errors | longest call |\n|--:|--:|--:|--:|--:|--:|\n\
         | {LIMIT} | {before} | {after} | {allowed} | {failed} | {:.0} ms |\n",
        longest.as_secs_f64() * 1e3
    )
}
