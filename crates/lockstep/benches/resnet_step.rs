//! Measures a training step of ResNet-18 on one thread against its forward pass alone, and the cost of synchronized batch
//! normalization in a world of 1.
//!
//! `lockstep bench ddp --models resnet --against python` measures a narrow one under DDP against Python.

#[path = "support/formula.rs"]
mod formula;
#[path = "support/resnet.rs"]
mod resnet;
#[path = "../../../engine/c10d/benches/support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::rc::Rc;
use std::time::{Duration, Instant};

use c10d::{GroupOptions, ProcessGroup, Rank, Store, WorldSize};
use criterion::Criterion;
use lockstep::exit;
use lockstep::models::Norm;
use resnet::Trainer;
use support::rounds;
use tch::no_grad;

fn main() -> ExitCode {
    exit::main(|| {
        tch::set_num_threads(1);
        let mut criterion = Criterion::default().configure_from_args();
        rounds::print_machine(1, "thread");
        let group = ProcessGroup::gloo(&Store::hash()?, Rank::ZERO, WorldSize::ONE, &GroupOptions::default())?;
        let mut plain = Trainer::new(Norm::Batch)?;
        let mut synchronized = Trainer::new(Norm::Sync(Rc::new(group)))?;
        let mut group = criterion.benchmark_group("resnet_step");
        rounds::configure(&mut group);
        rounds::bench(&mut group, "batch norm", &["its forward pass"], |side, iterations| match side {
            0 => repeat(iterations, || drop(plain.step().expect("the step was taken before"))),
            _ => repeat(iterations, || drop(no_grad(|| plain.forward()))),
        });
        rounds::bench(&mut group, "synchronized batch norm, 1 rank", &["batch norm"], |side, iterations| {
            let trainer = if side == 0 { &mut synchronized } else { &mut plain };
            repeat(iterations, || drop(trainer.step().expect("a group of one is complete")))
        });
        group.finish();
        criterion.final_summary();
        Ok(())
    })
}

fn repeat(iterations: u64, mut body: impl FnMut()) -> Duration {
    let begun = Instant::now();
    (0..iterations).for_each(|_| body());
    begun.elapsed()
}
