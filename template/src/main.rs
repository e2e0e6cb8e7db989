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
use lockstep::metrics::{EvalOptions, Evaluation, over_my_share};
use lockstep::rng::seed_step;
use lockstep::sampler::DistributedSampler;
use lockstep::snapshot::{Run, Snapshots};
use lockstep::{BestModel, LaunchEnv, Reporter, checkpoint, exit, init_process_group, pretrained};
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
    /// Limit of the norm of all gradients together; without it they are not clipped
    #[arg(long)]
    clip: Option<f64>,
    /// Stop after this many epochs without a lower held-out loss
    #[arg(long)]
    patience: Option<u64>,
    /// A CSV file for the curves: loss, learning rate and samples per second of each step, and each evaluation
    #[arg(long)]
    curves: Option<PathBuf>,
    /// Initial weights, as Python saved them: a state dict, or a .safetensors file
    #[arg(long)]
    initial: Option<PathBuf>,
    /// Seed of the initial weights and of the order of the samples
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The folder of snapshots, with the best model so far; training continues from the newest one
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
    args.curves.as_ref().map_or(Ok(()), |path| report.write_curves(path))?;

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
    if let Some(file) = args.initial.as_ref().filter(|_| env.rank.is_zero()) {
        // The other ranks get them from this one.
        report.println(pretrained::load(&vs, file, &Default::default())?.to_string());
    }
    vs.set_device(device);
    let mut model = Wrapped::new(args.wrap, net, &vs, group, task::optimizer(args.lr), args.clip)?;

    // ANCHOR: loop
    let mut snapshots = Snapshots::new(&args.snapshots, run, Default::default(), &report);
    let file = args.snapshots.join("best.safetensors");
    let mut best = BestModel::new(&file, Default::default(), &report).by_loss();
    let (start, so_far) = model.resume(&mut snapshots, &vs)?;
    best.resume(so_far, model.group())?;
    for epoch in start.epoch..args.epochs {
        if args.patience.is_some_and(|patience| best.has_waited(epoch, patience)) {
            report.say_once(format!("Stops before epoch {epoch}: the loss has not fallen for a while"));
            break;
        }
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
                model.save_if(false, next, &mut snapshots, &vs, best.best())?;
            }
        }
        let held_out = evaluate(&model, &data, device)?;
        report.eval(epoch, &held_out);
        best.offer(epoch, &held_out, model.variables(&vs), model.group())?;
        model.save_if(true, Position::start_of(epoch + 1), &mut snapshots, &vs, best.best())?;
    }
    snapshots.finish()?;
    // ANCHOR_END: loop
    if let Some(path) = &args.weights {
        model.save_weights(&vs, path)?;
    }
    if let Some(best) = best.finish(model.variables(&vs), model.group())? {
        report.say_once(format!("The best model, of epoch {}, is in {}", best.epoch, file.display()));
    }
    if let Some(text) = model.whole(|net| task::show(net, &data))?? {
        report.say_once(text);
    }
    Ok(())
}

/// Each rank takes a share of the samples that are held out, and the sums are added.
fn evaluate(model: &Wrapped, data: &task::Data, device: Device) -> Result<Evaluation> {
    let (group, mut mine) = (model.group(), Evaluation::default());
    model.whole(|net| {
        let forward = |inputs: &Tensor| task::forward(net, inputs, false, &plain);
        let options = EvalOptions::default();
        over_my_share(group, Arc::clone(&data.test), device, &options, forward, |outputs, targets| {
            task::score(&mut mine, outputs, targets)
        })
    })??;
    Ok(mine.all_reduce(group)?)
}
