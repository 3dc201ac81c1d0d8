//! The state machine of blocks, beside a server that counts as the real one does, under any schedule of callers: calls and
//! replies that are late or lost, callers that go, processes that are killed, clocks that are stepped.

use std::time::{Duration, Instant, SystemTime};

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed};

use super::{Ask, Held, ROUNDING, Take, Terms};

/// Times are microseconds since the start, but for stamps, which are whole milliseconds of the server's clock.
#[derive(Debug, Clone)]
struct Setting {
    limit: u64,
    window_ms: i64,
    within_ms: i64,
    units: u64,
    /// What the server's clock shows at the start.
    clock: i64,
    processes: usize,
}

#[derive(Debug, Clone)]
enum Step {
    Pass(i64),
    Hit {
        process: usize,
        cost: u64,
    },
    /// The server gets to one of the calls on their way.
    Serve(usize),
    /// One of the replies on their way arrives.
    Arrive(usize),
    /// A call, or its reply, never does.
    LoseCall(usize),
    LoseReply(usize),
    /// The caller goes, or gives up. What its call gets is given back.
    Leave(usize),
    /// A process gives back what is over.
    GiveBack(usize),
    Kill(usize),
    MoveClock(i64),
}

#[derive(Debug)]
enum Call {
    Ask(Sent),
    Refund { units: u64, at: i64 },
}

/// A process that was killed and started again is another one.
#[derive(Debug, Clone, Copy)]
struct Sent {
    process: usize,
    life: u32,
    ask: Ask,
    left: bool,
}

#[derive(Debug)]
struct Reply {
    to: Sent,
    allowed: bool,
    at: i64,
    free: u64,
    wait: i64,
}

struct Process {
    held: Held,
    life: u32,
    /// Whether a call for units is under way, for which the others wait.
    asks: bool,
    waiting: Vec<u64>,
}

struct World {
    setting: Setting,
    start: Instant,
    now: i64,
    log: Vec<(i64, u64)>,
    /// When the server reserved units, whether they were given back or not.
    reserved: Vec<(i64, u64)>,
    calls: Vec<Call>,
    replies: Vec<Reply>,
    processes: Vec<Process>,
    used: Vec<(i64, u64)>,
}

impl World {
    fn new(setting: Setting) -> Self {
        let terms = Terms { units: setting.units, within: millis(setting.within_ms) };
        let process = |_| Process { held: Held::new(terms), life: 0, asks: false, waiting: Vec::new() };
        let processes = (0..setting.processes).map(process).collect();
        let (log, reserved, calls, replies, used) = (vec![], vec![], vec![], vec![], vec![]);
        Self { setting, start: Instant::now(), now: 0, log, reserved, calls, replies, processes, used }
    }

    fn instant(&self) -> Instant {
        self.start + Duration::from_micros(u64::try_from(self.now).unwrap())
    }

    /// The window that is sent.
    fn longer(&self) -> i64 {
        self.setting.window_ms + self.setting.within_ms + i64::try_from(ROUNDING.as_millis()).unwrap()
    }

    fn play(&mut self, step: &Step) {
        match *step {
            Step::Pass(micros) => self.now += micros,
            Step::Hit { process, cost } => self.hit(process % self.setting.processes, cost),
            Step::Serve(which) => self.serve(which),
            Step::Arrive(which) if !self.replies.is_empty() => {
                let reply = self.replies.remove(which % self.replies.len());
                self.arrive(&reply);
            }
            Step::LoseCall(which) if !self.calls.is_empty() => {
                if let Call::Ask(sent) = self.calls.remove(which % self.calls.len()) {
                    self.end(sent);
                }
            }
            Step::LoseReply(which) if !self.replies.is_empty() => {
                let reply = self.replies.remove(which % self.replies.len());
                self.end(reply.to);
            }
            Step::Leave(which) if !self.calls.is_empty() => {
                let which = which % self.calls.len();
                if let Call::Ask(sent) = self.calls[which] {
                    self.end(sent);
                    self.calls[which] = Call::Ask(Sent { left: true, ..sent });
                }
            }
            Step::GiveBack(process) => {
                let now = self.instant();
                let rests = self.processes[process % self.setting.processes].held.over(now);
                let refund = |rest: super::Rest| Call::Refund { units: rest.units, at: stamp_of(rest.at) };
                self.calls.extend(rests.into_iter().map(refund));
            }
            Step::Kill(process) => {
                let fresh = World::new(self.setting.clone()).processes.remove(0);
                let process = &mut self.processes[process % self.setting.processes];
                *process = Process { life: process.life + 1, ..fresh };
            }
            Step::MoveClock(micros) => self.setting.clock += micros,
            _ => {}
        }
    }

