//! RL.REFUND, line by line of the contract.

use super::{Reply, START, frozen};
use crate::support::Engine;
use crate::tests;

tests![
    an_anchored_window_gives_back_what_was_taken_in_it_alone,
    a_window_on_the_clock_gives_back_what_was_taken_in_it_alone,
    a_member_with_a_negative_score_is_counted_among_what_is_left,
];

fn an_anchored_window_gives_back_what_was_taken_in_it_alone(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    server.set_time(START + 5_000);
    assert_eq!(client.call::<Reply>("RL.FIXED k 60 9 ANCHORED COST 5"), (1, 5, 60));
    server.set_time(START + 20_000);
    let (begins, ends) = (START + 5_000, START + 65_000);
    for at in [0, START, begins - 1, ends, ends + 1, START + 1_000_000, (1 << 53) - 1] {
        let before = client.everything();
        let reply = client.call::<Reply>(&format!("RL.REFUND k FIXED 60 9 ANCHORED COST 2 AT {at}"));
        assert_eq!(reply, (0, 5, 45), "AT {at}");
        assert_eq!(client.everything(), before, "AT {at}");
    }
    for (at, left) in [(begins, 4), (START + 20_000, 3), (ends - 1, 2)] {
        let reply = client.call::<Reply>(&format!("RL.REFUND k FIXED 60 9 ANCHORED AT {at}"));
        assert_eq!(reply, (1, left, 45), "AT {at}");
    }
    // No key is created where there is none.
    assert_eq!(client.call::<Reply>(&format!("RL.REFUND new FIXED 60 9 ANCHORED AT {begins}")).0, 0);
    assert_eq!(client.call::<i64>("DBSIZE"), 1);
}

fn a_window_on_the_clock_gives_back_what_was_taken_in_it_alone(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    server.set_time(START + 20_000);
    assert_eq!(client.call::<Reply>("RL.FIXED k 60 9 COST 5"), (1, 5, 60));
    for at in [0, START - 1, START + 60_000, (1 << 53) - 1] {
        let before = client.everything();
        assert_eq!(client.call::<Reply>(&format!("RL.REFUND k FIXED 60 9 COST 2 AT {at}")), (0, 5, 60), "AT {at}");
        assert_eq!(client.everything(), before, "AT {at}");
    }
    for (at, left) in [(START, 4), (START + 20_000, 3), (START + 59_999, 2)] {
        assert_eq!(client.call::<Reply>(&format!("RL.REFUND k FIXED 60 9 AT {at}")), (1, left, 60), "AT {at}");
    }
}

/// The range that expires begins at 0: such a member counts for ever, in every reply.
fn a_member_with_a_negative_score_is_counted_among_what_is_left(engine: &Engine) {
    let (server, mut client) = frozen(engine);
    client.call::<()>("ZADD k -5 planted");
    for count in 1..=3 {
        assert_eq!(client.sliding("k", "60", 9), (1, count, 60));
    }
    server.set_time(START + 10);
    for (call, reply) in [
        ("RL.REFUND k SLIDING 60 9 COST 2", (2, 2, 60)),
        ("RL.REFUND k SLIDING 60 9", (1, 1, 60)),
        ("RL.PEEK k SLIDING 60 9 COST 0", (1, 1, 60)),
    ] {
        assert_eq!(client.call::<Reply>(call), reply, "{call}");
    }
    // What was taken did not lie in the first window, and the planted member does.
    client.call::<()>("DEL k");
    client.call::<()>(&format!("ZADD k -5 planted {} old {} newer", START - 9_000, START - 5_000));
    assert_eq!(client.call::<Reply>("RL.REFUND k SLIDING 1 9 60 9"), (1, 1, 1));
    assert_eq!(client.used("k", "60"), 2);
}
