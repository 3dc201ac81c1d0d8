//! The picture of the figures: server times as bars. A README shows it at its full size, a phone at little more than half: so it is
//! narrow, and its text large. The background is white, also in dark viewers.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::results::{Results, unit};

/// The sides in colours of Okabe and Ito, which the colour-blind can distinguish.
const SIDES: [(&str, &str, RGBColor); 5] = [
    ("server", "server's own command", RGBColor(120, 120, 120)),
    ("module", "module", RGBColor(0, 114, 178)),
    ("compact", "module, compact storage", RGBColor(0, 158, 115)),
    ("redis-cell", "redis-cell", RGBColor(204, 121, 167)),
    ("script", "Lua script", RGBColor(213, 94, 0)),
];

/// The cases that are shown; the page's table has all.
const SHOWN: [&str; 11] = [
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

const WIDTH: i32 = 600;
/// The margin on either side.
const MARGIN: i32 = 14;
/// The height of a line of text.
const LINE: i32 = 23;
/// The height of a bar, and the space behind a row of them.
const THICK: i32 = 17;
const GAP: i32 = 8;
/// What a figure behind the longest bar takes.
const FIGURE: i32 = 70;
const TOP: i32 = 94;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Drawn = Result<(), Box<dyn std::error::Error>>;

pub fn write(results: &Results, folder: &Path) {
    let groups = ["floor", "main", "options", "throttle", "policies"];
    let titles =
        groups.into_iter().flat_map(|group| results.titles(group).into_iter().map(move |title| (group, title)));
    let rows: Vec<(&str, Vec<(RGBColor, f64)>)> = titles
        .filter(|(_, title)| SHOWN.contains(title))
        .map(|(group, title)| {
            let bar = |&(side, _, color): &(&str, &str, RGBColor)| {
                Some((color, results.median(group, title, side, unit::SERVER_TIME)?))
            };
            (title, SIDES.iter().filter_map(bar).collect())
        })
        .collect();
    let height = TOP + rows.iter().map(|(_, bars)| LINE + bars.len() as i32 * THICK + GAP).sum::<i32>() + GAP;
    let mut svg = String::new();
    draw(&SVGBackend::with_string(&mut svg, (WIDTH as u32, height as u32)).into_drawing_area(), height, &rows)
        .expect("what is drawn into memory can be drawn");
    std::fs::write(folder.join("server_time.svg"), svg).expect("server_time.svg");
}

/// Lying bars, a group of them a row under its name, each with its figure behind it.
fn draw(area: &Area, height: i32, rows: &[(&str, Vec<(RGBColor, f64)>)]) -> Drawn {
    area.draw(&Rectangle::new([(0, 0), (WIDTH - 1, height - 1)], WHITE.filled()))?;
    text(area, "Server time a call, µs (less is better)", (MARGIN, 22), FontStyle::Bold)?;
    let places = [(0, 0), (220, 0), (320, 0), (0, 1), (220, 1)];
    for ((_, name, color), (x, line)) in SIDES.into_iter().zip(places) {
        let (x, y) = (MARGIN + x, 54 + line * LINE);
        area.draw(&Rectangle::new([(x, y - 7), (x + 14, y + 7)], color.filled()))?;
        text(area, name, (x + 20, y), FontStyle::Normal)?;
    }
    let most = rows.iter().flat_map(|(_, bars)| bars).map(|bar| bar.1).fold(f64::MIN_POSITIVE, f64::max);
    let mut y = TOP;
    for (title, bars) in rows {
        text(area, title, (MARGIN, y + LINE / 2 - 2), FontStyle::Normal)?;
        y += LINE;
        for (color, value) in bars {
            let end = MARGIN + ((value / most * f64::from(WIDTH - 2 * MARGIN - FIGURE)) as i32).max(1);
            area.draw(&Rectangle::new([(MARGIN, y), (end, y + THICK - 3)], color.filled()))?;
            text(area, &format!("{value:.2}"), (end + 6, y + THICK / 2 - 1), FontStyle::Normal)?;
            y += THICK;
        }
        y += GAP;
    }
    area.present()?;
    Ok(())
}

/// Text, vertically centred at this height. The library takes the height of a line, and divides it by 1.24 for the letters.
fn text(area: &Area, text: &str, at: (i32, i32), weight: FontStyle) -> Drawn {
    let style = ("sans-serif", 20, weight).into_text_style(area).color(&RGBColor(40, 40, 40));
    area.draw(&Text::new(text.to_owned(), at, style.pos(Pos::new(HPos::Left, VPos::Center))))?;
    Ok(())
}
