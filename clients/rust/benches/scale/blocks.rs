//! Eight processes that decide from blocks, and all of their windows.

use std::fmt::Write;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use redis_rl_client::{Blocks, Limiter, Rule};
use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval};

use crate::load::cost;
use crate::support::{Has, Server};

const PROCESSES: u64 = 8;

#[derive(Clone, Copy)]
struct Case {
    name: &'static str,
    window_ms: u64,
    limit: u64,
    units: u64,
    within_ms: u64,
    /// Requests a second, of all processes together.
    demand: u64,
    seconds: u64,
    /// One process is killed, and another started in its place, each half second.
    kills: bool,
}

const SECOND: Case = Case {
    name: "20,000 in 1 s, below it",
    window_ms: 1000,
    limit: 20_000,
    units: 20,
    within_ms: 20,
    demand: 19_000,
    seconds: 6,
    kills: false,
};
const MINUTE: Case = Case {
    name: "6,000 in 60 s, below it",
    window_ms: 60_000,
    limit: 6000,
    units: 10,
    within_ms: 500,
    demand: 95,
    seconds: 75,
    kills: false,
};

pub async fn run() -> String {
    let mut text = "| limit | δ, units | demand | windows over of all | commands for a request | processor time for a request | served | of the limit |\n\
                    |---|---|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    let plain = |case: Case| Case { units: 0, ..case };
    for case in [
        plain(SECOND),
        SECOND,
        Case { name: "20,000 in 1 s, above it", demand: 40_000, ..SECOND },
        Case { name: "2,000 in 1 s, below it", limit: 2000, demand: 1900, ..SECOND },
        Case { name: "2,000 in 1 s, above it", limit: 2000, demand: 4000, ..SECOND },
        Case { name: "2,000 in 1 s, processes killed", limit: 2000, demand: 4000, kills: true, ..SECOND },
    ] {
        text += &measure(case).await;
    }
    // Little to do for the machine: at once.
    let twice = Case { name: "6,000 in 60 s, above it", demand: 200, seconds: 120, ..MINUTE };
    let (below, above, without) = tokio::join!(measure(MINUTE), measure(twice), measure(plain(MINUTE)));
    text + &without + &below + &above
}

async fn measure(case: Case) -> String {
    let server = Server::start(Has::Module).await;
    let begin = SystemTime::now() + Duration::from_millis(500);
    let until = begin + Duration::from_secs(case.seconds);
    let (mut used, mut asked) = (Vec::new(), 0);
    let measured = cost(&server, async {
        let mut outputs = Vec::new();
        let mut running: Vec<Child> = (0..PROCESSES).map(|_| start(&server, case, begin)).collect();
        let mut turn = 0;
        while case.kills && SystemTime::now() + Duration::from_millis(600) < until {
            tokio::time::sleep(Duration::from_millis(500)).await;
            let fresh = start(&server, case, begin);
            let mut killed = std::mem::replace(&mut running[turn % PROCESSES as usize], fresh);
            killed.kill().unwrap();
            outputs.push(killed);
            turn += 1;
        }
        outputs.extend(running);
        for child in outputs {
            // What was written before a process was killed counts; a request that was being written is cut off.
            let bytes = tokio::task::spawn_blocking(move || child.wait_with_output().unwrap().stdout).await.unwrap();
            for words in bytes.chunks_exact(8) {
                match u64::from_le_bytes(words.try_into().unwrap()) {
                    0 => asked += 1,
                    at => used.push(at),
                }
            }
        }
        server.calls("rl.sliding").await + server.calls("rl.refund").await
    });
    let measured = measured.await;
    used.sort_unstable();
    asked += used.len() as u64;
    let (over, most) = windows(&used, case);
    assert!(over == 0 || case.units == 0, "{over} windows hold more than {}: {most}", case.limit);
    let commands = measured.calls as f64 / asked as f64;
    let micros = measured.processor * 1e6 / asked as f64;
    let served = used.len() as f64 / asked as f64 * 100.0;
    // What the windows of the run could take.
    let of_limit = used.len() as f64 / (case.limit * case.seconds * 1000 / case.window_ms) as f64 * 100.0;
    let Case { name, within_ms, units, seconds, .. } = case;
    let how = if units == 0 { "no blocks".to_owned() } else { format!("{within_ms} ms, {units}") };
    let mut row = String::new();
    writeln!(
        row,
        "| {name} | {how} | {} a second | {over} of {} | {commands:.3} | {micros:.1} µs | {served:.1} % | {of_limit:.1} % |",
        asked / seconds,
        used.len()
    )
    .unwrap();
    eprint!("{row}");
    row
}

