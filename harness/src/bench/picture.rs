//! Results as a picture: for each quantity a panel, for each side of a case a line, for each round a dot. The bar is the median.
//! Collectives have a curve over their sizes instead ([`super::curve`]).
//!
//! Drawn by hand, since it is dots on an axis and words. Shapes differ between sides, so colour is never the only distinction.

use maud::{Markup, html};

use super::curve;
use super::results::{Measure, Results, Side, Unit};
use super::statistics::Spread;
use crate::report::html::plain;

/// In pixels: the width; that of the words at the left; heights of a panel's title, of a line, and of an axis.
pub(super) const WIDTH: f64 = 860.0;
const WORDS: f64 = 270.0;
const TITLE: f64 = 34.0;
const LINE: f64 = 22.0;
const AXIS: f64 = 26.0;
pub(super) const MARGIN: f64 = 14.0;
/// Colours that are distinguishable with any colour vision (M. Okabe and K. Ito, "Color Universal Design", 2008).
pub(super) const COLOURS: [&str; 3] = ["#0072b2", "#d55e00", "#009e73"];
/// Above this ratio of the greatest to the least value the axis is logarithmic.
const WIDE: f64 = 20.0;

/// A quantity of all cases.
struct Panel<'a> {
    quantity: &'a str,
    unit: Unit,
    /// In the order of the cases; each with the place of its side.
    lines: Vec<(String, usize, &'a Side)>,
}

/// From values to pixels.
struct Scale {
    least: f64,
    most: f64,
    logarithmic: bool,
}

/// A file of its own.
pub(super) fn file(results: &Results) -> String {
    draw(results).into_string() + "\n"
}

/// The picture, for a page.
pub(super) fn draw(results: &Results) -> Markup {
    let panels = panels(&results.measures);
    let curves: Vec<&[Measure]> = curves(&results.measures).collect();
    let strips = MARGIN + panels.iter().map(Panel::height).sum::<f64>();
    let height = strips + curve::HEIGHT * curves.len() as f64;
    let tops = panels.iter().scan(MARGIN, |top, panel| {
        let place = *top;
        *top += panel.height();
        Some((place, panel))
    });
    let label = format!(
        "Every round of bench {}, as dots on a line for each side; the tables have the same numbers",
        results.bench
    );
    html! {
        svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label=(label) viewBox=(format!("0 0 {WIDTH} {height}")) font-family="sans-serif" font-size="13" {
            rect width=(WIDTH) height=(height) fill="#ffffff" {}
            @for (top, panel) in tops { (panel.draw(top)) }
            @for (place, measures) in curves.iter().enumerate() { (curve::draw(measures, strips + curve::HEIGHT * place as f64)) }
        }
    }
}

/// Quantities in the order in which they first occur, where anything was measured.
fn panels(measures: &[Measure]) -> Vec<Panel<'_>> {
    let mut panels: Vec<Panel<'_>> = Vec::new();
    for measure in measures.iter().filter(|measure| measure.moved.is_none()) {
        let lines = measure.sides.iter().enumerate().filter(|(_, side)| !side.samples.is_empty());
        let lines: Vec<_> =
            lines.map(|(place, side)| (format!("{}: {}", measure.case, side.name), place, side)).collect();
        match panels.iter_mut().find(|panel| panel.quantity == measure.quantity) {
            Some(panel) => panel.lines.extend(lines),
            None if lines.is_empty() => {}
            None => panels.push(Panel { quantity: &measure.quantity, unit: measure.unit, lines }),
        }
    }
    panels
}

/// The measures of each case that has sizes.
fn curves(measures: &[Measure]) -> impl Iterator<Item = &[Measure]> {
    let cases = measures.chunk_by(|one, other| one.case == other.case);
    cases.filter(|measures| measures.iter().any(|measure| measure.moved.is_some()))
}

impl Panel<'_> {
    fn height(&self) -> f64 {
        TITLE + LINE * self.lines.len() as f64 + AXIS
    }

    fn draw(&self, top: f64) -> Markup {
        let scale = Scale::of(self.lines.iter().flat_map(|(_, _, side)| side.samples.iter().copied()));
        let bottom = top + TITLE + LINE * self.lines.len() as f64;
        html! {
            text x=(MARGIN) y=(top + 18.0) font-weight="bold" { (plain(self.quantity)) @if scale.logarithmic { " (logarithmic)" } }
            @for tick in scale.ticks(self.unit) {
                line x1=(scale.at(tick)) x2=(scale.at(tick)) y1=(top + TITLE - 4.0) y2=(bottom) stroke="#d9dee5" {}
                text x=(scale.at(tick)) y=(bottom + 15.0) text-anchor="middle" font-size="11" { (self.unit.show(tick)) }
            }
            @for (place, (name, side, samples)) in self.lines.iter().enumerate() {
                (line(name, *side, &samples.samples, &scale, top + TITLE + LINE * (place as f64 + 0.5)))
            }
        }
    }
}

fn line(name: &str, side: usize, samples: &[f64], scale: &Scale, y: f64) -> Markup {
    let colour = COLOURS[side % COLOURS.len()];
    let median = Spread::of(samples).map(|spread| scale.at(spread.median));
    html! {
        text x=(WORDS - 10.0) y=(y + 4.0) text-anchor="end" { (plain(name)) }
        @for sample in samples { (dot(side, scale.at(*sample), y, colour)) }
        @if let Some(x) = median { line x1=(x) x2=(x) y1=(y - 8.0) y2=(y + 8.0) stroke=(colour) stroke-width="3" {} }
    }
}

