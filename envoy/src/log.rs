//! Lines of the log, in the forms of Envoy's rate limit service: `time="…" level=warning msg="…"`, or JSON.

use std::fmt::{self, Write as _};
use std::io;

use serde_json::Value;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_appender::non_blocking::{NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

struct Lines {
    json: bool,
}

/// How many lines may wait to be written. Where nobody reads standard error, further ones are dropped, and nothing waits.
const WAITING: usize = 4096;

pub fn start(level: &str, json: bool) -> Result<WorkerGuard, String> {
    let level = match level.to_ascii_lowercase().as_str() {
        "panic" | "fatal" | "error" => Level::ERROR,
        "warn" | "warning" => Level::WARN,
        "info" => Level::INFO,
        "debug" => Level::DEBUG,
        "trace" => Level::TRACE,
        other => return Err(format!("LOG_LEVEL must be error, warn, info, debug or trace, not '{other}'")),
    };
    let (writer, guard) = NonBlockingBuilder::default().lossy(true).buffered_lines_limit(WAITING).finish(io::stderr());
    // What the client package says of Redis (an outage, its end, how Redis is asked) is for operators at the default level,
    // too. What others say is not.
    let of_client = if level == Level::WARN { Level::INFO } else { level };
    let levels = Targets::new().with_target("redis_rl_envoy", level).with_target("redis_rl_client", of_client);
    let levels = if level == Level::TRACE { levels.with_default(level) } else { levels };
    let lines = tracing_subscriber::fmt::layer().event_format(Lines { json }).with_writer(writer);
    tracing_subscriber::registry().with(lines.with_filter(levels)).init();
    Ok(guard)
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let mut time = String::new();
        SystemTime.format_time(&mut Writer::new(&mut time))?;
        let mut message = Message::default();
        event.record(&mut message);
        let Message { text, fields } = message;
        let level = match *event.metadata().level() {
            Level::WARN => "warning".to_owned(),
            level => level.as_str().to_ascii_lowercase(),
        };
        if self.json {
            let own = [("@message", text), ("@timestamp", time), ("level", level)];
            let all = own.into_iter().chain(fields).map(|(name, value)| (name.to_owned(), Value::from(value)));
            return writeln!(writer, "{}", Value::Object(all.collect()));
        }
        write!(writer, "time=\"{time}\" level={level} msg={}", Value::from(text))?;
        for (name, value) in fields {
            write!(writer, " {name}={}", Value::from(value))?;
        }
        writeln!(writer)
    }
}

#[derive(Default)]
struct Message {
    text: String,
    fields: Vec<(&'static str, String)>,
}

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            let _ = write!(self.text, "{value:?}");
        } else {
            self.fields.push((field.name(), format!("{value:?}")));
        }
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }
}
