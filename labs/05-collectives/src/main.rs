//! Lab 05: what every rank holds before and after each collective, and two all-reduces written by hand.
//!
//! Runs on ranks that a launcher has started, or else on ranks that are threads of this process. Each lesson has its own file.

mod all_to_all;
mod args;
mod compare;
mod cost;
mod doubling;
mod exchange;
mod groups;
mod lab;
mod lesson;
mod ops;
mod pictures;
mod ring;
mod rooted;
mod timing;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use lockstep::{LaunchEnv, exit, init_process_group, threads};

use crate::args::Args;
use crate::lab::Lab;

// ANCHOR: main
fn main() -> ExitCode {
    exit::main(|| {
        let args = Args::parse();
        threads::run(args.ranks_to_start()?, |env| run(env, &args))?;
        Ok(())
    })
}

fn run(env: &LaunchEnv, args: &Args) -> Result<()> {
    args.check(env.world_size)?;
    let device = args.device.pick(env.local_rank, env.local_world_size)?;
    let group = init_process_group(env, device, &Default::default())?;
    args.device.agree_with(group.device())?;
    let mut lab = Lab::new(&group, args.root());
    let ended = args.lessons().iter().try_for_each(|lesson| lesson.run(&mut lab, args));
    // Results are saved even if a later lesson has failed.
    let saved = lab.save(args.results.as_deref());
    ended.and(saved)
}
// ANCHOR_END: main
