//! Results as an HTML page and as a picture. The picture has a panel for each quantity, a line for each side of a case, a dot for each round,
//! and a bar at the median. Collectives have a curve instead: time by size, both logarithmic, with the medians connected and the α–β model
//! dashed. Scaling has charts as well.

use maud::{Markup, html};

use crate::bench::drawing::{
    self, Axis, COLOURS, MARGIN, MARKS, WIDTH, below, column, dot, extent, path, row, stacked, svg_image, title,
};
use crate::bench::results::{Measure, Results, Side, Unit};
use crate::bench::statistics::Spread;
use crate::bench::{shown, speed_up};
use crate::report::formatting::plain;
use crate::report::html::{command, fact, machine, numbers, page};
use crate::report::picture::round_up;

/// The page.
pub(crate) fn render(results: &Results) -> String {
    let title = results.typed();
    page(
        title,
        html! {
            main {
                (head(title, results))
                @for table in shown::tables(results) { section { (numbers(&table)) } }
                @if let Some(table) = shown::alpha_beta_table(results) { section { (numbers(&table)) } }
                @for table in speed_up::tables(results) { section { (numbers(&table)) } }
            @if !results.not_measured.is_empty() { (not_measured(&results.not_measured)) }
                section { h3 { "Every round" } (draw(results)) }
            }
            footer { (shown::method(results)) "." @for verdict in shown::verdicts(results) { br; (verdict) "." } }
        },
    )
}

fn head(title: &str, results: &Results) -> Markup {
    html! {
        header {
            h1 { (title) }
            p { (shown::compared(results)) }
            (command(&results.command))
            dl.facts {
                (fact("Began", &results.started))
                (machine(&results.machine))
                (fact("State before", &results.before.summary()))
                (fact("State after", &results.after.summary()))
            }
            @for doubt in shown::doubts(results) { p.verdict { (doubt) } }
        }
    }
}

fn not_measured(reasons: &[String]) -> Markup {
    html! { section.notice { h3 { "Not measured" } ul { @for reason in reasons { li { (plain(reason)) } } } } }
}

/// In pixels: the width of the words at the left; heights of a panel's title, of a line, and of an axis.
const WORDS: f64 = 270.0;
const TITLE: f64 = 34.0;
const LINE: f64 = 22.0;
const AXIS: f64 = 26.0;
/// Above this ratio of the greatest to the least value the axis is logarithmic.
const WIDE: f64 = 20.0;

/// A quantity of all cases.
struct Panel<'a> {
    quantity: &'a str,
    unit: Unit,
    /// In the order of the cases; each with the place of its side.
    lines: Vec<(String, usize, &'a Side)>,
}

/// A file of its own.
pub(crate) fn file(results: &Results) -> String {
    draw(results).into_string() + "\n"
}

/// The picture, for a page.
pub(crate) fn draw(results: &Results) -> Markup {
    let panels = panels(&results.measures);
    let curves: Vec<&[Measure]> = curves(&results.measures).collect();
    let charts = speed_up::charts(results);
    let strips = MARGIN + panels.iter().map(Panel::height).sum::<f64>();
    let below = strips + CURVE_HEIGHT * curves.len() as f64;
    let height = below + drawing::CHART_HEIGHT * charts.len() as f64;
    let tops = stacked(MARGIN, panels.iter().map(|panel| (panel.height(), panel)));
    let label = format!(
        "Every round of `{}`, as dots on a line for each side; the tables have the same numbers",
        results.typed()
    );
    let content = html! {
        @for (top, panel) in tops { (panel.draw(top)) }
        @for (place, measures) in curves.iter().enumerate() { (draw_curve(measures, strips + CURVE_HEIGHT * place as f64)) }
        @for (place, chart) in charts.iter().enumerate() { (chart.draw(below + drawing::CHART_HEIGHT * place as f64)) }
    };
    svg_image(&label, height, &content)
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
        let scale = scale(self.lines.iter().flat_map(|(_, _, side)| side.samples.iter().copied()));
        let words = format!("{}{}", self.quantity, if scale.logarithmic { " (logarithmic)" } else { "" });
        let bottom = top + TITLE + LINE * self.lines.len() as f64;
        html! {
            (title(top + 18.0, &words))
            @for tick in ticks(&scale, self.unit) { (column(scale.at(tick), (top + TITLE - 4.0, bottom), 15.0, &self.unit.show(tick))) }
            @for (place, (name, side, samples)) in self.lines.iter().enumerate() {
                (line(name, *side, &samples.samples, &scale, top + TITLE + LINE * (place as f64 + 0.5)))
            }
        }
    }
}

fn line(name: &str, side: usize, samples: &[f64], scale: &Axis, y: f64) -> Markup {
    let colour = COLOURS[side % COLOURS.len()];
    let median = Spread::of(samples).map(|spread| scale.at(spread.median));
    html! {
        text x=(WORDS - 10.0) y=(y + 4.0) text-anchor="end" { (plain(name)) }
        @for sample in samples { (dot(side, scale.at(*sample), y, colour)) }
        @if let Some(x) = median { line x1=(x) x2=(x) y1=(y - 8.0) y2=(y + 8.0) stroke=(colour) stroke-width="3" {} }
    }
}

/// An axis for these values.
fn scale(values: impl Iterator<Item = f64>) -> Axis {
    let (least, most) = extent(values.filter(|value| value.is_finite()));
    // What is lost or hidden may be negative.
    let logarithmic = least > 0.0 && most / least > WIDE;
    let (least, most) = if logarithmic {
        (least / 1.3, most * 1.3)
    } else {
        (1.08 * least.min(0.0), if most > 0.0 { 1.08 * most } else { 1.0 })
    };
    Axis { least, most, pixels: (WORDS, WIDTH - 3.0 * MARGIN), logarithmic }
}

