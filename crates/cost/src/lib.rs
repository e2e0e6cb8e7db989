//! Models of what communication costs. Pure, and without libtorch: the runtime and the harness both use them.
//!
//! - [`AlphaBeta`]: a message of n bytes takes α + β·n; fitted to measured times.
//! - [`Collective`]: what each collective must move, so that times of different sizes and numbers of ranks can be compared.
//! - [`Amdahl`], [`Gustafson`]: what part of a step more ranks do not divide; fitted to measured times.
//! - [`Schedule`]: which stage of a pipeline works on which micro-batch when, and its bubble.
//! - [`Layout`]: what a rank holds, and what a step takes, if the batch, layers, blocks, sequences and experts are divided.
//! - [`Choice`]: the layout that suits a transformer and a cluster best.
//! - [`ClusterFile`]: a cluster and a transformer, read from a file.
//! - [`Prediction`]: what a training step takes on a cluster, and what bounds it.

mod alpha_beta;
mod choice;
mod cluster_file;
mod layout;
mod schedule;
mod step;

pub use alpha_beta::{AlphaBeta, Collective, FitError};
pub use choice::{Choice, FASTEST, SHOWN};
pub use cluster_file::{ClusterFile, ClusterFileError, first_unusable};
pub use layout::{Cluster, Experts, Layout, Sharding, Times, TransformerStep};
pub use schedule::{Action, Schedule, ScheduleError, Slot};
pub use step::{AllReduce, Amdahl, Bound, Bucket, Compute, Exchange, Gustafson, Link, Prediction, Sizes};

/// Three digits, more only before the decimal point; two of a value below 0.1.
pub fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if !(1e-9..0.0995).contains(&size) => 2,
        size => (1.0 - size.log10().floor()) as usize,
    };
    format!("{value:.decimals$}")
}

/// Units, the largest first, with their sizes.
pub type Units = [(&'static str, f64)];
pub const SECONDS: &Units = &[(" s", 1.0), (" ms", 1e-3), (" µs", 1e-6), (" ns", 1e-9)];
pub const BYTES: &Units = &[(" GiB", 1_073_741_824.0), (" MiB", 1_048_576.0), (" KiB", 1024.0), (" B", 1.0)];

/// The largest unit that is not larger than the value, and its size; otherwise the smallest.
pub fn unit(value: f64, units: &Units) -> (&'static str, f64) {
    *units.iter().find(|(_, size)| value.abs() >= *size).unwrap_or(&units[units.len() - 1])
}
