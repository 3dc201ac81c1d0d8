//! A call that writes nothing leaves every value in the form in which the server keeps it: neither OBJECT ENCODING nor
//! MEMORY USAGE of any key changes, however the value has come there.

use redis::Value;

use super::{START, counter, frozen};
use crate::support::log::fill_log;
use crate::support::server::error_line;
use crate::support::{Client, Engine};
use crate::tests;

tests![
    a_look_at_a_throttle_keeps_the_encoding,
    a_denied_throttle_keeps_the_encoding,
    a_denied_fixed_with_several_windows_keeps_the_encodings,
    a_denied_fixed_with_a_cost_keeps_the_encoding,
    a_denied_sliding_keeps_the_encoding_of_a_compact_log,
    a_denied_sliding_keeps_the_encoding_of_a_sorted_set,
    a_refused_call_keeps_the_encodings,
    a_peek_keeps_the_encodings,
];

/// How a value has come to its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Origin {
    Set,
    SetKeepTtl,
    /// From the server's own snapshot.
    Reload,
    Restore,
    /// The module has written it.
    Module,
}

const PLANTED: [Origin; 4] = [Origin::Set, Origin::SetKeepTtl, Origin::Reload, Origin::Restore];
const EVERY: [Origin; 5] = [Origin::Set, Origin::SetKeepTtl, Origin::Reload, Origin::Restore, Origin::Module];

/// When planted values expire: as late as that of a log that the module has just written with a window of a minute.
const EXPIRES: i64 = START + 120_000;

/// Plants values in a way other than the module's.
fn plant(client: &mut Client, origin: Origin, values: &[(Vec<u8>, Vec<u8>)]) {
    let expires = EXPIRES.to_string();
    for (key, value) in values {
        client.run::<Value>(&[b"SET", &key[..], value, b"PXAT", expires.as_bytes()]);
        match origin {
            Origin::Set | Origin::Reload => {}
            Origin::SetKeepTtl => _ = client.run::<Value>(&[b"SET", &key[..], value, b"KEEPTTL"]),
            Origin::Restore => {
                let dump: Vec<u8> = client.run(&[b"DUMP", &key[..]]);
                let words = [b"RESTORE", &key[..], expires.as_bytes(), &dump, b"REPLACE", b"ABSTTL"];
                client.run::<Value>(&words);
            }
            Origin::Module => unreachable!("the module's values are written by calls"),
        }
    }
    if origin == Origin::Reload {
        client.run::<Value>(&["DEBUG", "RELOAD"]);
    }
}

/// Every key with its encoding and its memory.
fn forms(client: &mut Client) -> Vec<String> {
    let mut keys: Vec<Vec<u8>> = client.run(&["KEYS", "*"]);
    keys.sort();
    let form = |key: Vec<u8>| {
        let encoding: String = client.run(&[b"OBJECT", b"ENCODING".as_ref(), &key]);
        let memory: i64 = client.run(&[b"MEMORY", b"USAGE".as_ref(), &key]);
        format!("{}: {encoding}, {memory} bytes", key.escape_ascii())
    };
    keys.into_iter().map(form).collect()
}

/// Makes a call that writes nothing, twice. Gives its reply, or its error line.
fn writes_nothing(client: &mut Client, call: &str, place: &str) -> Result<Value, String> {
    let (forms_before, before) = (forms(client), client.everything());
    let words: Vec<&str> = call.split(' ').collect();
    client.try_run::<Value>(&words).ok();
    let reply = client.try_run(&words).map_err(|error| error_line(&error));
    assert_eq!(forms(client), forms_before, "{place}: {call}");
    assert_eq!(client.everything(), before, "{place}: {call}");
    reply
}

/// Makes calls that must be denied or, with RL.THROTTLE, limited.
fn denied(client: &mut Client, calls: &[&str], place: &str) {
    for call in calls {
        let reply = writes_nothing(client, call, place);
        let Ok(Value::Array(parts)) = &reply else { panic!("{place}: {call}: {reply:?}") };
        let denied = Value::Int(i64::from(call.starts_with("RL.THROTTLE")));
        assert_eq!(parts[0], denied, "{place}: {call}: {reply:?}");
    }
}

