//! Eight basic promises of a rate limiter, for both commands.

use std::sync::Barrier;

use super::{Reply, START, frozen};
use crate::support::{Client, Engine, Options, Server};
use crate::tests;

tests![
    promise_1_the_first_n_pass: both_storages,
    promise_2_the_next_one_is_denied: both_storages,
    promise_3_it_passes_again_after_the_window: both_storages,
    promise_4_remaining_falls_by_one_a_request: both_storages,
    promise_5_del_gives_the_whole_quota_back: both_storages,
    promise_6_concurrent_clients_never_get_more_than_the_limit: both_storages,
    promise_7_a_changed_limit_holds_at_once: both_storages,
    promise_8_one_users_limit_never_touches_anothers: both_storages,
];

const BOTH: [&str; 2] = ["RL.SLIDING", "RL.FIXED"];

/// The key that holds the state of a command's limit for `key`, at [`START`] and a window of a minute.
fn state_key(command: &str, key: &str) -> String {
    match command {
        "RL.FIXED" => format!("{key}:{}", START / 60_000),
        _ => key.to_owned(),
    }
}

fn spend(client: &mut Client, command: &str, key: &str, limit: i64, requests: i64) -> Vec<Reply> {
    (0..requests).map(|_| client.limiter(command, key, "60", limit)).collect()
}

fn promise_1_the_first_n_pass(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for command in BOTH {
        for limit in [1, 5, 100, 1000] {
            let replies = spend(&mut client, command, &format!("{command}-{limit}"), limit, limit);
            assert!(replies.iter().all(|reply| reply.0 == 1), "{command} {limit}: {replies:?}");
        }
    }
}

fn promise_2_the_next_one_is_denied(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for command in BOTH {
        for limit in [0, 1, 5, 100] {
            let key = format!("{command}-{limit}");
            spend(&mut client, command, &key, limit, limit);
            for _ in 0..3 {
                assert_eq!(client.limiter(command, &key, "60", limit).0, 0, "{command} {limit}");
            }
        }
    }
}

fn promise_3_it_passes_again_after_the_window(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for command in BOTH {
        server.set_time(START);
        spend(&mut client, command, command, 5, 6);
        server.set_time(START + 59_999);
        assert_eq!(client.limiter(command, command, "60", 5).0, 0, "{command} at the last millisecond");
        server.set_time(START + 60_000);
        let replies = spend(&mut client, command, command, 5, 6);
        assert_eq!(replies.iter().map(|reply| reply.0).collect::<Vec<_>>(), [1, 1, 1, 1, 1, 0], "{command}");
    }
}

fn promise_4_remaining_falls_by_one_a_request(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    // RL.SLIDING counts the requests before this one; RL.FIXED counts this one too.
    for (command, first) in [("RL.SLIDING", 10), ("RL.FIXED", 9)] {
        let remaining: Vec<i64> =
            spend(&mut client, command, command, 10, 10).iter().map(|reply| 10 - reply.1).collect();
        assert_eq!(remaining, (0..10).map(|spent| first - spent).collect::<Vec<_>>(), "{command}");
    }
}

fn promise_5_del_gives_the_whole_quota_back(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for command in BOTH {
        let before = spend(&mut client, command, command, 5, 7);
        assert_eq!(client.run::<i64>(&["DEL", &state_key(command, command)]), 1, "{command}");
        assert_eq!(spend(&mut client, command, command, 5, 7), before, "{command}");
    }
}

fn promise_6_concurrent_clients_never_get_more_than_the_limit(engine: &Engine) {
    for command in BOTH {
        // The clock stands still: all calls are in one window, and exactly the limit passes, over all clients.
        let (server, _) = frozen(engine);
        let passed = concurrently(&server, |client| client.limiter(command, "k", "60", 777).0);
        assert_eq!(passed, 777, "{command}");
    }
    // The clock runs. No more windows have a counter than there were windows.
    let server = Server::start(engine, &Options::default());
    let begun = server.client().millis();
    let passed = concurrently(&server, |client| client.fixed("k", "0.2", 20).0);
    let windows = server.client().millis() / 200 - begun / 200 + 1;
    assert!((20..=20 * windows).contains(&passed), "{passed} passed in {windows} windows");
    if engine.compact {
        return; // The witness looks into a sorted set.
    }
    // A script around RL.SLIDING writes down when each request was admitted, by the log's own stamps. No stretch of a
    // window may hold more than the limit.
    let witness = "local reply = redis.call('RL.SLIDING', KEYS[1], '0.2', '20')
        if reply[1] == 1 then
            redis.call('RPUSH', KEYS[2], redis.call('ZRANGE', KEYS[1], -1, -1, 'WITHSCORES')[2])
        end
        return reply[1]";
    let passed = concurrently(&server, |client| client.run(&["EVAL", witness, "2", "{k}", "{k}:admitted"]));
    let admitted: Vec<i64> = server.client().run(&["LRANGE", "{k}:admitted", "0", "-1"]);
    assert_eq!(admitted.len() as i64, passed);
    assert!(passed >= 20);
    for (index, &first) in admitted.iter().enumerate() {
        let within = admitted[index..].iter().take_while(|&&at| at < first + 200).count();
        assert!(within <= 20, "{within} requests in the window from {first} on");
    }
}

/// Makes thousands of calls on 8 connections at once, and adds up the replies.
fn concurrently(server: &Server, call: impl Fn(&mut Client) -> i64 + Sync) -> i64 {
    let barrier = Barrier::new(8);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8)
            .map(|_| {
                scope.spawn(|| {
                    let mut client = server.client();
                    barrier.wait();
                    (0..600).map(|_| call(&mut client)).sum::<i64>()
                })
            })
            .collect();
        clients.into_iter().map(|client| client.join().expect("a client")).sum()
    })
}

fn promise_7_a_changed_limit_holds_at_once(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for command in BOTH {
        spend(&mut client, command, command, 5, 5);
        assert_eq!(client.limiter(command, command, "60", 5).0, 0, "{command}: spent");
        assert_eq!(client.limiter(command, command, "60", 10).0, 1, "{command}: raised");
        assert_eq!(client.limiter(command, command, "60", 3).0, 0, "{command}: lowered");
        assert_eq!(client.limiter(command, command, "60", 0).0, 0, "{command}: closed");
    }
    // Also if the window changes: the log has the time of each request.
    let (server, mut client) = frozen(engine);
    spend(&mut client, "RL.SLIDING", "k", 5, 5);
    server.set_time(START + 10_000);
    assert_eq!(client.sliding("k", "60", 5), (0, 5, 60));
    assert_eq!(client.sliding("k", "10", 5), (1, 0, 10));
}

fn promise_8_one_users_limit_never_touches_anothers(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    for command in BOTH {
        let names = ["a", "b", "aa", "a:b", "{a}", "A", "a ", ""];
        for name in names {
            let key = format!("{command}{name}");
            let replies = spend(&mut client, command, &key, 3, 4);
            assert_eq!(replies.iter().map(|reply| reply.0).collect::<Vec<_>>(), [1, 1, 1, 0], "{command} {name:?}");
        }
    }
}
