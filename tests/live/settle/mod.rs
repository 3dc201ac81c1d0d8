//! HOLD and RL.SETTLE: units that are counted before their number is known, and settled once.

pub mod all;
pub mod effects;
pub mod ended;
pub mod histories;
pub mod requests;
pub mod settlements;
use super::{START, frozen};
use crate::support::{Client, Engine, Server};
use redis::Value;

/// Rules with room for some hundred units.
const RULES: [&str; 3] = ["SLIDING 60 1000", "SLIDING 60 500 3600 1000", "FIXED 3600 1000"];

fn held(client: &mut Client) -> Vec<(String, i64)> {
    client.log("k:held")
}

/// The units in use by a rule.
fn used(client: &mut Client, rule: &str) -> i64 {
    client.full(&format!("RL.PEEK k {rule} COST 0 FULL")).used
}

/// Each rule, on a server of its own, in both storages.
fn each_rule(engine: &Engine, body: impl Fn(&Server, &mut Client, &str, &str)) {
    for storage in ["zset", "compact"] {
        let (server, mut client) = frozen(engine);
        client.call::<Value>(&format!("CONFIG SET rl.sliding-storage {storage}"));
        for rule in RULES {
            server.set_time(START);
            client.call::<Value>("FLUSHALL");
            let (name, _) = rule.split_once(' ').expect("a name");
            let own = format!("RL.{name} k {}", &rule[name.len() + 1..]);
            body(&server, &mut client, &own, rule);
        }
    }
}

/// The reply of RL.PEEK, which changes nothing.
fn peeked(client: &mut Client, call: &str) -> Value {
    let before = client.everything();
    let told = client.call(call);
    assert_eq!(client.everything(), before, "{call}");
    told
}

fn held_score(hash: i64) -> i64 {
    (1 << 50) + hash
}
