//! A plot of series as SVG: sizes and times on logarithmic axes, points with their spread, the α–β model as a line.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use lockstep_plot::{Chart, Vertical};

use super::{Point, Series};

/// Draws `series` into the file `path`. Creates its folder if it is missing.
pub fn save(path: &Path, title: &str, series: &[Series]) -> Result<()> {
    let svg = svg(title, series)?;
    path.parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(path, svg))
        .with_context(|| format!("failed to save the plot to {}", path.display()))
}

/// Draws `series`, whose points need sizes and times above 0, and returns the SVG's text.
pub fn svg(title: &str, series: &[Series]) -> Result<String> {
    let mut points = series.iter().flat_map(|series| &series.points).peekable();
    ensure!(points.peek().is_some(), "there are no measurements to plot");
    let drawable = |point: &Point| point.bytes > 0 && point.time.p10 > 0.0 && point.time.p90.is_finite();
    if let Some(point) = points.find(|point| !drawable(point)) {
        bail!("{} bytes in {:?} µs have no place on a logarithmic axis", point.bytes, point.time);
    }
    let chart = Chart {
        title: title.to_owned(),
        below: "message size in bytes",
        size: bytes_label,
        vertical: Vertical::Logarithmic(|time| format!("{time} µs")),
        series: series.iter().map(drawn).collect(),
    };
    Ok(Chart::file(title, &[chart]))
}

/// Medians as dots, from the 10th percentile to the 90th as bars.
fn drawn(series: &Series) -> lockstep_plot::Series {
    let points = || series.points.iter().map(|point| (point.bytes as f64, point.time));
    let fit = series.fit().ok();
    let costs = match fit {
        Some(line) if line.beta == 0.0 => format!(": {:.1} µs", line.alpha),
        Some(line) => format!(": {:.1} µs + n / ({:.0} MB/s)", line.alpha, line.bandwidth()),
        None => String::new(),
    };
    lockstep_plot::Series {
        name: format!("{}{costs}", series.name),
        dots: points().map(|(bytes, time)| (bytes, time.median)).collect(),
        bars: points().map(|(bytes, time)| (bytes, (time.p10, time.p90))).collect(),
        line: Vec::new(),
        model: fit.map(|line| Box::new(move |bytes: f64| line.time(bytes)) as Box<dyn Fn(f64) -> f64>),
    }
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
        // The second series' points are squares; the last is the background.
        assert_eq!([text.matches("<circle").count(), text.matches("<rect").count()], [3, 2 + 1]);
        assert!(text.starts_with("<svg ") && text.trim_end().ends_with("</svg>"));
        for word in ["messages", "message size in bytes", "100 µs", "by &lt;hand&gt;: 20.0 µs", "engine", "1 Mi"] {
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
        assert_eq!([text.matches("<circle").count(), text.matches("<polyline").count()], [1, 1]);
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