/// A circle for the subject, a square for its peers.
pub(super) fn dot(side: usize, x: f64, y: f64, colour: &str) -> Markup {
    html! {
        @if side == 0 { circle cx=(x) cy=(y) r="4" fill=(colour) fill-opacity="0.5" {} }
        @else { rect x=(x - 3.5) y=(y - 3.5) width="7" height="7" fill=(colour) fill-opacity="0.5" {} }
    }
}

impl Scale {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let values = values.filter(|value| value.is_finite());
        let (least, most) =
            values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        let logarithmic = least > 0.0 && most / least > WIDE;
        if logarithmic {
            Scale { least: least / 1.3, most: most * 1.3, logarithmic }
        } else {
            Scale { least: 0.0, most: if most > 0.0 { 1.08 * most } else { 1.0 }, logarithmic }
        }
    }

    fn at(&self, value: f64) -> f64 {
        let part = if self.logarithmic {
            (value / self.least).ln() / (self.most / self.least).ln()
        } else {
            value / self.most
        };
        // A tenth of a pixel is enough for any screen.
        let x = WORDS + part.clamp(0.0, 1.0) * (WIDTH - WORDS - 3.0 * MARGIN);
        (10.0 * x).round() / 10.0
    }

    /// Round values in the unit in which they are shown: about five steps of 1, 2 or 5 times a power of ten; on a logarithmic axis
    /// powers of ten, or of four for bytes.
    fn ticks(&self, unit: Unit) -> Vec<f64> {
        if self.logarithmic {
            let base: f64 = if unit == Unit::Bytes { 4.0 } else { 10.0 };
            let powers = self.least.log(base).ceil() as i32..=self.most.log(base).floor() as i32;
            return powers.map(|power| base.powi(power)).collect();
        }
        let (_, size) = unit.scale(self.most);
        let rough = self.most / size / 5.0;
        let power = 10_f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|step| *step >= rough);
        let step = size * step.unwrap_or(rough);
        (0..).map(|count| f64::from(count) * step).take_while(|tick| *tick <= self.most).collect()
    }
}

#[cfg(test)]
mod tests {
    use roxmltree::Document;

    use super::super::results::testing::sample;
    use super::*;

    #[test]
    fn is_well_formed_and_has_a_dot_for_each_sample() {
        let mut results = sample();
        results.measures[0].case = "</text><script>\u{1b}[31m".into();
        let text = file(&results);
        let document = Document::parse(&text).unwrap();
        let count = |tag| document.descendants().filter(|node| node.tag_name().name() == tag).count();
        assert_eq!((count("circle"), count("rect"), count("script")), (7 * 3, 7 * 2 + 1, 0));
        let words: Vec<_> = document.descendants().filter_map(|node| node.text()).collect();
        for expected in ["no-op job", "agent memory (logarithmic)", "16 ranks, 1 agent: lockstep", "1.00 s", "64.0 MiB"]
        {
            assert!(words.contains(&expected), "{expected} in {words:?}");
        }
    }

    #[test]
    fn draws_a_curve_with_the_model_for_each_collective() {
        let mut results = sample();
        let sizes = [(0, 1 << 10), (1, 1 << 20)];
        sizes.into_iter().for_each(|(place, bytes)| results.measures[place].moved = Some((bytes, 1.0)));
        let text = file(&results);
        let document = Document::parse(&text).unwrap();
        let count = |tag| document.descendants().filter(|node| node.tag_name().name() == tag).count();
        // Two sides of two sizes; the third measure still has its strip.
        assert_eq!((count("polyline"), count("circle"), count("rect")), (4, 7 * 3, 7 * 2 + 1));
        assert!(text.contains("1.00 KiB") && text.contains("1.00 MiB"), "{text}");
    }

    #[test]
    fn draws_nothing_outside_and_round_ticks() {
        let scale = Scale::of([0.2, 0.9].into_iter());
        let shown =
            |scale: &Scale, unit: Unit| scale.ticks(unit).into_iter().map(|tick| unit.show(tick)).collect::<Vec<_>>();
        assert_eq!(shown(&scale, Unit::Seconds), ["0", "200 ms", "400 ms", "600 ms", "800 ms"]);
        let wide = Scale::of([0.002, 9.0].into_iter());
        assert_eq!(shown(&wide, Unit::Seconds), ["10.0 ms", "100 ms", "1.00 s", "10.0 s"]);
        assert_eq!(
            shown(&Scale::of([3e5, 2e7].into_iter()), Unit::Bytes),
            ["256 KiB", "1.00 MiB", "4.00 MiB", "16.0 MiB"]
        );
        assert_eq!(shown(&Scale::of([3e6].into_iter()), Unit::Bytes), ["0", "1.00 MiB", "2.00 MiB", "3.00 MiB"]);
        for scale in [scale, wide, Scale::of(std::iter::empty()), Scale::of([0.0].into_iter())] {
            for value in [0.0, 1e-9, 0.5, 1e9] {
                assert!((WORDS..=WIDTH).contains(&scale.at(value)), "{value}");
            }
        }
    }
}
