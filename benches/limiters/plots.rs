//! The figures as pictures: bars and lines as SVG, on white so that they can be read in dark viewers too.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::cases::{Group, MILLION, Traffic, grouped};
use super::results::{Kind, Results, unit};
use super::surveys::{CONNECTIONS, DEPTHS, throughput_case};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

const FONT: &str = "sans-serif";
const INK: RGBColor = RGBColor(40, 40, 40);
const FAINT: RGBColor = RGBColor(222, 222, 222);
const WIDTH: u32 = 860;

/// Who is drawn how: the palette of Okabe and Ito, which the colour-blind can tell apart.
const SIDES: [(&str, &str, RGBColor); 5] = [
    ("server", "", RGBColor(120, 120, 120)),
    ("module", "module", RGBColor(0, 114, 178)),
    ("compact", "module, compact storage", RGBColor(0, 158, 115)),
    ("redis-cell", "redis-cell", RGBColor(204, 121, 167)),
    ("script", "Lua script", RGBColor(213, 94, 0)),
];

pub fn write(results: &Results, folder: &Path) {
    for (name, drawn) in [
        ("server_time", server_time(results, &folder.join("server_time.svg"))),
        ("limit", limit(results, &folder.join("limit.svg"))),
        ("memory", memory(results, &folder.join("memory.svg"))),
        ("throughput", throughput(results, &folder.join("throughput.svg"))),
        ("flood", flood(results, &folder.join("flood.svg"))),
        ("aof", aof(results, &folder.join("aof.svg"))),
    ] {
        drawn.unwrap_or_else(|error| panic!("{name}.svg: {error}"));
    }
}

fn server_time(results: &Results, path: &Path) -> Drawn {
    let groups =
        [Group::Floor, Group::Main, Group::Options, Group::Throttle, Group::Policies, Group::Zipf].map(Group::name);
    let rows = groups.iter().flat_map(|group| rows_of(results, group, unit::SERVER_TIME)).collect();
    bars(path, "Server time a call, µs (less is better)", rows, 2, "server's own command")
}

fn aof(results: &Results, path: &Path) -> Drawn {
    let rows = rows_of(results, Group::Durable.name(), unit::AOF);
    bars(path, "AOF bytes a call (less is better)", rows, 0, "")
}

fn flood(results: &Results, path: &Path) -> Drawn {
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
    let title = "Latency of another client's GET while calls are denied, µs (less is better)";
    bars(path, title, rows.into(), 0, "nobody calls")
}

fn limit(results: &Results, path: &Path) -> Drawn {
    let panels = [(Traffic::Moving, "at the limit, one goes and one comes"), (Traffic::Denied, "denied")];
    let panels = panels.map(|(traffic, caption)| Panel {
        caption: caption.to_owned(),
        lines: SIDES
            .iter()
            .map(|(side, name, color)| {
                let points = [5, 100, 10_000, MILLION].into_iter().filter_map(|limit| {
                    let case = format!("RL.SLIDING, limit {}, {}", grouped(limit), traffic.name());
                    Some((limit as f64, results.median(Group::Main.name(), &case, side, unit::SERVER_TIME)?))
                });
                Line { name: (*name).to_owned(), color: *color, points: points.collect() }
            })
            .collect(),
    });
    lines(path, "RL.SLIDING: server time a call, µs, by limit", "limit", &panels, 10.0)
}

fn memory(results: &Results, path: &Path) -> Drawn {
    let lines_of = SIDES.iter().map(|(side, name, color)| {
        let points = results.titles("memory").into_iter().filter_map(|requests| {
            let bytes = results.median("memory", requests, side, unit::MEMORY)?;
            let requests: f64 = requests.parse().ok()?;
            Some((requests, bytes / requests))
        });
        Line { name: (*name).to_owned(), color: *color, points: points.collect() }
    });
    let panel = Panel { caption: String::new(), lines: lines_of.collect() };
    lines(path, "RL.SLIDING: bytes of a key for each request in its log", "requests in the log", &[panel], 10.0)
}

fn throughput(results: &Results, path: &Path) -> Drawn {
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
    lines(path, "RL.SLIDING over Zipf keys: thousands of calls a second", "connections", &panels, 4.0)
}

