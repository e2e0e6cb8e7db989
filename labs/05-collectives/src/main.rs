//! Lab 05: what every rank holds before and after each collective, and two all-reduces written by hand.
//!
//! Runs on ranks that a launcher has started, or else on ranks that are threads of this process.

mod args;
mod by_hand;
mod collectives;
mod compare;
mod pictures;
mod timing;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Result;
use c10d::ProcessGroup;
use clap::Parser;
use lockstep::results::Results;
use lockstep::{LaunchEnv, Rank, exit, init_process_group, threads};
use tch::Tensor;

use crate::args::Args;
use crate::pictures::{Held, draw};

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

/// The state that all lessons share on one rank.
pub(crate) struct Lab<'a> {
    pub(crate) group: &'a ProcessGroup,
    /// The root of broadcast, scatter, reduce and gather.
    pub(crate) root: Rank,
    pub(crate) results: Results,
}

impl<'a> Lab<'a> {
    pub(crate) fn new(group: &'a ProcessGroup, root: Rank) -> Self {
        Lab { group, root, results: Results::new(group.rank()) }
    }

    // ANCHOR: start
    /// What rank r starts with: `n` whole numbers, 10r + 1, 10r + 2, … The tens digit is the rank.
    pub(crate) fn start(&self, n: usize) -> Tensor {
        let first = 10 * self.group.rank().get() as i64 + 1;
        self.tensor(&(first..first + n as i64).collect::<Vec<_>>())
    }
    // ANCHOR_END: start

    /// A tensor with these numbers on the group's device.
    pub(crate) fn tensor(&self, numbers: &[i64]) -> Tensor {
        Tensor::from_slice(numbers).to_device(self.group.device())
    }

    pub(crate) fn world(&self) -> usize {
        self.group.size().get()
    }

    pub(crate) fn is_root(&self) -> bool {
        self.group.rank() == self.root
    }

    /// Draws what the ranks held at each stage and records the last stage as the lesson's result. This is a collective.
    pub(crate) fn show(&mut self, lesson: &str, words: &str, stages: &[(&str, Held)]) -> Result<()> {
        if let Some((_, last)) = stages.last() {
            self.results.note(lesson, last.to_json())?;
        }
        if let Some(picture) = draw(self.group, stages)? {
            println!("{lesson}: {words}\n{picture}\n");
        }
        Ok(())
    }

    /// Prints on rank 0.
    pub(crate) fn say(&self, words: &str) {
        if self.group.rank().is_zero() {
            println!("{words}");
        }
    }

    pub(crate) fn save(&self, folder: Option<&Path>) -> Result<()> {
        folder.map_or(Ok(()), |folder| self.results.save(folder))
    }
}
