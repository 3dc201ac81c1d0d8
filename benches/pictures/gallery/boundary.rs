//! A burst around the boundary of a window: RL.FIXED allows twice the limit within less than a window, RL.SLIDING never more
//! than the limit.

use plotters::style::{Color, WHITE};

use super::canvas::{Canvas, HPos, INK, LINE, MARGIN, WIDTH, picture};
use super::stage::Stage;
use super::steps::{Steps, colors};
use super::timeline::Timeline;
use crate::support::Engine;

const SECONDS: i32 = 30;
const WINDOW: i64 = 10_000;
const LIMIT: i32 = 10;
const HIGH: i32 = 100;

/// The times of the calls, in milliseconds: ten just before a window ends, ten just after, and then steadily.
fn calls() -> Vec<i64> {
    let steady = (0..15).map(|call| 13_100 + 1_000 * call);
    (0..20).map(|call| 7_600 + 250 * call).chain(steady).collect()
}

pub fn draw(engine: &Engine) -> String {
    const TOP: i32 = 48;
    const TALL: i32 = LINE + 32 + 12 + HIGH + 16;
    let panels = [("RL.FIXED", "windows by the clock"), ("RL.SLIDING", "any 10 seconds")];
    let bottom = TOP + TALL * panels.len() as i32;
    picture(bottom + 88, |canvas| {
        canvas.bold("A burst around a boundary, at a limit of 10 in 10 s", (MARGIN, 24), HPos::Left);
        let time = Timeline::new(MARGIN + 30, SECONDS);
        time.draw(canvas, [TOP + 24, bottom - 16], 5);
        for (number, (command, told)) in (0..).zip(panels) {
            let mut stage = Stage::new(engine);
            let line = format!("{command} key 10 {LIMIT}");
            let marks: Vec<(i64, bool)> = calls()
                .into_iter()
                .map(|at| {
                    stage.set_time(at);
                    (at, stage.allows(&line))
                })
                .collect();
            let y = TOP + TALL * number;
            panel(canvas, &time, (&line, told), &marks, y);
        }
        let (below, above) = colors();
        let y = bottom + 34;
        canvas.allowed((MARGIN + 6, y));
        canvas.text("allowed", (MARGIN + 16, y), HPos::Left);
        canvas.denied((MARGIN + 110, y));
        canvas.text("denied", (MARGIN + 122, y), HPos::Left);
        canvas.dashed((MARGIN + 206, y), (MARGIN + 238, y), INK);
        canvas.text("limit", (MARGIN + 246, y), HPos::Left);
        canvas.window([MARGIN + 310, MARGIN + 360], y);
        canvas.text("a window of RL.FIXED", (MARGIN + 368, y), HPos::Left);
        let y = y + LINE + 8;
        canvas.rectangle((MARGIN, y - 8), (MARGIN + 20, y + 8), below.filled());
        canvas.text("allowed in the last 10 s", (MARGIN + 28, y), HPos::Left);
        canvas.rectangle((MARGIN + 296, y - 8), (MARGIN + 316, y + 8), above.filled());
        canvas.text("more than the limit", (MARGIN + 324, y), HPos::Left);
    })
}

fn panel(canvas: &Canvas, time: &Timeline, (line, told): (&str, &str), marks: &[(i64, bool)], y: i32) {
    canvas.rectangle((MARGIN, y), (WIDTH - MARGIN, y + LINE), WHITE.filled());
    canvas.bold(line, (MARGIN, y + 12), HPos::Left);
    canvas.text(told, (WIDTH - MARGIN, y + 12), HPos::Right);
    let floor = y + LINE + 32 + 12 + HIGH;
    let (limit, most) = (i64::from(LIMIT), 2 * i64::from(LIMIT));
    let steps = Steps { time, floor, top: floor - HIGH, most, limit };
    steps.scale(canvas, &[(0, "0"), (limit, &limit.to_string()), (most, &most.to_string())]);
    let allowed: Vec<i64> = marks.iter().filter(|(_, allowed)| *allowed).map(|(at, _)| *at).collect();
    let count_at = |now: i64| allowed.iter().filter(|at| now - WINDOW < **at && **at <= now).count() as i64;
    // The count changes when a call is added and when one leaves the window.
    let end = i64::from(SECONDS) * 1000;
    let mut changes: Vec<i64> =
        allowed.iter().flat_map(|at| [*at, *at + WINDOW]).filter(|at| *at < end).chain([0, end]).collect();
    changes.sort_unstable();
    changes.dedup();
    let numbers: Vec<(i64, i64)> = changes.into_iter().map(|at| (at, count_at(at))).collect();
    steps.draw(canvas, &numbers);
    if line.starts_with("RL.FIXED") {
        for begin in (0..end).step_by(WINDOW as usize) {
            canvas.window([time.x(begin), time.x(begin + WINDOW)], y + LINE + 18);
        }
    }
    for (at, allowed) in marks {
        canvas.call(*allowed, (time.x(*at), y + LINE + 18));
    }
}
