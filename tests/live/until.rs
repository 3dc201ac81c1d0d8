//! RL.FIXED with @ms: windows that end at a time which the caller has worked out.

use redis::Value;

use super::replication::propagated;
use super::{Full, Reply, START, frozen};
use crate::support::Engine;
use crate::tests;

tests![
    a_counter_at_key_ms_that_outlives_its_window_by_an_hour,
    waits_end_with_the_window,
    a_window_that_has_ended_is_refused_and_left_alone,
    it_comes_after_plain_windows,
    several_windows_are_all_or_nothing,
    what_is_not_accepted,
    a_counter_without_expiry_gets_one,
    effects_are_plain_commands,
    a_refund_goes_by_the_name,
    rules_of_all_that_share_a_window,
    a_reset_takes_ends,
];

/// The end of a month.
const END: i64 = START + 2_500_000_000;

fn a_counter_at_key_ms_that_outlives_its_window_by_an_hour(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    assert_eq!(client.call::<Reply>(&format!("RL.FIXED k @{END} 2")), (1, 1, 2_500_000));
    let place = format!("k:@{END}");
    assert_eq!(client.run::<Vec<String>>(&["KEYS", "*"]), [&*place]);
    assert_eq!(client.run::<i64>(&["PEXPIRETIME", &place]), END + 3_600_000);
    server.set_time(START + 1_000_500);
    assert_eq!(client.call::<Reply>(&format!("RL.FIXED k @{END} 2")), (1, 2, 2_499_000));
    // The plain form counts its denials.
    assert_eq!(client.call::<Reply>(&format!("RL.FIXED k @{END} 2")), (0, 3, 2_499_000));
    assert_eq!(client.call::<Reply>(&format!("RL.FIXED k @{END} 2 COST 2")), (0, 3, 2_499_000));
    assert_eq!(client.run::<i64>(&["PEXPIRETIME", &place]), END + 3_600_000);
    assert_eq!(client.run::<String>(&["GET", &place]), "3");
}

fn waits_end_with_the_window(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let call = format!("RL.FIXED k @{END} 3 COST 3 FULL");
    let left = END - START;
    let full = Full { allowed: true, limit: 3, used: 3, remaining: 0, retry: 0, next: left, reset: left, window: 0 };
    assert_eq!(client.full(&call), full);
    server.set_time(END - 1);
    let last = Full { allowed: false, retry: 1, next: 1, reset: 1, ..full };
    assert_eq!(client.full(&call), last);
    assert_eq!(client.call::<Reply>(&format!("RL.PEEK k FIXED @{END} 3")), (0, 4, 0));
    // A cost above the limit never fits.
    assert_eq!(client.full(&format!("RL.PEEK k FIXED @{END} 3 COST 4 FULL")).retry, -1);
    // The next period is another counter.
    server.set_time(END);
    assert_eq!(client.call::<Reply>(&format!("RL.FIXED k @{} 3 COST 3", END + 60_000)), (1, 3, 60));
}

fn a_window_that_has_ended_is_refused_and_left_alone(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.call::<Value>(&format!("RL.FIXED k @{END} 5 COST 3"));
    for now in [END, END + 1, END + 3_599_000] {
        server.set_time(now);
        for call in [
            format!("RL.FIXED k @{END} 5"),
            format!("RL.FIXED k 60 9 @{END} 5 @{} 7", END + 9_000_000),
            format!("RL.PEEK k FIXED @{END} 5"),
            format!("RL.PEEK k FIXED @{END} 5 COST 0 FULL"),
            format!("RL.ALL 1 k FIXED @{END} 5"),
        ] {
            assert_eq!(client.refused(&call), "ERR the window has ended", "{call}");
        }
        let before = client.everything();
        assert_eq!(client.call::<Reply>(&format!("RL.REFUND k FIXED @{END} 5 COST 3")), (0, 0, 0));
        assert_eq!(client.everything(), before);
    }
    // A window that is over after a step of the clock can still be counted.
    server.set_time(END - 1);
    assert_eq!(client.call::<Reply>(&format!("RL.FIXED k @{END} 5")), (1, 4, 0));
}

