//! A key with a million requests that expire: the longest single call, beside the script's on the same key.

use std::time::Instant;

use redis::Value;

use super::support::log::fill_log;
use super::support::model::PRUNED_AT_MOST;
use super::support::{Client, Engine, Options, Server};

const MILLION: i64 = 1_000_000;
const WINDOW: i64 = 3_600_000;
const ROUNDS: usize = 3;

pub fn run(engine: &Engine) -> String {
    let server = Server::start(engine, &Options::default());
    let mut client = server.client();
    let script: String = client.run(&["SCRIPT", "LOAD", include_str!("../../tests/scripts/sliding.lua")]);
    let mut page = format!(
        "\n### Pruning\n\nA log of a million requests, of which some expire at once. Milliseconds from call to reply, on a server without\n\
         other load; the longest of {ROUNDS} rounds. A call of the module removes at most {PRUNED_AT_MOST} expired members, or the whole key if all have expired.\n\n\
         | expired | calls until pruned | longest call | calls in all | script, one call | ratio |\n|--:|--:|--:|--:|--:|--:|\n"
    );
    for expired in [MILLION / 2, MILLION] {
        let now = client.millis();
        client.run::<Value>(&["FLUSHALL", "SYNC"]);
        fill_log(&mut client, "source", now - WINDOW - expired, expired, 1);
        fill_log(&mut client, "source", now - WINDOW / 2, MILLION - expired, 1);
        let (mut longest, mut whole, mut script_longest, mut calls) = (0.0_f64, 0.0_f64, 0.0_f64, 0);
        for _ in 0..ROUNDS {
            client.run::<Value>(&["COPY", "source", "k"]);
            (calls, whole) = (0, 0.0);
            loop {
                let took = timed(&mut client, &["RL.SLIDING", "k", "3600", "2000000"]);
                (calls, whole, longest) = (calls + 1, whole + took, longest.max(took));
                if client.run::<i64>(&["ZCARD", "k"]) == MILLION - expired + calls {
                    break;
                }
            }
            client.run::<Value>(&["UNLINK", "k"]);
            client.run::<Value>(&["COPY", "source", "k"]);
            script_longest = script_longest.max(timed(&mut client, &["EVALSHA", &script, "1", "k", "3600", "2000000"]));
            client.run::<Value>(&["UNLINK", "k"]);
            while client.info_field("memory", "lazyfree_pending_objects") != "0" {
                std::thread::yield_now(); // Otherwise freeing would slow the next round down.
            }
        }
        page += &format!(
            "| {expired} | {calls} | {longest:.2} ms | {whole:.0} ms | {script_longest:.0} ms | {:.0}× |\n",
            script_longest / longest
        );
    }
    page
}

fn timed(client: &mut Client, words: &[&str]) -> f64 {
    let begun = Instant::now();
    client.run::<Value>(words);
    begun.elapsed().as_secs_f64() * 1000.0
}
