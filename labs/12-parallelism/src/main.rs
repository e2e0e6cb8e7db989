//! Lab 12: parallelism. The same training of a small transformer as copies, with a part of the optimizer's states, of all states, of each
//! layer, of the blocks or of each sequence on each rank, or with experts of which each rank has some; and what each rank then holds and sends. `--model resnet` trains the labs' ResNet.
//!
//! Runs under `lockstep run` or torchrun, or alone.

mod model;
mod network;
mod resnet;
mod schemes;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;

use anyhow::Result;
use c10d::{GroupOptions, Traffic};
use clap::{Parser, ValueEnum};
use lockstep::memory::MemoryBytes;
use lockstep::{LaunchEnv, Reporter, exit, init_process_group};
use network::Start;
use schemes::Training;
use tch::{Device, Kind};

fn main() -> ExitCode {
    exit::main(|| {
        let args = Args::parse();
        train(&LaunchEnv::from_env_or_alone()?, &args)
    })
}

// ANCHOR: train
fn train(env: &LaunchEnv, args: &Args) -> Result<()> {
    tch::set_num_threads(1);
    let group = Rc::new(init_process_group(env, Device::Cpu, &GroupOptions::default())?);
    let report = Reporter::new(env, Device::Cpu)?;
    let batches = network::batches(args)?;
    let start = Start::draw(args, if args.double { Kind::Double } else { Kind::Float });
    let mut training = Training::new(args, &start, &group)?;
    drop(start);

    let mut sent = Traffic::default();
    for step in 0..args.steps {
        let batch = batches(step, args.batch_size)?;
        let before = group.traffic().unwrap_or_default();
        let loss = training.step(&batch)?;
        sent = group.traffic().unwrap_or_default() - before;
        report.say_once(format!("step {step} loss {loss:.12}"));
        report.note_memory(&training.held()?.with_sent(&group));
    }
    if let Some((step, bubble)) = &training.report {
        let (peak, measured, bubble) = (step.peak, 100.0 * step.bubble(), 100.0 * bubble);
        let batches = if peak == 1 { "micro-batch" } else { "micro-batches" };
        report.say(format!(
            "held activations of {peak} {batches} at once; {measured:.0} % of the last step without computing, {bubble:.0} % by \
             the schedule alone"
        ));
    }
    if let Some(dropped) = training.dropped() {
        report.say(format!("{dropped} of this rank's tokens found no place at an expert in the last step"));
    }
    let MemoryBytes { parameters, gradients, optimizer, buckets, .. } = training.held()?;
    if buckets > 0 {
        report.say(format!("at most {buckets} bytes of whole parameters and gradients at once"));
    }
    report.say(format!(
        "parameters {parameters} bytes, gradients {gradients}, optimizer's states {optimizer}; a step sends {} in {} calls",
        sent.bytes, sent.calls
    ));
    Ok(())
}
// ANCHOR_END: train

/// Train a small transformer on characters, or a ResNet, divided over the ranks in one of several ways
#[derive(Parser)]
pub(crate) struct Args {
    /// How the training is divided over the ranks
    #[arg(long, value_enum, default_value_t)]
    pub(crate) scheme: Scheme,
    /// What is trained
    #[arg(long, value_enum, default_value_t)]
    pub(crate) model: Model,
    /// Steps to train
    #[arg(long, default_value_t = 20)]
    pub(crate) steps: u64,
    /// Sequences or pictures in a step, of all ranks together
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(i64).range(1..=4096))]
    pub(crate) batch_size: i64,
    /// Divide a step among so many virtual ranks, for ddp and zero: with the same bits on any number of ranks up to theirs
    #[arg(long)]
    pub(crate) virtual_ranks: Option<NonZeroUsize>,
    /// Micro-batches into which a pipeline divides them
    #[arg(long, default_value = "4")]
    pub(crate) micro_batches: NonZeroUsize,
    /// The order of a pipeline's passes
    #[arg(long, value_enum, default_value_t)]
    pub(crate) schedule: Order,
    /// Compute the activations of each block a second time in the backward pass instead of keeping them
    #[arg(long)]
    pub(crate) recompute: bool,
    /// Threads of the scheme `threads`
    #[arg(long, default_value = "2")]
    pub(crate) replicas: NonZeroUsize,
    /// Blocks of the transformer
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(i64).range(1..=64))]
    pub(crate) blocks: i64,
    /// Learning rate of Adam
    #[arg(long, default_value_t = 0.003)]
    pub(crate) lr: f64,
    /// Double precision
    #[arg(long)]
    pub(crate) double: bool,
    /// A text file, or for the ResNet a folder with CIFAR-10's binary files; without it, sentences or pictures are made
    #[arg(long)]
    pub(crate) data: Option<PathBuf>,
    /// Seed of what is made, of batches and of initial weights
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
}

/// What each rank has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Scheme {
    /// The whole model, and a share of the batch
    #[default]
    Ddp,
    /// As ddp, and a share of the optimizer's states
    Zero,
    /// As zero, and a share of parameters and gradients: each unit of layers is gathered to compute and then freed
    Sharded,
    /// A part of each layer, and the whole batch
    Tensor,
    /// Some of the blocks
    Pipeline,
    /// The whole model, and a part of each sequence: keys and values go round the ranks
    Context,
    /// A share of the batch, and some of the experts that each block has in place of its two layers
    Expert,
    /// One process with a copy of the model on each of some threads, as DataParallel has it
    Threads,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Model {
    /// A transformer on characters
    #[default]
    Transformer,
    /// ResNet-18 of width 8 on pictures of 32 x 32: for ddp, zero, sharded and pipeline
    Resnet,
}

/// A schedule of `lockstep::parallel`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Order {
    /// One forward, one backward
    #[default]
    #[value(name = "1f1b")]
    OneFOneB,
    /// All forward, then all backward
    Gpipe,
}
