//! Compact logs of any length, sound or not, and what one call may move of them.

use super::super::START;
use super::{Hand, MOST_ENTRIES, Three, bare, commands_of, connect, log_of, pick, with_module};
use crate::support::compact::Entry;
use crate::support::log::fill_log;
use crate::support::memory::touched;
use crate::support::{Engine, compact};
use crate::tests;
use fastrand::Rng;

tests![
    a_long_stale_log_goes_as_the_modules_does,
    compact_logs_of_any_length_are_the_modules,
    damaged_logs_get_the_modules_lines,
    a_new_log_is_compact_where_the_call_has_a_cost,
    the_call_compacts_one_log_of_several,
    a_peek_copies_no_log_that_is_due_to_be_compacted,
    a_call_on_a_long_log_takes_few_commands,
];

fn a_long_stale_log_goes_as_the_modules_does(engine: &Engine) {
    let server = with_module(engine);
    let mut client = connect(&server, false);
    let other = Hand::script(&mut client);
    let mut three = Three::new(client, other);
    for set in ["m", "l", "b"] {
        fill_log(&mut three.client, &format!("{set}:s"), START - 1000, 2500, 0);
        fill_log(&mut three.client, &format!("{set}:s"), START + 9_000, 2, 1);
        // Ahead of the clock.
        fill_log(&mut three.client, &format!("{set}:s"), START + 1_000_000, 1500, 1);
        // None of its entries counts any more.
        fill_log(&mut three.client, &format!("{set}:gone"), START - 1000, 2500, 0);
        fill_log(&mut three.client, &format!("{set}:refunded"), START - 1000, 3, 1);
        let zadd = |key: &str, from: i64| {
            let words: Vec<String> =
                (0..1200).flat_map(|place| [(from + place).to_string(), format!("h{place}")]).collect();
            ["ZADD".to_owned(), format!("{set}:{key}")].into_iter().chain(words).collect::<Vec<_>>()
        };
        three.client.run::<i64>(&zadd("leases", START - 5_000));
        three.client.run::<i64>(&["ZADD", &format!("{set}:leases"), &(START + 90_000).to_string(), "alive"]);
        three.client.run::<i64>(&zadd("ended", START - 5_000));
    }
    server.set_time(START + 10_000);
    for line in [
        "sliding s 10 5",
        "sliding s 10 0",
        "sliding s 10 5 20 7 EACH",
        "sliding s 10 5",
        "sliding gone 10 0",
        "refund refunded SLIDING 1 5 AT 1",
        "refund refunded SLIDING 1 5",
        "acquire leases 1 60 me",
        "acquire leases 5 60 me",
        "release leases me",
        "acquire ended 0 60 me FULL",
    ] {
        three.line(line).expect("a reply");
    }
}

/// A log that the module has not written: its entries run up to about now, some are dead, and there may be a gap.
fn random_log(rng: &mut Rng, length: usize, now: i64) -> (Vec<Entry>, Vec<u8>) {
    let (bytes_each, heaviest) = [(1, 1), (2, 2), (11, 1 << 45)][rng.usize(..3)];
    let count = (length / bytes_each).max(1);
    let span = [count as i64 / 50 + 1, count as i64 * 2, 50][rng.usize(..3)];
    let newest = now + [0, 0, -5, -span / 3, span / 2][rng.usize(..5)];
    let mut stamps: Vec<u64> = (0..count).map(|_| (newest - rng.i64(0..=span)) as u64).collect();
    stamps.sort_unstable();
    let entries: Vec<Entry> =
        stamps.into_iter().map(|stamp| Entry { stamp, weight: rng.u64(1..=heaviest).min(1 << 43) }).collect();
    let dead = [0, 0, count / 5, rng.usize(..count)][rng.usize(..4)];
    let origin = [0, (1 << 53) - 9][rng.usize(..2)];
    let gap = [0, 0, 1, 64, 65, length / 8][rng.usize(..6)];
    let log = compact::write(&entries, dead, origin, gap);
    (entries, log)
}

