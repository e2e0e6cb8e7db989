//! Lab 12: parallelism. The same training of a small transformer as copies, with a part of the optimizer's states, of all states, of each
//! layer or of the blocks on each rank; and what each rank then holds and sends. `--model resnet` trains the labs' ResNet.
//!
//! Runs under `lockstep run` or torchrun, or alone.

mod args;
mod model;
mod network;
mod resnet;
mod schemes;
mod text;
mod threads;

use std::process::ExitCode;
use std::rc::Rc;

use anyhow::Result;
use args::Args;
use c10d::{GroupOptions, Traffic};
use clap::Parser;
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
        report.say(format!(
            "held activations of {peak} micro-batches at once; {measured:.0} % of the last step was no computing, \
             {bubble:.0} % by the schedule alone"
        ));
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
