//! The figures: recorded round by round, reported as medians, written as JSON.

use serde_json::json;

use super::cases::{Case, Group, Side, name};
use super::support::{Engine, engine::version, load_average, machine, root};

/// A kind of figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    pub name: &'static str,
    pub unit: &'static str,
}

/// The kinds of figures.
pub mod unit {
    use super::Kind;

    pub const SERVER_TIME: Kind = Kind { name: "server time a call", unit: "µs" };
    pub const CPU: Kind = Kind { name: "processor time a call", unit: "µs" };
    pub const THROUGHPUT: Kind = Kind { name: "throughput", unit: "calls/s" };
    pub const AOF: Kind = Kind { name: "AOF a call", unit: "bytes" };
}

/// How two figures compare.
pub struct Ratio {
    /// The ratio of the medians, which a reader of the table can check.
    pub medians: f64,
    /// The smallest and the largest ratio of a round.
    pub least: f64,
    pub most: f64,
}

struct Entry {
    group: Group,
    case: String,
    side: Side,
    kind: Kind,
    /// One a round.
    samples: Vec<f64>,
}

impl Entry {
    fn is(&self, group: Group, case: &str, side: Side, kind: Kind) -> bool {
        self.group == group && self.case == case && self.side == side && self.kind == kind
    }
}

pub struct Results {
    pub engine: Engine,
    /// When the run began.
    pub load_average: Option<f64>,
    pub rounds: usize,
    entries: Vec<Entry>,
}

impl Results {
    pub fn new(engine: &Engine) -> Self {
        Self { engine: engine.clone(), load_average: load_average(), rounds: 0, entries: Vec::new() }
    }

    pub fn note(&mut self, case: &Case, kind: Kind, value: f64) {
        let Case { group, side, .. } = *case;
        match self.entries.iter_mut().find(|entry| entry.is(group, &case.title, side, kind)) {
            Some(entry) => entry.samples.push(value),
            None => self.entries.push(Entry { group, case: case.title.clone(), side, kind, samples: vec![value] }),
        }
    }

    fn samples(&self, group: Group, case: &str, side: Side, kind: Kind) -> &[f64] {
        let found = self.entries.iter().find(|entry| entry.is(group, case, side, kind));
        found.map_or(&[], |entry| &entry.samples)
    }

    /// The median over the rounds, if there was a round.
    pub fn median(&self, group: Group, case: &str, side: Side, kind: Kind) -> Option<f64> {
        median(self.samples(group, case, side, kind).iter().copied())
    }

    /// The figure of `theirs` divided by that of `ours`.
    pub fn ratio(&self, group: Group, case: &str, [theirs, ours]: [Side; 2], kind: Kind) -> Option<Ratio> {
        let of = |side| self.samples(group, case, side, kind).iter();
        let rounds = || of(theirs).zip(of(ours)).map(|(theirs, ours)| theirs / ours);
        let medians = self.median(group, case, theirs, kind)? / self.median(group, case, ours, kind)?;
        Some(Ratio { medians, least: rounds().reduce(f64::min)?, most: rounds().reduce(f64::max)? })
    }

    /// The titles of a group in the order of the table.
    pub fn titles(&self, group: Group) -> Vec<&str> {
        let mut titles: Vec<&str> = Vec::new();
        for entry in self.entries.iter().filter(|entry| entry.group == group) {
            if !titles.contains(&&*entry.case) {
                titles.push(&entry.case);
            }
        }
        titles
    }

    /// One line for each figure, so that a diff shows which changed.
    pub fn write(&self, path: &str) {
        let version = self.engine.program.as_deref().and_then(version);
        let head = [
            ("machine", json!(machine())),
            ("load average", json!(self.load_average)),
            ("engine", json!({ "name": self.engine.name, "version": version })),
            ("rounds", json!(self.rounds)),
        ];
        let head = head.map(|(name, value)| format!("  {}: {value},\n", json!(name))).concat();
        let figures = self.entries.iter().map(|entry| {
            let rounds: Vec<f64> = entry.samples.iter().copied().map(rounded).collect();
            let figure = json!({
                "group": name(entry.group), "case": entry.case, "side": entry.side.name(),
                "figure": entry.kind.name, "unit": entry.kind.unit,
                "rounds": rounds,
            });
            format!("    {figure}")
        });
        let figures = figures.collect::<Vec<_>>().join(",\n");
        let text = format!("{{\n{head}  \"figures\": [\n{figures}\n  ]\n}}\n");
        std::fs::write(root().join(path), text).unwrap_or_else(|error| panic!("{path}: {error}"));
    }
}

/// Four significant digits.
fn rounded(figure: f64) -> f64 {
    format!("{figure:.3e}").parse().expect("a number")
}

fn median(figures: impl Iterator<Item = f64>) -> Option<f64> {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    let middle = figures.len() / 2;
    match figures.len() % 2 {
        0 => Some((figures.get(middle.checked_sub(1)?)? + figures[middle]) / 2.0),
        _ => Some(figures[middle]),
    }
}