/// A call on one log: its name and the words after the key.
fn call_on_log(rng: &mut Rng, entries: &[Entry]) -> (&'static str, String) {
    let span = (entries[entries.len() - 1].stamp - entries[0].stamp + 1) as i64;
    let window = [span / 2, span, span * 2][rng.usize(..3)].max(3);
    let seconds = |millis: i64| format!("{}.{:03}", millis / 1000, millis % 1000);
    let limit = [1_i64 << 50, (1 << 53) - 1, entries.len() as i64][rng.usize(..3)];
    let mut windows = format!("{} {limit}", seconds(window));
    if rng.u32(..3) == 0 {
        windows = format!("{} {} {windows}", seconds(window / 3), limit / 2);
    }
    let cost = [1, 1, 2, 1000, 1 << 30][rng.usize(..5)];
    let detail = pick(rng, &["", "FULL", "EACH"]);
    match rng.u32(..20) {
        0..11 => {
            ("sliding", format!("{windows} COST {cost} {} {detail}", if rng.u32(..5) == 0 { "FORCE" } else { "" }))
        }
        11..13 => ("peek", format!("SLIDING {windows} COST {cost} {detail}")),
        13..15 => {
            ("refund", format!("SLIDING {windows} COST {}", [1, 50, entries.len() as i64 / 3 + 1][rng.usize(..3)]))
        }
        15..19 => {
            let near = [5, 300, entries.len()][rng.usize(..3)].min(entries.len());
            let stamp = entries[entries.len() - rng.usize(1..=near)].stamp;
            ("refund", format!("SLIDING {windows} COST {cost} AT {stamp}"))
        }
        _ => ("all", format!("SLIDING {windows} COST {cost}")),
    }
}

/// Logs of one entry up to the longest one, with the clock going forward and back.
fn compact_logs_of_any_length_are_the_modules(engine: &Engine) {
    let server = with_module(engine);
    let mut client = connect(&server, false);
    let hands = [Hand::library(&mut client), Hand::script(&mut client)];
    let mut three = Three::new(client, hands[0].clone());
    let mut rng = three.rng.fork();
    let mut answered = 0;
    for round in 0..60 {
        three.other = hands[round % 2].clone();
        let length = match round {
            0 => 16 << 20,
            1 => 9 << 20,
            2..12 => rng.usize(20_000..200_000),
            _ => 1 << rng.u32(1..15),
        };
        let mut now = START + round as i64 * 1_000_000_000;
        server.set_time(now);
        let (entries, log) = random_log(&mut rng, (length as f64 * 0.93) as usize, now);
        if log.len() > 16 << 20 {
            continue;
        }
        three.plant_log("s", &log);
        for _ in 0..if length > 1 << 20 { 6 } else { 25 } {
            now += match rng.u32(..8) {
                0..4 => 0,
                4 => rng.i64(0..3),
                5 | 6 => rng.i64(0..=entries.len() as i64 / 50),
                _ => -rng.i64(0..=entries.len() as i64 / 10),
            };
            server.set_time(now);
            let (name, words) = call_on_log(&mut rng, &entries);
            answered += usize::from(three.call_on_logs(name, &["s"], &words).is_ok());
        }
    }
    assert!(answered > 700, "{answered} calls were answered");
}

/// Which bytes are refused, and what is read from the others.
fn damaged_logs_get_the_modules_lines(engine: &Engine) {
    let server = with_module(engine);
    let mut client = connect(&server, false);
    let hands = [Hand::library(&mut client), Hand::script(&mut client)];
    let mut three = Three::new(client, hands[0].clone());
    let mut rng = three.rng.fork();
    let (mut answered, mut refused) = (0, 0);
    for round in 0..400 {
        three.other = hands[round % 2].clone();
        let now = START + round as i64 * 1_000_000;
        server.set_time(now);
        let length = 1 << rng.u32(1..12);
        let (entries, mut log) = random_log(&mut rng, length, now);
        for _ in 0..rng.u32(1..4) {
            let place = rng.usize(..log.len());
            let near_the_end = log.len() - rng.usize(1..=log.len().min(30));
            match rng.u32(..8) {
                0 => log.truncate(place.max(1)),
                1 => log.extend((0..rng.usize(1..40)).map(|_| rng.u8(..))),
                2 => log[place..].iter_mut().take(10).for_each(|byte| *byte = 0xff),
                3 | 4 => log[near_the_end] = rng.u8(..),
                _ => log[place] ^= 1 << rng.u32(..8),
            }
        }
        if rng.u32(..4) > 0 {
            compact::seal(&mut log);
        }
        three.plant_log("s", &log);
        for _ in 0..6 {
            let (name, words) = call_on_log(&mut rng, &entries);
            match three.call_on_logs(name, &["s"], &words) {
                Ok(_) => answered += 1,
                Err(_) => refused += 1,
            }
        }
    }
    assert!(answered > 300 && refused > 300, "{answered} calls were answered, {refused} refused");
}

