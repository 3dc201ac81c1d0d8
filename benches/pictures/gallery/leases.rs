//! Leases: which client holds a place when, who is denied, and how the place of a dead client becomes free.

use plotters::style::{Color, WHITE};

use super::canvas::{BLUE, Canvas, HPos, INK, LINE, MARGIN, picture};
use super::stage::Stage;
use super::steps::Steps;
use super::timeline::Timeline;
use crate::support::Engine;

const SECONDS: i32 = 25;
const LIMIT: i64 = 3;
const LEASE: i64 = 10;
const HOLDERS: [&str; 5] = ["A", "B", "C", "D", "E"];

/// A lease, with the times between which the server holds it.
struct Bar {
    holder: &'static str,
    from: i64,
    ends: i64,
    /// The time since which the client is dead. The server does not know.
    dead_from: Option<i64>,
    renewed: Vec<i64>,
    released: bool,
}

struct Scene {
    stage: Stage,
    now: i64,
    bars: Vec<Bar>,
    denied: Vec<(i64, &'static str)>,
    told: Vec<(i64, &'static str, String)>,
    /// The number of leases held, and since when.
    held: Vec<(i64, i64)>,
}

impl Scene {
    /// Advances to this second, and counts the leases on the way.
    fn until(&mut self, second: i64) {
        const STEP: usize = 500;
        for now in (self.now..=second * 1000).step_by(STEP) {
            self.stage.set_time(now);
            self.now = now;
            self.count();
        }
    }

    fn count(&mut self) {
        let held = self.stage.run(&format!("ZCOUNT jobs ({} +inf", Stage::unix_time(self.now)));
        self.held.retain(|(at, _)| *at < self.now);
        self.held.push((self.now, held));
    }

    fn tell(&mut self, who: &'static str, told: String) {
        self.told.push((self.now, who, told));
    }

    /// Requests or renews a lease. Returns the map of the reply.
    fn acquires(&mut self, second: i64, who: &'static str) -> std::collections::HashMap<String, i64> {
        self.until(second);
        let reply = self.stage.full(&format!("RL.ACQUIRE jobs {LIMIT} {LEASE} {who} FULL"));
        if reply["allowed"] == 0 {
            self.denied.push((self.now, who));
            return reply;
        }
        let ends: i64 = self.stage.run(&format!("ZSCORE jobs {who}"));
        let ends = Stage::since_start(ends);
        let now = self.now;
        match self.bars.iter_mut().find(|bar| bar.holder == who && bar.ends > now) {
            Some(bar) => {
                bar.ends = ends;
                bar.renewed.push(now);
            }
            None => {
                let (renewed, dead_from, released) = (Vec::new(), None, false);
                self.bars.push(Bar { holder: who, from: now, ends, dead_from, renewed, released });
            }
        }
        self.count();
        reply
    }

    fn releases(&mut self, second: i64, who: &'static str) {
        self.until(second);
        let released: i64 = self.stage.run(&format!("RL.RELEASE jobs {who}"));
        assert_eq!(released, 1);
        let bar = self.bars.iter_mut().rfind(|bar| bar.holder == who).expect("it had a lease");
        (bar.ends, bar.released) = (self.now, true);
        self.count();
    }

    fn dies(&mut self, second: i64, who: &'static str) {
        self.until(second);
        let bar = self.bars.iter_mut().rfind(|bar| bar.holder == who).expect("it had a lease");
        bar.dead_from = Some(self.now);
    }
}

fn play(engine: &Engine) -> Scene {
    let (bars, denied, told, held) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut scene = Scene { stage: Stage::new(engine), now: 0, bars, denied, told, held };
    for (second, who) in [(1, "A"), (2, "B"), (3, "C")] {
        scene.acquires(second, who);
    }
    let reply = scene.acquires(5, "D");
    let told = format!("D is denied: {} are held; wait {} s at most", reply["used"], reply["retry-after-ms"] / 1000);
    scene.tell("D", told);
    scene.dies(6, "C");
    scene.tell("C", "C dies; its place is taken until its lease ends".to_owned());
    scene.acquires(8, "B");
    scene.tell("B", "B renews its lease".to_owned());
    scene.releases(9, "A");
    scene.tell("A", "A releases its lease: its place is free at once".to_owned());
    scene.acquires(10, "D");
    let reply = scene.acquires(11, "E");
    let wait = reply["retry-after-ms"] / 1000;
    scene.tell("E", format!("E is denied: {} are held; wait {wait} s at most", reply["used"]));
    scene.acquires(11 + wait, "E");
    scene.tell("E", "E gets the place of C, whose lease has ended".to_owned());
    scene.acquires(15, "B");
    scene.releases(18, "D");
    scene.releases(20, "B");
    scene.releases(22, "E");
    scene.until(i64::from(SECONDS));
    scene
}

pub fn draw(engine: &Engine) -> String {
    const TOP: i32 = 50;
    const ROW: i32 = 44;
    const HIGH: i32 = 72;
    let scene = play(engine);
    let rows = TOP + ROW * HOLDERS.len() as i32;
    let floor = rows + 46 + HIGH;
    let listed = (LINE + 2) * scene.told.len() as i32;
    picture(floor + 44 + listed + LINE + 44, |canvas| {
        canvas.bold("Leases of 10 seconds, 3 at a time", (MARGIN, 24), HPos::Left);
        let time = Timeline::new(MARGIN + 28, SECONDS);
        time.draw(canvas, [TOP, floor], 5);
        let middle = |who: &str| {
            let row = HOLDERS.iter().position(|holder| *holder == who).expect("a holder");
            TOP + ROW * row as i32 + ROW / 2 + 4
        };
        for who in HOLDERS {
            canvas.bold(who, (MARGIN, middle(who)), HPos::Left);
        }
        for bar in &scene.bars {
            draw_bar(canvas, &time, bar, middle(bar.holder));
        }
        for (at, who) in &scene.denied {
            canvas.denied_large((time.x(*at), middle(who)));
        }
        for (number, (at, who, _)) in (1..).zip(&scene.told) {
            canvas.number(number, (time.x(*at), middle(who) - 18));
        }
        draw_held(canvas, &time, &scene.held, [rows + 30, floor]);
        let told: Vec<String> = scene.told.iter().map(|(_, _, told)| told.clone()).collect();
        canvas.list(&told, floor + 52);
        let y = floor + 44 + listed + 22;
        canvas.rectangle((MARGIN, y - 8), (MARGIN + 20, y + 8), BLUE.filled());
        canvas.text("lease", (MARGIN + 28, y), HPos::Left);
        dead(canvas, [MARGIN + 100, MARGIN + 120], y);
        canvas.text("lease of a dead client", (MARGIN + 128, y), HPos::Left);
        canvas.rectangle((MARGIN + 330, y - 8), (MARGIN + 350, y + 8), BLUE.filled());
        renewal(canvas, MARGIN + 340, y);
        canvas.text("renewed", (MARGIN + 358, y), HPos::Left);
        let y = y + LINE + 2;
        canvas.rectangle((MARGIN, y - 8), (MARGIN + 12, y + 8), BLUE.filled());
        release(canvas, MARGIN + 12, y);
        canvas.text("released", (MARGIN + 28, y), HPos::Left);
        canvas.denied_large((MARGIN + 140, y));
        canvas.text("denied", (MARGIN + 156, y), HPos::Left);
        canvas.dashed((MARGIN + 240, y), (MARGIN + 272, y), INK);
        canvas.text("limit", (MARGIN + 280, y), HPos::Left);
    })
}

fn draw_bar(canvas: &Canvas, time: &Timeline, bar: &Bar, y: i32) {
    let [from, to] = [time.x(bar.from), time.x(bar.ends)];
    let alive = bar.dead_from.map_or(to, |dead| time.x(dead));
    canvas.rectangle((from, y - 8), (alive, y + 8), BLUE.filled());
    if alive < to {
        dead(canvas, [alive, to], y);
    }
    for at in &bar.renewed {
        renewal(canvas, time.x(*at), y);
    }
    if bar.released {
        release(canvas, to, y);
    }
}

/// A bar for a lease whose client is dead.
fn dead(canvas: &Canvas, [from, to]: [i32; 2], y: i32) {
    canvas.rectangle((from, y - 8), (to, y + 8), BLUE.mix(0.15).filled());
    canvas.rectangle((from, y - 8), (to, y + 8), BLUE.stroke_width(2));
}

fn renewal(canvas: &Canvas, x: i32, y: i32) {
    canvas.rectangle((x - 1, y - 8), (x + 1, y + 8), WHITE.filled());
}

fn release(canvas: &Canvas, x: i32, y: i32) {
    canvas.circle((x, y), 8, WHITE.filled());
    canvas.circle((x, y), 7, BLUE.stroke_width(3));
}

/// The number of leases held over time, beside the limit.
fn draw_held(canvas: &Canvas, time: &Timeline, held: &[(i64, i64)], [top, floor]: [i32; 2]) {
    let steps = Steps { time, floor, top: top + 12, most: LIMIT, limit: LIMIT };
    canvas.rectangle((time.left, top - 26), (time.left + 110, top - 4), WHITE.filled());
    canvas.text("leases held", (time.left, top - 14), HPos::Left);
    steps.scale(canvas, &[(0, "0"), (1, "1"), (2, "2"), (3, "3")]);
    steps.draw(canvas, held);
}
