//! A picture of efficiency by the number of ranks, whose axis is logarithmic: a line for each series.

use maud::{Markup, html};

use crate::bench::drawing::{Axis, COLOURS, MARGIN, MARKS, WIDTH, below, dot, frame, path, row, title};
use crate::report::screen::plain;

/// In pixels: of the whole, and of what is around the lines.
pub(super) const HEIGHT: f64 = 330.0;
const LEFT: f64 = 70.0;
const ABOVE: f64 = 66.0;
const BELOW: f64 = 46.0;
/// Names of series in a line of the legend.
const IN_LINE: usize = 5;

/// A chart.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Chart {
    pub(super) title: String,
    /// Each has a name, and points: ranks, and the efficiency on them, 1 if n ranks do n times the work of one.
    pub(super) series: Vec<(String, Vec<(f64, f64)>)>,
}

impl Chart {
    /// At this height of a picture.
    pub(super) fn draw(&self, top: f64) -> Markup {
        let (left, right) = (MARGIN + LEFT, WIDTH - 2.0 * MARGIN);
        let (upper, lower) = (top + ABOVE, top + HEIGHT - BELOW);
        let points = || self.series.iter().flat_map(|(_, points)| points.iter().copied());
        let x = Axis::logarithmic(points().map(|(x, _)| x).chain([1.0]), (left, right));
        let most = 1.05 * points().map(|(_, y)| y).fold(1.0, f64::max);
        // Efficiency, up to a little more than the most.
        let y = Axis::linear(most, (lower, upper));
        let mut counts: Vec<f64> = points().map(|(x, _)| x).collect();
        counts.sort_by(f64::total_cmp);
        counts.dedup();
        html! {
            (title(top + 18.0, &self.title))
            @for tick in y.multiples(0.2) { (row(y.at(tick), (left, right), &format!("{:.0} %", 100.0 * tick))) }
            @for count in counts { (below(x.at(count), lower + 16.0, &count.to_string())) }
            (below((left + right) / 2.0, lower + 34.0, "ranks"))
            @for (place, (name, points)) in self.series.iter().enumerate() { (self.line(place, name, points, (&x, &y), top)) }
        }
    }

    fn line(&self, place: usize, name: &str, points: &[(f64, f64)], (x, y): (&Axis, &Axis), top: f64) -> Markup {
        let colour = COLOURS[place % COLOURS.len()];
        let (column, line) = ((place % IN_LINE) as f64, (place / IN_LINE) as f64);
        html! {
            text x=(MARGIN + LEFT + 150.0 * column) y=(top + 36.0 + 16.0 * line) fill=(colour) { (MARKS[place % MARKS.len()]) " " (plain(name)) }
            polyline points=(path(points.iter().copied(), x, y)) fill="none" stroke=(colour) stroke-width="2" stroke-dasharray=(DASHES[place % DASHES.len()]) {}
            @for point in points { (dot(place % MARKS.len(), x.at(point.0), y.at(point.1), colour)) }
        }
    }

    /// A file of its own.
    pub(super) fn file(charts: &[Chart]) -> String {
        let height = MARGIN + HEIGHT * charts.len() as f64;
        let all = html! { @for (place, chart) in charts.iter().enumerate() { (chart.draw(HEIGHT * place as f64)) } };
        let label = "Efficiency by the number of ranks; the tables have the same numbers";
        frame(label, height, &all).into_string() + "\n"
    }
}

/// The patterns of lines: colour is never the only distinction.
const DASHES: [&str; 5] = ["none", "none", "9 3", "2 3", "9 3 2 3"];

#[cfg(test)]
mod tests {
    use roxmltree::Document;

    use super::*;

    #[test]
    fn is_well_formed_and_has_a_line_and_its_dots_for_each_series() {
        let series = |name: &str, times: f64| (name.to_owned(), [1.0, 2.0, 4.0].map(|x| (x, times)).into());
        let all =
            ["DDP", "</text>", "c", "d", "e", "f"].iter().zip(1..).map(|(name, n)| series(name, 1.0 / f64::from(n)));
        let chart = Chart { title: "efficiency".into(), series: all.collect() };
        let text = Chart::file(&[chart.clone(), Chart { series: vec![], ..chart }]);
        let document = Document::parse(&text).unwrap();
        let count = |tag| document.descendants().filter(|node| node.tag_name().name() == tag).count();
        assert_eq!((count("polyline"), count("circle"), count("rect")), (6, 3 * 3, 3 * 3 + 1));
        let place =
            |words: &str| document.descendants().filter_map(|node| node.attribute(words)).any(|x| x.contains("NaN"));
        assert!(!["points", "x", "y", "cx", "cy"].into_iter().any(place), "{text}");
    }
}
