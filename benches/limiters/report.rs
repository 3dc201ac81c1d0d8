//! How it is told: one page of Markdown.

use std::fmt::Write;

use super::cases::{Case, PACE, Side};
use super::load::{Figures, Memory};
use super::support::{Client, Engine, engine::version, machine, root};

pub fn page(
    client: &mut Client,
    engine: &Engine,
    rounds: usize,
    measured: &[(&Case, Vec<Figures>)],
    memory: &[Memory],
) -> String {
    let mut page = String::new();
    let program = engine.program.as_deref().and_then(version).unwrap_or_default();
    let _ = writeln!(
        page,
        "# Benchmark\n\n\
         `make bench` writes this page. Engine: {} ({program}). Machine: {}.\n\
         {rounds} rounds in turn on one server; figures are medians, ratios are medians of the rounds' own ratios.\n\n\
         *Server time* is the server's own figure for a call (`INFO commandstats`). *Calls/s* is one client on two\n\
         connections with 32 calls in a pipeline; the moving cases come at a pace of {PACE} calls/s. *p50* and *p99* are\n\
         single calls, from call to reply. The scripts are those in `tests/scripts`, called with EVALSHA.\n\n\
         Filling: keys begin empty, every request is allowed. Denied: keys are at their limit. Moving: with each call one\n\
         request leaves the window and one comes.\n",
        engine.name,
        machine(),
    );
    let _ = writeln!(
        page,
        "| case | server time | script | ratio | calls/s | script | p50 | p99 | allowed |\n\
         |---|--:|--:|--:|--:|--:|--:|--:|--:|"
    );
    for (case, figures) in measured {
        let other = measured.iter().find(|(other, _)| other.side == Side::Script && other.title() == case.title());
        match (case.side, other) {
            (Side::Script, _) => {}
            (Side::Module, Some((_, script))) => row(&mut page, case, figures, Some(script)),
            _ => row(&mut page, case, figures, None),
        }
    }
    let _ = writeln!(page, "\n| bytes of a key (MEMORY USAGE) | requests | module | script |\n|---|--:|--:|--:|");
    for Memory { what, requests, bytes } in memory {
        let of =
            |side| bytes.iter().find(|(found, _)| *found == side).map_or(String::new(), |(_, bytes)| bytes.to_string());
        let _ = writeln!(page, "| {what} | {requests} | {} | {} |", of(Side::Module), of(Side::Script));
    }
    let calls: String = client.info_field("stats", "total_commands_processed");
    let _ = writeln!(page, "\n{calls} calls in all.");
    page
}

/// Puts the page's first table, with what it was measured on, into its place in the README.
pub fn quote_in_readme(page: &str) {
    const BEGIN: &str = "<!-- figures: written by make bench -->\n";
    const END: &str = "<!-- end of figures -->";
    let path = root().join("README.md");
    let readme = std::fs::read_to_string(&path).expect("README.md");
    let (before, rest) = readme.split_once(BEGIN).expect("a place for the figures");
    let (_old, after) = rest.split_once(END).expect("an end of that place");
    let measured_on = page.lines().find(|line| line.contains("Engine: ")).expect("the engine");
    let measured_on = measured_on.trim_start_matches("`make bench` writes this page. ");
    let table: Vec<&str> =
        page.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|')).collect();
    let quoted = format!("{before}{BEGIN}{measured_on}\n\n{}\n{END}{after}", table.join("\n"));
    std::fs::write(&path, quoted).expect("README.md");
}

fn row(page: &mut String, case: &Case, figures: &[Figures], script: Option<&Vec<Figures>>) {
    let median_of = |of: fn(&Figures) -> f64| median(figures.iter().map(of));
    let theirs = |of: fn(&Figures) -> f64| script.map_or(f64::NAN, |script| median(script.iter().map(of)));
    let ratio = script.map_or(f64::NAN, |script| {
        median(figures.iter().zip(script).map(|(ours, theirs)| theirs.server / ours.server))
    });
    let allowed = match case.side {
        Side::Server => String::new(),
        Side::Module | Side::Script => format!("{:.0} %", 100.0 * median_of(|figures| figures.allowed)),
    };
    let paced = median_of(|figures| figures.p50).is_nan();
    let speed = |figure: f64| if paced { String::new() } else { shown(figure / 1000.0, 0, " k") };
    let _ = writeln!(
        page,
        "| {} | {} | {} | {} | {} | {} | {} | {} | {allowed} |",
        case.title(),
        shown(median_of(|figures| figures.server), 2, " µs"),
        shown(theirs(|figures| figures.server), 2, " µs"),
        shown(ratio, 1, "×"),
        speed(median_of(|figures| figures.throughput)),
        speed(theirs(|figures| figures.throughput)),
        shown(median_of(|figures| figures.p50), 0, " µs"),
        shown(median_of(|figures| figures.p99), 0, " µs"),
    );
}

/// A figure with its unit; nothing where there is none.
fn shown(figure: f64, decimals: usize, unit: &str) -> String {
    if figure.is_nan() { String::new() } else { format!("{figure:.decimals$}{unit}") }
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}
