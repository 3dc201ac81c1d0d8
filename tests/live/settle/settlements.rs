//! RL.SETTLE: the difference is given back or counted, once.

use super::super::{Reply, START, frozen};
use super::{each_rule, used};
use crate::support::Engine;
use crate::tests;
use redis::Value;

tests![
    less_is_given_back_and_more_is_counted,
    a_settlement_counts_once,
    a_hold_that_comes_after_its_settlement_is_refused,
    a_holder_that_is_not_known_is_charged,
    a_settlement_begins_a_log_that_takes_any_cost,
    a_settlement_that_is_refused_is_not_written_down,
    a_settlement_is_remembered_for_its_lease_and_a_minute_at_least,
];

fn less_is_given_back_and_more_is_counted(engine: &Engine) {
    each_rule(engine, |server, client, own, rule| {
        client.call::<Value>(&format!("{own} COST 100"));
        server.set_time(START + 1_000);
        client.call::<Value>(&format!("{own} COST 200 HOLD a 60"));
        client.call::<Value>(&format!("{own} COST 150 HOLD b 60"));
        server.set_time(START + 2_000);
        client.call::<Value>(&format!("{own} COST 40"));
        let ttl = if rule.starts_with("FIXED") { 3598 } else { 60 };
        assert_eq!(client.call::<Reply>(&format!("RL.SETTLE k {rule} HOLD a 60 ACTUAL 30")), (1, 320, ttl), "{rule}");
        assert_eq!(
            client.call::<Reply>(&format!("RL.SETTLE k {rule} HOLD b 60 COST 7 FORCE ACTUAL 950")),
            (1, 1120, ttl)
        );
        assert_eq!(used(client, rule), 1120, "{rule}");
        if own.starts_with("RL.SLIDING") {
            // What is more counts from now, the rest since it was held.
            server.set_time(START + 61_000);
            assert_eq!(client.full("RL.PEEK k SLIDING 60 1000 COST 0 FULL").used, 840, "{rule}");
        }
    });
}

fn a_settlement_counts_once(engine: &Engine) {
    each_rule(engine, |server, client, own, rule| {
        client.call::<Value>(&format!("{own} COST 200 HOLD a 60"));
        let settle = |actual: i64| format!("RL.SETTLE k {rule} HOLD a 60 ACTUAL {actual}");
        assert_eq!(client.call::<Reply>(&settle(50)).0, 1, "{rule}");
        let before = client.everything();
        for step in [0, 1, 59_999] {
            server.set_time(START + step);
            assert_eq!(client.call::<Reply>(&settle(50)).0, 3, "{rule}");
            assert_eq!(client.call::<Reply>(&settle(51)).0, 0, "{rule}");
        }
        server.set_time(START);
        assert_eq!(client.everything(), before, "{rule}");
        assert_eq!(used(client, rule), 50, "{rule}");
    });
}

fn a_hold_that_comes_after_its_settlement_is_refused(engine: &Engine) {
    each_rule(engine, |server, client, own, rule| {
        const LINE: &str = "ERR this hold is settled: a new request takes a new holder";
        assert_eq!(client.call::<Reply>(&format!("RL.SETTLE k {rule} HOLD a 90 ACTUAL 20")).0, 2, "{rule}");
        for step in [0, 89_999] {
            server.set_time(START + step);
            assert_eq!(client.refused(&format!("{own} COST 20 HOLD a 90")), LINE, "{rule}");
            assert_eq!(client.refused(&format!("{own} COST 21 HOLD a 90")), LINE, "{rule}");
            assert_eq!(client.refused(&format!("RL.PEEK k {rule} COST 20 HOLD a 90")), LINE, "{rule}");
        }
        server.set_time(START + 90_000);
        assert_eq!(client.call::<Reply>(&format!("{own} COST 20 HOLD a 90")).0, 1, "{rule}");
    });
}

fn a_holder_that_is_not_known_is_charged(engine: &Engine) {
    each_rule(engine, |server, client, own, rule| {
        let settle = |holder: &str, actual: i64| format!("RL.SETTLE k {rule} HOLD {holder} 60 ACTUAL {actual}");
        assert_eq!(client.call::<Reply>(&settle("a", 70)).0, 2, "{rule}");
        assert_eq!(client.call::<Reply>(&settle("a", 70)).0, 3, "{rule}");
        assert_eq!(client.call::<Reply>(&settle("b", 0)).0, 2, "{rule}");
        assert_eq!(used(client, rule), 70, "{rule}");
        // Whether it fits or not.
        assert_eq!(client.call::<Reply>(&settle("c", 999)).0, 2, "{rule}");
        assert_eq!(used(client, rule), 1069, "{rule}");
        // One that has ended by itself is given back, and then charged.
        client.call::<Value>(&format!("{own} COST 10 HOLD d 5 FORCE"));
        server.set_time(START + 5_000);
        assert_eq!(client.call::<Reply>(&settle("d", 4)).0, 2, "{rule}");
        assert_eq!(used(client, rule), 1073, "{rule}");
    });
}

fn a_settlement_begins_a_log_that_takes_any_cost(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    client.call::<Value>("CONFIG SET rl.sliding-storage auto");
    for actual in [1500, 500] {
        client.call::<Value>("FLUSHALL");
        let settle = format!("RL.SETTLE k SLIDING 60 10000 HOLD a 30 ACTUAL {actual}");
        assert_eq!(client.call::<Reply>(&settle), (2, actual, 60));
        assert_eq!(client.call::<Reply>("RL.SLIDING k 60 10000 COST 4000 HOLD b 30"), (1, actual, 60));
    }
}

fn a_settlement_that_is_refused_is_not_written_down(engine: &Engine) {
    each_rule(engine, |_server, client, own, rule| {
        let places: [Vec<u8>; 2] = [b"k".to_vec(), format!("k:{}", START / 3_600_000).into_bytes()];
        client.call::<Value>(&format!("{own} COST 20 HOLD a 30"));
        for place in &places {
            client.run::<Value>(&[b"DEL", &place[..]]);
            client.run::<Value>(&[b"RPUSH", &place[..], b"x"]);
        }
        for (holder, actual) in [("a", 20), ("a", 0), ("a", 30), ("b", 0), ("b", 9)] {
            let line = client.refused(&format!("RL.SETTLE k {rule} HOLD {holder} 30 ACTUAL {actual}"));
            assert!(line.starts_with("WRONGTYPE"), "{rule}: {line}");
        }
    });
}

fn a_settlement_is_remembered_for_its_lease_and_a_minute_at_least(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    for (lease, known) in [("1", 60_000), ("60", 60_000), ("90.5", 90_500)] {
        server.set_time(START);
        client.call::<Value>("FLUSHALL");
        let settle = format!("RL.SETTLE k FIXED 3600 100 HOLD a {lease} ACTUAL 5");
        assert_eq!(client.call::<Reply>(&settle).0, 2);
        assert_eq!(client.call::<i64>("PEXPIRETIME k:held"), START + (known + 999) / 1000 * 1000);
        server.set_time(START + known - 1);
        assert_eq!(client.call::<Reply>(&settle).0, 3, "{lease}");
        server.set_time(START + known);
        assert_eq!(client.call::<Reply>(&settle).0, 2, "{lease}");
        assert_eq!(used(&mut client, "FIXED 3600 100"), 10, "{lease}");
    }
}
