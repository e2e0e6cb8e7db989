//! Times of the three all-reduces by message size: a table, an α–β line through each, and a plot. The model says how many messages follow
//! one another in each algorithm, and their volume in units of the tensor.
//!
//! It ignores γ, the time for adding, which is small compared with copying on one machine. Source: R. Thakur et al. 2005, see
//! `by_hand`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use lockstep::exit::UsageError;
use lockstep::measure::{AlphaBeta, Repeats, Series, Sizes, Table, bare, plot, table_of, time};
use tch::{Kind, Tensor};

use crate::Lab;
use crate::by_hand::core;
use crate::compare::ALGORITHMS;

/// Flags of `timing`.
#[derive(Args)]
pub(crate) struct TimingOptions {
    /// The shortest tensor of `timing` in bytes, a power of two
    #[arg(long, default_value_t = 4)]
    min_bytes: u64,
    /// The longest tensor of `timing` in bytes, a power of two
    #[arg(long, default_value_t = 1 << 20)]
    max_bytes: u64,
    /// How often `timing` measures each time; 15 by default
    #[arg(long)]
    repeats: Option<std::num::NonZeroUsize>,
    /// A file for the plot of `timing`, SVG
    #[arg(long, value_parser = lockstep::output::parse_file)]
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

pub(crate) fn timing(lab: &mut Lab<'_>, options: &TimingOptions) -> Result<()> {
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
    if let Some(path) = options.plot.as_ref().filter(|_| lab.group.rank().is_zero()) {
        plot::save(path, &format!("all_reduce on {} ranks", lab.world()), &series)?;
        println!("the plot is in {}", path.display());
    }
    Ok(())
}

// ANCHOR: measure
/// Zeros stay zeros, however often they are added up.
fn measure(lab: &Lab<'_>, options: &TimingOptions) -> Result<Vec<Series>> {
    let group = bare(lab.group)?;
    let mut series = ALGORITHMS.map(|(name, _)| Series::new(name));
    for bytes in options.sizes()?.iter() {
        let mut tensor = Tensor::f_zeros([bytes as i64 / 4], (Kind::Float, group.device()))
            .with_context(|| format!("cannot make a tensor of {bytes} bytes"))?;
        for ((_, all_reduce), series) in ALGORITHMS.iter().zip(&mut series) {
            let add_up = || all_reduce(&group, &mut tensor, c10d::ReduceOp::Sum);
            series.push(bytes, time(&group, &options.repeats(bytes), add_up)?);
        }
    }
    Ok(series.into())
}
// ANCHOR_END: measure

/// Applies the model to the two lines: the link's α and β from each, which should agree, and which algorithm is faster for which
/// sizes.
fn model(series: &[Series], size: usize) -> String {
    let [_, ring, doubling] = series else { return String::new() };
    let mut table = Table::new(["by the model", "messages", "bytes sent", "α of one, µs", "1/β, MB/s"]);
    for (series, cost) in [(ring, Cost::of_ring(size)), (doubling, Cost::of_doubling(size))] {
        let link = series.fit().ok().map(|line| cost.link(line));
        let alpha = link.map(|link| format!("{:.1}", link.alpha));
        // A line that does not rise gives no cost per byte.
        let bandwidth = link.filter(|link| link.beta > 0.0).map(|link| format!("{:.0}", link.bandwidth()));
        let counts = [series.name.clone(), cost.messages.to_string(), format!("{:.2} n", cost.volume)];
        table.row(counts.into_iter().chain(alpha).chain(bandwidth));
    }
    format!("{table}\n{}", faster(ring, doubling))
}

/// Which of two algorithms is faster below and above the size at which their lines cross.
fn faster(one: &Series, other: &Series) -> String {
    let rising = |series: &Series| series.fit().ok().filter(|line| line.beta > 0.0);
    let names = format!("{} and {}", one.name, other.name);
    let (Some(first), Some(second)) = (rising(one), rising(other)) else {
        return format!("no crossing of {names} can be computed: both lines must rise with the size");
    };
    if first == second {
        return format!("{names} have the same line");
    }
    let is_first = |bytes: f64| first.time(bytes) < second.time(bytes);
    let winner = |bytes: f64| if is_first(bytes) { &one.name } else { &other.name };
    let Some(bytes) = crossing(first, second) else {
        return format!("by these lines {} is faster at every size", winner(1.0));
    };
    let measured = one.points.iter().map(|point| point.bytes as f64);
    let inside = measured.clone().any(|size| size <= bytes) && measured.clone().any(|size| size >= bytes);
    let doubt = if inside { "" } else { ", though no size so far out was measured" };
    let [below, above] = [0.5, 2.0].map(|by| winner(bytes * by));
    format!("by these lines {below} is faster below {}, {above} above{doubt}", size(bytes))
}

/// 512 bytes, 78 KiB, 4 MiB.
fn size(bytes: f64) -> String {
    match bytes {
        ..1024.0 => format!("{bytes:.0} bytes"),
        ..1048576.0 => format!("{:.0} KiB", bytes / 1024.0),
        _ => format!("{:.0} MiB", bytes / 1048576.0),
    }
}

/// An algorithm's cost for a tensor of n bytes: `messages`·α + `volume`·n·β.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cost {
    /// Messages that must wait for each other.
    pub(crate) messages: f64,
    /// Bytes in them, in units of the whole tensor.
    pub(crate) volume: f64,
}

