//! Measures a step of virtual ranks against a step of DDP that accumulates the gradients of as many batches on each rank.
//!
//! The work is the same; virtual ranks keep partial sums apart, and ranks with several subtrees send more.

#[path = "support/formula.rs"]
mod formula;
#[path = "support/mlp.rs"]
mod mlp;
#[path = "../../../engine/c10d/benches/support/mod.rs"]
mod support;

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::rc::Rc;

use c10d::ProcessGroup;
use criterion::Criterion;
use lockstep::DdpOptions;
use lockstep::elastic::VirtualRanks;
use mlp::{Trainer, ZeroGrad};
use support::process_set::{ProcessSet, Tasks};
use support::{Result, rounds};

const PEERS: [&str; 1] = ["the step of DDP with accumulation"];
/// A task is the place of its number of virtual ranks, times 2 plus the side.
const SIDES: usize = 2;
/// Numbers of ranks, each with numbers of virtual ranks. Three ranks of eight have up to two subtrees each.
const CASES: [(usize, &[usize]); 4] = [(1, &[4]), (2, &[4]), (4, &[4]), (3, &[8])];

fn main() -> ExitCode {
    support::process_set::main::<Steps>(|| {
        let mut criterion = Criterion::default().configure_from_args();
        for (ranks, counts) in CASES {
            rounds::print_machine(ranks, "rank");
            let mut processes: ProcessSet<Steps> = ProcessSet::start(ranks)?;
            let mut group = criterion.benchmark_group("elastic_step");
            rounds::configure(&mut group);
            for (number, count) in counts.iter().enumerate() {
                let name = format!("{count} virtual ranks on {ranks}");
                rounds::bench(&mut group, &name, &PEERS, |side, iterations| {
                    processes.time(number * SIDES + side, iterations).expect("all ranks are there")
                });
            }
            group.finish();
            processes.end()?;
        }
        criterion.final_summary();
        Ok(())
    })
}

/// One rank's models, each with the number of its passes in a step.
struct Steps(Vec<(Trainer, usize)>);

impl Tasks for Steps {
    fn new(group: Rc<ProcessGroup>) -> Result<Self> {
        let mut trainers = Vec::new();
        let counts = CASES.iter().find(|(ranks, _)| *ranks == group.size().get()).map_or(&[][..], |(_, counts)| counts);
        for count in counts {
            let virtual_ranks = NonZeroUsize::new(*count);
            let passes =
                virtual_ranks.map_or(Ok(1), |count| VirtualRanks::new(count, &group).map(|own| own.own().len()))?;
            for options in [DdpOptions { virtual_ranks, ..Default::default() }, DdpOptions::default()] {
                trainers.push((Trainer::together(Rc::clone(&group), &options, ZeroGrad::ToNone)?, passes));
            }
        }
        Ok(Steps(trainers))
    }

    fn run(&mut self, task: usize, iterations: u64) -> Result<()> {
        let (trainer, passes) = &mut self.0[task];
        (0..iterations).try_for_each(|_| Ok(trainer.step_of(*passes)?))
    }
}
