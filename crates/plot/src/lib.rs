//! What the pictures of benches and labs share: the outline of a file, colours, axes with round ticks, dots and lines; and [`Chart`], lines
//! by a size on a logarithmic axis. Shapes differ between sides, so colour is never the only distinction.
//!
//! A file is self-contained: shapes and text, no script, no link; the browser's own sans-serif font renders the text.

use std::ops::AddAssign;

use lockstep_contract::foreign;
use maud::{Markup, html};

/// In pixels: the width, and the room at the edges.
pub const WIDTH: f64 = 860.0;
pub const MARGIN: f64 = 14.0;
/// Colours that are distinguishable with any colour vision (M. Okabe and K. Ito, "Color Universal Design", 2008).
pub const COLOURS: [&str; 3] = ["#0072b2", "#d55e00", "#009e73"];
/// The shapes of [`dot`], for legends.
pub const MARKS: [&str; 2] = ["●", "■"];

/// A name that others chose, in one line; XML does not allow two characters that are left.
fn plain(text: &str) -> String {
    foreign::one_line(text).replace(['\u{fffe}', '\u{ffff}'], "")
}

/// A picture of this height; `label` says what it shows to those who cannot see it.
pub fn svg_image(label: &str, height: f64, content: &Markup) -> Markup {
    html! {
        svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label=(label) viewBox=(format!("0 0 {WIDTH} \
            {height}")) font-family="sans-serif" font-size="13" {
            rect width=(WIDTH) height=(height) fill="#ffffff" {}
            (content)
        }
    }
}

/// Each of `things` with its top, one below the other from `top`.
pub fn stacked<N: Copy + AddAssign, T>(top: N, things: impl Iterator<Item = (N, T)>) -> impl Iterator<Item = (N, T)> {
    things.scan(top, |top, (height, thing)| {
        let place = *top;
        *top += height;
        Some((place, thing))
    })
}

pub fn title(y: f64, words: &str) -> Markup {
    html! { text x=(MARGIN) y=(y) font-weight="bold" { (plain(words)) } }
}

/// Words of an axis at the bottom, centred at `x`.
pub fn below(x: f64, y: f64, words: &str) -> Markup {
    html! { text x=(x) y=(y) text-anchor="middle" font-size="11" { (words) } }
}

/// A tick of an axis at the bottom: a vertical line, and words `room` pixels below it.
pub fn column(x: f64, (upper, lower): (f64, f64), room: f64, words: &str) -> Markup {
    html! {
        line x1=(x) x2=(x) y1=(upper) y2=(lower) stroke="#d9dee5" {}
        (below(x, lower + room, words))
    }
}

/// A tick of an axis at the left: a horizontal line, and words before it.
pub fn row(y: f64, (left, right): (f64, f64), words: &str) -> Markup {
    html! {
        line x1=(left) x2=(right) y1=(y) y2=(y) stroke="#d9dee5" {}
        text x=(left - 8.0) y=(y + 4.0) text-anchor="end" font-size="11" { (words) }
    }
}

/// A circle for the subject, a square for its peers.
pub fn dot(side: usize, x: f64, y: f64, colour: &str) -> Markup {
    html! {
        @if side == 0 { circle cx=(x) cy=(y) r="4" fill=(colour) fill-opacity="0.5" {} }
        @else { rect x=(x - 3.5) y=(y - 3.5) width="7" height="7" fill=(colour) fill-opacity="0.5" {} }
    }
}

/// The points of a line through these values.
pub fn path(points: impl IntoIterator<Item = (f64, f64)>, x: &Axis, y: &Axis) -> String {
    let points = points.into_iter().map(|point| format!("{},{}", x.at(point.0), y.at(point.1)));
    points.collect::<Vec<_>>().join(" ")
}

/// The least and the greatest of values from 0 up.
pub fn extent(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold((f64::INFINITY, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)))
}

/// From values to pixels.
pub struct Axis {
    pub least: f64,
    pub most: f64,
    /// The positions of the least and the greatest value.
    pub pixels: (f64, f64),
    pub logarithmic: bool,
}

impl Axis {
    /// A logarithmic axis with some room around the values, which are above 0.
    pub fn logarithmic(values: impl Iterator<Item = f64>, pixels: (f64, f64)) -> Self {
        let (least, most) = extent(values);
        Axis { least: least / 1.4, most: most * 1.4, pixels, logarithmic: true }
    }

    /// An axis from 0 on.
    pub fn linear(most: f64, pixels: (f64, f64)) -> Self {
        Axis { least: 0.0, most, pixels, logarithmic: false }
    }

