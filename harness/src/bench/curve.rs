//! The picture of one collective: time by size, both logarithmic. A dot is a round, a line goes through the medians, and a dashed line
//! is the α–β model.

use maud::{Markup, html};

use crate::bench::drawing::{Axis, COLOURS, MARGIN, MARKS, WIDTH, below, dot, path, row, title};
use crate::bench::model;
use crate::bench::results::{Measure, Side, Unit};
use crate::bench::statistics::Spread;
use crate::report::screen::plain;

/// In pixels: of the whole, and of the words at the left, above and below.
pub(super) const HEIGHT: f64 = 300.0;
const LEFT: f64 = 80.0;
const ABOVE: f64 = 44.0;
const BELOW: f64 = 34.0;
/// Segments of the model's line, which is a curve on logarithmic axes.
const SEGMENTS: i32 = 40;

/// Powers of ten, or their halves and doubles where there are few.
fn ticks(axis: &Axis) -> Vec<f64> {
    let powers = axis.least.log10().floor() as i32..=axis.most.log10().ceil() as i32;
    let all: Vec<f64> = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|times| times * 10_f64.powi(power))).collect();
    let inside: Vec<f64> = all.into_iter().filter(|tick| (axis.least..=axis.most).contains(tick)).collect();
    if inside.len() > 6 {
        inside.into_iter().filter(|tick| tick.log10().fract().abs() < 1e-6).collect()
    } else {
        inside
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
    let (x, y) = (Axis::logarithmic(bytes(), (left, right)), Axis::logarithmic(times.into_iter(), (lower, upper)));
    let sides = measures.first().map_or(&[][..], |measure| &measure.sides);
    html! {
        (title(top + 18.0, &measures[0].case))
        @for tick in ticks(&y) { (row(y.at(tick), (left, right), &Unit::Seconds.show(tick))) }
        @for size in bytes() { (below(x.at(size), lower + 16.0, &Unit::Bytes.show(size))) }
        @for (place, side) in sides.iter().enumerate() {
            text x=(left + 150.0 * place as f64) y=(top + 36.0) fill=(COLOURS[place % COLOURS.len()]) { (MARKS[place.min(1)]) " " (plain(&side.name)) }
            (line(measures, place, &x, &y))
        }
    }
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
            polyline points=(path(model, x, y)) fill="none" stroke=(colour) stroke-dasharray="5 4" {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_few_ticks_of_round_values_and_draws_nothing_outside() {
        let axis = Axis::logarithmic([1e-4, 2e-4].into_iter(), (0.0, 100.0));
        assert_eq!(
            ticks(&axis).into_iter().map(|tick| Unit::Seconds.show(tick)).collect::<Vec<_>>(),
            ["100 µs", "200 µs"]
        );
        let wide = Axis::logarithmic([1e-5, 2e-1].into_iter(), (0.0, 100.0));
        assert_eq!(ticks(&wide).len(), 5);
        assert!([0.0, 1e-9, 1.0, 1e9].into_iter().all(|value| (0.0..=100.0).contains(&wide.at(value))));
    }
}