/// Round values in the unit in which they are shown: about five steps of 1, 2 or 5 times a power of ten; on a logarithmic axis
/// powers of ten, or of four for bytes.
fn ticks(axis: &Axis, unit: Unit) -> Vec<f64> {
    if axis.logarithmic {
        let base: f64 = if unit == Unit::Bytes { 4.0 } else { 10.0 };
        let powers = axis.least.log(base).ceil() as i32..=axis.most.log(base).floor() as i32;
        return powers.map(|power| base.powi(power)).collect();
    }
    let (_, size) = unit.scale(axis.most);
    axis.multiples(size * round_up(axis.most / size / 5.0)).collect()
}

/// In pixels: of the whole, and of the words at the left, above and below.
pub(crate) const CURVE_HEIGHT: f64 = 300.0;
const CURVE_LEFT: f64 = 80.0;
const CURVE_ABOVE: f64 = 44.0;
const CURVE_BELOW: f64 = 34.0;
/// Segments of the model's line, which is a curve on logarithmic axes.
const SEGMENTS: i32 = 40;

/// Powers of ten, or their halves and doubles where there are few.
fn curve_ticks(axis: &Axis) -> Vec<f64> {
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
pub(crate) fn draw_curve(measures: &[Measure], top: f64) -> Markup {
    let bytes = || measures.iter().filter_map(|measure| Some(measure.moved?.0 as f64));
    let times = measures.iter().flat_map(|measure| &measure.sides).flat_map(|side| side.samples.iter().copied());
    let times: Vec<f64> = times.filter(|time| time.is_finite() && *time > 0.0).collect();
    if times.is_empty() {
        return html! {};
    }
    let (left, right, upper, lower) =
        (CURVE_LEFT, WIDTH - 2.0 * MARGIN, top + CURVE_ABOVE, top + CURVE_HEIGHT - CURVE_BELOW);
    let (x, y) = (Axis::logarithmic(bytes(), (left, right)), Axis::logarithmic(times.into_iter(), (lower, upper)));
    let sides = measures.first().map_or(&[][..], |measure| &measure.sides);
    html! {
        (title(top + 18.0, &measures[0].case))
        @for tick in curve_ticks(&y) { (row(y.at(tick), (left, right), &Unit::Seconds.show(tick))) }
        @for size in bytes() { (below(x.at(size), lower + 16.0, &Unit::Bytes.show(size))) }
        @for (place, side) in sides.iter().enumerate() {
            text x=(left + 150.0 * place as f64) y=(top + 36.0) fill=(COLOURS[place % COLOURS.len()]) { (MARKS[place.min(1)]) " " (plain(&side.name)) }
            (curve_line(measures, place, &x, &y))
        }
    }
}

fn curve_line(measures: &[Measure], side: usize, x: &Axis, y: &Axis) -> Markup {
    let colour = COLOURS[side % COLOURS.len()];
    let points = measures.iter().filter_map(|measure| Some((measure.moved?.0 as f64, measure.sides.get(side)?)));
    let points: Vec<(f64, &Side)> = points.collect();
    let medians = points.iter().filter_map(|(bytes, side)| Some((*bytes, Spread::of(&side.samples)?.median)));
    let model = shown::alpha_beta(measures, side).map(|line| {
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
    use roxmltree::Document;

    use super::*;
    use crate::bench::results::testing::sample;

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
        let narrow = scale([0.2, 0.9].into_iter());
        let shown =
            |scale: &Axis, unit: Unit| ticks(scale, unit).into_iter().map(|tick| unit.show(tick)).collect::<Vec<_>>();
        assert_eq!(shown(&narrow, Unit::Seconds), ["0", "200 ms", "400 ms", "600 ms", "800 ms"]);
        let wide = scale([0.002, 9.0].into_iter());
        assert_eq!(shown(&wide, Unit::Seconds), ["10.0 ms", "100 ms", "1.00 s", "10.0 s"]);
        assert_eq!(shown(&scale([3e5, 2e7].into_iter()), Unit::Bytes), ["256 KiB", "1.00 MiB", "4.00 MiB", "16.0 MiB"]);
        assert_eq!(shown(&scale([3e6].into_iter()), Unit::Bytes), ["0", "1.00 MiB", "2.00 MiB", "3.00 MiB"]);
        for scale in [narrow, wide, scale(std::iter::empty()), scale([0.0].into_iter())] {
            for value in [0.0, 1e-9, 0.5, 1e9] {
                assert!((WORDS..=WIDTH).contains(&scale.at(value)), "{value}");
            }
        }
    }

    #[test]
    fn has_few_ticks_of_round_values_and_draws_nothing_outside() {
        let axis = Axis::logarithmic([1e-4, 2e-4].into_iter(), (0.0, 100.0));
        assert_eq!(
            curve_ticks(&axis).into_iter().map(|tick| Unit::Seconds.show(tick)).collect::<Vec<_>>(),
            ["100 µs", "200 µs"]
        );
        let wide = Axis::logarithmic([1e-5, 2e-1].into_iter(), (0.0, 100.0));
        assert_eq!(curve_ticks(&wide).len(), 5);
        assert!([0.0, 1e-9, 1.0, 1e9].into_iter().all(|value| (0.0..=100.0).contains(&wide.at(value))));
    }
}
