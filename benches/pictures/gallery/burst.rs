//! The same calls under four rules: which are allowed when.

use plotters::style::{Color, WHITE};

use super::canvas::{Canvas, GREY, HPos, LINE, MARGIN, WIDTH, picture};
use super::stage::Stage;
use super::timeline::Timeline;
use crate::support::Engine;

const SECONDS: i32 = 30;

/// The times of the calls, in milliseconds: one, eight, again eight, and then steadily.
/// No call is made exactly when RL.THROTTLE frees a unit, a multiple of 2 seconds after the first burst: it counts microseconds,
/// which some servers add to the clock by themselves.
fn calls() -> Vec<i64> {
    let burst = |from: i64| (0..8).map(move |call| from + 350 * call);
    let steady = (0..20).map(|call| 14_600 + 800 * call).filter(|at| *at < i64::from(SECONDS) * 1000);
    [3_000].into_iter().chain(burst(6_500)).chain(burst(11_550)).chain(steady).collect()
}

struct Lane {
    line: &'static str,
    told: &'static str,
    allowed: Vec<bool>,
    /// The starts of windows; empty if the rule has none.
    windows: Vec<i64>,
}

fn play(engine: &Engine, line: &'static str, told: &'static str) -> Lane {
    let mut stage = Stage::new(engine);
    let mut windows: Vec<i64> = Vec::new();
    let allowed = calls().into_iter().map(|at| {
        stage.set_time(at);
        let allowed = stage.allows(line);
        // The counter's own expiry says when its window ends.
        if line.contains("ANCHORED") {
            let end: i64 = stage.run("PEXPIRETIME key:10s");
            let begin = Stage::since_start(end) - 10_000;
            if windows.last() != Some(&begin) {
                windows.push(begin);
            }
        }
        allowed
    });
    let allowed = allowed.collect();
    if line.starts_with("RL.FIXED") && windows.is_empty() {
        windows = (0..SECONDS).step_by(10).map(|second| i64::from(second) * 1000).collect();
    }
    Lane { line, told, allowed, windows }
}

pub fn draw(engine: &Engine) -> String {
    let lanes = [
        play(engine, "RL.FIXED key 10 5", "windows by the clock"),
        play(engine, "RL.FIXED key 10 5 ANCHORED", "from the first call"),
        play(engine, "RL.SLIDING key 10 5", "any 10 seconds"),
        play(engine, "RL.THROTTLE key 4 5 10", "one each 2 s, 5 at once"),
    ];
    const TOP: i32 = 52;
    const TALL: i32 = 72;
    let bottom = TOP + TALL - 20 + TALL * lanes.len() as i32;
    picture(bottom + 70, |canvas| {
        canvas.bold("The same calls under four rules of 5 in 10 seconds", (MARGIN, 24), HPos::Left);
        let time = Timeline::new(MARGIN + 6, SECONDS);
        let calls = calls();
        time.draw(canvas, [TOP + 24, bottom], 5);
        canvas.text(&format!("{} calls", calls.len()), (MARGIN, TOP + 8), HPos::Left);
        for &call in &calls {
            let x = time.x(call);
            canvas.rectangle((x - 2, TOP + 24), (x + 2, TOP + 40), GREY.filled());
        }
        let mut y = TOP + TALL - 16;
        for lane in &lanes {
            draw_lane(canvas, &time, &calls, lane, y);
            y += TALL;
        }
        let y = bottom + 44;
        canvas.allowed((MARGIN + 6, y));
        canvas.text("allowed", (MARGIN + 16, y), HPos::Left);
        canvas.denied((MARGIN + 110, y));
        canvas.text("denied", (MARGIN + 122, y), HPos::Left);
        canvas.window([MARGIN + 206, MARGIN + 256], y);
        canvas.text("a window of RL.FIXED", (MARGIN + 264, y), HPos::Left);
    })
}

fn draw_lane(canvas: &Canvas, time: &Timeline, calls: &[i64], lane: &Lane, y: i32) {
    canvas.rectangle((MARGIN, y), (WIDTH - MARGIN, y + LINE), WHITE.filled());
    canvas.bold(lane.line, (MARGIN, y + 12), HPos::Left);
    let allowed = lane.allowed.iter().filter(|allowed| **allowed).count();
    canvas.text(&format!("{}: {allowed} allowed", lane.told), (WIDTH - MARGIN, y + 12), HPos::Right);
    let y = y + LINE + 18;
    for begin in &lane.windows {
        let end = (begin + 10_000).min(i64::from(time.seconds) * 1000);
        canvas.window([time.x(*begin), time.x(end)], y);
    }
    for (&call, &allowed) in calls.iter().zip(&lane.allowed) {
        canvas.call(allowed, (time.x(call), y));
    }
}