fn strings(values: &[(&str, &str)]) -> Vec<(Vec<u8>, Vec<u8>)> {
    values.iter().map(|(key, value)| (key.as_bytes().to_vec(), value.as_bytes().to_vec())).collect()
}

/// For each origin a server with the values, written by these calls where they are the module's own.
fn each_origin(engine: &Engine, own: &[&str], values: &[(Vec<u8>, Vec<u8>)], mut body: impl FnMut(&mut Client, &str)) {
    let (_server, mut client) = frozen(engine);
    for origin in EVERY {
        client.run::<Value>(&["FLUSHALL"]);
        match origin {
            Origin::Module => own.iter().for_each(|call| _ = client.call::<Value>(call)),
            _ => plant(&mut client, origin, values),
        }
        body(&mut client, &format!("{origin:?}"));
    }
}

/// An arrival time five minutes ahead: nothing is left of a burst of five at one a minute.
fn arrival() -> Vec<(Vec<u8>, Vec<u8>)> {
    strings(&[("k", &((START + 300_000) * 1_000_000).to_string())])
}

fn a_look_at_a_throttle_keeps_the_encoding(engine: &Engine) {
    each_origin(engine, &["RL.THROTTLE k 4 1 60 5"], &arrival(), |client, place| {
        for call in ["RL.THROTTLE k 4 1 60 0", "RL.THROTTLE k 0 1 60 0", "RL.THROTTLE k 999 1 60 0"] {
            assert!(writes_nothing(client, call, place).is_ok(), "{place}: {call}");
        }
    });
}

fn a_denied_throttle_keeps_the_encoding(engine: &Engine) {
    each_origin(engine, &["RL.THROTTLE k 4 1 60 5"], &arrival(), |client, place| {
        denied(client, &["RL.THROTTLE k 4 1 60", "RL.THROTTLE k 4 1 60 5", "RL.THROTTLE k 4 1 60 99"], place);
    });
}

/// Counters of a minute and of an hour. Those below 10,000 the server may share.
fn counters(minute: &str, hour: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    strings(&[(&counter("k", 60_000), minute), (&counter("k", 3_600_000), hour)])
}

fn a_denied_fixed_with_several_windows_keeps_the_encodings(engine: &Engine) {
    for units in ["9", "54321"] {
        let own = format!("RL.FIXED k 60 {units} 3600 {units} COST {units}");
        each_origin(engine, &[&own], &counters(units, units), |client, place| {
            let second = format!("RL.FIXED k 60 999999 3600 {units} FULL");
            let third = format!("RL.FIXED k 1 5 60 {units} 3600 999999");
            denied(client, &["RL.FIXED k 60 5 3600 5", &third], place);
            let reply = writes_nothing(client, &second, place);
            assert!(matches!(&reply, Ok(Value::Array(parts)) if parts[1] == Value::Int(0)), "{place}: {reply:?}");
        });
    }
}

fn a_denied_fixed_with_a_cost_keeps_the_encoding(engine: &Engine) {
    for units in ["9", "54321"] {
        let own = format!("RL.FIXED k 60 {units} COST {units}");
        each_origin(engine, &[&own], &counters(units, units)[..1], |client, place| {
            denied(client, &[&format!("RL.FIXED k 60 {units} COST 2"), "RL.FIXED k 60 1 COST 2"], place);
        });
    }
}

/// The bytes of a compact log with so many requests, each in a millisecond of its own.
fn compact_log(engine: &Engine, requests: i64) -> Vec<u8> {
    let (server, mut client) = frozen(engine);
    client.run::<Value>(&["CONFIG", "SET", "rl.sliding-storage", "compact"]);
    for request in 1 - requests..=0 {
        server.set_time(START + request);
        assert_eq!(client.sliding("k", "60", requests).0, 1);
    }
    client.run(&["GET", "k"])
}

