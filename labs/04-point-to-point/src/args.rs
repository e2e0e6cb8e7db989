//! The command line, and the checks that need no other rank.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use c10d::Rank;
use clap::Parser;
use lockstep::LaunchEnv;
use lockstep::device::DeviceChoice;
use lockstep::exit::UsageError;

use crate::Part;

/// Send messages between ranks: under a launcher as one of them, else as several threads of this process
#[derive(Clone, Parser)]
pub(crate) struct Args {
    /// Parts to run, in this order; all but `stuck` by default
    #[arg(long = "part", value_enum)]
    pub(crate) parts: Vec<Part>,
    /// Ranks to run as threads if no launcher has started this program; 2 by default
    #[arg(long)]
    pub(crate) nprocs: Option<usize>,
    /// The rank to which rank 0 sends in the first two parts
    #[arg(long, default_value = "1", value_parser = rank)]
    pub(crate) to: Rank,
    /// Seconds after which a waiting rank gives up, in the parts about deadlocks
    #[arg(long, default_value = "1", value_parser = seconds)]
    pub(crate) patience: Duration,
    /// The shortest message of the latency table in bytes, a power of two
    #[arg(long, default_value_t = 4)]
    pub(crate) min_bytes: u64,
    /// The longest message of the latency table in bytes, a power of two
    #[arg(long, default_value_t = 4 << 20)]
    pub(crate) max_bytes: u64,
    /// A file for the latency table's plot, SVG
    #[arg(long, value_parser = lockstep::output::parse_file)]
    pub(crate) plot: Option<PathBuf>,
    /// A folder in which each rank saves the tensors that it holds after each part
    #[arg(long, value_parser = lockstep::output::parse_folder)]
    pub(crate) results: Option<PathBuf>,
    /// The device of the tensors
    #[arg(long, value_enum, default_value_t)]
    pub(crate) device: DeviceChoice,
}

impl Args {
    /// Rejects invalid arguments before any rank waits for another.
    pub(crate) fn check(&self, env: &LaunchEnv) -> Result<()> {
        let (ranks, to) = (env.world_size, self.to);
        let usage = |words: String| UsageError(words);
        ensure!(
            ranks.get() > 1,
            usage(
                "a message needs two ranks, but there is 1: ask for more with --nprocs=2 or --nproc-per-node=2".into()
            )
        );
        ensure!(ranks.contains(to), usage(format!("--to is {to}, but ranks run from 0 to {}", ranks.get() - 1)));
        ensure!(!to.is_zero(), usage("--to is 0, but rank 0 cannot send to itself: name another rank".into()));
        Ok(())
    }
}

fn rank(text: &str) -> Result<Rank> {
    Ok(Rank::new(text.parse()?))
}

fn seconds(text: &str) -> Result<Duration> {
    let seconds: f64 = text.parse()?;
    let duration = Duration::try_from_secs_f64(seconds)?;
    ensure!(!duration.is_zero(), "the time must be more than 0 seconds");
    Ok(duration)
}