fn it_comes_after_plain_windows(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let rule = format!("60 9 2147483647 90 @{END} 50 @{} 60", END + 1);
    assert_eq!(client.call::<Reply>(&format!("RL.FIXED k {rule} COST 2")), (1, 2, 60));
    for rule in [format!("@{END} 5 60 9"), format!("@{END} 5 @{END} 9"), format!("@{END} 5 @{} 9", END - 1)] {
        let line = client.refused(&format!("RL.FIXED k {rule}"));
        assert_eq!(line, "ERR windowSec must increase from one window to the next", "{rule}");
    }
    let many: Vec<String> = (0..17).map(|number| format!("@{} 5", END + number)).collect();
    let line = client.refused(&format!("RL.FIXED k {}", many.join(" ")));
    assert_eq!(line, "ERR windowSec and limit can be given for at most 16 windows");
    assert_eq!(client.call::<Reply>(&format!("RL.FIXED k {}", many[..16].join(" "))), (1, 3, 2_500_000));
}

fn several_windows_are_all_or_nothing(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let call = format!("RL.FIXED k 60 2 @{END} 3");
    assert_eq!(client.call::<Reply>(&call), (1, 1, 60));
    assert_eq!(client.call::<Reply>(&call), (1, 2, 60));
    assert_eq!(client.unchanged_by(&call), (0, 2, 60));
    let each: Vec<Value> = client.call(&format!("RL.FIXED l 60 2 @{END} 3 COST 2 EACH"));
    let each: Vec<Full> = each.iter().map(Full::of).collect();
    assert_eq!([each[0].window, each[1].window], [60_000, 0]);
    assert_eq!([each[0].reset, each[1].reset], [60_000, END - START]);
}

fn what_is_not_accepted(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    const BAD: &str = "ERR @ms must be a unix time in milliseconds, an integer from 0 to 9007199254740991";
    const FAR: &str = "ERR @ms must be at most 2147483647 seconds ahead";
    for word in ["@", "@x", "@-1", "@01", "@1.5", "@9007199254740992", "@18446744073709551616"] {
        assert_eq!(client.refused(&format!("RL.FIXED k {word} 5")), BAD, "{word}");
        assert_eq!(client.refused(&format!("RL.FIXED k 60 5 {word} 5")), BAD, "{word}");
        assert_eq!(client.refused(&format!("RL.RESET k {word}")), BAD, "{word}");
    }
    let far = START + 2_147_483_647_000;
    assert_eq!(client.call::<Reply>(&format!("RL.PEEK k FIXED @{far} 5")), (1, 1, 2_147_483_647));
    for call in ["RL.FIXED k", "RL.PEEK k FIXED", "RL.REFUND k FIXED", "RL.ALL 1 k FIXED"] {
        assert_eq!(client.refused(&format!("{call} @{} 5", far + 1)), FAR, "{call}");
        assert_eq!(client.refused(&format!("{call} @9007199254740991 5")), FAR, "{call}");
    }
    assert_eq!(client.refused(&format!("RL.FIXED k @{END} 5 ANCHORED")), "ERR ANCHORED takes no @ms");
    assert_eq!(client.refused(&format!("RL.FIXED k 60 5 @{END} 5 ANCHORED")), "ERR ANCHORED takes no @ms");
    let window = "ERR windowSec must be a number of seconds from 0.001 to 2147483647 with at most three decimal places";
    assert_eq!(client.refused(&format!("RL.SLIDING k @{END} 5")), window);
    assert_eq!(client.refused(&format!("RL.SLIDING k 60 5 @{END} 5")), window);
    assert_eq!(
        client.refused(&format!("RL.FIXED k @{END} x")),
        "ERR limit must be an integer from 0 to 9007199254740991"
    );
    assert!(client.refused(&format!("RL.FIXED k 60 5 @{END}")).starts_with("ERR wrong number of arguments"));
}

