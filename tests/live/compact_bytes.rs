//! Whatever bytes are at the key, RL.SLIDING and RL.PEEK reply an error or a count within its bounds, and an error changes
//! nothing.

use redis::Value;

use super::START;
use super::compact::compact;
use super::seeded;
use crate::support::compact::{Entry, write};
use crate::support::wire::{Reply, Wire, pack};
use crate::support::{Client, Engine, Server};
use crate::tests;

tests![
    a_string_that_is_no_log_is_of_the_wrong_type,
    a_log_of_a_later_version_is_left_alone,
    a_log_that_was_cut_or_extended_is_damaged,
    a_gap_of_any_length_is_sound,
    a_log_with_any_byte_changed_does_no_harm,
    random_bytes_do_no_harm,
    a_log_written_over_by_others_does_no_harm,
];

const WRONG_TYPE: &str = "WRONGTYPE Operation against a key holding the wrong kind of value";
const OTHER_VERSION: &str =
    "ERR rl: the log at this key was written by a later version of the module, which alone can read it";
const DAMAGED: &str = "ERR rl: the log at this key is damaged; RL.RESET removes it";

/// Calls on one key, of all forms. The log that they are made on was written with a window of a minute.
const CALLS: [&str; 7] = [
    "60 100000",
    "60 3 FULL",
    "60 1500 COST 700 FULL",
    "1 100 60 100000",
    "0.2 5 3 700 30 90000 COST 3 FULL",
    "0.5 1000",
    "1000000 9007199254740991 COST 65536 FULL",
];

struct Prober<'a> {
    server: &'a Server,
    client: Client,
    wire: Wire,
    /// Where the clock stands, in milliseconds from the start.
    time: i64,
    answered: usize,
    refused: usize,
}

impl<'a> Prober<'a> {
    fn new(server: &'a Server) -> Self {
        let mut client = server.client();
        client.run::<Value>(&["DEBUG", "SET-ACTIVE-EXPIRE", "0"]);
        Self { server, client, wire: Wire::open(server.port), time: 0, answered: 0, refused: 0 }
    }

    fn set_time(&mut self, time: i64) {
        self.time = time;
        self.server.set_time(START + time);
    }

    /// Stores bytes at the key, makes a call on them, and checks what must hold. Returns the error line, if the reply is
    /// an error.
    fn probe(&mut self, bytes: &[u8], call: &str) -> Option<String> {
        let expires = (START + 500_000).to_string();
        let words: Vec<&str> = call.split(' ').collect();
        let mut packed = Vec::new();
        pack(&mut packed, &[b"SET", b"k".as_ref(), bytes, b"PXAT", expires.as_bytes()]);
        let look = |packed: &mut Vec<u8>| {
            pack(packed, &["GET", "k"]);
            pack(packed, &["PEXPIRETIME", "k"]);
        };
        look(&mut packed);
        pack(&mut packed, &[&["RL.PEEK", "k", "SLIDING"], &words[..]].concat());
        look(&mut packed);
        pack(&mut packed, &[&["RL.SLIDING", "k"], &words[..]].concat());
        look(&mut packed);
        // The key can still be used or reset.
        for _ in 0..2 {
            pack(&mut packed, &["RL.SLIDING", "k", "60", "100000"]);
        }
        pack(&mut packed, &["RL.RESET", "k"]);
        pack(&mut packed, &["EXISTS", "k"]);
        self.wire.send(&packed);
        let mut next = || self.wire.receive();
        let place = format!("{call} at {} on {}", self.time, bytes.escape_ascii());
        assert_eq!(next(), Reply::Status("OK".to_owned()));
        let before = (next(), next());
        assert_eq!(before, (Reply::Bulk(Some(bytes.to_vec())), Reply::Integer(START + 500_000)), "{place}");
        let peeked = next();
        assert_eq!((next(), next()), before, "RL.PEEK changes nothing: {place}");
        let reply = next();
        let after = (next(), next());
        let later = [next(), next()];
        let removed = (next(), next());
        assert_eq!(removed.1, Reply::Integer(0), "{place}");
        for reply in [&peeked, &reply, &later[0], &later[1]] {
            check(reply, call, &place);
        }
        match &reply {
            Reply::Error(line) => {
                assert_eq!(after, before, "an error changes nothing: {place}");
                assert_eq!(removed.0, Reply::Integer(1), "RL.RESET removes it: {place}");
                self.refused += 1;
                Some(line.clone())
            }
            _ => {
                assert_eq!(peeked, reply, "RL.PEEK says what the call replies: {place}");
                self.answered += 1;
                None
            }
        }
    }

