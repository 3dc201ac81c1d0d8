//! The report: tables for docs/BENCHMARK.md, and a short one for the README.

use super::cases::{Group, Side, grouped};
use super::results::{Ratio, Results, unit};
use super::shared::{put, told};
use super::support::machine;

const PAGE: &str = "docs/BENCHMARK.md";

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

const HERE: &[Group] = &[Group::Floor, Group::Main, Group::Options, Group::Throttle, Group::Policies];

/// The cases, for the terminal.
pub fn table(results: &Results) -> String {
    times_of(results, &[HERE, &[Group::Elsewhere]].concat())
}

/// The sections of docs/BENCHMARK.md, and the short table in the README.
pub fn write(results: &Results) {
    let put = |section, page, text: &str| put(section, "bench", page, text);
    let folded = |table: &str| format!("<details><summary>The figures</summary>\n\n{table}\n</details>");
    let load = results.load_average.map_or("not recorded".to_owned(), |load| format!("{load:.2}"));
    let place = format!("Engine: {}. Machine: {}", told(&results.engine), machine());
    let head = format!("{place}. Rounds: {}. Load average when the run began: {load}.", results.rounds);
    put("figures", PAGE, &format!("{head}\n\n{}", times_of(results, HERE)));
    put("elsewhere", PAGE, &folded(&times_of(results, &[Group::Elsewhere])));
    put("durable", PAGE, &folded(&durable(results)));
    let mut table = Table::new(&["server time a call", "module", "compact", "redis-cell", "script", "script ÷ module"]);
    for group in [Group::Floor, Group::Main, Group::Throttle] {
        for case in results.titles(group).into_iter().filter(|case| IN_README.contains(case)) {
            table.row(times_row(results, group, case));
        }
    }
    let more = "`make bench` measures this and more on your machine, in less than five minutes.";
    put("figures", "README.md", &format!("{place}.\n\n{}\n{more}", table.told()));
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