struct Row {
    name: String,
    /// Who and how much.
    bars: Vec<(&'static str, f64)>,
}

fn rows_of(results: &Results, group: &str, kind: Kind) -> Vec<Row> {
    let row = |case: &str| Row {
        name: case.to_owned(),
        bars: SIDES.iter().filter_map(|(side, ..)| Some((*side, results.median(group, case, side, kind)?))).collect(),
    };
    results.titles(group).into_iter().map(row).filter(|row| !row.bars.is_empty()).collect()
}

/// Lying bars, a group of them a row, each with its figure behind it. `server` is what the grey ones are called.
fn bars(path: &Path, title: &str, rows: Vec<Row>, decimals: usize, server: &str) -> Drawn {
    const LEFT: i32 = 250;
    const RIGHT: i32 = 60;
    const TOP: i32 = 64;
    const THICK: i32 = 12;
    const GAP: i32 = 8;
    let height = TOP + rows.iter().map(|row| row.bars.len() as i32 * THICK + GAP).sum::<i32>() + GAP;
    let area = SVGBackend::new(path, (WIDTH, height as u32)).into_drawing_area();
    area.fill(&WHITE)?;
    write_text(&area, title, (12, 18), 16, HPos::Left)?;
    let shown: Vec<_> =
        SIDES.iter().filter(|side| rows.iter().any(|row| row.bars.iter().any(|bar| bar.0 == side.0))).collect();
    let mut x = LEFT;
    for (side, name, color) in shown {
        let name = if *side == "server" { server } else { name };
        area.draw(&Rectangle::new([(x, 36), (x + 12, 48)], color.filled()))?;
        write_text(&area, name, (x + 17, 42), 13, HPos::Left)?;
        x += 17 + 8 * name.len() as i32 + 16;
    }
    let most = rows.iter().flat_map(|row| &row.bars).map(|bar| bar.1).fold(f64::MIN_POSITIVE, f64::max);
    let room = f64::from(WIDTH as i32 - LEFT - RIGHT);
    let mut y = TOP;
    for row in rows {
        let tall = row.bars.len() as i32 * THICK;
        write_text(&area, &row.name, (LEFT - 8, y + tall / 2), 13, HPos::Right)?;
        for (side, value) in row.bars {
            let color = SIDES.iter().find(|known| known.0 == side).map_or(INK, |known| known.2);
            let end = LEFT + (value / most * room) as i32;
            area.draw(&Rectangle::new([(LEFT, y), (end.max(LEFT + 1), y + THICK - 2)], color.filled()))?;
            let figure = if decimals == 0 { grouped(value.round() as usize) } else { format!("{value:.decimals$}") };
            write_text(&area, &figure, (end.max(LEFT + 1) + 4, y + THICK / 2 - 1), 11, HPos::Left)?;
            y += THICK;
        }
        y += GAP;
    }
    area.present()?;
    Ok(())
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

/// Panels side by side on the same scales, x by powers of the base.
fn lines(path: &Path, title: &str, x_name: &str, panels: &[Panel], base: f64) -> Drawn {
    const HEIGHT: u32 = 380;
    const TOP: i32 = 66;
    let area = SVGBackend::new(path, (WIDTH, HEIGHT)).into_drawing_area();
    area.fill(&WHITE)?;
    write_text(&area, title, (12, 18), 16, HPos::Left)?;
    let mut x = 12;
    for line in panels[0].lines.iter().filter(|line| !line.points.is_empty()) {
        area.draw(&Rectangle::new([(x, 40), (x + 18, 43)], line.color.filled()))?;
        write_text(&area, &line.name, (x + 24, 42), 13, HPos::Left)?;
        x += 24 + 8 * line.name.len() as i32 + 16;
    }
    let all = || panels.iter().flat_map(|panel| &panel.lines).flat_map(|line| &line.points);
    let most = |pick: fn(&(f64, f64)) -> f64| all().map(pick).fold(0.0, f64::max);
    let (left, right, high) = (1.0 / most(|point| 1.0 / point.0), most(|point| point.0), most(|point| point.1));
    if high == 0.0 {
        return Ok(area.present()?);
    }
    for (panel, area) in panels.iter().zip(area.margin(TOP, 6, 6, 24).split_evenly((1, panels.len()))) {
        let mut builder = ChartBuilder::on(&area);
        builder.x_label_area_size(42).y_label_area_size(64);
        if !panel.caption.is_empty() {
            builder.caption(&panel.caption, (FONT, 14).into_font().color(&INK));
        }
        let x = (left * 0.8..right * 1.25).log_scale().base(base);
        let mut chart = builder.build_cartesian_2d(x, 0.0..high * 1.05)?;
        chart
            .configure_mesh()
            .x_desc(x_name)
            .x_labels(7)
            .y_labels(7)
            .x_label_formatter(&short)
            .y_label_formatter(&short)
            .label_style((FONT, 12).into_font().color(&INK))
            .axis_style(INK)
            .bold_line_style(FAINT)
            .light_line_style(WHITE)
            .draw()?;
        for line in &panel.lines {
            chart.draw_series(LineSeries::new(line.points.iter().copied(), line.color.stroke_width(2)))?;
            chart.draw_series(line.points.iter().map(|&point| Circle::new(point, 3, line.color.filled())))?;
        }
    }
    area.present()?;
    Ok(())
}

/// A number on an axis.
fn short(figure: &f64) -> String {
    if *figure >= 10.0 || figure.fract() == 0.0 { grouped(figure.round() as usize) } else { format!("{figure:.1}") }
}

/// Text whose middle is at that height.
fn write_text(area: &Area, text: &str, at: (i32, i32), size: i32, side: HPos) -> Drawn {
    let style = TextStyle::from((FONT, size).into_font()).color(&INK).pos(Pos::new(side, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style))?;
    Ok(())
}
