//! Two sides of a partition, in network namespaces of their own. Takes root and `ip`.

use std::fmt::Write;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use redis::aio::MultiplexedConnection;

use crate::load::words;
use crate::support::{Has, connect, until};

const LIMIT: u64 = 1000;
/// The primary's and the replica's namespace: addresses towards this process, and towards each other.
const SIDES: [(&str, &str, &str); 2] =
    [("rlscale-a", "10.213.1", "10.213.3.1"), ("rlscale-b", "10.213.2", "10.213.3.2")];

fn ip(words: &str) -> bool {
    Command::new("ip")
        .args(words.split_whitespace())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// What ends with this value.
struct Sides(Vec<Child>);

impl Drop for Sides {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
        for (side, _, _) in SIDES {
            ip(&format!("netns del {side}"));
        }
    }
}

/// A veth pair from here to each side, and one between the sides.
fn build() -> Option<Sides> {
    let sides = Sides(Vec::new());
    let mut lines = Vec::new();
    for (index, (side, here, _)) in SIDES.into_iter().enumerate() {
        // A link of a run before may take a while to go.
        ip(&format!("link del rlscale{index}"));
        lines.extend([
            format!("netns add {side}"),
            format!("link add rlscale{index} type veth peer name here netns {side}"),
            format!("addr add {here}.1/24 dev rlscale{index}"),
            format!("link set rlscale{index} up"),
            format!("-n {side} addr add {here}.2/24 dev here"),
            format!("-n {side} link set here up"),
            format!("-n {side} link set lo up"),
        ]);
    }
    let [(a, _, _), (b, _, _)] = SIDES;
    lines.push(format!("-n {a} link add across type veth peer name across netns {b}"));
    for (side, _, address) in SIDES {
        lines.push(format!("-n {side} addr add {address}/24 dev across"));
        lines.push(format!("-n {side} link set across up"));
    }
    lines.iter().all(|line| ip(line)).then_some(sides)
}

pub async fn run() -> String {
    let mut text =
        "| on the primary's side | let in before | on its side, in 5 s after | on the other side | of a limit of |\n\
                    |---|--:|--:|--:|--:|\n"
            .to_owned();
    for (name, options) in [
        ("no option", ""),
        ("`min-replicas-to-write 1`, `min-replicas-max-lag 1`", "--min-replicas-to-write 1 --min-replicas-max-lag 1"),
    ] {
        let Some(mut sides) = build() else {
            return "Not measured here: it takes root and the `ip` command.\n".to_owned();
        };
        let (before, same, other) = partition(&mut sides, options).await;
        writeln!(text, "| {name} | {before} | {same} | {other} | {LIMIT} |").unwrap();
    }
    text
}

async fn partition(sides: &mut Sides, options: &str) -> (u64, u64, u64) {
    let program = std::env::var("REDIS_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
    let folder = tempfile::tempdir().unwrap();
    let mut connections = Vec::new();
    for (index, (side, here, _)) in SIDES.into_iter().enumerate() {
        let replicates = if index == 1 { format!("--replicaof {} 6379", SIDES[0].2) } else { options.to_owned() };
        let mut server = Command::new("ip");
        server.args(["netns", "exec", side, &program, "--port", "6379", "--bind", "0.0.0.0", "--protected-mode", "no"]);
        server.args(["--save", "", "--repl-diskless-sync-delay", "0", "--enable-module-command", "yes"]);
        server.args(Has::Module.arguments()).args(replicates.split_whitespace());
        sides.0.push(server.current_dir(folder.path()).stdout(Stdio::null()).spawn().unwrap());
        let url = format!("redis://{here}.2:6379");
        until("it answers", || async { connect(&url).await.is_ok() }).await;
        connections.push(connect(&url).await.unwrap());
    }
    let [mut primary, mut replica] = <[MultiplexedConnection; 2]>::try_from(connections).ok().unwrap();
    until("the replica is in step", || async {
        let info: String = words("INFO replication").query_async(&mut replica.clone()).await.unwrap();
        info.contains("master_link_status:up")
    })
    .await;
    let before = let_in(&mut primary, LIMIT / 4, Duration::from_secs(5)).await;
    until("the replica knows of it", || async {
        let peek = words(&format!("RL.PEEK k SLIDING 3600 {LIMIT} COST 0"));
        let reply: Vec<u64> = peek.query_async(&mut replica.clone()).await.unwrap();
        reply[1] == before
    })
    .await;
    ip(&format!("-n {} link set across down", SIDES[0].0));
    let _: () = words("REPLICAOF NO ONE").query_async(&mut replica).await.unwrap();
    // Slowly, so that there is something left when the primary has noticed.
    let (same, other) = tokio::join!(
        let_in(&mut primary, 10_000, Duration::from_secs(5)),
        let_in(&mut replica, 10_000, Duration::from_secs(5)),
    );
    (before, same, other)
}

/// Requests every 4 ms: how many were let in. `most`: how many are made.
async fn let_in(connection: &mut MultiplexedConnection, most: u64, time: Duration) -> u64 {
    let (mut allowed, until) = (0, std::time::Instant::now() + time);
    for _ in 0..most {
        if std::time::Instant::now() > until {
            break;
        }
        let call = words(&format!("RL.SLIDING k 3600 {LIMIT} COST 1"));
        // Refused with NOREPLICAS, where it is.
        let reply: Result<Vec<u64>, _> = call.query_async(connection).await;
        allowed += reply.map_or(0, |reply| reply[0]);
        tokio::time::sleep(Duration::from_millis(4)).await;
    }
    allowed
}