fn a_denied_sliding_keeps_the_encoding_of_a_compact_log(engine: &Engine) {
    for requests in [1, 60] {
        let log = compact_log(engine, requests);
        let (server, mut client) = frozen(engine);
        client.run::<Value>(&["CONFIG", "SET", "rl.sliding-storage", "compact"]);
        for origin in EVERY {
            client.run::<Value>(&["FLUSHALL"]);
            if origin == Origin::Module {
                for request in 1 - requests..=0 {
                    server.set_time(START + request);
                    client.sliding("k", "60", requests);
                }
            } else {
                plant(&mut client, origin, &[(b"k".to_vec(), log.clone())]);
            }
            if requests == 1 && origin == Origin::Reload {
                assert_eq!(client.run::<String>(&["OBJECT", "ENCODING", "k"]), "embstr", "{} bytes", log.len());
            }
            let place = format!("{requests} requests, {origin:?}");
            let plain = format!("RL.SLIDING k 60 {requests}");
            let costly = format!("RL.SLIDING k 60 {} COST 1000", requests + 10);
            let several = format!("RL.SLIDING k 1 {requests} 60 {requests}");
            denied(&mut client, &[&plain, &costly, &several, &format!("{plain} COST 2")], &place);
        }
    }
}

fn a_denied_sliding_keeps_the_encoding_of_a_sorted_set(engine: &Engine) {
    // Few members lie in a listpack, many in a skiplist.
    for (requests, encoding) in [(3, "listpack"), (600, "skiplist")] {
        let (_server, mut client) = frozen(engine);
        client.run::<Value>(&["CONFIG", "SET", "rl.sliding-storage", "zset"]);
        for origin in EVERY {
            client.run::<Value>(&["FLUSHALL"]);
            if origin == Origin::Module {
                client.call::<Value>(&format!("RL.SLIDING k 60 {requests} COST {requests}"));
            } else {
                fill_log(&mut client, "k", START - requests, requests, 1);
                client.run::<Value>(&["PEXPIREAT", "k", &EXPIRES.to_string()]);
            }
            match origin {
                Origin::Reload => _ = client.run::<Value>(&["DEBUG", "RELOAD"]),
                Origin::Restore => {
                    let (dump, expires): (Vec<u8>, String) = (client.run(&["DUMP", "k"]), EXPIRES.to_string());
                    let words = [b"RESTORE", &b"k"[..], expires.as_bytes(), &dump, b"REPLACE", b"ABSTTL"];
                    client.run::<Value>(&words);
                }
                _ => {}
            }
            assert_eq!(client.run::<String>(&["OBJECT", "ENCODING", "k"]), encoding);
            let plain = format!("RL.SLIDING k 60 {requests}");
            let several = format!("RL.SLIDING k 1 {requests} 60 {requests}");
            let place = format!("{requests} requests, {origin:?}");
            denied(&mut client, &[&plain, &several, &format!("{plain} COST 2")], &place);
        }
    }
}

/// Values of which some command has to say that they are none of its own.
fn others(engine: &Engine) -> Vec<Vec<u8>> {
    let mut damaged = compact_log(engine, 1);
    let last = damaged.len() - 2;
    damaged[last] ^= 1;
    let later = b"RLS\x02later".to_vec();
    let mut values: Vec<Vec<u8>> = ["5", "123456", "-1", "9223372036854775807", "1.5", "x", "no number", ""]
        .map(|value| value.as_bytes().to_vec())
        .into();
    values.extend([vec![b'7'; 100], vec![b'x'; 2_000], damaged, later]);
    values
}

