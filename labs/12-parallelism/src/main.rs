//! Lab 12: parallelism. The same training of a small transformer as copies, with a part of the optimizer's states, of each layer or of
//! the blocks on each rank; and what each rank then holds and sends.
//!
//! Runs under `lockstep run` or torchrun, or alone.

mod args;
mod model;
mod schemes;
mod text;
mod threads;

use std::process::ExitCode;
use std::rc::Rc;

use anyhow::Result;
use args::Args;
use c10d::{GroupOptions, Traffic};
use clap::Parser;
use lockstep::{LaunchEnv, Reporter, exit, init_process_group};
use schemes::Training;
use tch::{Device, Kind, Tensor};
use text::Text;

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
    let text = match &args.data {
        Some(path) => Text::read(path, args.seed)?,
        None => Text::made(args.seed),
    };
    let kind = if args.double { Kind::Double } else { Kind::Float };
    let weights = model::draw(args.blocks, args.seed, kind);
    let mut training = Training::new(args, &weights, &group)?;
    drop(weights);

    let mut sent = Traffic::default();
    for step in 0..args.steps {
        let batch = text.batch(step, args.batch_size);
        let before = group.traffic().unwrap_or_default();
        let loss = training.step(&batch)?;
        sent = group.traffic().unwrap_or_default() - before;
        report.say_once(format!("step {step} loss {loss:.12}"));
    }
    if let Some((step, bubble)) = &training.report {
        let (peak, measured, bubble) = (step.peak, 100.0 * step.bubble(), 100.0 * bubble);
        report.say(format!(
            "held activations of {peak} micro-batches at once; {measured:.0} % of the last step was no computing, \
             {bubble:.0} % by the schedule alone"
        ));
    }
    report.say(held(&training, sent)?);
    Ok(())
}
// ANCHOR_END: train

/// What this rank holds, and what it passed to its group in the last step: all counted.
fn held(training: &Training, sent: Traffic) -> Result<String> {
    let bytes = |tensor: &Tensor| tensor.numel() * tensor.kind().elt_size_in_bytes();
    let params = training.vs.trainable_variables();
    let parameters: usize = params.iter().map(bytes).sum();
    let gradients: usize = params.iter().map(Tensor::grad).filter(Tensor::defined).map(|grad| bytes(&grad)).sum();
    let states: usize = training.states()?.iter().map(bytes).sum();
    Ok(format!(
        "parameters {parameters} bytes, gradients {gradients}, optimizer's states {states}; a step sends {} in {} calls",
        sent.bytes, sent.calls
    ))
}
