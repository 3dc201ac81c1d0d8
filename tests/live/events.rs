//! Keyspace events, WATCH and client-side caching: what other clients see of a call.

use redis::Value;

use super::{FIXED_SCRIPT, Reply, SLIDING_SCRIPT, START, counter, frozen};
use crate::support::{Client, Engine, Server};
use crate::tests;

tests![
    sliding_fires_what_the_plain_commands_fire,
    fixed_fires_what_the_plain_commands_fire,
    a_denial_fires_rl_denied_with_the_key_that_was_named,
    a_quiet_denial_fires_nothing_but_rl_denied,
    a_listener_without_the_class_of_modules_gets_no_denial,
    options_fire_what_the_plain_commands_fire,
    watch_sees_a_change_and_no_quiet_denial,
    client_side_caches_are_told,
    a_denial_breaks_no_watch_and_a_change_does: both_storages,
    the_same_events_as_those_of_plain_commands,
    every_rule_that_denies_fires_rl_denied,
];

/// All classes of events but `d`, that of modules.
pub const PLAIN: &str = "Eg$lshzxetn";
const ALL: &str = "EAn";

/// Everything that is published in these classes while `body` runs, in order, as `event key`.
pub fn heard(server: &Server, client: &mut Client, classes: &str, body: impl FnOnce(&mut Client)) -> Vec<String> {
    client.run::<Value>(&["CONFIG", "SET", "notify-keyspace-events", classes]);
    let mut listener = server.client();
    let mut channel = listener.0.as_pubsub();
    channel.psubscribe("__keyevent@0__:*").expect("a subscription");
    body(client);
    client.run::<Value>(&["SET", "the-end", "1"]);
    let mut events = Vec::new();
    loop {
        let message = channel.get_message().expect("an event");
        let event = message.get_channel_name().rsplit(':').next().expect("an event's name").to_owned();
        let key: String = message.get_payload().expect("a key");
        if key == "the-end" {
            return events;
        }
        events.push(format!("{event} {key}"));
    }
}

/// What the script fires, but for the expiry that it writes on every call and the module only when it matters.
fn sliding_fires_what_the_plain_commands_fire(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let mut history = |limiter: &dyn Fn(&mut Client, i64) -> Reply| {
        server.set_time(START);
        heard(&server, &mut client, PLAIN, |client| {
            for (at, limit) in [(0, 2), (30_000, 2), (59_000, 2), (60_000, 2), (150_000, 3), (400_000, 0)] {
                server.set_time(START + at);
                limiter(client, limit);
            }
        })
    };
    let theirs = history(&|client, limit| client.script(SLIDING_SCRIPT, "k", "60", limit));
    server.client().run::<Value>(&["FLUSHALL"]);
    let ours = history(&|client, limit| client.sliding("k", "60", limit));
    // Events of new keys come first: all changes of a call are written before the first is published.
    let but_new =
        |events: &[String]| events.iter().filter(|event| !event.starts_with("new ")).cloned().collect::<Vec<_>>();
    assert_eq!(but_new(&ours), but_new(&theirs));
    assert_eq!(
        ours,
        [
            "new k",
            "zadd k",
            "expire k", // at 0: the first member
            "zadd k",
            "expire k", // at 30 s
            "expire k", // at 59 s: denied
            "zremrangebyscore k",
            "zadd k",
            "expire k", // at 60 s: the first one has gone
            "new k",
            "zremrangebyscore k",
            "del k",
            "zadd k",
            "expire k",  // at 150 s: all have gone
            "expired k", // at 400 s: the key too
        ]
    );
}

fn fixed_fires_what_the_plain_commands_fire(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let ours = heard(&server, &mut client, PLAIN, |client| {
        for _ in 0..3 {
            client.fixed("k", "60", 2);
        }
    });
    client.run::<Value>(&["FLUSHALL"]);
    let theirs = heard(&server, &mut client, PLAIN, |client| {
        for _ in 0..3 {
            client.script(FIXED_SCRIPT, "k", "60", 2);
        }
    });
    assert_eq!(ours, theirs);
    let key = format!("k:{}", START / 60_000);
    assert_eq!(ours, ["new", "incrby", "expire", "incrby", "incrby"].map(|event| format!("{event} {key}")));
}

