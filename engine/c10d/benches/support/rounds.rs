//! Ratios: a subject and its peers take turns within each of criterion's samples. A disturbance of the machine affects
//! all of them, so the ratio of a round is more reliable than each time.
//!
//! Criterion reports the subject's own time; this module reports the ratios, as median with minimum and maximum.

use std::time::Duration;

use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, SamplingMode};

/// Number of rounds in each bench, without criterion's warm-up.
pub const ROUNDS: usize = 20;

/// Configures a group: samples of equal length, one per round.
pub fn configure(group: &mut BenchmarkGroup<'_, WallTime>) {
    group.sample_size(ROUNDS).sampling_mode(SamplingMode::Flat);
    group.warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
}

/// Runs one bench: calls `time(side, iterations)` for all sides in each round, side 0 (the subject) first. Prints one
/// line of ratios, unless criterion skips the bench or only tries it.
pub fn bench(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    peers: &[&str],
    mut time: impl FnMut(usize, u64) -> Duration,
) {
    let mut rounds: Vec<Vec<f64>> = Vec::new();
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|iterations| {
            let times: Vec<Duration> = (0..=peers.len()).map(|side| time(side, iterations)).collect();
            rounds.push(times.iter().map(|time| time.as_secs_f64() / iterations as f64).collect());
            times[0]
        });
    });
    if rounds.len() > ROUNDS {
        print(name, peers, &rounds[rounds.len() - ROUNDS..]);
    }
}

/// Prints what a reader must know about the machine to judge the numbers; `busy` is the number of ranks or threads,
/// `what` says which.
pub fn print_machine(busy: usize, what: &str) {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').next().filter(|load| !load.is_empty()).unwrap_or("unknown");
    let warning = if busy > cores { ": not a scaling result" } else { "" };
    let plural = if busy == 1 { "" } else { "s" };
    println!("\n{busy} {what}{plural} on {cores} cores{warning}; load average of the last minute {load}");
}

fn print(name: &str, peers: &[&str], rounds: &[Vec<f64>]) {
    let side = |side: usize| rounds.iter().map(move |times| times[side]);
    println!("ratios of {name} ({}, median of {} rounds)", seconds(spread(side(0)).1), rounds.len());
    for (peer, number) in peers.iter().zip(1..) {
        let (least, median, greatest) = spread(rounds.iter().map(|times| times[0] / times[number]));
        let time = seconds(spread(side(number)).1);
        println!("    {median:.2} ({least:.2} … {greatest:.2}) times {peer} ({time})");
    }
}

/// Minimum, median, maximum.
fn spread(values: impl Iterator<Item = f64>) -> (f64, f64, f64) {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let (middle, last) = (values.len() / 2, values.len() - 1);
    let median =
        if values.len().is_multiple_of(2) { (values[middle - 1] + values[middle]) / 2.0 } else { values[middle] };
    (values[0], median, values[last])
}

fn seconds(value: f64) -> String {
    match value {
        _ if value < 1e-6 => format!("{:.0} ns", value * 1e9),
        _ if value < 1e-3 => format!("{:.1} µs", value * 1e6),
        _ => format!("{:.2} ms", value * 1e3),
    }
}
