//! Cluster mode: every state key lies in the slot of the key the caller named.

use redis::Value;

use super::{START, eventually};
use crate::support::{Client, Engine, Options, Server};
use crate::tests;

tests![
    the_counter_lies_in_the_slot_of_its_key,
    a_key_whose_braces_allow_no_counter,
    options_keep_to_the_slot,
    a_reset_that_is_refused_removes_nothing,
    scripts_and_transactions_work
];

/// One node that owns every slot, with its clock standing at [`START`].
pub fn node(engine: &Engine) -> (Server, Client) {
    let options = Options { frozen_at: Some(START), ..Options::default() }.with(&["--cluster-enabled", "yes"]);
    let server = Server::start(engine, &options);
    let mut client = server.client();
    client.run::<Value>(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    // A node waits a while by its wall clock before it serves, so the clock has to run until then.
    let mut now = START;
    eventually("the cluster is up", || {
        now += 100;
        server.set_time(now);
        client.run::<String>(&["CLUSTER", "INFO"]).contains("cluster_state:ok")
    });
    server.set_time(START);
    (server, client)
}

fn the_counter_lies_in_the_slot_of_its_key(engine: &Engine) {
    let (_server, mut client) = node(engine);
    let number = START / 60_000;
    for (key, counter) in [
        ("login", format!("{{login}}:{number}")),
        ("{user7}:login", format!("{{user7}}:login:{number}")),
        ("a{b", format!("{{a{{b}}:{number}")),
        ("}{x}", format!("}}{{x}}:{number}")),
        ("x{y}z{w}", format!("x{{y}}z{{w}}:{number}")),
        ("with space\n", format!("{{with space\n}}:{number}")),
    ] {
        assert_eq!(client.fixed(key, "60", 1), (1, 1, 60), "{key}");
        assert_eq!(client.fixed(key, "60", 1), (0, 2, 60), "{key}");
        assert_eq!(client.run::<i64>(&["GET", &counter]), 2, "{key}: where a client looks for it");
        let slot: i64 = client.run(&["CLUSTER", "KEYSLOT", key]);
        let keys: Vec<String> = client.run(&["CLUSTER", "GETKEYSINSLOT", &slot.to_string(), "10"]);
        assert_eq!(keys, [counter], "{key}");

        assert_eq!(client.sliding(key, "60", 1), (1, 0, 60), "{key}");
        assert_eq!(client.run::<i64>(&["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()]), 2, "{key}");
    }
}

fn a_key_whose_braces_allow_no_counter(engine: &Engine) {
    let (_server, mut client) = node(engine);
    for key in ["", "a}b", "x{}y", "{}", "}"] {
        let line = client.error(&["RL.FIXED", key, "60", "5"]);
        assert!(line.starts_with("ERR key cannot be used in cluster mode: "), "{key}: {line}");
        assert_eq!(client.sliding(key, "60", 1), (1, 0, 60), "{key}: a log needs no other key");
    }
    assert_eq!(client.run::<i64>(&["DBSIZE"]), 5);
}

fn options_keep_to_the_slot(engine: &Engine) {
    let (_server, mut client) = node(engine);
    for (key, [open, close]) in
        [("login", ["{", "}"]), ("{user7}:login", ["", ""]), ("a{b", ["{", "}"]), ("x{y}z{w}", ["", ""])]
    {
        for used in 1..=5 {
            let call = format!("RL.FIXED {key} 1 9 60 9 3600 5");
            assert_eq!(client.call::<(i64, i64, i64)>(&call), (1, used, 3_600), "{key}");
            let peek = client.full(&format!("RL.PEEK {key} FIXED 1 9 60 9 3600 5 FULL"));
            assert_eq!((peek.allowed, peek.used), (used < 5, (used + 1).min(5)), "{key}");
            client.call::<Value>(&format!("RL.SLIDING {key} 1 99 60 99 COST 3"));
            assert_eq!(client.full(&format!("RL.PEEK {key} SLIDING 1 99 60 99 FULL")).used, 3 * used + 1, "{key}");
        }
        let slot: String = client.run::<i64>(&["CLUSTER", "KEYSLOT", key]).to_string();
        let mut keys: Vec<String> = client.run(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]);
        let counters = [1_000, 60_000, 3_600_000].map(|window| format!("{open}{key}{close}:{}", START / window));
        let mut expected = [&counters[..], &[key.to_owned()]].concat();
        keys.sort();
        expected.sort();
        assert_eq!(keys, expected, "{key}");

        assert_eq!(client.call::<i64>(&format!("RL.RESET {key} 2 60")), 2, "{key}");
        assert_eq!(client.run::<i64>(&["EXISTS", &counters[1]]), 0, "{key}");
        assert_eq!(client.call::<i64>(&format!("RL.RESET {key} 1 60 3600")), 2, "{key}");
        assert_eq!(client.run::<i64>(&["DBSIZE"]), 0, "{key}: nothing lies elsewhere");
    }
}

fn a_reset_that_is_refused_removes_nothing(engine: &Engine) {
    let (_server, mut client) = node(engine);
    for key in ["a}b", "x{}y", "{}", "}"] {
        client.sliding(key, "60", 5);
        for call in
            [format!("RL.RESET {key} 60"), format!("RL.PEEK {key} FIXED 60 5"), format!("RL.FIXED {key} 1 5 60 5")]
        {
            let line = client.refused(&call);
            assert!(line.starts_with("ERR key cannot be used in cluster mode: "), "{call}: {line}");
        }
        assert_eq!(client.call::<(i64, i64, i64)>(&format!("RL.PEEK {key} SLIDING 60 5")), (1, 1, 60));
        assert_eq!(client.call::<i64>(&format!("RL.RESET {key}")), 1, "{key}: a log needs no other key");
    }
    client.call::<Value>("RL.THROTTLE a}b 4 1 60");
    assert_eq!(client.run::<i64>(&["EXISTS", "a}b"]), 1);
}

fn scripts_and_transactions_work(engine: &Engine) {
    let (_server, mut client) = node(engine);
    let reply: (i64, i64, i64) = client.run(&["EVAL", "return redis.call('RL.FIXED', KEYS[1], 60, 5)", "1", "login"]);
    assert_eq!(reply, (1, 1, 60));
    client.run::<Value>(&["MULTI"]);
    client.run::<Value>(&["RL.FIXED", "login", "60", "5"]);
    client.run::<Value>(&["RL.SLIDING", "login", "60", "5"]);
    let replies: Vec<(i64, i64, i64)> = client.run(&["EXEC"]);
    assert_eq!(replies, [(1, 2, 60), (1, 0, 60)]);
    // Pruning many at once runs nested commands, which the cluster checks for the slot.
    let old: Vec<String> =
        (0..1500).flat_map(|index| [(START - 60_000 - index).to_string(), index.to_string()]).collect();
    client.run::<Value>(&[&["ZADD".to_owned(), "login".to_owned()][..], &old].concat());
    assert_eq!(client.sliding("login", "60", 5), (1, 1, 60));
    assert_eq!(client.run::<i64>(&["ZCARD", "login"]), 502);
}