fn a_denial_fires_rl_denied_with_the_key_that_was_named(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for (call, fired) in [
        ("RL.SLIDING s 60 1", ["", "rl.denied s"]),
        ("RL.FIXED f 60 1", ["", "rl.denied f"]),
        ("RL.THROTTLE t 0 1 60", ["", "rl.denied t"]),
        ("RL.SLIDING several 1 1 60 1", ["", "rl.denied several"]),
        ("RL.FIXED several 1 1 60 1", ["", "rl.denied several"]),
        ("RL.SLIDING heavy 60 3 COST 2", ["", "rl.denied heavy"]),
        ("RL.FIXED heavy 60 3 COST 2 FULL", ["", "rl.denied heavy"]),
        ("RL.SLIDING never 60 1 COST 2", ["rl.denied never"; 2]),
        ("RL.FIXED never 60 0", ["rl.denied never"; 2]),
        ("RL.PEEK s SLIDING 60 1", ["", ""]), // A peek denies no request.
        ("RL.THROTTLE t 5 1 60 0", ["", ""]),
        ("RL.RESET never", ["", ""]),
    ] {
        for expected in fired {
            let mut events = heard(&server, &mut client, ALL, |client| _ = client.call::<Value>(call));
            events.retain(|event| event.starts_with("rl."));
            assert_eq!(events.join(", "), expected, "{call}");
        }
    }
}

fn a_quiet_denial_fires_nothing_but_rl_denied(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.sliding("k", "60", 1);
    let events = heard(&server, &mut client, ALL, |client| {
        for step in 0..20 {
            server.set_time(START + step);
            client.sliding("k", "60", 1);
        }
    });
    assert_eq!(events, ["rl.denied k"; 20]);
}

fn a_listener_without_the_class_of_modules_gets_no_denial(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.sliding("k", "60", 1);
    let events = heard(&server, &mut client, PLAIN, |client| {
        client.sliding("k", "60", 1);
        client.call::<Value>("RL.FIXED k 60 0 COST 2");
    });
    assert_eq!(events, [""; 0]);
}

fn options_fire_what_the_plain_commands_fire(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let (short, long) = (format!("f:{}", START / 1_000), format!("f:{}", START / 60_000));
    let events = heard(&server, &mut client, PLAIN, |client| {
        client.call::<Value>("RL.SLIDING s 1 5 60 9 COST 3");
        client.call::<Value>("RL.FIXED f 1 5 60 9 COST 3");
        client.call::<Value>("RL.FIXED f 1 5 60 9 COST 2");
        client.call::<Value>("RL.FIXED f 1 5 60 9");
        client.call::<Value>("RL.THROTTLE t 5 1 60");
        client.call::<Value>("RL.THROTTLE t 5 1 60 0");
        client.call::<Value>("RL.RESET f 1 60");
        client.call::<Value>("RL.RESET s");
        client.call::<Value>("RL.RESET none 1");
    });
    let expected = format!(
        "new s, zadd s, expire s, new {short}, new {long}, incrby {short}, expire {short}, incrby {long}, \
         expire {long}, incrby {short}, incrby {long}, new t, set t, expire t, del {short}, del {long}, del s"
    );
    assert_eq!(events.join(", "), expected);
}

fn watch_sees_a_change_and_no_quiet_denial(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let mut other = server.client();
    client.sliding("k", "60", 2);
    for (limit, aborted) in [(1, false), (2, true)] {
        client.run::<Value>(&["WATCH", "k"]);
        other.sliding("k", "60", limit);
        client.run::<Value>(&["MULTI"]);
        client.run::<Value>(&["PING"]);
        let outcome: Value = client.run(&["EXEC"]);
        assert_eq!(outcome == Value::Nil, aborted, "limit {limit}");
    }
    // Denied calls with options change nothing, nor do peeks and denied throttles.
    client.call::<Value>("RL.THROTTLE t 0 1 60");
    client.call::<Value>("RL.FIXED k 60 2");
    let counter = format!("k:{}", START / 60_000);
    client.run::<Value>(&["WATCH", "k", &counter, "t"]);
    for quiet in [
        "RL.SLIDING k 60 2 COST 2",
        "RL.SLIDING k 1 2 60 2",
        "RL.FIXED k 60 2 COST 2",
        "RL.FIXED k 60 1 3600 5",
        "RL.PEEK k SLIDING 60 9",
        "RL.PEEK k FIXED 60 9",
        "RL.THROTTLE t 0 1 60",
        "RL.THROTTLE t 0 1 60 0",
    ] {
        other.call::<Value>(quiet);
    }
    client.run::<Value>(&["MULTI"]);
    client.run::<Value>(&["PING"]);
    assert_ne!(client.run::<Value>(&["EXEC"]), Value::Nil);
    for loud in ["RL.FIXED k 60 9 COST 2", "RL.THROTTLE t 5 1 60", "RL.RESET k"] {
        client.run::<Value>(&["WATCH", "k", &counter, "t"]);
        other.call::<Value>(loud);
        client.run::<Value>(&["MULTI"]);
        client.run::<Value>(&["PING"]);
        assert_eq!(client.run::<Value>(&["EXEC"]), Value::Nil, "{loud}");
    }
    let counter = format!("f:{}", START / 60_000);
    client.run::<Value>(&["WATCH", &counter]);
    other.fixed("f", "60", 0);
    client.run::<Value>(&["MULTI"]);
    client.run::<Value>(&["PING"]);
    assert_eq!(client.run::<Value>(&["EXEC"]), Value::Nil, "a denied request is counted, which changes the counter");
}

