//! Long random histories, the module beside the scripts on one frozen server: the same replies, the same state.

use fastrand::Rng;

use super::{FIXED_SCRIPT, SLIDING_SCRIPT, START, frozen, seeded};
use crate::support::{Client, Engine};
use crate::tests;

tests![
    sliding_is_the_script: both_storages,
    fixed_is_the_script,
];

const STEPS: usize = 3000;

/// A step of a history: how far the clock moves, and which limit is called.
struct Step {
    ahead: i64,
    key: usize,
    window: i64,
    limit: i64,
}

impl Step {
    fn random(rng: &mut Rng) -> Self {
        let ahead = match rng.u32(..100) {
            0..50 => 0, // Bursts within a millisecond.
            50..80 => rng.i64(0..50),
            80..95 => rng.i64(0..2_000),
            95..99 => rng.i64(0..30_000),
            _ => rng.i64(0..200_000),
        };
        Self {
            ahead,
            key: rng.usize(..4),
            window: *rng.choice([1, 2, 5, 60].iter()).expect("one of four"),
            limit: *rng.choice([0, 1, 3, 5, 40, 1000].iter()).expect("one of six"),
        }
    }
}

fn sliding_is_the_script(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let (mut rng, seed) = seeded();
    let mut now = START;
    let mut expiries = [(i64::MAX, i64::MAX); 4];
    for number in 0..STEPS {
        let step = Step::random(&mut rng);
        now += step.ahead;
        server.set_time(now);
        let place = format!("seed {seed}, step {number}");
        let (ours, theirs) = (format!("ours:{}", step.key), format!("theirs:{}", step.key));
        let window = step.window.to_string();
        // The module's expiry may lag behind the script's. Between the two, one key is gone and the other is not, which a
        // longer window would see. The server keeps a key through the millisecond of its expiry.
        let (our_end, their_end) = expiries[step.key];
        if our_end < now && now <= their_end {
            client.run::<i64>(&["DEL", &theirs]);
        }
        let expected = client.script(SLIDING_SCRIPT, &theirs, &window, step.limit);
        assert_eq!(client.sliding(&ours, &window, step.limit), expected, "{place}");

        if !engine.compact {
            assert_eq!(client.stamps(&ours), client.stamps(&theirs), "{place}");
        }
        let [ours, theirs] = [ours, theirs].map(|key| client.run::<i64>(&["PEXPIRETIME", &key]));
        let bound = (step.window * 100).min(1000);
        assert!((0..=bound).contains(&(theirs - ours)), "{place}: expires at {ours}, the script's at {theirs}");
        expiries[step.key] = (ours, theirs);
    }
}

fn fixed_is_the_script(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let (mut rng, seed) = seeded();
    let mut now = START;
    for number in 0..STEPS {
        let step = Step::random(&mut rng);
        now += step.ahead;
        server.set_time(now);
        let place = format!("seed {seed}, step {number}");
        let (ours, theirs) = (format!("ours:{}", step.key), format!("theirs:{}", step.key));
        let window = step.window.to_string();
        let expected = client.script(FIXED_SCRIPT, &theirs, &window, step.limit);
        assert_eq!(client.fixed(&ours, &window, step.limit), expected, "{place}");
        if number % 50 == 0 {
            assert_eq!(counters(&mut client, "ours"), counters(&mut client, "theirs"), "{place}");
        }
    }
    assert_eq!(counters(&mut client, "ours"), counters(&mut client, "theirs"), "seed {seed}");
}

/// Every counter below a prefix with its value and its expiry.
fn counters(client: &mut Client, prefix: &str) -> Vec<(String, i64, i64)> {
    let mut keys: Vec<String> = client.run(&["KEYS", &format!("{prefix}:*")]);
    keys.sort();
    keys.into_iter()
        .filter_map(|key| {
            // Redis 8.6 lists keys that expire at that very moment.
            let value: Option<i64> = client.run(&["GET", &key]);
            let expires = client.run(&["PEXPIRETIME", &key]);
            Some((key[prefix.len()..].to_owned(), value?, expires))
        })
        .collect()
}