    fn end(mut self) {
        assert_eq!(self.client.info_field("rl", "rl_panics"), "0");
        assert_eq!(self.client.run::<i64>(&["DBSIZE"]), 0);
    }
}

/// A reply within the contract's bounds, or one of the lines.
fn check(reply: &Reply, call: &str, place: &str) {
    let windows = call.split(' ').take_while(|word| !word.starts_with(char::is_alphabetic)).step_by(2);
    let longest = windows.last().map_or(0.0, |window| window.parse::<f64>().expect("a number")) * 1000.0;
    let numbers = |parts: &[Reply]| -> Vec<i64> {
        parts.iter().filter_map(|part| if let Reply::Integer(number) = part { Some(*number) } else { None }).collect()
    };
    match reply {
        Reply::Error(line) => assert!([WRONG_TYPE, OTHER_VERSION, DAMAGED].contains(&&**line), "{line}: {place}"),
        Reply::Array(parts) => match numbers(parts)[..] {
            [allowed, count, ttl] => {
                assert!((0..=1).contains(&allowed) && (0..1 << 48).contains(&count) && ttl > 0, "{reply:?}: {place}");
            }
            [allowed, limit, used, remaining, retry, next, reset, window, _at] => {
                assert!((0..=1).contains(&allowed) && (0..1 << 49).contains(&used), "{reply:?}: {place}");
                assert_eq!(remaining, (limit - used).max(0), "{reply:?}: {place}");
                assert_eq!(retry == 0, allowed == 1, "{reply:?}: {place}");
                // A stamp lies ahead by the longest window or an hour at most, and counts for a window from then.
                let most = (longest as i64).max(3_600_000) + window;
                assert!((-1..=most).contains(&retry) && (0..=most).contains(&reset), "{reply:?}: {place}");
                assert!((-1..=reset).contains(&next) && (next == 0) == (used == 0), "{reply:?}: {place}");
            }
            _ => panic!("{reply:?}: {place}"),
        },
        _ => panic!("{reply:?}: {place}"),
    }
}

/// Real logs: of one request, of a few, and of more than three blocks with dead entries at the front.
fn logs(server: &Server, client: &mut Client) -> [Vec<u8>; 3] {
    client.sliding("one", "60", 5);
    for call in 0..300 {
        server.set_time(START + call * 200);
        if call % 60 == 0 {
            client.run::<Value>(&["RL.SLIDING", "few", "60", "1000", "COST", &(call + 1).to_string()]);
        }
        for _ in 0..4 {
            let cost = if call % 7 == 0 { "3" } else { "1" };
            client.run::<Value>(&["RL.SLIDING", "many", "60", "100000", "COST", cost]);
        }
    }
    server.set_time(START + 64_000);
    client.sliding("many", "60", 100_000);
    let logs = ["one", "few", "many"].map(|key| client.run::<Vec<u8>>(&["GET", key]));
    assert!(logs[1].len() < 100 && logs[2].len() > 4 + 3 * 256, "{:?}", logs.each_ref().map(Vec::len));
    client.run::<Value>(&["FLUSHALL"]);
    logs
}

/// Times of calls: all requests count, some have expired, all have, and the clock was stepped back.
const TIMES: [i64; 6] = [59_800, 64_000, 75_000, 100_000, 200_000, 20_000];

