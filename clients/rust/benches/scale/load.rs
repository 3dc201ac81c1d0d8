//! Calls in a closed loop, and what they cost their server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use redis::{Cmd, Value};
use tokio::task::JoinSet;

use crate::support::Server;

/// What calls have cost.
#[derive(Clone, Copy)]
pub struct Cost {
    pub calls: u64,
    /// Seconds of the server's processor time.
    pub processor: f64,
    /// Bytes that came to the server, and that it sent.
    pub bytes: (f64, f64),
}

impl Cost {
    pub fn micros(&self) -> f64 {
        self.processor * 1e6 / self.calls as f64
    }

    /// Calls that one core decides a second, in thousands.
    pub fn thousands(&self) -> f64 {
        self.calls as f64 / self.processor / 1e3
    }
}

/// What a server has used since it was started.
pub async fn spent(server: &Server) -> (f64, f64, f64) {
    let info: String = server.run("INFO").await;
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|value| value.trim().parse::<f64>().ok()).unwrap_or_default()
    };
    let processor = field("used_cpu_user") + field("used_cpu_sys");
    (processor, field("total_net_input_bytes"), field("total_net_output_bytes"))
}

/// The cost of what is done meanwhile, which counts its calls.
pub async fn cost(server: &Server, work: impl Future<Output = u64>) -> Cost {
    let before = spent(server).await;
    let calls = work.await;
    let after = spent(server).await;
    Cost { calls, processor: after.0 - before.0, bytes: (after.1 - before.1, after.2 - before.2) }
}

/// Calls on several connections, `pipeline` at a time on each, which all get answers.
pub async fn drive(
    server: &Server,
    connections: usize,
    pipeline: usize,
    time: Duration,
    call: impl Fn(u64) -> Cmd + Send + Sync + 'static,
) -> u64 {
    let (call, numbers, until) = (Arc::new(call), Arc::new(AtomicU64::new(0)), Instant::now() + time);
    let mut callers = JoinSet::new();
    for _ in 0..connections {
        let (mut connection, call, numbers) = (server.connection().await, Arc::clone(&call), Arc::clone(&numbers));
        callers.spawn(async move {
            while Instant::now() < until {
                let first = numbers.fetch_add(pipeline as u64, Relaxed);
                let mut pipe = redis::pipe();
                for number in first..first + pipeline as u64 {
                    pipe.add_command(call(number));
                }
                let _: Vec<Value> = pipe.query_async(&mut connection).await.unwrap();
            }
        });
    }
    callers.join_all().await;
    numbers.load(Relaxed)
}

pub fn words(text: &str) -> Cmd {
    let mut cmd = Cmd::new();
    text.split_whitespace().for_each(|word| {
        cmd.arg(word);
    });
    cmd
}

/// A key of many, in an order that jumps about.
pub fn key(number: u64, keys: u64) -> u64 {
    number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % keys
}

/// Whether a response is there to its end. All of these have a content-length.
pub fn is_whole(response: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(response) else { return false };
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    length.is_some_and(|length: usize| body.len() >= length)
}

/// Seconds of processor that a process has taken, from Linux' count of hundredths.
pub fn cpu_of(process: u32) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("a process that runs");
    // Behind the name, which is in parentheses and may hold blanks.
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let fields: Vec<&str> = fields.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<f64>().expect("a number")).sum::<f64>() / 100.0
}