fn a_counter_without_expiry_gets_one(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    let place = format!("k:@{END}");
    for call in
        [format!("RL.FIXED k @{END} 5"), format!("RL.FIXED k @{END} 5 COST 9"), format!("RL.ALL 1 k FIXED @{END} 5")]
    {
        client.run::<Value>(&["SET", &place, "1"]);
        server.set_time(START + 1000);
        client.call::<Value>(&call);
        assert_eq!(client.run::<i64>(&["PEXPIRETIME", &place]), END + 3_600_000, "{call}");
    }
}

fn effects_are_plain_commands(engine: &Engine) {
    let sent = propagated(engine, |server, client| {
        client.call::<Value>(&format!("RL.FIXED k @{END} 5 COST 4"));
        server.set_time(START + 1000);
        client.call::<Value>(&format!("RL.FIXED k @{END} 5"));
        // One that was given back as a whole keeps its expiry.
        client.call::<Value>(&format!("RL.REFUND k FIXED @{END} 5 COST 9"));
        client.call::<Value>(&format!("RL.FIXED k @{END} 5"));
    });
    let place = format!("k:@{END}");
    let begun = format!("SET {place} 4 PXAT {}", END + 3_600_000);
    assert_eq!(sent, [begun, format!("INCR {place}"), format!("INCRBY {place} -5"), format!("INCR {place}")]);
}

fn a_refund_goes_by_the_name(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.call::<Value>(&format!("RL.FIXED k 60 50 @{END} 50 COST 20"));
    server.set_time(START + 120_000);
    // The minute is over; of the period nobody but the caller knows when it began.
    let refund = |at: i64| format!("RL.REFUND k FIXED 60 50 @{END} 50 COST 5 AT {at}");
    assert_eq!(client.call::<Reply>(&refund(START)), (5, 0, 60));
    assert_eq!(client.call::<Reply>(&refund(START - 900_000_000)), (5, 0, 60));
    assert_eq!(client.call::<Reply>(&format!("RL.REFUND k FIXED @{END} 50 COST 100")), (10, 0, 2_499_880));
    server.set_time(END);
    assert_eq!(client.call::<Reply>(&refund(START)), (0, 0, 60));
}

fn rules_of_all_that_share_a_window(engine: &Engine) {
    let (_server, mut client) = frozen(engine);
    let all: (i64, i64, i64, i64) = client.call(&format!("RL.ALL 2 a b FIXED @{END} 5 FIXED 60 3 @{END} 9"));
    assert_eq!(all, (1, 1, 2, 0));
    let line = client.refused(&format!("RL.ALL 2 a a:@{END} FIXED @{END} 5 THROTTLE 4 30 60"));
    assert_eq!(line, "ERR two rules of RL.ALL would share a counter");
}

fn a_reset_takes_ends(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.call::<Value>(&format!("RL.FIXED k 60 50 @{END} 50 @{} 50", END + 1));
    assert_eq!(client.call::<i64>(&format!("RL.RESET k 60 @{END}")), 2);
    assert_eq!(client.run::<Vec<String>>(&["KEYS", "*"]), [format!("k:@{}", END + 1)]);
    server.set_time(END + 5);
    assert_eq!(client.call::<i64>(&format!("RL.RESET k @{}", END + 1)), 1);
    for words in [format!("@{END} 60"), format!("@{END} @{END}")] {
        let line = client.refused(&format!("RL.RESET k {words}"));
        assert_eq!(line, "ERR windowSec must increase from one window to the next");
    }
}

impl crate::support::Client {
    /// Makes a call that must change nothing.
    fn unchanged_by(&mut self, line: &str) -> Reply {
        let before = self.everything();
        let reply = self.call(line);
        assert_eq!(self.everything(), before, "{line}");
        reply
    }
}
