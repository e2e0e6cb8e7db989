//! What the pictures of benches share: the frame of a file, colours, axes and their ticks, dots and lines.
//!
//! Drawn by hand, since it is dots on axes and words. Shapes differ between sides, so colour is never the only distinction.

use maud::{Markup, html};

use crate::report::screen::plain;

/// In pixels: the width, and the room at the edges.
pub(super) const WIDTH: f64 = 860.0;
pub(super) const MARGIN: f64 = 14.0;
/// Colours that are distinguishable with any colour vision (M. Okabe and K. Ito, "Color Universal Design", 2008).
pub(super) const COLOURS: [&str; 3] = ["#0072b2", "#d55e00", "#009e73"];
/// The shapes of [`dot`], for legends.
pub(super) const MARKS: [&str; 2] = ["●", "■"];

/// A picture of this height; `label` says what it shows to those who cannot see it.
pub(super) fn frame(label: &str, height: f64, content: &Markup) -> Markup {
    html! {
        svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label=(label) viewBox=(format!("0 0 {WIDTH} {height}")) font-family="sans-serif" font-size="13" {
            rect width=(WIDTH) height=(height) fill="#ffffff" {}
            (content)
        }
    }
}

/// Each of `things` with its top, one below the other from `top`.
pub(super) fn stacked<T>(top: f64, things: impl Iterator<Item = (f64, T)>) -> impl Iterator<Item = (f64, T)> {
    things.scan(top, |top, (height, thing)| {
        let place = *top;
        *top += height;
        Some((place, thing))
    })
}

pub(super) fn title(y: f64, words: &str) -> Markup {
    html! { text x=(MARGIN) y=(y) font-weight="bold" { (plain(words)) } }
}

/// Words of an axis at the bottom, centred at `x`.
pub(super) fn below(x: f64, y: f64, words: &str) -> Markup {
    html! { text x=(x) y=(y) text-anchor="middle" font-size="11" { (words) } }
}

/// A tick of an axis at the bottom: a vertical line, and words `room` pixels below it.
pub(super) fn column(x: f64, (upper, lower): (f64, f64), room: f64, words: &str) -> Markup {
    html! {
        line x1=(x) x2=(x) y1=(upper) y2=(lower) stroke="#d9dee5" {}
        (below(x, lower + room, words))
    }
}

/// A tick of an axis at the left: a horizontal line, and words before it.
pub(super) fn row(y: f64, (left, right): (f64, f64), words: &str) -> Markup {
    html! {
        line x1=(left) x2=(right) y1=(y) y2=(y) stroke="#d9dee5" {}
        text x=(left - 8.0) y=(y + 4.0) text-anchor="end" font-size="11" { (words) }
    }
}

/// A circle for the subject, a square for its peers.
pub(super) fn dot(side: usize, x: f64, y: f64, colour: &str) -> Markup {
    html! {
        @if side == 0 { circle cx=(x) cy=(y) r="4" fill=(colour) fill-opacity="0.5" {} }
        @else { rect x=(x - 3.5) y=(y - 3.5) width="7" height="7" fill=(colour) fill-opacity="0.5" {} }
    }
}

/// The points of a line through these values.
pub(super) fn path(points: impl IntoIterator<Item = (f64, f64)>, x: &Axis, y: &Axis) -> String {
    let points = points.into_iter().map(|point| format!("{},{}", x.at(point.0), y.at(point.1)));
    points.collect::<Vec<_>>().join(" ")
}

/// The least and the greatest of values from 0 up.
pub(super) fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)))
}

/// From values to pixels.
pub(super) struct Axis {
    pub(super) least: f64,
    pub(super) most: f64,
    /// Where the least and the most are.
    pub(super) pixels: (f64, f64),
    pub(super) logarithmic: bool,
}

impl Axis {
    /// A logarithmic axis with some room around the values, which are above 0.
    pub(super) fn logarithmic(values: impl Iterator<Item = f64>, pixels: (f64, f64)) -> Self {
        let (least, most) = extent(values);
        Axis { least: least / 1.4, most: most * 1.4, pixels, logarithmic: true }
    }

    /// An axis from 0 on.
    pub(super) fn linear(most: f64, pixels: (f64, f64)) -> Self {
        Axis { least: 0.0, most, pixels, logarithmic: false }
    }

    /// Never outside.
    pub(super) fn at(&self, value: f64) -> f64 {
        let part = if self.logarithmic {
            (value / self.least).ln() / (self.most / self.least).ln()
        } else {
            (value - self.least) / (self.most - self.least)
        };
        let (from, to) = self.pixels;
        // A tenth of a pixel is enough for any screen.
        (10.0 * (from + part.clamp(0.0, 1.0) * (to - from))).round() / 10.0
    }

    /// The multiples of `step` up to the most.
    pub(super) fn multiples(&self, step: f64) -> impl Iterator<Item = f64> + use<> {
        let most = self.most;
        (0..).map(move |count| f64::from(count) * step).take_while(move |tick| *tick <= most)
    }
}