fn a_string_that_is_no_log_is_of_the_wrong_type(engine: &Engine) {
    let (server, mut client) = compact(engine);
    client.run::<i64>(&["PFADD", "hyperloglog", "a", "b", "c"]);
    client.run::<Value>(&["RL.THROTTLE", "throttle", "15", "30", "60"]);
    let mut strings: Vec<Vec<u8>> =
        ["hyperloglog", "throttle"].map(|key| client.run::<Vec<u8>>(&["GET", key])).to_vec();
    strings.extend(["", "R", "RL", "RLS", "12345", "-1", "rls\u{1}", "SLR\u{1}", "hello, world"].map(Into::into));
    strings.push(b"1".repeat(2000));
    strings.push(vec![0; 5000]);
    client.run::<Value>(&["FLUSHALL"]);
    let mut prober = Prober::new(&server);
    for bytes in &strings {
        for call in CALLS {
            assert_eq!(prober.probe(bytes, call).as_deref(), Some(WRONG_TYPE), "{}", bytes.escape_ascii());
        }
    }
    prober.end();
    // Other types than strings are refused as usual.
    client.run::<i64>(&["RPUSH", "list", "a"]);
    assert_eq!(client.error(&["RL.SLIDING", "list", "60", "5"]), WRONG_TYPE);
    assert_eq!(client.error(&["RL.PEEK", "list", "SLIDING", "60", "5"]), WRONG_TYPE);
    // A counter that RL.SLIDING has refused still counts.
    client.run::<Value>(&["SET", "number", "41"]);
    client.error(&["RL.SLIDING", "number", "60", "5"]);
    assert_eq!(client.run::<i64>(&["INCR", "number"]), 42);
}

fn a_log_of_a_later_version_is_left_alone(engine: &Engine) {
    let (server, mut client) = compact(engine);
    let logs = logs(&server, &mut client);
    let mut prober = Prober::new(&server);
    for version in [0, 2, 3, 255] {
        for log in &logs {
            let mut other = log.clone();
            other[3] = version;
            for call in CALLS {
                assert_eq!(prober.probe(&other, call).as_deref(), Some(OTHER_VERSION));
            }
        }
        assert_eq!(prober.probe(&[b'R', b'L', b'S', version], CALLS[0]).as_deref(), Some(OTHER_VERSION));
    }
    prober.end();
}

fn a_log_that_was_cut_or_extended_is_damaged(engine: &Engine) {
    let (server, mut client) = compact(engine);
    let logs = logs(&server, &mut client);
    let mut prober = Prober::new(&server);
    prober.set_time(64_000);
    let mut passed = 0;
    for log in &logs {
        for length in 3..log.len() {
            let cut = &log[..length];
            match prober.probe(cut, CALLS[length % CALLS.len()]).as_deref() {
                Some(line) => assert_eq!(line, if length == 3 { WRONG_TYPE } else { DAMAGED }),
                None => passed += 1,
            }
        }
        for more in [&b"\0"[..], b"\r", b"x", &[0; 300], log] {
            passed += usize::from(prober.probe(&[log, more].concat(), CALLS[0]).is_none());
        }
        passed += usize::from(prober.probe(&log[1..], CALLS[0]).is_none());
    }
    // One random check in 65,521 is right.
    assert!(passed <= 1, "{passed} pass for logs");
    prober.end();
}

/// The bytes between the last entry and the footer are dead, whatever they are and however many.
fn a_gap_of_any_length_is_sound(engine: &Engine) {
    let (server, _client) = compact(engine);
    let mut prober = Prober::new(&server);
    for gap in [0, 1, 14, 15, 63, 64, 65, 127, 128, 255, 256, 257, 5_000] {
        let log = write(&[Entry { stamp: START as u64, weight: 1 }], 0, 0, gap);
        for call in CALLS {
            assert_eq!(prober.probe(&log, call), None, "{gap} bytes");
        }
    }
    prober.end();
}

