//! Trains a network alone, or on the ranks that a launcher starts; killed and started again, it continues from its newest snapshot.
//!
//! What is yours: `task.rs`, with the data, the network and the loss. The rest is the same in every training; `wrap.rs` has the
//! three ways to divide it.

mod task;
mod wrap;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Result;
use clap::Parser;
use lockstep::device::DeviceChoice;
use lockstep::loader::{DataLoader, Position};
use lockstep::metrics::{EvalOptions, over_my_share};
use lockstep::rng::seed_step;
use lockstep::sampler::DistributedSampler;
use lockstep::snapshot::{Run, Snapshots};
use lockstep::{LaunchEnv, Reporter, checkpoint, exit, init_process_group};
use tch::nn::VarStore;
use tch::{Device, Tensor};

use wrap::{Wrap, Wrapped, plain};

/// Train on one device, or under `lockstep run` on several
#[derive(Parser)]
struct Args {
    #[command(flatten)]
    data: task::DataArgs,
    /// What is divided among the ranks
    #[arg(long, value_enum, default_value_t)]
    wrap: Wrap,
    /// Total epochs to train the model
    #[arg(long, default_value_t = task::EPOCHS)]
    epochs: u64,
    /// Samples in a batch of one rank
    #[arg(long, default_value = task::BATCH_SIZE)]
    batch_size: NonZeroUsize,
    /// Learning rate
    #[arg(long, default_value_t = task::LR)]
    lr: f64,
    /// Seed of the initial weights and of the order of the samples
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The folder of snapshots; training continues from the newest one
    #[arg(long, default_value = "snapshots")]
    snapshots: PathBuf,
    /// A file for the final weights, which ends in .safetensors; `lockstep same` compares two of them
    #[arg(long, value_parser = checkpoint::parse_path)]
    weights: Option<PathBuf>,
    /// Where to train
    #[arg(long, value_enum, default_value_t)]
    device: DeviceChoice,
}

fn main() -> ExitCode {
    exit::main(|| train(&LaunchEnv::from_env_or_alone()?, &Args::parse()))
}

fn train(env: &LaunchEnv, args: &Args) -> Result<()> {
    // ANCHOR: join
    // Each rank on its own GPU where there are any, and a process group that suits the device.
    let device = args.device.pick(env.local_rank, env.local_world_size)?;
    let group = init_process_group(env, device, &Default::default())?;
    let report = Reporter::new(env, device)?;
    // ANCHOR_END: join

    let data = task::Data::load(&args.data, args.seed)?;
    let (samples, batch_size) = (data.train.len(), args.batch_size.get());
    let run = Run { seed: args.seed, samples, data: data.train.fingerprint()?, batch_size };
    // ANCHOR: share
    // Each rank reads its own share of the samples, in a new order in each epoch.
    let sampler = Arc::new(DistributedSampler::new(samples, env.rank, env.world_size)?.seed(args.seed));
    let loader = DataLoader::new(Arc::clone(&data.train), Arc::clone(&sampler), batch_size)?.workers(1);
    // ANCHOR_END: share

    tch::manual_seed(args.seed as i64);
    let mut vs = VarStore::new(Device::Cpu);
    let net = task::network(&vs.root(), &data)?;
    vs.set_device(device);
    let mut model = Wrapped::new(args.wrap, net, &vs, group, task::optimizer(args.lr))?;

    // ANCHOR: loop
    let mut snapshots = Snapshots::new(&args.snapshots, run, Default::default(), &report);
    let start = model.resume(&mut snapshots, &vs)?;
    for epoch in start.epoch..args.epochs {
        let from = start.within(epoch);
        report.epoch_at(from, &loader, batch_size, &sampler);
        for (step, batch) in (from.step..).zip(loader.epoch_at(from)) {
            let batch = batch?.to(device);
            seed_step(args.seed, epoch, step, env.rank); // for a network with dropout
            let loss = model.step(&batch.inputs, &batch.targets)?;
            report.step(epoch, step, loss, batch.len());
            // Not due here; but a signal may ask for a snapshot at any step.
            let next = loader.after(from, step);
            if !next.is_start() {
                model.save_if(false, next, &mut snapshots, &vs)?;
            }
        }
        task::print(&report, epoch, &evaluate(&model, &data, device)?);
        model.save_if(true, Position::start_of(epoch + 1), &mut snapshots, &vs)?;
    }
    snapshots.finish()?;
    // ANCHOR_END: loop
    if let Some(path) = &args.weights {
        model.save_weights(&vs, path)?;
    }
    if let Some(text) = model.whole(|net| task::show(net, &data))?? {
        report.say_once(text);
    }
    Ok(())
}

/// Each rank takes a share of the samples that are held out, and the sums are added.
fn evaluate(model: &Wrapped, data: &task::Data, device: Device) -> Result<task::Score> {
    let (group, mut mine) = (model.group(), task::Score::default());
    model.whole(|net| {
        let forward = |inputs: &Tensor| task::forward(net, inputs, false, &plain);
        let options = EvalOptions::default();
        over_my_share(group, Arc::clone(&data.test), device, &options, forward, |outputs, targets| {
            task::score(&mut mine, outputs, targets)
        })
    })??;
    Ok(mine.all_reduce(group)?)
}