fn a_new_log_is_compact_where_the_call_has_a_cost(engine: &Engine) {
    let server = with_module(engine);
    let mut client = connect(&server, false);
    for hand in [Hand::library(&mut client), Hand::script(&mut client)] {
        for (line, kind) in [
            ("sliding k 60 5", "zset"),
            ("sliding k 60 5 COST 1", "string"),
            ("sliding k 60 5 cost 1 FULL", "string"),
            ("all k SLIDING 60 200000 COST 1800", "string"),
            ("all k SLIDING 60 5 FORCE", "zset"),
        ] {
            client.run::<i64>(&["DEL", "k"]);
            hand.call(&mut client, line).expect("a reply");
            for line in [line, "sliding k 60 9", "sliding k 60 9 COST 2"] {
                hand.call(&mut client, line).expect("a reply");
                assert_eq!(client.run::<String>(&["TYPE", "k"]), kind, "{hand:?}: {line}");
            }
        }
    }
}

/// RL.ALL moves the first log that could not grow otherwise, or else the first that is due.
fn the_call_compacts_one_log_of_several(engine: &Engine) {
    let server = with_module(engine);
    let mut client = connect(&server, false);
    let hands = [Hand::library(&mut client), Hand::script(&mut client)];
    let mut three = Three::new(client, hands[0].clone());
    let (full, due, small) = (log_of(MOST_ENTRIES, 100_000), log_of(3_000, 2_000), log_of(100, 0));
    for (logs, moves) in [
        ([&due, &due, &small], Ok([true, false, false])),
        ([&small, &due, &due], Ok([false, true, false])),
        ([&due, &full, &small], Ok([false, true, false])),
        ([&full, &small, &full], Err(())),
    ] {
        for hand in &hands {
            three.other = hand.clone();
            let keys = ["a", "b", "c"];
            keys.iter().zip(logs).for_each(|(key, log)| three.plant_log(key, log));
            let rule = "SLIDING 3600 90000000 COST 1 ";
            let reply = three.call_on_logs("all", &keys, &rule.repeat(3));
            let shorter = keys.map(|key| three.client.run::<usize>(&["STRLEN", &format!("l:{key}")]));
            let shorter = [0, 1, 2].map(|place| shorter[place] < logs[place].len());
            match moves {
                Ok(moves) => assert_eq!((reply.is_ok(), shorter), (true, moves), "{reply:?}"),
                Err(()) => assert!(reply.is_err_and(|line| line.contains("is full")) && shorter == [false; 3]),
            }
        }
    }
}

/// A copy shows in how much of its memory the server touches.
fn a_peek_copies_no_log_that_is_due_to_be_compacted(engine: &Engine) {
    let server = with_module(engine);
    let mut client = connect(&server, false);
    let hands = [Hand::Module, Hand::library(&mut client), Hand::script(&mut client)];
    let log = log_of(12_000_000, 4_000_000);
    let until = (START + 1_000_000).to_string();
    client.run::<()>(&[&b"SET"[..], b"k", &log, b"PXAT", until.as_bytes()]);
    for hand in hands {
        for line in ["peek k SLIDING 60 90000000", "peek k SLIDING 60 90000000 COST 7 HOLD me 5 FULL"] {
            // What the server does by itself meanwhile, such as making a client's buffer smaller, shows as well.
            let reads = [(); 3].map(|()| touched(&server, || _ = hand.call(&mut client, line).expect("a reply")));
            assert!(reads.into_iter().any(|read| read < log.len() as u64 / 4), "{hand:?} {line}: {reads:?} bytes");
        }
        // The call itself does copy it.
        let read = touched(&server, || _ = hand.call(&mut client, "sliding k 60 90000000").expect("a reply"));
        assert!(read > log.len() as u64 / 4, "{hand:?}: {read} bytes");
        client.run::<()>(&[&b"SET"[..], b"k", &log, b"PXAT", until.as_bytes()]);
    }
}

fn a_call_on_a_long_log_takes_few_commands(engine: &Engine) {
    let server = bare(engine, &[]);
    let mut client = connect(&server, false);
    let entries: Vec<Entry> =
        (0..3_000_000).map(|number| Entry { stamp: (START - 60_000 + number / 50) as u64, weight: 1 }).collect();
    let log = compact::write(&entries, 1_000, 0, 0);
    for hand in [Hand::library(&mut client), Hand::script(&mut client)] {
        let until = (START + 120_000).to_string();
        client.run::<()>(&[b"SET", b"k".as_ref(), &log, b"PXAT", until.as_bytes()]);
        for step in 0..20 {
            server.set_time(START + step);
            let (sent, ..) = commands_of(&mut client, |client| {
                hand.call(client, "sliding k 60 9000000 COST 7").expect("a reply");
            });
            assert!(sent <= 10, "{hand:?}: {sent} commands");
        }
    }
}
