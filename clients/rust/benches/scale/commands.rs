//! Decisions of one core by command.

use std::fmt::Write;
use std::time::Duration;

use crate::load::{cost, drive, key, words};
use crate::support::{Has, Server};

const TIME: Duration = Duration::from_millis(1500);
/// The part of its time that a primary may be busy, on paper.
const LOAD: f64 = 0.7;
const KEYS: u64 = 10_000;

/// Each with the key's number in place of `K`.
const CALLS: [(&str, &str); 9] = [
    ("`INCR`", "INCR i:K"),
    ("`RL.FIXED`", "RL.FIXED f:K 60 10000000"),
    ("`RL.SLIDING`, sorted set, filling", "RL.SLIDING z:K 60 1000"),
    ("`RL.SLIDING … COST 1`, compact, filling", "RL.SLIDING c:K 60 1000 COST 1"),
    ("the same with `FULL`, as the packages ask", "RL.SLIDING c:K 60 1000 COST 1 FULL"),
    ("`RL.SLIDING`, denied", "RL.SLIDING d:K 60 0"),
    ("`RL.THROTTLE`", "RL.THROTTLE t:K 1000000 1000000 60"),
    ("`RL.ACQUIRE`, renewed", "RL.ACQUIRE a:K 16 120 me"),
    ("`RL.ALL` of three", "RL.ALL 3 x:K y:K z:K SLIDING 60 1000 COST 1 FIXED 60 10000000 ACQUIRE 16 120 me"),
];

pub async fn run(engine: &str) -> String {
    let server = Server::start(Has::Module).await;
    let info: String = server.run("INFO server").await;
    let version = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let version = version("valkey_version:").or_else(|| version("redis_version:")).unwrap_or_default().to_owned();
    let mut text = format!(
        "{engine} ({version}):\n\n| thousand decisions a second of one core | in pipelines of 32 | one at a time | ÷ INCR |\n\
         |---|--:|--:|--:|\n"
    );
    let (mut incr, mut million) = (None, None);
    for (name, call) in CALLS {
        let call = move |number| words(&call.replace('K', &key(number, KEYS).to_string()));
        drive(&server, 2, 32, TIME / 3, call).await;
        let piped = cost(&server, drive(&server, 4, 32, TIME, call)).await;
        let single = cost(&server, drive(&server, 32, 1, TIME, call)).await;
        let of_incr = *incr.get_or_insert(piped.micros());
        if name.contains("FULL") {
            million = Some(single);
        }
        let (piped, single, ratio) = (piped.thousands(), single.thousands(), piped.micros() / of_incr);
        writeln!(text, "| {name} | {piped:.0} | {single:.0} | {ratio:.1}× |").unwrap();
    }
    if let Some(cost) = million {
        let cores = 1e6 / (cost.thousands() * 1e3 * LOAD);
        let bytes: f64 = server.run("MEMORY USAGE c:0").await;
        let gigabits = |bytes: f64| bytes / cost.calls as f64 * 8.0 * 1e6 / 1e9;
        writeln!(
            text,
            "\nOn paper, a million decisions a second by `RL.SLIDING … FULL`, one at a time on each connection, with primaries \
             that are busy for {:.0} % of the time: {cores:.0} primaries with a core each ({:.0} dollars a month at 30 a core, and \
             as much again for a replica each), {:.1} Gbit a second to them and {:.1} from them, and {:.1} GB for ten million keys with \
             logs like these, of {bytes} bytes each.",
            LOAD * 100.0,
            cores * 30.0,
            gigabits(cost.bytes.0),
            gigabits(cost.bytes.1),
            bytes * 1e7 / 1e9,
        )
        .unwrap();
    }
    text + "\n"
}