/// How many of the windows that begin with a use hold more than the limit, and the most that one holds.
fn windows(used: &[u64], case: Case) -> (usize, usize) {
    let mut last = 0;
    let held = used.iter().enumerate().map(|(first, at)| {
        while used.get(last).is_some_and(|next| *next <= at + case.window_ms * 1000) {
            last += 1;
        }
        last - first
    });
    let held: Vec<usize> = held.collect();
    let over = held.iter().filter(|units| **units as u64 > case.limit).count();
    (over, held.into_iter().max().unwrap_or(0))
}

fn start(server: &Server, case: Case, begin: SystemTime) -> Child {
    let begin = begin.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis() as u64;
    let numbers =
        [case.limit, case.window_ms, case.units, case.within_ms, case.demand * 1000 / PROCESSES, case.seconds, begin];
    Command::new(std::env::current_exe().unwrap())
        .args(["worker", &server.url()])
        .args(numbers.map(|number| number.to_string()))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// One of the processes: asks at an even pace, whatever becomes of its requests, and writes when each was let in: in
/// microseconds of the machine's clock, 0 where it was not.
pub async fn worker(words: &[&str]) {
    let [url, numbers @ ..] = words else { panic!("{words:?}") };
    let numbers: Vec<u64> = numbers.iter().map(|number| number.parse().unwrap()).collect();
    // The rate is in requests in a thousand seconds.
    let [limit, window, units, within, rate, seconds, begin] = numbers[..] else { panic!("{numbers:?}") };
    let limiter = Limiter::open(url).unwrap();
    let rule = Rule::sliding((limit, Duration::from_millis(window))).unwrap();
    let blocks = (units > 0).then(|| Blocks::new(&limiter, &rule, units, Duration::from_millis(within)).unwrap());
    let _ = limiter.peek("ready", &rule).await;
    let (sender, mut receiver) = mpsc::unbounded_channel::<u64>();
    let writer = std::thread::spawn(move || {
        let mut out = std::io::stdout().lock();
        while let Some(at) = receiver.blocking_recv() {
            out.write_all(&at.to_le_bytes()).unwrap();
            if receiver.is_empty() {
                out.flush().unwrap();
            }
        }
        out.flush().unwrap();
    });
    let begin = SystemTime::UNIX_EPOCH + Duration::from_millis(begin);
    let mut ticks = interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
    // A process that is started later begins where the others are.
    let requests = |now: u64| now * rate / 1_000_000_000;
    let mut due = requests(micros(SystemTime::now()).saturating_sub(micros(begin)));
    loop {
        ticks.tick().await;
        let now = micros(SystemTime::now()).saturating_sub(micros(begin));
        if now >= seconds * 1_000_000 {
            break;
        }
        while due < requests(now) {
            due += 1;
            let (limiter, blocks, rule, sender) = (limiter.clone(), blocks.clone(), rule.clone(), sender.clone());
            tokio::spawn(async move {
                let outcome = match &blocks {
                    Some(blocks) => blocks.hit("k", 1).await,
                    None => limiter.hit("k", &rule).await,
                };
                let allowed = outcome.is_ok_and(|decision| decision.allowed);
                let _ = sender.send(if allowed { micros(SystemTime::now()) } else { 0 });
            });
        }
    }
    drop(sender);
    writer.join().unwrap();
}

fn micros(time: SystemTime) -> u64 {
    time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_micros() as u64
}