    fn hit(&mut self, number: usize, cost: u64) {
        let now = self.instant();
        let process = &mut self.processes[number];
        if process.asks {
            process.waiting.push(cost);
            return;
        }
        match process.held.take(cost, now) {
            Take::Spent => self.used.push((self.now, cost)),
            Take::Denied => {}
            Take::Ask(ask) => {
                process.asks = true;
                self.calls.push(Call::Ask(Sent { process: number, life: process.life, ask, left: false }));
            }
        }
    }

    fn serve(&mut self, which: usize) {
        if self.calls.is_empty() {
            return;
        }
        let (at, longer) = ((self.now + self.setting.clock).div_euclid(1000), self.longer());
        match self.calls.remove(which % self.calls.len()) {
            Call::Refund { units, at } => {
                let mut units = units;
                for (_, there) in self.log.iter_mut().filter(|(stamp, _)| *stamp == at) {
                    let taken = units.min(*there);
                    (*there, units) = (*there - taken, units - taken);
                }
            }
            Call::Ask(to) => {
                self.log.retain(|(stamp, units)| *stamp > at - longer && *units > 0);
                let counted = self.log.iter().filter(|(stamp, _)| *stamp <= at + longer);
                let used: u64 = counted.map(|(_, units)| units).sum();
                let allowed = used + to.ask.size <= self.setting.limit;
                if allowed {
                    self.log.push((at, to.ask.size));
                    self.reserved.push((self.now, to.ask.size));
                }
                let used = if allowed { used + to.ask.size } else { used };
                let oldest = self.log.iter().map(|(stamp, _)| *stamp).min().unwrap_or(at);
                let (free, wait) = (self.setting.limit.saturating_sub(used), oldest + longer - at);
                self.replies.push(Reply { to, allowed, at, free, wait });
            }
        }
    }

    fn arrive(&mut self, reply: &Reply) {
        let Sent { process, ask, left, life } = reply.to;
        if self.processes[process].life != life {
            return;
        }
        if left {
            if reply.allowed {
                self.calls.push(Call::Refund { units: ask.size, at: reply.at });
            }
            return;
        }
        let now = self.instant();
        let held = &mut self.processes[process].held;
        let mut asks_again = false;
        if reply.allowed {
            let at = SystemTime::UNIX_EPOCH + millis(reply.at);
            if held.granted(ask, at, reply.free, now) {
                self.used.push((self.now, ask.cost));
            }
        } else {
            asks_again = !held.denied(ask, reply.free, ask.sent + millis(reply.wait));
        }
        if asks_again {
            // Before those that wait.
            self.processes[process].asks = false;
            self.hit(process, ask.cost);
        }
        if !(asks_again && self.processes[process].asks) {
            self.end(reply.to);
        }
    }

    /// A call has ended for its process, and those that wait for it go on.
    fn end(&mut self, sent: Sent) {
        let process = &mut self.processes[sent.process];
        if sent.left || process.life != sent.life {
            return;
        }
        process.asks = false;
        for cost in std::mem::take(&mut process.waiting) {
            self.hit(sent.process, cost);
        }
    }

    /// What was used in a stretch of a window, beginning at each use, beside what it must not be more than.
    fn windows(&self) -> impl Iterator<Item = (i64, i64, u64)> {
        self.used.iter().map(|(from, _)| {
            let to = from + self.setting.window_ms * 1000;
            (*from, to, sum(&self.used, *from, to))
        })
    }
}

/// The units of a closed stretch.
fn sum(what: &[(i64, u64)], from: i64, to: i64) -> u64 {
    what.iter().filter(|(at, _)| (from..=to).contains(at)).map(|(_, units)| units).sum()
}

fn millis(millis: i64) -> Duration {
    Duration::from_millis(u64::try_from(millis).unwrap_or(0))
}

