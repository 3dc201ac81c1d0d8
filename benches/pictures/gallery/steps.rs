//! A number that goes up and down in steps, beside a limit.

use plotters::style::{Color, RGBAColor, RGBColor};

use super::canvas::{BLUE, Canvas, FAINT, HPos, INK, VERMILION};
use super::timeline::Timeline;

pub struct Steps<'a> {
    pub time: &'a Timeline,
    /// The heights of zero and of `most`.
    pub floor: i32,
    pub top: i32,
    pub most: i64,
    pub limit: i64,
}

/// The parts below and above the limit.
pub fn colors() -> (RGBAColor, RGBColor) {
    (BLUE.mix(0.3), VERMILION)
}

impl Steps<'_> {
    pub fn y(&self, number: i64) -> i32 {
        let high = i64::from(self.floor - self.top);
        self.floor - i32::try_from(number * high / self.most).expect("a height in the picture")
    }

    /// Horizontal lines at these numbers, labelled on the left.
    pub fn scale(&self, canvas: &Canvas, named: &[(i64, &str)]) {
        for (number, name) in named {
            let (y, time) = (self.y(*number), self.time);
            canvas.line(vec![(time.left, y), (time.right, y)], FAINT, 1);
            canvas.text(name, (time.left - 6, y), HPos::Right);
        }
    }

    /// Draws the number over time: each value from its time on, in milliseconds.
    pub fn draw(&self, canvas: &Canvas, numbers: &[(i64, i64)]) {
        let mut outline: Vec<(i32, i32)> = Vec::new();
        let mut go_to = |point: (i32, i32)| {
            // On a level line its end is enough.
            if let [.., before, last] = outline[..]
                && before.1 == last.1
                && last.1 == point.1
            {
                outline.pop();
            }
            if outline.last() != Some(&point) {
                outline.push(point);
            }
        };
        for pair in numbers.windows(2) {
            go_to((self.time.x(pair[0].0), self.y(pair[0].1)));
            go_to((self.time.x(pair[1].0), self.y(pair[0].1)));
        }
        let limit = self.y(self.limit);
        let [left, right] = [self.time.left, self.time.right];
        let area = |bound: i32, side: fn(i32, i32) -> i32| {
            let inside = outline.iter().map(|(x, y)| (*x, side(*y, limit)));
            inside.chain([(right, bound), (left, bound)]).collect::<Vec<_>>()
        };
        let (below, above) = colors();
        canvas.polygon(area(self.floor, i32::max), below.filled());
        if outline.iter().any(|(_, y)| *y < limit) {
            canvas.polygon(area(limit, i32::min), above.filled());
        }
        canvas.line(outline, BLUE, 2);
        canvas.dashed((left, limit), (right, limit), INK);
    }
}
