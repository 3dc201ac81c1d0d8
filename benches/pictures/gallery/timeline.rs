//! An axis of time, and marks along it.

use super::canvas::{Canvas, FAINT, HPos, MARGIN, WIDTH};

/// From second 0 on the left to the last second on the right.
pub struct Timeline {
    pub left: i32,
    pub right: i32,
    pub seconds: i32,
}

impl Timeline {
    pub fn new(left: i32, seconds: i32) -> Self {
        Self { left, right: WIDTH - MARGIN - 6, seconds }
    }

    /// The place of a time, in milliseconds from the start.
    pub fn x(&self, millis: i64) -> i32 {
        let wide = i64::from(self.right - self.left);
        let x = millis * wide / (i64::from(self.seconds) * 1000);
        self.left + i32::try_from(x).expect("a time in the picture")
    }

    /// Numbers below a line at this height, and faint lines upwards from there.
    pub fn draw(&self, canvas: &Canvas, [top, bottom]: [i32; 2], step: i32) {
        for second in (0..=self.seconds).step_by(step as usize) {
            let x = self.x(i64::from(second) * 1000);
            canvas.line(vec![(x, top), (x, bottom)], FAINT, 1);
            // Keep the outermost numbers on the canvas.
            let (text, x, side) = match second {
                0 => ("0 s".to_owned(), x - 4, HPos::Left),
                _ if second == self.seconds => (format!("{second} s"), x + 6, HPos::Right),
                _ => (second.to_string(), x, HPos::Center),
            };
            canvas.text(&text, (x, bottom + 14), side);
        }
    }
}