fn stamp_of(at: SystemTime) -> i64 {
    i64::try_from(at.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

/// Servers whose clock is anywhere in its millisecond, and windows short enough that a schedule fills several of them.
fn settings() -> impl Strategy<Value = Setting> {
    (1..13_u64, 3..40_i64, 1..12_i64, 2..9_u64, 0..1000_i64, 1..5_usize).prop_map(
        |(limit, window_ms, within_ms, units, micros, processes)| {
            let within_ms = within_ms.min(window_ms);
            Setting { limit, window_ms, within_ms, units, clock: 1_700_000_000_000_000 + micros, processes }
        },
    )
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        12 => (0..1500_i64).prop_map(Step::Pass),
        1 => (0..40_000_i64).prop_map(Step::Pass),
        14 => (0..5_usize, prop_oneof![6 => Just(1), 1 => 2..5_u64, 1 => 5..14_u64])
            .prop_map(|(process, cost)| Step::Hit { process, cost }),
        12 => prop_oneof![3 => Just(0), 1 => 0..9_usize].prop_map(Step::Serve),
        12 => prop_oneof![3 => Just(0), 1 => 0..9_usize].prop_map(Step::Arrive),
        3 => (0..5_usize).prop_map(Step::GiveBack),
        1 => (0..9_usize).prop_map(Step::LoseCall),
        1 => (0..9_usize).prop_map(Step::LoseReply),
        1 => (0..9_usize).prop_map(Step::Leave),
        1 => (0..5_usize).prop_map(Step::Kill),
    ]
}

fn config() -> Config {
    Config { cases: 600, rng_seed: RngSeed::Fixed(20), failure_persistence: None, ..Config::default() }
}

proptest! {
    #![proptest_config(config())]

    /// The server's clock is stepped back once, by a window at most.
    #[test]
    fn no_stretch_of_a_window_holds_more_than_the_limit(
        setting in settings(),
        steps in prop::collection::vec(steps(), 200),
        back in (0..200_usize, prop_oneof![Just(0), 0..1000_i64]),
    ) {
        let mut world = World::new(setting);
        for (number, step) in steps.iter().enumerate() {
            if number == back.0 {
                world.play(&Step::MoveClock(-back.1 * world.longer()));
            }
            world.play(step);
        }
        for (from, to, used) in world.windows() {
            prop_assert!(used <= world.setting.limit, "{used} from {from} to {to}: {:?}", world.used);
        }
    }

    /// However the server's clock is stepped: what is used in a stretch was reserved in it, or shortly before.
    #[test]
    fn no_unit_is_used_longer_than_allowed_after_it_was_reserved(
        setting in settings(),
        steps in prop::collection::vec(
            prop_oneof![20 => steps(), 1 => (-50_000..50_000_i64).prop_map(Step::MoveClock)],
            200,
        ),
    ) {
        let mut world = World::new(setting);
        steps.iter().for_each(|step| world.play(step));
        for (from, to, used) in world.windows() {
            let reserved = sum(&world.reserved, from - world.setting.within_ms * 1000, to);
            prop_assert!(used <= reserved, "{used} of {reserved} from {from} to {to}: {:?}", world.used);
        }
    }
}

/// A unit that is stamped at the end of a millisecond, and used at the end of its time.
#[test]
fn stamps_are_rounded_down() {
    let setting =
        Setting { limit: 1, window_ms: 10, within_ms: 5, units: 2, clock: 1_700_000_000_000_900, processes: 2 };
    let mut world = World::new(setting);
    let hit = |world: &mut World, process, arrives: i64| {
        world.play(&Step::Hit { process, cost: 1 });
        world.play(&Step::Serve(0));
        world.play(&Step::Pass(arrives));
        world.play(&Step::Arrive(0));
    };
    hit(&mut world, 0, 4999);
    // The window and δ later by the server's clock, and a millisecond after that.
    for (at, used) in [(14_100, 1), (15_099, 1), (15_100, 2)] {
        world.play(&Step::Pass(at - world.now));
        world.play(&Step::Kill(1));
        hit(&mut world, 1, 0);
        assert_eq!(world.used.len(), used, "at {at}");
    }
    assert!(world.windows().all(|(_, _, used)| used <= 1));
}

const DELTA: Duration = Duration::from_millis(100);

/// A process at a server with room, whose calls take no time.
struct Alone {
    held: Held,
    now: Instant,
    calls: u64,
    given_back: u64,
    used: u64,
}

impl Alone {
    fn new(units: u64) -> Self {
        let held = Held::new(Terms { units, within: DELTA });
        Self { held, now: Instant::now(), calls: 0, given_back: 0, used: 0 }
    }

    fn hit_every(&mut self, pause: Duration, times: u32) {
        for _ in 0..times {
            self.now += pause;
            self.given_back += self.held.over(self.now).iter().map(|rest| rest.units).sum::<u64>();
            if let Take::Ask(ask) = self.held.take(1, self.now) {
                self.calls += 1;
                assert!(self.held.granted(ask, SystemTime::UNIX_EPOCH, u64::MAX, self.now));
            }
            self.used += 1;
        }
    }
}

#[test]
fn a_block_is_as_large_as_what_was_spent() {
    // One in two δ: nothing is kept from others.
    let mut idle = Alone::new(10);
    idle.hit_every(2 * DELTA, 100);
    assert_eq!((idle.calls, idle.given_back), (100, 0));
    // As many as fill a block, and more.
    for (pause, at_most) in [(DELTA / 9, 130), (DELTA / 100, 110)] {
        let mut busy = Alone::new(10);
        busy.hit_every(pause, 1000);
        assert!(busy.calls <= at_most, "{}", busy.calls);
    }
}

#[test]
fn near_the_limit_blocks_get_smaller() {
    let (mut held, now) = (Held::new(Terms { units: 10, within: DELTA }), Instant::now());
    for _ in 0..20 {
        held.note(1, now);
    }
    let mut sizes = Vec::new();
    for free in [3, 0] {
        let Take::Ask(ask) = held.take(1, now) else { panic!("{held:?}") };
        sizes.push(ask.size);
        let _ = held.denied(ask, free, now + DELTA);
    }
    let Take::Ask(ask) = held.take(1, now) else { panic!("{held:?}") };
    sizes.push(ask.size);
    assert_eq!(sizes, [10, 3, 1]);
    // One unit is denied: that is the answer, to those that weigh more as well.
    assert!(held.denied(ask, 0, now + DELTA));
    assert_eq!((held.take(1, now), held.take(7, now)), (Take::Denied, Take::Denied));
    // Of a denial that is over one unit is asked for, and as much as is free after that.
    let Take::Ask(ask) = held.take(1, now + DELTA) else { panic!("{held:?}") };
    assert!(held.granted(ask, SystemTime::UNIX_EPOCH, 6, now + DELTA));
    assert!(matches!(held.take(1, now + DELTA), Take::Ask(Ask { size: 6, .. })));
}

/// Heavier than a block, and what does not fit into one.
#[test]
fn a_heavy_request_asks_for_itself() {
    let (mut held, now) = (Held::new(Terms { units: 10, within: DELTA }), Instant::now());
    assert!(matches!(held.take(50, now), Take::Ask(Ask { size: 50, cost: 50, .. })));
    for _ in 0..10 {
        held.note(1, now);
    }
    let Take::Ask(ask) = held.take(4, now) else { panic!("{held:?}") };
    assert!(held.granted(ask, SystemTime::UNIX_EPOCH, 100, now));
    // Six are left: two more of four take one of another block as well.
    assert_eq!(held.take(4, now), Take::Spent);
    let Take::Ask(ask) = held.take(4, now) else { panic!("{held:?}") };
    assert!(held.granted(ask, SystemTime::UNIX_EPOCH, 100, now));
    assert_eq!(held.left(now), 2 + 6);
    assert_eq!(held.take(7, now), Take::Spent);
    assert_eq!(held.left(now), 1);
    // A reply that comes too late gives nothing but what is to be given back.
    let Take::Ask(ask) = held.take(4, now) else { panic!("{held:?}") };
    assert!(!held.granted(ask, SystemTime::UNIX_EPOCH, 100, now + DELTA));
    assert_eq!(held.over(now + DELTA).iter().map(|rest| rest.units).sum::<u64>(), 1 + 10);
}
