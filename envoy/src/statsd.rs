//! The counters as statsd takes them: what has been added since the last time.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket};

use crate::gauges::{Gauge, Gauges};
use crate::settings::Sink;
use crate::stats::Stats;

/// How long sending may take; a server that hangs must not pile up what is to be sent.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most of one UDP packet, within what every network carries.
const PACKET: usize = 1400;

/// Sends, as often as told.
pub async fn run(sink: Sink, stats: Arc<Stats>, gauges: Arc<Gauges>, every: Duration, tags: Vec<(String, String)>) {
    let mut last = HashMap::new();
    let mut failing = false;
    let mut ticks = tokio::time::interval(every.max(Duration::from_millis(1)));
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let mut now = stats.flat();
        let times = &stats.response_time.0;
        now.push(("response_time_count".to_owned(), times.get_sample_count()));
        now.push(("response_time_micros".to_owned(), (times.get_sample_sum() * 1e6) as u64));
        let lines = lines(&sink, &now, &last, &gauges.read(), &tags);
        let sent = tokio::time::timeout(PATIENCE, send(&sink, &lines)).await;
        match sent.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())) {
            Ok(()) => {
                failing = false;
                last = now.into_iter().collect();
            }
            // What was not sent is in the next difference.
            Err(error) if !failing => {
                failing = true;
                tracing::warn!("statistics cannot be sent: {error}");
            }
            Err(_) => {}
        }
    }
}

/// A line a counter that has grown, and a line a gauge.
fn lines(
    sink: &Sink,
    now: &[(String, u64)],
    last: &HashMap<String, u64>,
    gauges: &[Gauge],
    tags: &[(String, String)],
) -> Vec<String> {
    let (dotted, hashed) = match sink {
        Sink::DogStatsd(_) if !tags.is_empty() => {
            let tags: Vec<_> = tags.iter().map(|(name, value)| format!("{name}:{value}")).collect();
            (String::new(), format!("|#{}", tags.join(",")))
        }
        _ => (tags.iter().map(|(name, value)| format!(".__{name}={value}")).collect(), String::new()),
    };
    let grown = |name: &str, value: u64| value.saturating_sub(last.get(name).copied().unwrap_or(0));
    let mut lines = Vec::new();
    let (mut count, mut micros) = (0, 0);
    for (name, value) in now {
        let grown = grown(name, *value);
        match name.as_str() {
            "response_time_count" => count = grown,
            "response_time_micros" => micros = grown,
            _ if grown > 0 => lines.push(format!("{name}{dotted}:{grown}|c{hashed}\n")),
            _ => {}
        }
    }
    lines.extend(gauges.iter().map(|gauge| format!("{}{dotted}:{}|g{hashed}\n", gauge.flat_name(), gauge.value)));
    if let Some(mean) = micros.checked_div(count) {
        let mut line = String::new();
        let millis = Duration::from_micros(mean).as_secs_f64() * 1000.0;
        let _ = writeln!(line, "ratelimit_server.ShouldRateLimit.response_time{dotted}:{millis:.3}|ms{hashed}");
        lines.push(line);
    }
    lines
}

async fn send(sink: &Sink, lines: &[String]) -> std::io::Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    match sink {
        Sink::Statsd(address) => {
            let mut stream = TcpStream::connect(address).await?;
            stream.write_all(lines.concat().as_bytes()).await?;
            stream.shutdown().await
        }
        Sink::DogStatsd(address) => {
            let socket = UdpSocket::bind("0.0.0.0:0").await?;
            socket.connect(address).await?;
            let mut packet = String::new();
            for line in lines {
                if packet.len() + line.len() > PACKET && !packet.is_empty() {
                    socket.send(packet.as_bytes()).await?;
                    packet.clear();
                }
                packet.push_str(line);
            }
            socket.send(packet.as_bytes()).await.map(drop)
        }
        Sink::Log => {
            for line in lines {
                tracing::info!("statistics: {}", line.trim_end());
            }
            Ok(())
        }
        Sink::None | Sink::Prometheus { .. } => Ok(()),
    }
}