fn client_side_caches_are_told(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.sliding("k", "60", 2);
    // A listener on its own connection, to which the caching one redirects what it is told.
    let mut listener = server.client();
    let id: i64 = listener.run(&["CLIENT", "ID"]);
    let mut channel = listener.0.as_pubsub();
    channel.subscribe("__redis__:invalidate").expect("a subscription");
    let mut caching = server.client();
    caching.run::<Value>(&["CLIENT", "TRACKING", "ON", "REDIRECT", &id.to_string()]);
    caching.run::<i64>(&["ZCARD", "k"]);
    caching.run::<Value>(&["GET", "the-end"]);
    client.sliding("k", "60", 1); // A quiet denial.
    client.run::<Value>(&["SET", "the-end", "1"]);
    let told = |channel: &mut redis::PubSub<'_>| {
        channel.get_message().expect("word of a change").get_payload::<Vec<String>>().expect("keys")
    };
    assert_eq!(told(&mut channel), ["the-end"]);
    client.sliding("k", "60", 2);
    assert_eq!(told(&mut channel), ["k"]);
}

fn a_denial_breaks_no_watch_and_a_change_does(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let mut other = server.client();
    for line in [
        "RL.SLIDING s 60 3 COST 3",
        "RL.FIXED f 60 3 COST 3",
        "RL.FIXED f 60 3 ANCHORED COST 3",
        "RL.THROTTLE t 2 1 60 3",
        "RL.ACQUIRE l 1 60 a",
    ] {
        client.call::<Value>(line);
    }
    let mut survives = |line: &str| -> bool {
        let (number, anchored) = (counter("f", 60_000), "f:60s");
        client.run::<()>(&["WATCH", "s", "new", "f", &number, anchored, "t", "l"]);
        other.call::<Value>(line);
        client.run::<()>(&["MULTI"]);
        client.run::<Value>(&["PING"]);
        client.run::<Option<Vec<String>>>(&["EXEC"]).is_some()
    };
    for line in [
        "RL.ALL 2 new s SLIDING 60 9 SLIDING 60 3",
        "RL.ALL 2 f s FIXED 60 9 SLIDING 60 3",
        "RL.ALL 2 f s FIXED 60 9 ANCHORED SLIDING 60 3",
        "RL.ALL 2 s f SLIDING 60 9 FIXED 60 3",
        "RL.ALL 2 l t ACQUIRE 5 60 b THROTTLE 2 1 60",
        "RL.ALL 1 l ACQUIRE 1 60 b FULL",
        "RL.ACQUIRE l 1 60 b",
        "RL.RELEASE l nobody",
        "RL.REFUND s SLIDING 60 3 AT 5",
        "RL.REFUND new SLIDING 60 3",
        "RL.PEEK s SLIDING 60 9 COST 0",
        "RL.PEEK t THROTTLE 9 1 60",
        "RL.PEEK l ACQUIRE 9 60 b EACH",
    ] {
        assert!(survives(line), "{line}");
    }
    // A turn of RL.THROTTLE that is not over yet is given back by its time alone, and Valkey 9.1 may take microseconds back.
    server.set_time(START + 1000);
    for line in [
        "RL.ALL 2 new f SLIDING 60 9 FIXED 60 9",
        "RL.ALL 1 s SLIDING 60 3 FORCE",
        "RL.ACQUIRE l 2 60 b",
        "RL.ACQUIRE l 2 61 b",
        "RL.RELEASE l b",
        "RL.REFUND s SLIDING 60 3",
        "RL.REFUND f FIXED 60 3",
        "RL.REFUND f FIXED 60 3 ANCHORED",
        "RL.REFUND t THROTTLE 2 1 60",
    ] {
        assert!(!survives(line), "{line}");
    }
}