    /// Never outside.
    pub fn at(&self, value: f64) -> f64 {
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
    pub fn multiples(&self, step: f64) -> impl Iterator<Item = f64> + use<> {
        let most = self.most;
        (0..).map(move |count| f64::from(count) * step).take_while(move |tick| *tick <= most)
    }

    /// Round values on the axis, about `count` of them; powers of ten on a logarithmic one.
    pub fn ticks(&self, count: u32) -> Vec<f64> {
        if self.logarithmic {
            return self.powers();
        }
        let step = round_up((self.most - self.least) / f64::from(count));
        let first = (self.least / step).ceil();
        let ticks = (0..=count).map(|number| (first + f64::from(number)) * step);
        ticks.filter(|tick| tick.is_finite() && (self.least..=self.most).contains(tick)).collect()
    }

    /// Powers of ten on a logarithmic axis, with their halves and doubles where there are few.
    fn powers(&self) -> Vec<f64> {
        let powers = self.least.log10().floor() as i32..=self.most.log10().ceil() as i32;
        let all = powers.flat_map(|power| [1.0, 2.0, 5.0].map(|times| times * 10_f64.powi(power)));
        let inside: Vec<f64> = all.filter(|tick| (self.least..=self.most).contains(tick)).collect();
        if inside.len() > 6 {
            inside.into_iter().filter(|tick| tick.log10().fract().abs() < 1e-6).collect()
        } else {
            inside
        }
    }
}

/// The least of 1, 2 and 5 times a power of ten that is not below `rough`: the step of an axis.
pub fn round_up(rough: f64) -> f64 {
    let power = 10_f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|step| *step >= rough).unwrap_or(rough)
}

/// In pixels: the whole picture, the space around the lines, and a line of the legend.
pub const CHART_HEIGHT: f64 = 330.0;
const LEFT: f64 = 70.0;
const ABOVE: f64 = 34.0;
const BELOW: f64 = 46.0;
const LEGEND: f64 = 16.0;
/// The same, horizontally: the least for a name of the legend, and for a size.
const NAME: f64 = 148.0;
const SIZE: f64 = 46.0;
/// The same: of a letter, about.
const LETTER: f64 = 6.7;
/// Segments of a model's line, which is a curve on logarithmic axes.
const SEGMENTS: i32 = 40;

/// Lines by a size, which is on a logarithmic axis at the bottom.
pub struct Chart {
    pub title: String,
    /// What the axis at the bottom shows.
    pub below: &'static str,
    /// A size in words.
    pub size: fn(f64) -> String,
    pub vertical: Vertical,
    pub series: Vec<Series>,
}

/// The axis at the left.
#[derive(Clone, Copy)]
pub enum Vertical {
    /// In percent, from 0 to 100 at least.
    Percent,
    /// Logarithmic, with a value in words.
    Logarithmic(fn(f64) -> String),
}

/// A line of a chart with its dots.
#[derive(Default)]
pub struct Series {
    pub name: String,
    /// Sizes and values; there may be several of a size.
    pub dots: Vec<(f64, f64)>,
    /// Vertical lines: sizes, with the lower and the upper end of each.
    pub bars: Vec<(f64, (f64, f64))>,
    pub line: Vec<(f64, f64)>,
    /// What a model expects of a size, as a dashed line.
    pub model: Option<Box<dyn Fn(f64) -> f64>>,
}

impl Chart {
    /// Efficiency by the number of ranks: 1 if n ranks do n times the work of one. Each line has a name.
    pub fn efficiency(title: String, lines: impl Iterator<Item = (String, Vec<(f64, f64)>)>) -> Self {
        let series =
            |(name, line): (String, Vec<(f64, f64)>)| Series { name, dots: line.clone(), line, ..Series::default() };
        let (below, size) = ("ranks", (|ranks| ranks.to_string()) as fn(f64) -> String);
        Chart { title, below, size, vertical: Vertical::Percent, series: lines.map(series).collect() }
    }

    /// At this height of a picture.
    pub fn draw(&self, top: f64) -> Markup {
        let (left, right) = (MARGIN + LEFT, WIDTH - 2.0 * MARGIN);
        let widest = self.series.iter().map(|series| series.name.chars().count()).max().unwrap_or(0) as f64;
        let column = NAME.max(LETTER * widest + 30.0);
        let in_line = ((right - left) / column).max(1.0) as usize;
        // Pictures of a page, with one line and with two, have their axes in one place.
        let names = self.series.len().div_ceil(in_line).max(2);
        let (upper, lower) = (top + ABOVE + LEGEND * names as f64, top + CHART_HEIGHT - BELOW);
        let dots = || self.series.iter().flat_map(|series| series.dots.iter().copied());
        let mut sizes: Vec<f64> = dots().map(|(size, _)| size).collect();
        sizes.sort_by(f64::total_cmp);
        sizes.dedup();
        let ends = self.series.iter().flat_map(|series| &series.bars).flat_map(|(_, (low, high))| [*low, *high]);
        let values = dots().map(|(_, value)| value).chain(ends);
        let (y, ticks) = match self.vertical {
            Vertical::Percent => {
                let y = Axis::linear(1.05 * values.fold(1.0, f64::max), (lower, upper));
                let ticks = y.multiples(0.2).map(|tick| (tick, format!("{:.0} %", 100.0 * tick))).collect();
                (y, ticks)
            }
            Vertical::Logarithmic(words) => {
                let y = Axis::logarithmic(values, (lower, upper));
                let ticks: Vec<(f64, String)> = y.powers().into_iter().map(|tick| (tick, words(tick))).collect();
                (y, ticks)
            }
        };
        // Efficiency is that of one rank, which may not have been measured.
        let least = matches!(self.vertical, Vertical::Percent).then_some(1.0);
        let x = Axis::logarithmic(sizes.iter().copied().chain(least), (left, right));
        let mut free = left;
        sizes.retain(|size| {
            let fits = x.at(*size) >= free;
            free = if fits { x.at(*size) + SIZE } else { free };
            fits
        });
        html! {
            (title(top + 18.0, &self.title))
            @for (tick, words) in ticks { (row(y.at(tick), (left, right), &words)) }
            @for size in sizes { (below(x.at(size), lower + 16.0, &(self.size)(size))) }
            (below((left + right) / 2.0, lower + 34.0, self.below))
            @for (place, series) in self.series.iter().enumerate() {
                @let at = (left + column * (place % in_line) as f64, top + ABOVE + 2.0 + LEGEND * (place / in_line) as f64);
                (series.draw(place, (&x, &y), at))
            }
        }
    }

