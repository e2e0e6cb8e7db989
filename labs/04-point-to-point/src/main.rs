//! Lab 04: messages from one rank to another.
//!
//! Follows the tutorial's `send_receive.py` and adds three parts: a token that visits all ranks, ranks that wait for one another
//! forever, and the cost of a message. Each part has its own file; all parts share one process group.

mod args;
mod deadlock;
mod isend_irecv;
mod latency;
mod ring;
mod send_recv;

use std::process::ExitCode;

use anyhow::{Context, Result};
use args::Args;
use c10d::ProcessGroup;
use clap::{Parser, ValueEnum};
use lockstep::measure::Sizes;
use lockstep::results::Results;
use lockstep::{LaunchEnv, Reporter, exit, init_process_group, threads};

/// The parts of the lab.
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
            Part::SendRecv => send_recv::run(lab),
            Part::IsendIrecv => isend_irecv::run(lab),
            Part::Ring => ring::run(lab),
            Part::Deadlock => deadlock::run(lab),
            Part::Latency => latency::run(lab),
            Part::Stuck => deadlock::stuck(lab),
        }
    }

    fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }
}
