//! The figures as plots: bars and lines, one SVG each.

use std::path::Path;

use plotters::prelude::*;

use super::canvas::{self, Canvas, FAINT, FONT, GREY, HPos, INK, LINE, MARGIN, VERMILION, WIDTH, picture};
use super::cases::{Group, LIMITS, Traffic, grouped};
use super::results::{Kind, Results, unit};
use super::surveys::{CONNECTIONS, DEPTHS, throughput_case};

/// Colours of the sides: the palette of Okabe and Ito, which the colour-blind can distinguish.
const SIDES: [(&str, &str, RGBColor); 5] = [
    ("server", "", GREY),
    ("module", "module", canvas::BLUE),
    ("compact", "module, compact storage", RGBColor(0, 158, 115)),
    ("redis-cell", "redis-cell", RGBColor(204, 121, 167)),
    ("script", "Lua script", VERMILION),
];

/// The cases of the plot of server times; the page's tables have all.
const PLOTTED: [&str; 11] = [
    "INCR",
    "RL.FIXED",
    "RL.SLIDING, limit 100, filling",
    "RL.SLIDING, limit 100, denied",
    "RL.SLIDING, limit 100, moving",
    "RL.SLIDING, 3 windows",
    "RL.SLIDING, 200,000 tokens, COST 1800",
    "RL.THROTTLE, allowed",
    "RL.ACQUIRE, admitted",
    "RL.PEEK, SLIDING",
    "RL.ALL, requests, tokens and leases",
];

