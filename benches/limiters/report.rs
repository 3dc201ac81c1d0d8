//! The report: a page of Markdown, and its short form for the README.

use std::fmt::Write;

use serde_json::Value;

use super::cases::{Group, PACE, Side, grouped};
use super::results::{Ratio, Results, unit};
use super::support::root;

/// A table in Markdown. Empty columns are left out.
struct Table {
    columns: Vec<(&'static str, Vec<String>)>,
}

impl Table {
    fn new(names: &[&'static str]) -> Self {
        Self { columns: names.iter().map(|&name| (name, Vec::new())).collect() }
    }

    fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "a cell a column");
        for ((_, column), cell) in self.columns.iter_mut().zip(cells) {
            column.push(cell);
        }
    }

    fn told(&self) -> String {
        let columns: Vec<_> =
            self.columns.iter().filter(|(_, cells)| cells.iter().any(|cell| !cell.is_empty())).collect();
        let mut text = String::new();
        let line = |cells: Vec<&str>| format!("| {} |\n", cells.join(" | "));
        text += &line(columns.iter().map(|(name, _)| *name).collect());
        let rule: Vec<&str> = (0..columns.len()).map(|place| if place == 0 { "---" } else { "--:" }).collect();
        text += &format!("|{}|\n", rule.join("|"));
        for row in 0..columns.first().map_or(0, |(_, cells)| cells.len()) {
            text += &line(columns.iter().map(|(_, cells)| &*cells[row]).collect());
        }
        text
    }
}

/// The top of the page.
const HERE: &[Group] = &[Group::Floor, Group::Main, Group::Options, Group::Throttle, Group::Policies];

/// The cases, for the terminal.
pub fn table(results: &Results) -> String {
    times_of(results, &[HERE, &[Group::Elsewhere]].concat())
}

/// Times and calls a second, for the page.
fn times_of(results: &Results, groups: &[Group]) -> String {
    let mut table = Table::new(&[
        "server time a call",
        "module",
        "compact",
        "redis-cell",
        "script",
        "script ÷ module",
        "calls/s",
        "of the script",
    ]);
    for &group in groups {
        for case in results.titles(group) {
            let speed = |side| results.median(group, case, side, unit::THROUGHPUT).map_or(String::new(), thousands);
            let mut cells = times_row(results, group, case);
            cells.extend([speed(own_side(group)), speed(Side::Script)]);
            table.row(cells);
        }
    }
    table.told()
}

/// The side that a case is about.
fn own_side(group: Group) -> Side {
    if group == Group::Floor { Side::Server } else { Side::Module }
}

fn times_row(results: &Results, group: Group, case: &str) -> Vec<String> {
    let time = |side| results.median(group, case, side, unit::SERVER_TIME).map_or(String::new(), micros);
    let ratio = results.ratio(group, case, [Side::Script, Side::Module], unit::SERVER_TIME);
    let sides = [own_side(group), Side::Compact, Side::Cell, Side::Script].map(time);
    [vec![case.to_owned()], sides.to_vec(), vec![ratio.map_or(String::new(), times)]].concat()
}

/// A long table that a reader opens.
fn folded(summary: &str, table: &str) -> String {
    format!("<details><summary>{summary}</summary>\n\n{table}\n</details>\n")
}

pub fn page(results: &Results) -> String {
    let head =
        |name: &str| results.head.iter().find(|(found, _)| *found == name).map_or(&Value::Null, |(_, value)| value);
    let mut page = String::new();
    let _ = write!(
        page,
        "# Figures\n\n\
         What calls cost in time and memory. [PERFORMANCE.md](PERFORMANCE.md) says what follows from it. `make bench` writes this \
         page but for the sections that name another command, and \
         [bench/results.json](bench/results.json), which has every figure with its unit. \
         No other load changes [the instructions of each call](#instructions-a-call).\n\n\
         {}. Rounds on the same servers: {}, at most three of them with the \
         cases that take seconds and with the other engines. Figures are medians of the rounds, and ratios are those of the \
         figures beside them, with the smallest and the largest ratio of a round in parentheses. Where these are on both sides \
         of 1, there is *no difference*. Load average when the run began: {}. Above the number of processors the figures are \
         those of a machine that had other work.\n\n\
         - *Server time*: the server's own figure for a call (`INFO commandstats`).\n\
         - *Calls/s*: one client on two connections with 32 calls in a pipeline.\n\
         - *Script*: the scripts in `tests/scripts` and `benches/limiters/scripts`, called with EVALSHA.\n\
         - *Filling*: every key has room, and every request is allowed; keys start empty (at a limit of 1,000,000: nearly \
         full). *Denied*: keys are at their limit. *Moving*: with each call one request is added and one leaves the window, \
         at a pace of {} calls/s.\n\n",
        measured_on(results),
        head("rounds"),
        head("load average").as_f64().map_or("not recorded".to_owned(), |load| format!("{load:.2}")),
        grouped(PACE),
    );
    page += &times_of(results, HERE);

    let _ = write!(
        page,
        "\n## On other engines\n\n\
         The same on the newest other engines that are installed (`make engines`), with half of the calls on half of the keys. \
         And on the engine of this page with `zset-max-listpack-entries 8` (128 by default), for both sides: \
         then a sorted set of more than eight members is a skip list, which takes less time and, up to 128 members, about four \
         times the memory.\n\n{}",
        folded("The figures", &times_of(results, &[Group::Elsewhere]))
    );

    let _ = write!(
        page,
        "\n## With the AOF and a replica\n\n\
         The same cases on a server that writes an AOF (`appendfsync everysec`) and has one replica, for both sides. \
         *Processor time* is the time of all threads of the server for a call, including reading, replying, the AOF and \
         replication.\n\n{}",
        folded("The figures", &durable(results))
    );

    page
}

