//! What the pictures of benches share: the outline of a file, colours, axes with ticks, dots and lines; and [`Chart`], efficiency by the number
//! of ranks. Shapes differ between sides, so colour is never the only distinction.

use maud::{Markup, html};

use crate::report::formatting::plain;

/// In pixels: the width, and the room at the edges.
pub(crate) const WIDTH: f64 = 860.0;
pub(crate) const MARGIN: f64 = 14.0;
/// Colours that are distinguishable with any colour vision (M. Okabe and K. Ito, "Color Universal Design", 2008).
pub(crate) const COLOURS: [&str; 3] = ["#0072b2", "#d55e00", "#009e73"];
/// The shapes of [`dot`], for legends.
pub(crate) const MARKS: [&str; 2] = ["●", "■"];

/// A picture of this height; `label` says what it shows to those who cannot see it.
pub(crate) fn svg_image(label: &str, height: f64, content: &Markup) -> Markup {
    html! {
        svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label=(label) viewBox=(format!("0 0 {WIDTH} {height}")) font-family="sans-serif" font-size="13" {
            rect width=(WIDTH) height=(height) fill="#ffffff" {}
            (content)
        }
    }
}

/// Each of `things` with its top, one below the other from `top`.
pub(crate) fn stacked<T>(top: f64, things: impl Iterator<Item = (f64, T)>) -> impl Iterator<Item = (f64, T)> {
    things.scan(top, |top, (height, thing)| {
        let place = *top;
        *top += height;
        Some((place, thing))
    })
}

pub(crate) fn title(y: f64, words: &str) -> Markup {
    html! { text x=(MARGIN) y=(y) font-weight="bold" { (plain(words)) } }
}

/// Words of an axis at the bottom, centred at `x`.
pub(crate) fn below(x: f64, y: f64, words: &str) -> Markup {
    html! { text x=(x) y=(y) text-anchor="middle" font-size="11" { (words) } }
}

/// A tick of an axis at the bottom: a vertical line, and words `room` pixels below it.
pub(crate) fn column(x: f64, (upper, lower): (f64, f64), room: f64, words: &str) -> Markup {
    html! {
        line x1=(x) x2=(x) y1=(upper) y2=(lower) stroke="#d9dee5" {}
        (below(x, lower + room, words))
    }
}

/// A tick of an axis at the left: a horizontal line, and words before it.
pub(crate) fn row(y: f64, (left, right): (f64, f64), words: &str) -> Markup {
    html! {
        line x1=(left) x2=(right) y1=(y) y2=(y) stroke="#d9dee5" {}
        text x=(left - 8.0) y=(y + 4.0) text-anchor="end" font-size="11" { (words) }
    }
}

/// A circle for the subject, a square for its peers.
pub(crate) fn dot(side: usize, x: f64, y: f64, colour: &str) -> Markup {
    html! {
        @if side == 0 { circle cx=(x) cy=(y) r="4" fill=(colour) fill-opacity="0.5" {} }
        @else { rect x=(x - 3.5) y=(y - 3.5) width="7" height="7" fill=(colour) fill-opacity="0.5" {} }
    }
}

/// The points of a line through these values.
pub(crate) fn path(points: impl IntoIterator<Item = (f64, f64)>, x: &Axis, y: &Axis) -> String {
    let points = points.into_iter().map(|point| format!("{},{}", x.at(point.0), y.at(point.1)));
    points.collect::<Vec<_>>().join(" ")
}

/// The least and the greatest of values from 0 up.
pub(crate) fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)))
}

/// From values to pixels.
pub(crate) struct Axis {
    pub(crate) least: f64,
    pub(crate) most: f64,
    /// Where the least and the most are.
    pub(crate) pixels: (f64, f64),
    pub(crate) logarithmic: bool,
}

impl Axis {
    /// A logarithmic axis with some room around the values, which are above 0.
    pub(crate) fn logarithmic(values: impl Iterator<Item = f64>, pixels: (f64, f64)) -> Self {
        let (least, most) = extent(values);
        Axis { least: least / 1.4, most: most * 1.4, pixels, logarithmic: true }
    }

    /// An axis from 0 on.
    pub(crate) fn linear(most: f64, pixels: (f64, f64)) -> Self {
        Axis { least: 0.0, most, pixels, logarithmic: false }
    }

    /// Never outside.
    pub(crate) fn at(&self, value: f64) -> f64 {
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
    pub(crate) fn multiples(&self, step: f64) -> impl Iterator<Item = f64> + use<> {
        let most = self.most;
        (0..).map(move |count| f64::from(count) * step).take_while(move |tick| *tick <= most)
    }
}

/// In pixels: of the whole, and of what is around the lines.
pub(crate) const CHART_HEIGHT: f64 = 330.0;
const LEFT: f64 = 70.0;
const ABOVE: f64 = 66.0;
const BELOW: f64 = 46.0;
/// Names of series in a line of the legend.
const IN_LINE: usize = 5;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Chart {
    pub(crate) title: String,
    /// Each has a name, and points: ranks, and the efficiency on them, 1 if n ranks do n times the work of one.
    pub(crate) series: Vec<(String, Vec<(f64, f64)>)>,
}

impl Chart {
    /// At this height of a picture.
    pub(crate) fn draw(&self, top: f64) -> Markup {
        let (left, right) = (MARGIN + LEFT, WIDTH - 2.0 * MARGIN);
        let (upper, lower) = (top + ABOVE, top + CHART_HEIGHT - BELOW);
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
    pub(crate) fn file(charts: &[Chart]) -> String {
        let height = MARGIN + CHART_HEIGHT * charts.len() as f64;
        let all =
            html! { @for (place, chart) in charts.iter().enumerate() { (chart.draw(CHART_HEIGHT * place as f64)) } };
        let label = "Efficiency by the number of ranks; the tables have the same numbers";
        svg_image(label, height, &all).into_string() + "\n"
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
