//! The three all-reduces in time by message size: a table, the α–β line through each, a plot.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Args;
use lockstep::exit::UsageError;
use lockstep::measure::{Repeats, Series, Sizes, Table, plot, table_of, time};
use tch::{Kind, Tensor};

use crate::compare::ALGORITHMS;
use crate::cost::{Cost, crossing};
use crate::lab::Lab;

/// Flags of `timing`.
#[derive(Args)]
pub(crate) struct TimingOptions {
    /// The shortest tensor of `timing` in bytes, a power of two
    #[arg(long, default_value_t = 4)]
    min_bytes: u64,
    /// The longest one
    #[arg(long, default_value_t = 1 << 20)]
    max_bytes: u64,
    /// How often `timing` takes each time; 15 if not given
    #[arg(long)]
    repeats: Option<std::num::NonZeroUsize>,
    /// A file for the plot of `timing`, SVG
    #[arg(long)]
    plot: Option<PathBuf>,
}

impl TimingOptions {
    pub(crate) fn sizes(&self) -> Result<Sizes, UsageError> {
        Sizes::new(self.min_bytes, self.max_bytes)
    }

    fn repeats(&self, bytes: u64) -> Repeats {
        let usual = Repeats::for_bytes(bytes);
        Repeats { timed: self.repeats.map_or(usual.timed, std::num::NonZeroUsize::get), ..usual }
    }
}

pub(crate) fn lesson(lab: &mut Lab<'_>, options: &TimingOptions) -> Result<()> {
    if lab.world() == 1 {
        lab.say("timing: not shown, messages need 2 ranks\n");
        return Ok(());
    }
    let series = measure(lab, options)?;
    lab.say(&format!("timing: all_reduce on {} ranks, median times\n{}\n", lab.world(), table_of(&series)));
    series.iter().for_each(|series| lab.say(&series.fit_line()));
    lab.say(&format!("\n{}\n", model(&series, lab.world())));
    let medians = |series: &Series| series.points.iter().map(|point| point.time.median).collect::<Vec<_>>();
    lab.results.note("timing", series.iter().map(medians).collect::<Vec<_>>())?;
    match &options.plot {
        Some(path) if lab.group.rank().is_zero() => save_plot(path, &series, lab.world()),
        _ => Ok(()),
    }
}

// ANCHOR: measure
/// Zeros stay zeros, however often they are added up.
fn measure(lab: &Lab<'_>, options: &TimingOptions) -> Result<Vec<Series>> {
    let mut series = ALGORITHMS.map(|(name, _)| Series::new(name));
    for bytes in options.sizes()?.iter() {
        let mut tensor = Tensor::zeros([bytes as i64 / 4], (Kind::Float, lab.group.device()));
        for ((_, all_reduce), series) in ALGORITHMS.iter().zip(&mut series) {
            let add_up = || all_reduce(lab.group, &mut tensor, c10d::ReduceOp::Sum);
            series.push(bytes, time(lab.group, &options.repeats(bytes), add_up)?);
        }
    }
    Ok(series.into())
}
// ANCHOR_END: measure

/// What the model makes of the two lines: the same link, if it holds, and the size at which one overtakes the other.
fn model(series: &[Series], size: usize) -> String {
    let [_, ring, doubling] = series else { return String::new() };
    let mut table = Table::new(["by the model", "messages", "bytes sent", "α of one, µs", "1/β, MB/s"]);
    for (series, cost) in [(ring, Cost::of_ring(size)), (doubling, Cost::of_doubling(size))] {
        let link = series.fit().ok().map(|line| cost.link(line));
        let figures = link.map(|link| [format!("{:.1}", link.alpha), format!("{:.0}", link.bandwidth())]);
        let counts = [series.name.clone(), cost.messages.to_string(), format!("{:.2} n", cost.volume)];
        table.row(counts.into_iter().chain(figures.into_iter().flatten()));
    }
    let lines = ring.fit().ok().zip(doubling.fit().ok());
    let end = match lines.and_then(|(ring, doubling)| crossing(ring, doubling)) {
        Some(bytes) => format!("the lines of ring and doubling cross at {:.0} KiB", bytes / 1024.0),
        None => "the lines of ring and doubling do not cross".to_owned(),
    };
    format!("{table}\n{end}")
}

fn save_plot(path: &Path, series: &[Series], size: usize) -> Result<()> {
    let svg = plot::svg(&format!("all_reduce on {size} ranks"), series)?;
    fs::write(path, svg).with_context(|| format!("failed to write the plot to {}", path.display()))?;
    println!("the plot is in {}", path.display());
    Ok(())
}

#[cfg(test)]
mod tests {
    use lockstep::measure::{AlphaBeta, Spread};

    use super::*;

    fn drawn(name: &str, line: AlphaBeta) -> Series {
        let mut series = Series::new(name);
        for bytes in [4, 4096, 1 << 22] {
            let median = line.time(bytes as f64);
            series.push(bytes, Spread { median, p10: median, p90: median });
        }
        series
    }

    #[test]
    fn the_model_finds_the_link_and_the_crossing_again() {
        // A link of 10 µs and 1000 MB/s on 4 ranks.
        let ring = drawn("ring", AlphaBeta { alpha: 60.0, beta: 0.0015 });
        let doubling = drawn("doubling", AlphaBeta { alpha: 20.0, beta: 0.002 });
        let told = model(&[ring.clone(), ring, doubling], 4);
        let lines: Vec<Vec<&str>> = told.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["ring", "6", "1.50", "n", "10.0", "1000"]);
        assert_eq!(lines[2], ["doubling", "2", "2.00", "n", "10.0", "1000"]);
        assert!(told.ends_with("cross at 78 KiB"), "{told}");
    }

    #[test]
    fn one_size_makes_no_line_and_still_a_table() {
        let mut one = Series::new("ring");
        one.push(4, Spread { median: 1.0, p10: 1.0, p90: 1.0 });
        let told = model(&[one.clone(), one.clone(), one], 4);
        assert!(told.ends_with("do not cross"), "{told}");
    }
}
