//! The table of samples as the text that Prometheus reads.

use std::fmt::Write as _;

use prometheus::{Registry, TextEncoder};

use super::samples::{Sample, Value};
use crate::stats::Stats;

/// Labels that samples have of their own.
const LABELS: [&str; 9] = ["__name__", "domain", "key1", "key2", "err_type", "grpc_method", "port", "mode", "le"];

/// EXTRA_TAGS as labels: what a name of Prometheus cannot have becomes `_`.
/// Two labels of a sample with one name would make Prometheus refuse all.
pub fn labels(tags: &[(String, String)]) -> Result<Vec<(String, String)>, String> {
    let mut labels: Vec<(String, String)> = Vec::new();
    for (tag, value) in tags {
        let mut name = tag.replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            name.insert(0, '_');
        }
        if LABELS.contains(&name.as_str()) || labels.iter().any(|(taken, _)| *taken == name) {
            return Err(format!("EXTRA_TAGS: the metrics have a label '{name}' already"));
        }
        labels.push((name, value.clone()));
    }
    Ok(labels)
}

/// Lines of samples. Those with the same name and labels are one, with their sum: limits whose names differ only further
/// down. `tags`: further labels of all.
pub fn lines(samples: impl Iterator<Item = Sample>, tags: Vec<(String, String)>) -> impl Iterator<Item = String> {
    let mut samples = samples.peekable();
    let mut last = String::new();
    std::iter::from_fn(move || {
        let mut sample = samples.next()?;
        while let Some(same) = samples.next_if(|next| next.name == sample.name && next.labels == sample.labels) {
            if let (Value::Counter(sum), Value::Counter(more)) = (&mut sample.value, same.value) {
                *sum += more;
            }
        }
        let Sample { name, help, labels, value, .. } = sample;
        let (kind, value) = match value {
            Value::Counter(value) => ("counter", value.to_string()),
            Value::Gauge(value) => ("gauge", value.to_string()),
        };
        let mut text = String::new();
        if name != last {
            let _ = write!(text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        }
        let own = labels.iter().map(|(name, value)| (*name, value));
        let all = own.chain(tags.iter().map(|(name, value)| (name.as_str(), value)));
        let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        let labels: Vec<_> = all.map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(text, "{name}{labels} {value}");
        last = name;
        Some(text)
    })
}

pub fn times_and_process(stats: &Stats, tags: &[(String, String)]) -> prometheus::Result<String> {
    let registry = Registry::new_custom(None, Some(tags.iter().cloned().collect()))?;
    registry.register(Box::new(stats.times.response.clone()))?;
    registry.register(Box::new(stats.times.redis.clone()))?;
    #[cfg(target_os = "linux")]
    registry.register(Box::new(prometheus::process_collector::ProcessCollector::for_self()))?;
    TextEncoder::new().encode_to_string(&registry.gather())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: &str, labels: &[(&'static str, &str)], value: Value) -> Sample {
        let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Sample { name: name.to_owned(), help: "Helps.", labels, flat: String::new(), value }
    }

    #[test]
    fn tags_are_labels() {
        let tags = |pairs: &[(&str, &str)]| {
            labels(&pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect::<Vec<_>>())
        };
        let wanted = [("zone_a", "eu"), ("_1", "b")].map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(tags(&[("zone-a", "eu"), ("1", "b")]), Ok(wanted.to_vec()));
        assert!(tags(&[("domain", "a")]).is_err());
        assert!(tags(&[("a.b", "c"), ("a-b", "c")]).is_err());
    }

    #[test]
    fn equal_labels_are_one_line_and_a_name_has_one_head() {
        let samples = [
            sample("a", &[("key", "x")], Value::Counter(1)),
            sample("a", &[("key", "x")], Value::Counter(2)),
            sample("a", &[("key", "q\"\\\n")], Value::Counter(4)),
            sample("b", &[], Value::Gauge(0.5)),
        ];
        let tags = vec![("zone".to_owned(), "eu".to_owned())];
        let text: String = lines(samples.into_iter(), tags).collect();
        assert_eq!(
            text,
            "# HELP a Helps.\n# TYPE a counter\na{key=\"x\",zone=\"eu\"} 3\na{key=\"q\\\"\\\\\\n\",zone=\"eu\"} 4\n\
             # HELP b Helps.\n# TYPE b gauge\nb{zone=\"eu\"} 0.5\n"
        );
        assert_eq!(
            lines([sample("b", &[], Value::Gauge(1.0))].into_iter(), Vec::new()).last().unwrap().lines().last(),
            Some("b 1")
        );
    }
}
