//! The canvas for the plots. A README shows a picture at its full size, a phone at little more than half: so the canvas is narrow
//! and the text large. The background is white, also in dark viewers.

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{Pos, VPos};

pub use plotters::style::RGBColor;
pub use plotters::style::text_anchor::HPos;

pub const WIDTH: i32 = 600;
/// The margin on either side.
pub const MARGIN: i32 = 14;
/// The height of a line of text.
pub const LINE: i32 = 23;
/// The size of text. The library takes the height of a line, and divides it by 1.24 for the letters.
pub const FONT: (&str, i32) = ("sans-serif", 20);

pub const INK: RGBColor = RGBColor(40, 40, 40);
pub const GREY: RGBColor = RGBColor(120, 120, 120);
pub const FAINT: RGBColor = RGBColor(222, 222, 222);
/// Colours of Okabe and Ito, which the colour-blind can distinguish. They also differ in brightness, and marks in shape.
pub const BLUE: RGBColor = RGBColor(0, 114, 178);
pub const VERMILION: RGBColor = RGBColor(213, 94, 0);

pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub struct Canvas<'a> {
    area: Area<'a>,
    height: i32,
}

/// The text of an SVG of this height.
pub fn picture(height: i32, draw: impl FnOnce(&Canvas)) -> String {
    let mut svg = String::new();
    let canvas =
        Canvas { area: SVGBackend::with_string(&mut svg, (WIDTH as u32, height as u32)).into_drawing_area(), height };
    canvas.rectangle((0, 0), (WIDTH - 1, height - 1), WHITE.filled());
    canvas.rectangle((0, 0), (WIDTH - 1, height - 1), FAINT);
    draw(&canvas);
    canvas.area.present().expect(DRAWN);
    drop(canvas);
    svg
}

const DRAWN: &str = "what is drawn into memory can be drawn";

impl<'a> Canvas<'a> {
    pub fn area(&self) -> &Area<'a> {
        &self.area
    }

    /// Text, vertically centred at this height.
    pub fn text(&self, text: &str, at: (i32, i32), side: HPos) {
        self.text_of(text, at, side, false, INK);
    }

    pub fn bold(&self, text: &str, at: (i32, i32), side: HPos) {
        self.text_of(text, at, side, true, INK);
    }

    fn text_of(&self, text: &str, at: (i32, i32), side: HPos, bold: bool, color: RGBColor) {
        let wide = width(text, bold);
        let weight = if bold { FontStyle::Bold } else { FontStyle::Normal };
        let left = match side {
            HPos::Left => at.0,
            HPos::Center => at.0 - wide / 2,
            HPos::Right => at.0 - wide,
        };
        let inside = left >= 0 && left + wide <= WIDTH && (LINE / 2 - 4..=self.height - LINE / 2 + 4).contains(&at.1);
        assert!(inside, "this leaves the paper: {text}");
        let style = (FONT.0, FONT.1, weight).into_text_style(&self.area).color(&color);
        let text = Text::new(text.to_owned(), at, style.pos(Pos::new(side, VPos::Center)));
        self.area.draw(&text).expect(DRAWN);
    }

    pub fn rectangle(&self, from: (i32, i32), to: (i32, i32), style: impl Into<ShapeStyle>) {
        self.area.draw(&Rectangle::new([from, to], style)).expect(DRAWN);
    }
}

/// An upper bound of the width of a text: fonts differ, and this is more than the widest common one needs.
pub fn width(text: &str, bold: bool) -> i32 {
    let letters: i32 = text
        .chars()
        .map(|letter| match letter {
            'i' | 'j' | 'l' | ' ' | '.' | ',' | ':' | '\'' | '(' | ')' => 6,
            'm' | 'w' | 'M' | 'W' => 16,
            'A'..='Z' | '÷' | '×' => 12,
            _ => 10,
        })
        .sum();
    if bold { letters * 9 / 8 } else { letters }
}