pub fn write(results: &Results, folder: &Path) {
    for (name, svg) in [
        ("server_time.svg", server_time(results)),
        ("limit.svg", limit(results)),
        ("memory.svg", memory(results)),
        ("throughput.svg", throughput(results)),
        ("flood.svg", flood(results)),
        ("aof.svg", aof(results)),
    ] {
        std::fs::write(folder.join(name), svg).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// The cases on the page's engine with default settings, without an AOF and replicas.
fn here(results: &Results) -> impl Iterator<Item = &str> {
    let elsewhere = [Group::Durable, Group::Elsewhere].map(Group::name);
    results.groups().into_iter().filter(move |group| !elsewhere.contains(group))
}

fn server_time(results: &Results) -> String {
    let rows = here(results).flat_map(|group| rows_of(results, group, unit::SERVER_TIME));
    let rows = rows.filter(|row| PLOTTED.contains(&&*row.name)).collect();
    bars("Server time a call, µs (less is better)", rows, 2, "server's own command")
}

fn aof(results: &Results) -> String {
    let rows = rows_of(results, Group::Durable.name(), unit::AOF);
    bars("AOF bytes a call (less is better)", rows, 0, "")
}

fn flood(results: &Results) -> String {
    let case = "GET under a flood of denials";
    let rows = [
        ("median", unit::P50),
        ("90th percentile", unit::P90),
        ("99th percentile", unit::P99),
        ("99.9th percentile", unit::P999),
    ]
    .map(|(name, kind)| Row {
        name: name.to_owned(),
        bars: SIDES.iter().filter_map(|(side, ..)| Some((*side, results.median("flood", case, side, kind)?))).collect(),
    });
    let title = "Latency of GET under denials, µs (less is better)";
    bars(title, rows.into(), 0, "nobody calls")
}

fn limit(results: &Results) -> String {
    let panels = [(Traffic::Moving, "at the limit, one goes and one comes"), (Traffic::Denied, "denied")];
    let panels = panels.map(|(traffic, caption)| Panel {
        caption: caption.to_owned(),
        lines: SIDES
            .iter()
            .map(|(side, name, color)| {
                let points = LIMITS.into_iter().filter_map(|limit| {
                    let case = format!("RL.SLIDING, limit {}, {}", grouped(limit), traffic.name());
                    Some((limit as f64, results.median(Group::Main.name(), &case, side, unit::SERVER_TIME)?))
                });
                Line { name: (*name).to_owned(), color: *color, points: points.collect() }
            })
            .collect(),
    });
    lines("RL.SLIDING: server time a call, µs, by limit", "limit", panels.into(), 10.0)
}

fn memory(results: &Results) -> String {
    let lines_of = SIDES.iter().map(|(side, name, color)| {
        let points = results.titles("memory").into_iter().filter_map(|requests| {
            let bytes = results.median("memory", requests, side, unit::MEMORY)?;
            let requests: f64 = requests.parse().ok()?;
            Some((requests, bytes / requests))
        });
        Line { name: (*name).to_owned(), color: *color, points: points.collect() }
    });
    let panel = Panel { caption: String::new(), lines: lines_of.collect() };
    lines("RL.SLIDING: bytes of a key for each request in its log", "requests in the log", vec![panel], 10.0)
}

fn throughput(results: &Results) -> String {
    // The deeper the darker.
    let shades = [RGBColor(110, 180, 230), RGBColor(0, 114, 178), RGBColor(0, 50, 90)];
    let panels = [("module", "module"), ("script", "Lua script")].map(|(side, caption)| Panel {
        caption: caption.to_owned(),
        lines: DEPTHS
            .iter()
            .zip(shades)
            .map(|(&depth, color)| {
                let points = CONNECTIONS.iter().filter_map(|&connections| {
                    let case = throughput_case(connections, depth);
                    let calls = results.median("throughput", &case, side, unit::THROUGHPUT)?;
                    Some((connections as f64, calls / 1000.0))
                });
                Line { name: format!("{depth} in a pipeline"), color, points: points.collect() }
            })
            .collect(),
    });
    lines("RL.SLIDING over Zipf keys: thousands of calls a second", "connections", panels.into(), 4.0)
}

struct Row {
    name: String,
    /// A side and its figure.
    bars: Vec<(&'static str, f64)>,
}

fn rows_of(results: &Results, group: &str, kind: Kind) -> Vec<Row> {
    let row = |case: &str| Row {
        name: case.to_owned(),
        bars: SIDES.iter().filter_map(|(side, ..)| Some((*side, results.median(group, case, side, kind)?))).collect(),
    };
    results.titles(group).into_iter().map(row).filter(|row| !row.bars.is_empty()).collect()
}

/// Lying bars, a group of them a row under its name, each with its figure behind it. `server` is what the grey ones are called.
fn bars(title: &str, rows: Vec<Row>, decimals: usize, server: &str) -> String {
    const THICK: i32 = 17;
    const GAP: i32 = 8;
    let shown = SIDES.iter().filter(|side| rows.iter().any(|row| row.bars.iter().any(|bar| bar.0 == side.0)));
    let legend = Legend::of(shown.map(|(side, name, color)| (if *side == "server" { server } else { name }, *color)));
    let top = 48 + legend.height;
    let rows: Vec<(Vec<String>, Row)> = rows.into_iter().map(|row| (lines_of(&row.name), row)).collect();
    let tall = |(lines, row): &(Vec<String>, Row)| lines.len() as i32 * LINE + row.bars.len() as i32 * THICK + GAP;
    let height = top + rows.iter().map(tall).sum::<i32>() + GAP;
    let most = rows.iter().flat_map(|(_, row)| &row.bars).map(|bar| bar.1).fold(f64::MIN_POSITIVE, f64::max);
    let figure = |value: f64| {
        if decimals == 0 { grouped(value.round() as usize) } else { format!("{value:.decimals$}") }
    };
    let room = f64::from(WIDTH - 2 * MARGIN - 6 - canvas::width(&figure(most), false));
    picture(height, |canvas| {
        canvas.bold(title, (MARGIN, 22), HPos::Left);
        legend.draw(canvas, 42);
        let mut y = top;
        for (lines, row) in rows {
            for line in lines {
                canvas.text(&line, (MARGIN, y + LINE / 2 - 2), HPos::Left);
                y += LINE;
            }
            for (side, value) in row.bars {
                let color = SIDES.iter().find(|known| known.0 == side).map_or(INK, |known| known.2);
                let end = MARGIN + ((value / most * room) as i32).max(1);
                canvas.rectangle((MARGIN, y), (end, y + THICK - 3), color.filled());
                canvas.text(&figure(value), (end + 6, y + THICK / 2 - 1), HPos::Left);
                y += THICK;
            }
            y += GAP;
        }
    })
}

/// A name, wrapped.
fn lines_of(name: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in name.split(' ') {
        match lines.last_mut() {
            Some(line) if canvas::width(&format!("{line} {word}"), false) <= WIDTH - 2 * MARGIN => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The legend, wrapped.
struct Legend {
    entries: Vec<(String, RGBColor, (i32, i32))>,
    height: i32,
}

impl Legend {
    fn of<'a>(names: impl Iterator<Item = (&'a str, RGBColor)>) -> Self {
        const PATCH: i32 = 20;
        let (mut x, mut y) = (MARGIN, 0);
        let mut entries = Vec::new();
        for (name, color) in names {
            let wide = PATCH + canvas::width(name, false) + 10;
            if x > MARGIN && x + wide > WIDTH - MARGIN {
                (x, y) = (MARGIN, y + LINE);
            }
            entries.push((name.to_owned(), color, (x, y)));
            x += wide;
        }
        Self { entries, height: y + LINE }
    }

    fn draw(&self, canvas: &Canvas, top: i32) {
        for (name, color, (x, y)) in &self.entries {
            let y = top + y + LINE / 2;
            canvas.rectangle((*x, y - 7), (x + 14, y + 7), color.filled());
            canvas.text(name, (x + 20, y), HPos::Left);
        }
    }
}

struct Line {
    name: String,
    color: RGBColor,
    points: Vec<(f64, f64)>,
}

struct Panel {
    caption: String,
    lines: Vec<Line>,
}

/// Panels one below the other on the same scales, x by powers of the base.
fn lines(title: &str, x_name: &str, panels: Vec<Panel>, base: f64) -> String {
    const HIGH: i32 = 300;
    let named = panels[0].lines.iter().filter(|line| !line.points.is_empty());
    let legend = Legend::of(named.map(|line| (&*line.name, line.color)));
    let top = 48 + legend.height;
    picture(top + HIGH * panels.len() as i32 + 8, |canvas| {
        canvas.bold(title, (MARGIN, 22), HPos::Left);
        legend.draw(canvas, 42);
        charts(canvas, top, x_name, &panels, base).expect("what is drawn into memory can be drawn");
    })
}

fn charts(
    canvas: &Canvas,
    top: i32,
    x_name: &str,
    panels: &[Panel],
    base: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let font = || FONT.into_font().color(&INK);
    let all = || panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.points);
    let most = |pick: fn(&(f64, f64)) -> f64| all().map(pick).fold(0.0, f64::max);
    let (left, right, high) = (1.0 / most(|point| 1.0 / point.0), most(|point| point.0), most(|point| point.1));
    if high == 0.0 {
        return Ok(());
    }
    for (panel, area) in panels.iter().zip(canvas.area().margin(top, 8, 4, 44).split_evenly((panels.len(), 1))) {
        let mut builder = ChartBuilder::on(&area);
        builder.x_label_area_size(56).y_label_area_size(54);
        if !panel.caption.is_empty() {
            builder.caption(&panel.caption, font());
        }
        let x = (left * 0.8..right * 1.25).log_scale().base(base);
        let mut chart = builder.build_cartesian_2d(x, 0.0..high * 1.05)?;
        chart
            .configure_mesh()
            .x_desc(x_name)
            .x_labels(7)
            .y_labels(6)
            .x_label_formatter(&short)
            .y_label_formatter(&short)
            .label_style(font())
            .axis_style(INK)
            .bold_line_style(FAINT)
            .light_line_style(WHITE)
            .draw()?;
        // Later lines get smaller marks, so that all are visible where they overlap.
        for (line, size) in panel.lines.iter().filter(|line| !line.points.is_empty()).zip((3..=7).rev()) {
            chart.draw_series(LineSeries::new(line.points.iter().copied(), line.color.stroke_width(2)))?;
            chart.draw_series(line.points.iter().map(|&point| Circle::new(point, size, line.color.filled())))?;
        }
    }
    Ok(())
}

/// A number on an axis.
fn short(figure: &f64) -> String {
    if *figure >= 10.0 || figure.fract() == 0.0 { grouped(figure.round() as usize) } else { format!("{figure:.1}") }
}
