//! The counters as statsd takes them: what has been added since the last time.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UdpSocket, lookup_host};

use super::samples::{Sample, Samples, Value};
use crate::settings::Sink;

/// How long sending may take; a server that hangs must not pile up what is to be sent.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most of one UDP packet, within what every network carries.
const PACKET: usize = 1400;

pub async fn run(sink: Sink, samples: Arc<Samples>, every: Duration, tags: Vec<(String, String)>) {
    let mut last = Sent::default();
    let mut failing = false;
    let mut ticks = tokio::time::interval(every.max(Duration::from_millis(1)));
    ticks.tick().await;
    loop {
        ticks.tick().await;
        let times = &samples.service.stats.times.response;
        let mut now = Sent { answers: times.get_sample_count(), seconds: times.get_sample_sum(), ..Sent::default() };
        let lines = lines(&sink, samples.rows(), &mut now, &last, &tags);
        let sent = tokio::time::timeout(PATIENCE, send(&sink, &lines)).await;
        match sent.unwrap_or_else(|_| Err(std::io::ErrorKind::TimedOut.into())) {
            Ok(()) => {
                failing = false;
                last = now;
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

#[derive(Default)]
struct Sent {
    /// Counters that are not 0, by name.
    counters: HashMap<String, u64>,
    answers: u64,
    seconds: f64,
}

/// A line a counter that has grown, and a line a gauge.
fn lines(
    sink: &Sink,
    samples: impl Iterator<Item = Sample>,
    now: &mut Sent,
    last: &Sent,
    tags: &[(String, String)],
) -> Vec<String> {
    let (dotted, hashed) = match sink {
        Sink::DogStatsd(_) if !tags.is_empty() => {
            let tags: Vec<_> = tags.iter().map(|(name, value)| format!("{name}:{value}")).collect();
            (String::new(), format!("|#{}", tags.join(",")))
        }
        _ => (tags.iter().map(|(name, value)| format!(".__{name}={value}")).collect(), String::new()),
    };
    let mut lines = Vec::new();
    for Sample { flat: name, value, .. } in samples {
        match value {
            Value::Counter(0) => {}
            // Two names may look alike to statsd, and are one counter then.
            Value::Counter(value) => *now.counters.entry(name).or_default() += value,
            Value::Gauge(value) => lines.push(format!("{name}{dotted}:{value}|g{hashed}\n")),
        }
    }
    for (name, value) in &now.counters {
        let grown = value.saturating_sub(last.counters.get(name).copied().unwrap_or(0));
        if grown > 0 {
            lines.push(format!("{name}{dotted}:{grown}|c{hashed}\n"));
        }
    }
    let answers = now.answers.saturating_sub(last.answers);
    if answers > 0 {
        let millis = (now.seconds - last.seconds) * 1000.0 / answers as f64;
        lines.push(format!("ratelimit_server.ShouldRateLimit.response_time{dotted}:{millis:.3}|ms{hashed}\n"));
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
            let to = lookup_host(address).await?.min_by_key(SocketAddr::is_ipv6).ok_or(std::io::ErrorKind::NotFound)?;
            let socket = UdpSocket::bind(if to.is_ipv6() { "[::]:0" } else { "0.0.0.0:0" }).await?;
            socket.connect(to).await?;
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
