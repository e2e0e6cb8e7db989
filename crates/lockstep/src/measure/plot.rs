//! A plot of series as SVG: sizes and times on logarithmic axes, points with their spread, the α–β model as a line.
//!
//! The file is self-contained: shapes and text, no script, no link; the browser's own sans-serif font renders the text.

use std::fs;
use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result, anyhow, ensure};
use plotters::prelude::*;

use super::{Point, Series};

const SIZE: (u32, u32) = (860, 540);

/// A generic font family; the browser chooses the font.
const FONT: &str = "sans-serif";

/// Colours that are distinguishable with any colour vision (M. Okabe and K. Ito, "Color Universal Design", 2008), without the
/// yellow, which is hard to see on white.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
];

/// Number of segments of a model's line: on logarithmic axes it is a curve.
const STEPS: i32 = 100;

/// Draws `series` into the file `path`. Creates its folder if it is missing.
///
/// # Errors
/// As [`svg`], and when the folder cannot be created or the file cannot be written.
pub fn save(path: &Path, title: &str, series: &[Series]) -> Result<()> {
    let svg = svg(title, series)?;
    path.parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(path, svg))
        .with_context(|| format!("failed to save the plot to {}", path.display()))
}

/// Draws `series`, whose points need sizes and times above 0, and returns the SVG's text.
///
/// # Errors
/// There is nothing to draw, or a point cannot be placed on a logarithmic axis.
pub fn svg(title: &str, series: &[Series]) -> Result<String> {
    let points: Vec<Point> = series.iter().flat_map(|series| series.points.iter().copied()).collect();
    let (x, y) = ranges(&points)?;
    let y = below_legend(y, series.len());
    let mut text = String::new();
    draw(&mut text, title, series, x, y).map_err(|why| anyhow!("{why}")).context("failed to draw the plot")?;
    Ok(text)
}

/// The range of the axes: all points with their spread, and a margin.
fn ranges(points: &[Point]) -> Result<(Range<f64>, Range<f64>)> {
    ensure!(!points.is_empty(), "there are no measurements to plot");
    let drawable = |point: &&Point| point.bytes > 0 && point.time.p10 > 0.0 && point.time.p90.is_finite();
    if let Some(point) = points.iter().find(|point| !drawable(point)) {
        anyhow::bail!("{} bytes in {:?} µs have no place on a logarithmic axis", point.bytes, point.time);
    }
    let around = |low: &dyn Fn(&Point) -> f64, high: &dyn Fn(&Point) -> f64| {
        let least = points.iter().map(low).fold(f64::INFINITY, f64::min);
        let most = points.iter().map(high).fold(0.0, f64::max);
        least / 1.6..most * 1.6
    };
    let bytes = |point: &Point| point.bytes as f64;
    Ok((around(&bytes, &bytes), around(&|point| point.time.p10, &|point| point.time.p90)))
}

/// The same range with room at the top for a legend of this many lines, each a twelfth of the plot, so that it covers no point.
fn below_legend(y: Range<f64>, lines: usize) -> Range<f64> {
    let legend = ((lines + 1) as f64 / 12.0).min(0.6);
    y.start..y.start * (y.end / y.start).powf(1.0 / (1.0 - legend))
}

type DrawError = DrawingAreaErrorKind<std::io::Error>;

fn draw(text: &mut String, title: &str, series: &[Series], x: Range<f64>, y: Range<f64>) -> Result<(), DrawError> {
    let root = SVGBackend::with_string(text, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&root)
        .caption(title, (FONT, 20))
        .margin(14)
        .x_label_area_size(48)
        .y_label_area_size(72)
        .build_cartesian_2d(x.log_scale().base(2.0), y.log_scale())?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .label_style((FONT, 14))
        .x_desc("message size in bytes")
        .y_desc("time in µs")
        .x_label_formatter(&|bytes| bytes_label(*bytes))
        .y_label_formatter(&|time| format!("{time}"))
        .draw()?;
    for (place, series) in series.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        chart
            .draw_series(series.points.iter().map(|point| Circle::new(at(point), 4, colour.filled())))?
            .label(legend(series))
            .legend(move |(x, y)| Circle::new((x + 10, y), 4, colour.filled()));
        chart.draw_series(series.points.iter().map(|point| spread(point, colour)))?;
        chart.draw_series(LineSeries::new(model(series), colour.stroke_width(1)))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font((FONT, 14))
        .background_style(WHITE)
        .border_style(BLACK.mix(0.3))
        .draw()?;
    root.present()
}

fn at(point: &Point) -> (f64, f64) {
    (point.bytes as f64, point.time.median)
}

