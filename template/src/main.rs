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
use lockstep::metrics::{EvalOptions, Evaluation, over_my_virtual_shares};
use lockstep::rng::seed_step;
use lockstep::sampler::DistributedSampler;
use lockstep::snapshot::{Run, SnapshotOptions, Snapshots};
use lockstep::virtual_ranks::VirtualLoader;
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
    /// Train so many virtual ranks, each with its own batch, on any number of ranks up to theirs: with the same bits on all
    #[arg(long)]
    virtual_ranks: Option<NonZeroUsize>,
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
    tch::manual_seed(args.seed as i64);
    let mut vs = VarStore::new(Device::Cpu);
    let net = task::network(&vs.root(), &data)?;
    if let Some(file) = args.initial.as_ref().filter(|_| env.rank.is_zero()) {
        // The other ranks get them from this one.
        report.println(pretrained::load(&vs, file, &Default::default())?.to_string());
    }
    vs.set_device(device);
    let (virtual_ranks, rule) = (args.virtual_ranks, task::optimizer(args.lr));
    let mut model = Wrapped::new(args.wrap, virtual_ranks, net, &vs, group, rule, args.clip)?;

    // ANCHOR: share
    // Each rank reads its own share of the samples, in a new order in each epoch. With --virtual-ranks it has several shares.
    let ranks = model.virtual_ranks();
    let loader = VirtualLoader::new(ranks, |v| {
        let sampler = DistributedSampler::new(samples, v, ranks.count())?.seed(args.seed);
        anyhow::Ok(DataLoader::new(Arc::clone(&data.train), sampler, batch_size)?.workers(1))
    })?;
    // ANCHOR_END: share

    // ANCHOR: loop
    let options = SnapshotOptions { virtual_ranks, ..Default::default() };
    let mut snapshots = Snapshots::new(&args.snapshots, run, options, &report);
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
        report.epoch_at(from, &loader);
        for (step, batches) in (from.step..).zip(loader.epoch_at(from)) {
            let batches: Vec<_> = batches?.into_iter().map(|(v, batch)| (v, vec![batch.to(device)])).collect();
            let seed = |v| seed_step(args.seed, epoch, step, v); // for a network with dropout
            let loss = model.step(&batches, &seed)?;
            let taken = batches.iter().map(|(_, batch)| batch[0].len()).sum();
            report.virtual_step(ranks, epoch, step, loss, taken);
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
    let (ranks, options) = (model.virtual_ranks(), EvalOptions::default());
    let mine = model.whole(|net| {
        let forward = |inputs: &Tensor| task::forward(net, inputs, false, &plain);
        over_my_virtual_shares(ranks, Arc::clone(&data.test), device, &options, forward, task::score)
    })??;
    Ok(Evaluation::over_virtual_ranks(&mine, ranks, model.group())?)
}