// ANCHOR: cost
impl Cost {
    /// 2(p − 1) messages of n/p bytes.
    pub(crate) fn of_ring(size: usize) -> Self {
        let messages = 2.0 * (size - 1) as f64;
        Cost { messages, volume: messages / size as f64 }
    }

    /// log2(p) messages of n bytes; if p is not a power of two, one more into the core and one out of it.
    pub(crate) fn of_doubling(size: usize) -> Self {
        let rounds = core(size).ilog2() + if core(size) == size { 0 } else { 2 };
        Cost { messages: rounds.into(), volume: rounds.into() }
    }

    /// α and β of one message, from the line through an algorithm's times.
    pub(crate) fn link(&self, fitted: AlphaBeta) -> AlphaBeta {
        AlphaBeta { alpha: fitted.alpha / self.messages, beta: fitted.beta / self.volume }
    }
}

/// The tensor size in bytes at which two lines cross, if they do.
pub(crate) fn crossing(one: AlphaBeta, other: AlphaBeta) -> Option<f64> {
    let bytes = (one.alpha - other.alpha) / (other.beta - one.beta);
    (bytes.is_finite() && bytes > 0.0).then_some(bytes)
}
// ANCHOR_END: cost

#[cfg(test)]
mod tests {
    use lockstep::measure::Spread;

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
        let message = model(&[ring.clone(), ring, doubling], 4);
        let lines: Vec<Vec<&str>> = message.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["ring", "6", "1.50", "n", "10.0", "1000"]);
        assert_eq!(lines[2], ["doubling", "2", "2.00", "n", "10.0", "1000"]);
        assert!(message.ends_with("\nby these lines doubling is faster below 78 KiB, ring above"), "{message}");
    }

    #[test]
    fn a_flat_line_has_neither_a_bandwidth_nor_a_crossing() {
        let (ring, flat) = (AlphaBeta { alpha: 60.0, beta: 0.0015 }, AlphaBeta { alpha: 20.0, beta: 0.0 });
        let message = model(&[drawn("engine", ring), drawn("ring", ring), drawn("doubling", flat)], 4);
        let lines: Vec<Vec<&str>> = message.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["ring", "6", "1.50", "n", "10.0", "1000"]);
        assert_eq!(lines[2], ["doubling", "2", "2.00", "n", "10.0"]);
        assert!(
            message.ends_with("no crossing of ring and doubling can be computed: both lines must rise with the size")
        );
        assert!(!message.contains("inf"), "{message}");
    }

    #[test]
    fn names_the_faster_algorithm_by_size_and_marks_sizes_that_were_not_measured() {
        let faster_of = |ring: (f64, f64), doubling: (f64, f64)| {
            let line = |(alpha, beta)| AlphaBeta { alpha, beta };
            faster(&drawn("ring", line(ring)), &drawn("doubling", line(doubling)))
        };
        assert_eq!(
            faster_of((20.0, 0.002), (60.0, 0.001)),
            "by these lines ring is faster below 39 KiB, doubling above"
        );
        let far = "by these lines doubling is faster below 38 MiB, ring above, though no size so far out was measured";
        assert_eq!(faster_of((60.0, 0.001), (20.0, 0.001001)), far);
        assert_eq!(faster_of((60.0, 0.002), (20.0, 0.001)), "by these lines doubling is faster at every size");
        assert_eq!(faster_of((20.0, 0.001), (20.0, 0.002)), "by these lines ring is faster at every size");
        assert_eq!(faster_of((20.0, 0.001), (20.0, 0.001)), "ring and doubling have the same line");
    }

    #[test]
    fn one_size_makes_no_line_and_still_a_table() {
        let mut one = Series::new("ring");
        one.push(4, Spread { median: 1.0, p10: 1.0, p90: 1.0 });
        let message = model(&[one.clone(), one.clone(), one], 4);
        assert!(message.contains("\nno crossing of ring and ring can be computed"), "{message}");
    }

    #[test]
    fn counts_messages_and_bytes_of_both_algorithms() {
        let pair = |cost: Cost| (cost.messages, cost.volume);
        assert_eq!([2, 4, 8].map(|p| pair(Cost::of_ring(p))), [(2.0, 1.0), (6.0, 1.5), (14.0, 1.75)]);
        assert_eq!([2, 4, 8].map(|p| pair(Cost::of_doubling(p))), [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]);
        assert_eq!([3, 5].map(|p| pair(Cost::of_doubling(p))), [(3.0, 3.0), (4.0, 4.0)]);
    }

    #[test]
    fn both_lines_lead_back_to_the_link_they_were_made_of() {
        let link = AlphaBeta { alpha: 25.0, beta: 0.002 };
        for cost in [Cost::of_ring(6), Cost::of_doubling(6)] {
            let line = AlphaBeta { alpha: cost.messages * link.alpha, beta: cost.volume * link.beta };
            let back = cost.link(line);
            assert!((back.alpha - link.alpha).abs() < 1e-9 && (back.beta - link.beta).abs() < 1e-12, "{back:?}");
        }
    }

    #[test]
    fn lines_cross_where_their_times_are_equal() {
        let (flat, steep) = (AlphaBeta { alpha: 60.0, beta: 0.5 }, AlphaBeta { alpha: 20.0, beta: 1.5 });
        assert_eq!(crossing(flat, steep), Some(40.0));
        assert_eq!(crossing(flat, flat), None);
        assert_eq!(crossing(flat, AlphaBeta { alpha: 20.0, beta: 0.25 }), None);
    }
}