fn a_log_with_any_byte_changed_does_no_harm(engine: &Engine) {
    let (server, mut client) = compact(engine);
    let logs = logs(&server, &mut client);
    let (mut rng, _) = seeded();
    let mut prober = Prober::new(&server);
    for (number, time) in TIMES.into_iter().enumerate() {
        prober.set_time(time);
        for log in &logs {
            for call in CALLS {
                assert_eq!(prober.probe(log, call), None, "it is sound as it is");
            }
            for place in 0..log.len() {
                for change in [1 << rng.u32(..8), 0xff, rng.u8(1..)] {
                    let mut changed = log.clone();
                    changed[place] ^= change;
                    let line = prober.probe(&changed, CALLS[(place + number) % CALLS.len()]);
                    if place < 3 {
                        assert_eq!(line.as_deref(), Some(WRONG_TYPE));
                    }
                }
            }
        }
    }
    assert!(prober.answered > 1000 && prober.refused > 1000, "{} and {}", prober.answered, prober.refused);
    prober.end();
}

fn random_bytes_do_no_harm(engine: &Engine) {
    let (server, mut client) = compact(engine);
    let logs = logs(&server, &mut client);
    let (mut rng, _) = seeded();
    let mut prober = Prober::new(&server);
    prober.set_time(64_000);
    for number in 0..6000 {
        let call = CALLS[number % CALLS.len()];
        let mut bytes = b"RLS\x01".to_vec();
        match rng.u32(..3) {
            0 => {
                let length = [rng.usize(..40), rng.usize(..2000)][rng.usize(..2)];
                bytes.extend((0..length).map(|_| rng.u8(..)));
            }
            // Random entries after the head of a block, and a footer that is right for their length.
            1 => {
                let log = &logs[1 + rng.usize(..2)];
                let footer = usize::from(*log.last().unwrap());
                let mut changed = log.clone();
                let end = log.len() - footer;
                let begin = rng.usize(4..end);
                let kind = rng.u32(..3);
                for byte in &mut changed[begin..rng.usize(begin..end) + 1] {
                    *byte = match kind {
                        0 => rng.u8(..),
                        1 => 0xff,
                        _ => rng.u8(..128),
                    };
                }
                bytes = changed;
            }
            // Parts of two logs.
            _ => {
                let (log, other) = (&logs[rng.usize(..3)], &logs[rng.usize(..3)]);
                bytes = [&log[..rng.usize(4..log.len())], &other[rng.usize(4..other.len())..]].concat();
            }
        }
        prober.probe(&bytes, call);
    }
    assert!(prober.answered > 500 && prober.refused > 500, "{} and {}", prober.answered, prober.refused);
    prober.end();
}

/// Clients write into a log between the module's calls, which go on.
fn a_log_written_over_by_others_does_no_harm(engine: &Engine) {
    let (server, mut client) = compact(engine);
    let (mut rng, seed) = seeded();
    let mut wire = Wire::open(server.port);
    let mut now = START;
    for round in 0..400 {
        now += rng.i64(-3_000..20_000);
        server.set_time(now);
        let mut packed = Vec::new();
        let mut sent = Vec::new();
        for _ in 0..30 {
            let offset = rng.usize(..900).to_string();
            let bytes: Vec<u8> = (0..rng.usize(1..4)).map(|_| rng.u8(..)).collect();
            let call = CALLS[rng.usize(..CALLS.len())];
            match rng.u32(..40) {
                0 => pack(&mut packed, &[b"SETRANGE", b"k".as_ref(), offset.as_bytes(), &bytes]),
                1 => pack(&mut packed, &[b"APPEND", b"k".as_ref(), &bytes]),
                2 => pack(&mut packed, &["RL.RESET", "k"]),
                _ => pack(&mut packed, &[&["RL.SLIDING", "k"], &call.split(' ').collect::<Vec<_>>()[..]].concat()),
            }
            sent.push(call);
        }
        wire.send(&packed);
        for call in sent {
            match wire.receive() {
                Reply::Integer(_) => {}
                reply => check(&reply, call, &format!("seed {seed}, round {round}")),
            }
        }
    }
    assert_eq!(client.info_field("rl", "rl_panics"), "0");
}
