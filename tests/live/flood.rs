//! Floods: many connections at one key, and a million requests that expire at once. Counts and bytes, no times:
//! those `make soak` measures and writes to docs/BENCHMARK.md.

use redis::Value;

use super::{START, eventually, frozen};
use crate::support::log::fill_log;
use crate::support::model::PRUNED_AT_MOST;
use crate::support::server::Module;
use crate::support::wire::{Reply, Wire, pack};
use crate::support::{Client, Engine, Options, Server};
use crate::tests;

tests![
    fifty_connections_are_answered_right: both_storages,
    a_flood_of_denials_propagates_one_expiry_a_second: both_storages,
    a_million_expired_requests_go_a_thousand_a_call,
    a_huge_log_that_all_expired_goes_at_once,
];

const CONNECTIONS: i64 = 50;
const MILLION: i64 = 1_000_000;

/// Calls in pipelines from fifty connections at once. The replies, in no order.
fn flood(server: &Server, words: &[&str], pipelines: usize, depth: usize) -> Vec<(i64, i64, i64)> {
    let mut call = Vec::new();
    pack(&mut call, words);
    let pipeline = call.repeat(depth);
    let replies = |_| {
        let mut wire = Wire::open(server.port);
        let mut replies = Vec::new();
        for _ in 0..pipelines {
            wire.send(&pipeline);
            replies.extend((0..depth).map(|_| match wire.receive() {
                Reply::Array(parts) => match parts[..] {
                    [Reply::Integer(allowed), Reply::Integer(count), Reply::Integer(ttl)] => (allowed, count, ttl),
                    _ => panic!("not three integers: {parts:?}"),
                },
                other => panic!("not an array: {other:?}"),
            }));
        }
        replies
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CONNECTIONS).map(|number| scope.spawn(move || replies(number))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a connection")).collect()
    })
}

fn fifty_connections_are_answered_right(engine: &Engine) {
    let (server, _client) = frozen(engine);
    let (pipelines, depth) = (8, 50);
    let calls = CONNECTIONS * (pipelines * depth) as i64;

    let mut replies = flood(&server, &["RL.SLIDING", "k", "3600", "1000"], pipelines, depth);
    replies.sort_unstable();
    let denied = std::iter::repeat_n((0, 1000, 3600), (calls - 1000) as usize);
    let right: Vec<_> = denied.chain((0..1000).map(|count| (1, count, 3600))).collect();
    assert_eq!(replies, right, "every place is given once, and every denial says that all are taken");

    let mut replies = flood(&server, &["RL.FIXED", "k", "3600", "1000"], pipelines, depth);
    replies.sort_unstable_by_key(|reply| reply.1);
    let right: Vec<_> = (1..=calls).map(|count| (i64::from(count <= 1000), count, 3600)).collect();
    assert_eq!(replies, right, "every call is counted once");
}

fn a_flood_of_denials_propagates_one_expiry_a_second(engine: &Engine) {
    // No PING from the primary and no periodic rewriting: the only bytes are those of the calls.
    let options = Options { frozen_at: Some(START), ..Options::default() }.with(&[
        "--repl-diskless-sync-delay",
        "0",
        "--repl-ping-replica-period",
        "3600",
        "--appendonly",
        "yes",
        "--appendfsync",
        "no",
    ]);
    let server = Server::start(engine, &options);
    let mut client = server.client();
    let options = Options { module: Module::None, frozen_at: Some(START), ..Options::default() };
    let (_replica, mut follower) = Server::replica_of(&server, engine, options);

    for _ in 0..100 {
        client.sliding("k", "60", 100);
    }
    let mut propagated = |client: &mut Client| -> (i64, i64) {
        let offset: i64 = client.info_field("replication", "master_repl_offset").parse().expect("an offset");
        eventually("the replica has it", || {
            follower.info_field("replication", "slave_repl_offset").parse::<i64>().expect("an offset") >= offset
        });
        (offset, client.info_field("persistence", "aof_current_size").parse().expect("a size"))
    };
    let mut denied = |steps: i64| {
        let before = propagated(&mut client);
        let mut call = Vec::new();
        pack(&mut call, &["RL.SLIDING", "k", "60", "100"]);
        for step in 0..steps {
            server.set_time(START + 100 * step);
            let replies = client.send_packed(&call.repeat(100), 100);
            let right = Value::Array([0, 100, 60].map(Value::Int).to_vec());
            assert!(replies.iter().all(|reply| *reply == right), "{replies:?}");
        }
        let after = propagated(&mut client);
        (after.0 - before.0, after.1 - before.1)
    };
    // A thousand denials within a second send no byte.
    assert_eq!(denied(10), (0, 0));
    // Thirty thousand denials in thirty seconds: the expiry follows the clock, once a second.
    let mut expiry = Vec::new();
    pack(&mut expiry, &["PEXPIREAT", "k", &(START + 120_000).to_string()]);
    let bytes = 29 * expiry.len() as i64;
    assert_eq!(denied(300), (bytes, bytes));
}

fn a_million_expired_requests_go_a_thousand_a_call(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let (window, live, some_more) = (3_600_000, 7, 500);
    let expired = MILLION + some_more;
    fill_log(&mut client, "k", START - window - expired + 1, expired, 1);
    fill_log(&mut client, "k", START - live, live, 1);
    assert_eq!(client.run::<i64>(&["ZCOUNT", "k", "0", &(START - window).to_string()]), expired);

    let mut step = Vec::new();
    pack(&mut step, &["RL.SLIDING", "k", "3600", "7"]);
    pack(&mut step, &["ZCARD", "k"]);
    let calls = expired / PRUNED_AT_MOST + 1;
    let replies = client.send_packed(&step.repeat(calls as usize), 2 * calls as usize);
    for (call, reply) in replies.chunks(2).enumerate() {
        let left = (expired - PRUNED_AT_MOST * (call as i64 + 1)).max(0);
        assert_eq!(reply[0], Value::Array([0, live, 3600].map(Value::Int).to_vec()), "call {call}");
        assert_eq!(reply[1], Value::Int(live + left), "call {call}");
    }
    assert_eq!(client.stamps("k"), (START - live..START).collect::<Vec<_>>());
}

fn a_huge_log_that_all_expired_goes_at_once(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    fill_log(&mut client, "k", START - 3_800_000, 200_000, 1);
    let freed = |client: &mut Client| client.info_field("memory", "lazyfreed_objects").parse::<i64>().expect("a count");
    // Valkey frees everything in the background by default. Here only what is unlinked shall be.
    client.run::<Value>(&["CONFIG", "SET", "lazyfree-lazy-server-del", "no", "lazyfree-lazy-user-del", "no"]);
    let before = freed(&mut client);
    client.run::<Value>(&["CONFIG", "RESETSTAT"]);
    assert_eq!(client.sliding("k", "3600", 5), (1, 0, 3600));
    assert_eq!(client.stamps("k"), [START]);
    // The server's own thread frees the memory, without a nested command.
    let before = if freed(&mut client) < before { 0 } else { before };
    eventually("one large value is freed in the background", || freed(&mut client) == before + 1);
    let stats: String = client.run(&["INFO", "commandstats"]);
    assert!(!stats.contains("cmdstat_zrem"), "{stats}");
}