/// From the 10th percentile to the 90th.
fn spread(point: &Point, colour: RGBColor) -> PathElement<(f64, f64)> {
    let bytes = point.bytes as f64;
    PathElement::new([(bytes, point.time.p10), (bytes, point.time.p90)], colour.stroke_width(2))
}

fn legend(series: &Series) -> String {
    match series.fit() {
        Ok(line) if line.beta == 0.0 => format!("{}: {:.1} µs", series.name, line.alpha),
        Ok(line) => format!("{}: {:.1} µs + n / ({:.0} MB/s)", series.name, line.alpha, line.bandwidth()),
        Err(_) => series.name.clone(),
    }
}

/// The α–β line from the smallest size to the largest; empty if no line fits.
fn model(series: &Series) -> Vec<(f64, f64)> {
    let (Ok(line), Some(first), Some(last)) = (series.fit(), series.points.first(), series.points.last()) else {
        return Vec::new();
    };
    let (least, most) = (first.bytes as f64, last.bytes as f64);
    let bytes = (0..=STEPS).map(|step| least * (most / least).powf(f64::from(step) / f64::from(STEPS)));
    bytes.map(|bytes| (bytes, line.time(bytes))).collect()
}

/// 4, 64 Ki, 8 Mi: powers of two with binary prefixes.
fn bytes_label(bytes: f64) -> String {
    let units = [(30, " Gi"), (20, " Mi"), (10, " Ki"), (0, "")];
    let (power, unit) = units.into_iter().find(|(power, _)| bytes >= 2f64.powi(*power)).unwrap_or((0, ""));
    format!("{}{unit}", bytes / 2f64.powi(power))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Spread;

    fn series(name: &str, sizes: &[u64]) -> Series {
        let mut series = Series::new(name);
        for &bytes in sizes {
            let median = 20.0 + bytes as f64 / 1000.0;
            series.push(bytes, Spread { median, p10: median * 0.9, p90: median * 1.3 });
        }
        series
    }

    #[test]
    fn draws_a_point_for_each_size_and_names_every_series() {
        let text = svg("messages", &[series("by <hand>", &[4, 64, 1 << 20]), series("engine", &[4, 64])]).unwrap();
        // Five points and a mark for each of the two in the legend.
        assert_eq!(text.matches("<circle").count(), 7);
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
        for word in ["messages", "message size in bytes", "time in µs", "by &lt;hand&gt;: 20.0 µs", "engine", "1 Mi"]
        {
            assert!(text.contains(word), "no {word:?} in {text}");
        }
        assert!(!text.contains("href") && !text.contains("<script"));
    }

    #[test]
    fn saves_into_a_folder_that_did_not_exist_and_names_a_file_that_cannot_be_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("plots/today/send.svg");
        for _ in 0..2 {
            save(&path, "messages", &[series("send", &[4, 64])]).unwrap();
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), svg("messages", &[series("send", &[4, 64])]).unwrap());
        let message = format!("{:#}", save(&path.join("below"), "a", &[series("send", &[4])]).unwrap_err());
        assert!(
            message.starts_with("failed to save the plot to ") && message.contains("send.svg/below: "),
            "{message}"
        );
    }

    #[test]
    fn draws_a_series_of_one_size_without_a_line() {
        let text = svg("one", &[series("send", &[8])]).unwrap();
        assert_eq!(text.matches("<circle").count(), 2);
    }

    #[test]
    fn leaves_room_for_the_legend_above_all_points() {
        let room = below_legend(10.0..1000.0, 2);
        assert_eq!(room.start, 10.0);
        // Three twelfths of the plot's height are free: the points take 2 of 2.67 decades.
        assert!(((room.end / 10.0).log10() - 2.0 / 0.75).abs() < 1e-9, "{room:?}");
        assert!(below_legend(10.0..1000.0, 100).end.is_finite());
    }

    #[test]
    fn times_that_do_not_grow_are_shown_without_a_bandwidth() {
        let mut flat = series("send", &[4]);
        flat.push(8, Spread { median: 1.0, p10: 1.0, p90: 1.0 });
        let text = svg("flat", &[flat]).unwrap();
        assert!(text.contains("send: ") && !text.contains("MB/s"), "{text}");
    }

    #[test]
    fn refuses_what_a_logarithmic_axis_cannot_show() {
        assert!(svg("none", &[Series::new("send")]).unwrap_err().to_string().contains("no measurements"));
        let message = svg("nought", &[series("send", &[0])]).unwrap_err().to_string();
        assert!(message.contains("0 bytes"), "{message}");
    }

    #[test]
    fn labels_powers_of_two() {
        assert_eq!(
            [4.0, 1024.0, 65536.0, 8388608.0, 4294967296.0].map(bytes_label),
            ["4", "1 Ki", "64 Ki", "8 Mi", "4 Gi"]
        );
    }
}
