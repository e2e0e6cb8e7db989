//! Results as an HTML page and as a picture. The picture has a panel for each quantity, a line for each side of a case, a dot for each round,
//! and a bar at the median. Collectives have a curve instead: time by size, both logarithmic, with the medians connected and the α–β model
//! dashed. Scaling has charts as well.

use lockstep_plot::{
    Axis, CHART_HEIGHT, COLOURS, Chart, MARGIN, Series, Vertical, WIDTH, column, dot, extent, round_up, stacked,
    svg_image, title,
};
use maud::{Markup, html};

use crate::report::formatting::plain;
use crate::report::html::{command, fact, machine, numbers, page};
use crate::results::{Measure, Results, Side, Unit};
use crate::statistics::Spread;
use crate::{shown, speed_up};

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
    let charts: Vec<Chart> = curves(&results.measures).filter_map(curve).chain(speed_up::charts(results)).collect();
    let strips = MARGIN + panels.iter().map(Panel::height).sum::<f64>();
    let height = strips + CHART_HEIGHT * charts.len() as f64;
    let tops = stacked(MARGIN, panels.iter().map(|panel| (panel.height(), panel)));
    let label = format!(
        "Every round of `{}`, as dots on a line for each side; the tables have the same numbers",
        results.typed()
    );
    let content = html! {
        @for (top, panel) in tops { (panel.draw(top)) }
        @for (place, chart) in charts.iter().enumerate() { (chart.draw(strips + CHART_HEIGHT * place as f64)) }
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

/// Times by size, with the α–β model, of a case that has sizes; `None` without samples.
fn curve(measures: &[Measure]) -> Option<Chart> {
    let series = |(place, side): (usize, &Side)| {
        let points = measures.iter().filter_map(|measure| Some((measure.moved?.0 as f64, measure.sides.get(place)?)));
        let points: Vec<(f64, &Side)> = points.collect();
        let is_drawn = |time: &f64| time.is_finite() && *time > 0.0;
        let dots = |(size, side): &(f64, &Side)| {
            let size = *size;
            side.samples.iter().copied().filter(is_drawn).map(move |time| (size, time)).collect::<Vec<_>>()
        };
        let median = |(size, side): &(f64, &Side)| Some((*size, Spread::of(&side.samples)?.median));
        Series {
            name: side.name.clone(),
            dots: points.iter().flat_map(dots).collect(),
            bars: Vec::new(),
            line: points.iter().filter_map(median).filter(|(_, time)| is_drawn(time)).collect(),
            model: shown::alpha_beta(measures, place)
                .map(|line| Box::new(move |size: f64| 1e-6 * line.time(size)) as Box<dyn Fn(f64) -> f64>),
        }
    };
    let sides = measures.first().map_or(&[][..], |measure| &measure.sides);
    let series: Vec<Series> = sides.iter().enumerate().map(series).collect();
    let chart = |first: &Measure| Chart {
        title: first.case.clone(),
        below: "size",
        size: |bytes| Unit::Bytes.show(bytes),
        vertical: Vertical::Logarithmic(|time| Unit::Seconds.show(time)),
        series,
    };
    measures.first().map(chart).filter(|chart| chart.series.iter().any(|series| !series.dots.is_empty()))
}

#[cfg(test)]
mod tests {
    use roxmltree::Document;

    use super::*;
    use crate::results::testing::sample;

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
}