    /// A complete SVG file; `label` names the picture for screen readers.
    pub fn file(label: &str, charts: &[Chart]) -> String {
        let height = MARGIN + CHART_HEIGHT * charts.len() as f64;
        let all =
            html! { @for (place, chart) in charts.iter().enumerate() { (chart.draw(CHART_HEIGHT * place as f64)) } };
        svg_image(label, height, &all).into_string() + "\n"
    }
}

impl Series {
    /// With its name at this place of the legend.
    fn draw(&self, place: usize, (x, y): (&Axis, &Axis), (name_x, name_y): (f64, f64)) -> Markup {
        let colour = COLOURS[place % COLOURS.len()];
        let model = self.model.as_ref().map(|model| {
            let part = |step: i32| x.least * (x.most / x.least).powf(f64::from(step) / f64::from(SEGMENTS));
            (0..=SEGMENTS).map(part).map(|size| (size, model(size))).collect::<Vec<_>>()
        });
        html! {
            text x=(name_x) y=(name_y) fill=(colour) { (MARKS[place % MARKS.len()]) " " (plain(&self.name)) }
            @for dot_at in &self.dots { (dot(place % MARKS.len(), x.at(dot_at.0), y.at(dot_at.1), colour)) }
            @for (size, (low, high)) in &self.bars {
                line x1=(x.at(*size)) x2=(x.at(*size)) y1=(y.at(*low)) y2=(y.at(*high)) stroke=(colour) stroke-width="2" {}
            }
            polyline points=(path(self.line.iter().copied(), x, y)) fill="none" stroke=(colour) stroke-width="2" stroke-dasharray=(DASHES[place % DASHES.len()]) {}
            @if let Some(model) = model {
                polyline points=(path(model, x, y)) fill="none" stroke=(colour) stroke-dasharray="5 4" {}
            }
        }
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
        let line = |name: &str, times: f64| (name.to_owned(), [1.0, 2.0, 4.0].map(|x| (x, times)).into());
        let lines = ["DDP", "</text>", "c", "d", "e", "f"].iter().zip(1..);
        let lines = lines.map(|(name, n)| line(name, 1.0 / f64::from(n)));
        let of = |title: &str| title.to_owned();
        let text = Chart::file(
            "Efficiency by the number of ranks",
            &[Chart::efficiency(of("efficiency"), lines), Chart::efficiency(of("nothing"), std::iter::empty())],
        );
        let document = Document::parse(&text).unwrap();
        let count = |tag| document.descendants().filter(|node| node.tag_name().name() == tag).count();
        assert_eq!((count("polyline"), count("circle"), count("rect")), (6, 3 * 3, 3 * 3 + 1));
        let place =
            |words: &str| document.descendants().filter_map(|node| node.attribute(words)).any(|x| x.contains("NaN"));
        assert!(!["points", "x", "y", "cx", "cy"].into_iter().any(place), "{text}");
    }

    #[test]
    fn has_few_ticks_of_round_values_and_draws_nothing_outside() {
        let axis = Axis::logarithmic([1e-4, 2e-4].into_iter(), (0.0, 100.0));
        let close = |(one, other): (&f64, f64)| (one / other - 1.0).abs() < 1e-9;
        assert!(axis.powers().len() == 2 && axis.powers().iter().zip([1e-4, 2e-4]).all(close));
        let inside = Axis { least: 41.0, most: 162.0, pixels: (0.0, 100.0), logarithmic: false };
        assert_eq!(inside.ticks(5), [50.0, 100.0, 150.0]);
        assert_eq!(Axis { least: 1.0, most: f64::INFINITY, ..inside }.ticks(5), [0.0; 0]);
        let wide = Axis::logarithmic([1e-5, 2e-1].into_iter(), (0.0, 100.0));
        assert_eq!(wide.powers().len(), 5);
        assert!([0.0, 1e-9, 1.0, 1e9].into_iter().all(|value| (0.0..=100.0).contains(&wide.at(value))));
    }
}