/// The sections of a page that other commands write (scripts/page-section.sh), each with the blank line before it.
pub fn of_other_commands(page: &str) -> String {
    let section = |(name, command): (&str, &str)| {
        let begin = page.find(&format!("\n<!-- {name}: written by make {command} -->\n"))?;
        let end = format!("\n<!-- end of {name} -->\n");
        page.get(begin..page.find(&end)? + end.len())
    };
    [
        ("instructions", "bench-instructions"),
        ("sizing", "sizing"),
        ("soak", "soak"),
        ("clients", "bench-clients"),
        ("envoy", "bench-envoy"),
    ]
    .into_iter()
    .filter_map(section)
    .collect()
}

fn measured_on(results: &Results) -> String {
    let head =
        |name: &str| results.head.iter().find(|(found, _)| *found == name).map_or(&Value::Null, |(_, value)| value);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let engine = head("engine");
    format!("Engine: {} ({}). Machine: {}", text(&engine["name"]), text(&engine["version"]), text(head("machine")))
}

fn durable(results: &Results) -> String {
    let group = Group::Durable;
    let mut table = Table::new(&[
        "case",
        "server time",
        "compact",
        "script",
        "script ÷ module",
        "script ÷ compact",
        "processor time",
        "compact",
        "script",
        "script ÷ module",
        "script ÷ compact",
        "AOF bytes a call",
        "compact",
        "script",
    ]);
    for case in results.titles(group) {
        let mut cells = vec![case.to_owned()];
        for (kind, shown) in [(unit::SERVER_TIME, micros as fn(f64) -> String), (unit::CPU, micros), (unit::AOF, bytes)]
        {
            let of = |side| results.median(group, case, side, kind).map_or(String::new(), shown);
            let ratio = |side| results.ratio(group, case, [Side::Script, side], kind).map_or(String::new(), times);
            cells.extend([Side::Module, Side::Compact, Side::Script].map(of));
            if kind != unit::AOF {
                cells.extend([Side::Module, Side::Compact].map(ratio));
            }
        }
        table.row(cells);
    }
    table.told()
}

/// The cases of the README's short table, in the order in which they were measured.
const IN_README: [&str; 6] = [
    "INCR",
    "RL.FIXED",
    "RL.SLIDING, limit 100, filling",
    "RL.SLIDING, limit 100, denied",
    "RL.SLIDING, limit 100, moving",
    "RL.THROTTLE, allowed",
];

/// Replaces the short table and the machine in the README.
pub fn quote_in_readme(results: &Results) {
    const BEGIN: &str = "<!-- figures: written by make bench -->\n";
    const END: &str = "<!-- end of figures -->";
    let path = root().join("README.md");
    let readme = std::fs::read_to_string(&path).expect("README.md");
    let (before, rest) = readme.split_once(BEGIN).expect("a place for the figures");
    let (_old, after) = rest.split_once(END).expect("an end of that place");
    let mut table = Table::new(&["server time a call", "module", "compact", "redis-cell", "script", "script ÷ module"]);
    for group in [Group::Floor, Group::Main, Group::Throttle] {
        for case in results.titles(group).into_iter().filter(|case| IN_README.contains(case)) {
            table.row(times_row(results, group, case));
        }
    }
    let quoted = format!(
        "{before}{BEGIN}{}.\n\n{}\n\
         `make bench` measures this and more on your machine, in less than five minutes.\n{END}{after}",
        measured_on(results),
        table.told()
    );
    std::fs::write(&path, quoted).expect("README.md");
}

fn micros(figure: f64) -> String {
    format!("{figure:.2} µs")
}

fn thousands(figure: f64) -> String {
    format!("{:.0} k", figure / 1000.0)
}

fn times(ratio: Ratio) -> String {
    match (format!("{:.1}", ratio.least), format!("{:.1}", ratio.most)) {
        _ if ratio.least < 1.0 && ratio.most > 1.0 => "no difference".to_owned(),
        (least, most) if least == most => format!("{:.1}×", ratio.medians),
        (least, most) => format!("{:.1}× ({least} to {most})", ratio.medians),
    }
}

fn bytes(figure: f64) -> String {
    grouped(figure.round() as usize)
}
