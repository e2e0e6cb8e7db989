//! The picture of one collective: time by size, both logarithmic. A dot is a round, a line goes through the medians, and a dashed line
//! is the α–β model.

use maud::{Markup, html};

use super::model;
use super::picture::{COLOURS, MARGIN, WIDTH, dot};
use super::results::{Measure, Side, Unit};
use super::statistics::Spread;
use crate::report::html::plain;

/// In pixels: of the whole, and of the words at the left, above and below.
pub(super) const HEIGHT: f64 = 300.0;
const LEFT: f64 = 80.0;
const ABOVE: f64 = 44.0;
const BELOW: f64 = 34.0;
/// Segments of the model's line, which is a curve on logarithmic axes.
const SEGMENTS: i32 = 40;

/// From values to pixels, logarithmic.
struct Axis {
    least: f64,
    most: f64,
    from: f64,
    to: f64,
}

impl Axis {
    /// With some room around the values, which are above 0.
    fn of(values: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let (least, most) =
            values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        Axis { least: least / 1.4, most: most * 1.4, from, to }
    }

    fn at(&self, value: f64) -> f64 {
        let part = (value / self.least).ln() / (self.most / self.least).ln();
        let place = self.from + part.clamp(0.0, 1.0) * (self.to - self.from);
        (10.0 * place).round() / 10.0
    }

    /// Powers of ten, or their halves and doubles where there are few.
    fn ticks(&self) -> Vec<f64> {
        let powers = self.least.log10().floor() as i32..=self.most.log10().ceil() as i32;
        let all: Vec<f64> = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|times| times * 10_f64.powi(power))).collect();
        let inside: Vec<f64> = all.into_iter().filter(|tick| (self.least..=self.most).contains(tick)).collect();
        if inside.len() > 6 {
            inside.into_iter().filter(|tick| tick.log10().fract().abs() < 1e-6).collect()
        } else {
            inside
        }
    }
}

/// The picture of one case's measures, at this height in the whole; empty without samples.
pub(super) fn draw(measures: &[Measure], top: f64) -> Markup {
    let bytes = || measures.iter().filter_map(|measure| Some(measure.moved?.0 as f64));
    let times = measures.iter().flat_map(|measure| &measure.sides).flat_map(|side| side.samples.iter().copied());
    let times: Vec<f64> = times.filter(|time| time.is_finite() && *time > 0.0).collect();
    if times.is_empty() {
        return html! {};
    }
    let (left, right, upper, lower) = (LEFT, WIDTH - 2.0 * MARGIN, top + ABOVE, top + HEIGHT - BELOW);
    let (x, y) = (Axis::of(bytes(), left, right), Axis::of(times.into_iter(), lower, upper));
    let sides = measures.first().map_or(&[][..], |measure| &measure.sides);
    html! {
        text x=(MARGIN) y=(top + 18.0) font-weight="bold" { (plain(&measures[0].case)) }
        @for tick in y.ticks() {
            line x1=(left) x2=(right) y1=(y.at(tick)) y2=(y.at(tick)) stroke="#d9dee5" {}
            text x=(left - 8.0) y=(y.at(tick) + 4.0) text-anchor="end" font-size="11" { (Unit::Seconds.show(tick)) }
        }
        @for size in bytes() {
            text x=(x.at(size)) y=(lower + 16.0) text-anchor="middle" font-size="11" { (Unit::Bytes.show(size)) }
        }
        @for (place, side) in sides.iter().enumerate() {
            text x=(left + 150.0 * place as f64) y=(top + 36.0) fill=(COLOURS[place % COLOURS.len()]) { (mark(place)) " " (plain(&side.name)) }
            (line(measures, place, &x, &y))
        }
    }
}

/// The shape of a side's dots, for the legend.
fn mark(side: usize) -> &'static str {
    if side == 0 { "●" } else { "■" }
}

fn line(measures: &[Measure], side: usize, x: &Axis, y: &Axis) -> Markup {
    let colour = COLOURS[side % COLOURS.len()];
    let points = measures.iter().filter_map(|measure| Some((measure.moved?.0 as f64, measure.sides.get(side)?)));
    let points: Vec<(f64, &Side)> = points.collect();
    let medians = points.iter().filter_map(|(bytes, side)| Some((*bytes, Spread::of(&side.samples)?.median)));
    let model = model::line(measures, side).map(|line| {
        let sizes = (0..=SEGMENTS).map(|step| x.least * (x.most / x.least).powf(f64::from(step) / f64::from(SEGMENTS)));
        sizes.map(|bytes| (bytes, 1e-6 * line.time(bytes))).collect::<Vec<_>>()
    });
    html! {
        @for (bytes, found) in &points { @for time in &found.samples { (dot(side, x.at(*bytes), y.at(*time), colour)) } }
        polyline points=(path(medians, x, y)) fill="none" stroke=(colour) stroke-width="2" {}
        @if let Some(model) = model {
            polyline points=(path(model.into_iter(), x, y)) fill="none" stroke=(colour) stroke-dasharray="5 4" {}
        }
    }
}

fn path(points: impl Iterator<Item = (f64, f64)>, x: &Axis, y: &Axis) -> String {
    points.map(|(bytes, time)| format!("{},{}", x.at(bytes), y.at(time))).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_few_ticks_of_round_values_and_draws_nothing_outside() {
        let axis = Axis::of([1e-4, 2e-4].into_iter(), 0.0, 100.0);
        assert_eq!(
            axis.ticks().into_iter().map(|tick| Unit::Seconds.show(tick)).collect::<Vec<_>>(),
            ["100 µs", "200 µs"]
        );
        let wide = Axis::of([1e-5, 2e-1].into_iter(), 0.0, 100.0);
        assert_eq!(wide.ticks().len(), 5);
        assert!([0.0, 1e-9, 1.0, 1e9].into_iter().all(|value| (0.0..=100.0).contains(&wide.at(value))));
    }
}
