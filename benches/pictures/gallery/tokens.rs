//! A budget of a language model's tokens: the cost of a request is reserved before, and settled when it is known. A client dies.

use plotters::style::Color;

use super::canvas::{HPos, INK, LINE, MARGIN, picture};
use super::stage::Stage;
use super::steps::{Steps, colors};
use super::timeline::Timeline;
use crate::support::Engine;

const SECONDS: i32 = 100;
const LIMIT: i64 = 10_000;
const STEP: usize = 500;
/// Seconds of a reservation that nobody renews.
const LEASE: i64 = 20;

/// An event, and its line in the list below the picture.
struct Event {
    at: i64,
    used: i64,
    denied: bool,
    told: String,
}

struct Scene {
    stage: Stage,
    events: Vec<Event>,
    /// The units used, and since when.
    levels: Vec<(i64, i64)>,
}

impl Scene {
    /// Advances to this time, in milliseconds, and records the units used on the way.
    fn until(&mut self, at: i64) {
        let from = self.levels.last().map_or(0, |(at, _)| *at);
        for now in (from..=at).step_by(STEP) {
            self.stage.set_time(now);
            let used = self.used();
            self.levels.push((now, used));
        }
    }

    fn used(&mut self) -> i64 {
        self.stage.full(&format!("RL.PEEK llm SLIDING 60 {LIMIT} COST 0 FULL"))["used"]
    }

    fn note(&mut self, at: i64, denied: bool, told: String) {
        let used = self.used();
        self.levels.push((at, used));
        self.events.push(Event { at, used, denied, told });
    }

    /// Reserves tokens under a client's name.
    fn reserve(&mut self, at: i64, who: &str, cost: i64, told: &str) {
        self.until(at);
        let reply = self.stage.full(&format!("RL.SLIDING llm 60 {LIMIT} COST {cost} HOLD {who} {LEASE} FULL"));
        let (denied, wait) = (reply["allowed"] == 0, reply["retry-after-ms"]);
        let wait = if denied { format!(": denied, wait {} s", wait / 1000) } else { String::new() };
        self.note(at, denied, format!("{who} {told}{wait}"));
    }

    /// Charges what was taken.
    fn settle(&mut self, at: i64, who: &str, taken: i64, told: &str) {
        self.until(at);
        let line = format!("RL.SETTLE llm SLIDING 60 {LIMIT} HOLD {who} {LEASE} ACTUAL {taken}");
        let [settled, ..]: [i64; 3] = self.stage.run(&line);
        assert_eq!(settled, 1, "the hold was there");
        self.note(at, false, format!("{who} took {taken}: RL.SETTLE {told}"));
    }
}

fn play(engine: &Engine) -> Scene {
    let mut scene = Scene { stage: Stage::new(engine), events: Vec::new(), levels: Vec::new() };
    scene.reserve(5_000, "A", 3_000, "reserves 3000");
    scene.settle(10_000, "A", 1_800, "gives 1200 back");
    scene.reserve(15_000, "B", 4_000, "reserves 4000");
    scene.reserve(20_000, "C", 3_000, "reserves 3000, and its process dies");
    scene.reserve(26_000, "D", 2_000, "asks for 2000");
    scene.reserve(31_000, "B", 4_000, "is still at work and renews its reservation");
    scene.settle(37_000, "B", 5_500, "charges 1500 more");
    scene.reserve(46_000, "D", 2_000, "asks again: what C held is given back, so it fits");
    let last = scene.events.last().expect("the last one");
    assert!(!last.denied, "there is room");
    scene.until(i64::from(SECONDS) * 1000);
    scene
}

pub fn draw(engine: &Engine) -> String {
    const TOP: i32 = 60;
    const HIGH: i32 = 260;
    const MOST: i64 = 12_000;
    let scene = play(engine);
    let floor = TOP + HIGH;
    let listed = (LINE + 2) * scene.events.len() as i32;
    picture(floor + 44 + listed + 40, |canvas| {
        canvas.bold("A budget of 10,000 tokens in any 60 seconds", (MARGIN, 24), HPos::Left);
        let time = Timeline::new(MARGIN + 64, SECONDS);
        time.draw(canvas, [TOP, floor], 20);
        let steps = Steps { time: &time, floor, top: TOP, most: MOST, limit: LIMIT };
        let named = [(0, "0"), (2_500, "2,500"), (5_000, "5,000"), (7_500, "7,500"), (10_000, "10,000")];
        steps.scale(canvas, &named);
        steps.draw(canvas, &scene.levels);
        for (number, event) in (1..).zip(&scene.events) {
            let at = (time.x(event.at), steps.y(event.used));
            if event.denied {
                canvas.denied_large((at.0, at.1 - 9));
            }
            canvas.number(number, (at.0, at.1 - if event.denied { 28 } else { 15 }));
        }
        let told: Vec<String> = scene.events.iter().map(|event| event.told.clone()).collect();
        canvas.list(&told, floor + 52);
        let (below, above) = colors();
        let y = floor + 44 + listed + 20;
        canvas.rectangle((MARGIN, y - 8), (MARGIN + 20, y + 8), below.filled());
        canvas.text("used", (MARGIN + 28, y), HPos::Left);
        canvas.rectangle((MARGIN + 110, y - 8), (MARGIN + 130, y + 8), above.filled());
        canvas.text("overdraft", (MARGIN + 138, y), HPos::Left);
        canvas.dashed((MARGIN + 250, y), (MARGIN + 282, y), INK);
        canvas.text("limit", (MARGIN + 290, y), HPos::Left);
        canvas.denied_large((MARGIN + 366, y));
        canvas.text("denied", (MARGIN + 382, y), HPos::Left);
    })
}