fn the_same_events_as_those_of_plain_commands(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.call::<()>("CONFIG SET rl.sliding-storage zset");
    let mut events = |at: i64, line: &str| {
        server.set_time(START + at);
        let mut events = heard(&server, &mut client, PLAIN, |client| _ = client.call::<Value>(line));
        events.retain(|event| !event.starts_with("new "));
        events
    };
    let (short, long) = (counter("f", 1_000), counter("f", 60_000));
    let two = |event: &str| {
        let mut events = vec![format!("{event} {short}"), format!("{event} {long}")];
        events.sort();
        events
    };
    let sorted = |mut events: Vec<String>| {
        events.sort();
        events
    };
    assert_eq!(events(0, "RL.ACQUIRE l 2 60 a"), ["zadd l", "expire l"]);
    assert_eq!(events(0, "RL.ACQUIRE l 2 9 b"), ["zadd l"]);
    assert_eq!(events(0, "RL.ACQUIRE l 2 60 c"), [""; 0]);
    assert_eq!(events(1, "RL.ACQUIRE l 2 60 a"), ["zadd l", "expire l"]);
    assert_eq!(events(1, "RL.RELEASE l a"), ["zrem l", "expire l"]);
    assert_eq!(events(9_000, "RL.ALL 1 l ACQUIRE 2 60 a").last().map(String::as_str), Some("expire l"));
    assert_eq!(events(9_000, "RL.RELEASE l a x"), ["zrem l", "del l"]);
    assert_eq!(events(0, "RL.SLIDING s 60 1 COST 2 FORCE"), ["zadd s", "expire s"]);
    assert_eq!(events(0, "RL.REFUND s SLIDING 60 1"), ["zrem s"]);
    assert_eq!(events(0, "RL.REFUND s SLIDING 60 1"), ["zrem s", "del s"]);
    assert_eq!(sorted(events(0, "RL.FIXED f 1 9 60 9 COST 2")), sorted([two("incrby"), two("expire")].concat()));
    assert_eq!(sorted(events(0, "RL.REFUND f FIXED 1 9 60 9")), two("incrby"));
    assert_eq!(events(0, "RL.FIXED f 60 9 ANCHORED"), ["incrby f:60s", "expire f:60s"]);
    assert_eq!(events(0, "RL.REFUND f FIXED 60 9 ANCHORED"), ["incrby f:60s"]);
    assert_eq!(events(0, "RL.ALL 2 f s FIXED 60 9 SLIDING 60 0"), [""; 0]);
    assert_eq!(
        events(5, "RL.ALL 2 s f SLIDING 60 9 FIXED 60 9 ANCHORED"),
        ["zadd s", "expire s", "incrby f:60s", "expire f:60s"]
    );
}

fn every_rule_that_denies_fires_rl_denied(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.call::<Value>("RL.ACQUIRE l 1 60 a");
    client.call::<Value>("RL.FIXED f 60 1 ANCHORED");
    for (line, expected) in [
        ("RL.ACQUIRE l 1 60 b", "rl.denied l"),
        ("RL.FIXED f 60 1 ANCHORED", "rl.denied f"),
        ("RL.SLIDING s 60 1 COST 2 FORCE", "rl.denied s"),
        ("RL.ALL 3 l new f ACQUIRE 1 60 b SLIDING 60 5 FIXED 60 1 ANCHORED", "rl.denied l, rl.denied f"),
        ("RL.ALL 2 new l SLIDING 60 5 ACQUIRE 2 60 c", ""),
        ("RL.PEEK l ACQUIRE 1 60 z", ""),
        ("RL.REFUND s SLIDING 60 1", ""),
        ("RL.RELEASE l a c", ""),
    ] {
        let mut events = heard(&server, &mut client, "EAn", |client| _ = client.call::<Value>(line));
        events.retain(|event| event.starts_with("rl."));
        assert_eq!(events.join(", "), expected, "{line}");
    }
}