fn a_refused_call_keeps_the_encodings(engine: &Engine) {
    let values = others(engine);
    let (_server, mut client) = frozen(engine);
    let (minute, hour) = (counter("k", 60_000), counter("k", 3_600_000));
    let mut refused = 0;
    for origin in PLANTED {
        for value in &values {
            client.run::<Value>(&["FLUSHALL"]);
            let keys = ["k", &minute, "t"].map(|key| (key.as_bytes().to_vec(), value.clone()));
            // Beside it a counter that is one, of which the refused call may have read already.
            let sound = [(counter("k", 1_000).into_bytes(), b"4".to_vec()), (hour.clone().into_bytes(), b"4".to_vec())];
            plant(&mut client, origin, &[&keys[..], &sound].concat());
            let place = format!("{origin:?} of {}", value.escape_ascii());
            for call in [
                "RL.SLIDING k 60 5",
                "RL.SLIDING k 1 5 60 5 COST 2",
                "RL.FIXED k 60 5",
                "RL.FIXED k 60 1000 COST 2",
                "RL.FIXED k 1 5 60 5 3600 5",
                "RL.THROTTLE t 4 1 60",
                "RL.THROTTLE t 4 1 60 0",
                "RL.THROTTLE t 4 1 60 9",
            ] {
                // Some of these values are numbers, with which some of these calls can do something.
                if is_refused(&mut client, call) {
                    assert!(writes_nothing(&mut client, call, &place).is_err(), "{place}: {call}");
                    refused += 1;
                }
            }
        }
        // What RL.RESET refuses, it has looked at all the same.
        client.run::<Value>(&["FLUSHALL"]);
        plant(&mut client, origin, &strings(&[("k", "123456"), (&counter("k", 1_000), "5"), (&minute, "123456")]));
        client.run::<Value>(&["RPUSH", &hour, "x"]);
        assert!(writes_nothing(&mut client, "RL.RESET k 1 60 3600", &format!("{origin:?}")).is_err());
    }
    assert!(refused > 4 * 50, "{refused} calls refused");
}

/// Whether a call is refused on a copy of all that is there.
fn is_refused(client: &mut Client, call: &str) -> bool {
    let words: Vec<&str> = call.split(' ').collect();
    let keys: Vec<Vec<u8>> = client.run(&["KEYS", "*"]);
    for key in &keys {
        client.run::<Value>(&[b"COPY".as_ref(), key, key, b"DB", b"1", b"REPLACE"]);
    }
    client.run::<Value>(&["SELECT", "1"]);
    let refused = client.try_run::<Value>(&words).is_err();
    client.run::<Value>(&["FLUSHDB"]);
    client.run::<Value>(&["SELECT", "0"]);
    refused
}

fn a_peek_keeps_the_encodings(engine: &Engine) {
    let mut values = others(engine);
    values.extend([compact_log(engine, 1), compact_log(engine, 60)]);
    let (_server, mut client) = frozen(engine);
    let (minute, hour) = (counter("k", 60_000), counter("k", 3_600_000));
    let calls = [
        "RL.PEEK k SLIDING 60 5",
        "RL.PEEK k SLIDING 1 5 60 50 COST 3 FULL",
        "RL.PEEK k FIXED 60 5",
        "RL.PEEK k FIXED 60 200000 COST 3 FULL",
        "RL.PEEK k FIXED 60 5 3600 5",
    ];
    for origin in PLANTED {
        for value in &values {
            client.run::<Value>(&["FLUSHALL"]);
            let keys = ["k", &minute, &hour].map(|key| (key.as_bytes().to_vec(), value.clone()));
            plant(&mut client, origin, &keys);
            for call in calls {
                writes_nothing(&mut client, call, &format!("{origin:?} of {}", value.escape_ascii())).ok();
            }
        }
    }
    for storage in ["zset", "compact"] {
        client.run::<Value>(&["FLUSHALL"]);
        client.run::<Value>(&["CONFIG", "SET", "rl.sliding-storage", storage]);
        client.call::<Value>("RL.SLIDING k 60 5");
        client.call::<Value>("RL.FIXED k 60 5 3600 5 COST 3");
        for call in calls {
            assert!(writes_nothing(&mut client, call, &format!("the module's own, {storage}")).is_ok(), "{call}");
        }
    }
}
