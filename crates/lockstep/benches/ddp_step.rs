//! Measures a DDP training step on 2 ranks against the same step without communication, alternating.
//!
//! In the baseline both ranks also train, each on its own: both cores are equally busy, and only the averaging is missing.

#[path = "support/formula.rs"]
mod formula;
#[path = "support/mlp.rs"]
mod mlp;
#[path = "../../../engine/c10d/benches/support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::rc::Rc;

use c10d::{CommHook, ProcessGroup};
use criterion::Criterion;
use lockstep::DdpOptions;
use mlp::{Trainer, ZeroGrad};
use support::process_set::{ProcessSet, Tasks};
use support::{Result, rounds};

const RANKS: usize = 2;
const PEERS: [&str; 1] = ["the step without communication"];
/// A task is its variant's number times 2 plus the side.
const SIDES: usize = 2;

/// Each variant's name, options, and way to clear gradients (also used by its baseline).
fn variants() -> [(&'static str, DdpOptions, ZeroGrad); 6] {
    let default = DdpOptions::default();
    let view = DdpOptions { gradient_as_bucket_view: true, ..default };
    [
        ("default", default, ZeroGrad::ToNone),
        ("default, zeroed in place", default, ZeroGrad::InPlace),
        ("gradient as bucket view", view, ZeroGrad::ToNone),
        ("gradient as bucket view, zeroed in place", view, ZeroGrad::InPlace),
        ("fp16 hook", DdpOptions { comm_hook: Some(CommHook::Fp16Compress), ..default }, ZeroGrad::ToNone),
        ("buckets of 1 MiB", DdpOptions { bucket_cap_mb: 1.0, ..default }, ZeroGrad::ToNone),
    ]
}

fn main() -> ExitCode {
    support::process_set::main::<Variants>(|| {
        let mut criterion = Criterion::default().configure_from_args();
        rounds::print_machine(RANKS, "rank");
        let mut processes: ProcessSet<Variants> = ProcessSet::start(RANKS)?;
        let mut group = criterion.benchmark_group("ddp_step");
        rounds::configure(&mut group);
        for (number, (name, ..)) in variants().iter().enumerate() {
            rounds::bench(&mut group, name, &PEERS, |side, iterations| {
                processes.time(number * SIDES + side, iterations).expect("all ranks are there")
            });
        }
        group.finish();
        processes.end()?;
        criterion.final_summary();
        Ok(())
    })
}

/// One rank's models: each variant's, then its baseline's.
struct Variants(Vec<Trainer>);

impl Tasks for Variants {
    fn new(group: Rc<ProcessGroup>) -> Result<Self> {
        let mut trainers = Vec::new();
        for (_, options, zero_grad) in variants() {
            trainers.push(Trainer::together(Rc::clone(&group), &options, zero_grad)?);
            trainers.push(Trainer::alone(group.rank().get(), zero_grad)?);
        }
        Ok(Variants(trainers))
    }

    fn run(&mut self, task: usize, iterations: u64) -> Result<()> {
        for _ in 0..iterations {
            let _loss = self.0[task].step()?;
        }
        Ok(())
    }
}
