//! Lab 04: messages from one rank to another.
//!
//! Follows the tutorial's `send_receive.py` and adds three parts: a token that visits all ranks, ranks that wait for one another
//! forever, and the cost of a message. All parts share one process group.

mod deadlock;
mod messages;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use c10d::{ProcessGroup, Rank};
use clap::{Parser, ValueEnum};
use lockstep::device::DeviceChoice;
use lockstep::exit::{self, UsageError};
use lockstep::measure::Sizes;
use lockstep::results::Results;
use lockstep::{LaunchEnv, Reporter, init_process_group, threads};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Rank 0 sends, another rank receives, and both wait until it is done
    SendRecv,
    /// The same, while both ranks do something else
    IsendIrecv,
    /// A token visits all ranks
    Ring,
    /// Ranks that wait for one another: detect a deadlock, report it, fix it
    Deadlock,
    /// The cost of a message by its size
    Latency,
    /// A deadlock that makes the program fail
    Stuck,
}

/// The state that all parts share.
struct Lab {
    args: Args,
    sizes: Sizes,
    group: ProcessGroup,
    report: Reporter,
    results: Results,
    /// The number of groups created so far for attempts that may break them.
    attempts: usize,
}

// ANCHOR: main
fn main() -> ExitCode {
    exit::main(|| {
        let args = Args::parse();
        let sizes = Sizes::new(args.min_bytes, args.max_bytes)?;
        threads::run(args.nprocs, |env| run(env, &args, sizes)).map(drop)
    })
}
// ANCHOR_END: main

fn run(env: &LaunchEnv, args: &Args, sizes: Sizes) -> Result<()> {
    args.check(env)?;
    // ANCHOR: join
    let device = args.device.pick(env.local_rank, env.local_world_size)?;
    let group = init_process_group(env, device, &Default::default())?;
    // ANCHOR_END: join
    args.device.agree_with(group.device())?;
    let (report, results) = (Reporter::new(env, group.device())?, Results::new(env.rank));
    let mut lab = Lab { args: args.clone(), sizes, group, report, results, attempts: 0 };
    let ended = run_parts(&mut lab);
    // Results are saved even if a later part has failed.
    let saved = args.results.as_ref().map_or(Ok(()), |folder| lab.results.save(folder));
    ended.and(saved)
}

fn run_parts(lab: &mut Lab) -> Result<()> {
    let all = [Part::SendRecv, Part::IsendIrecv, Part::Ring, Part::Deadlock, Part::Latency];
    let asked = lab.args.parts.clone();
    for part in if asked.is_empty() { &all[..] } else { &asked } {
        lab.group.barrier()?;
        part.run(lab).with_context(|| format!("part {} failed", part.name()))?;
    }
    Ok(())
}

impl Part {
    fn run(self, lab: &mut Lab) -> Result<()> {
        match self {
            Part::SendRecv => messages::send_recv(lab),
            Part::IsendIrecv => messages::isend_irecv(lab),
            Part::Ring => messages::ring(lab),
            Part::Deadlock => deadlock::run(lab),
            Part::Latency => messages::latency(lab),
            Part::Stuck => deadlock::stuck(lab),
        }
    }

    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

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
