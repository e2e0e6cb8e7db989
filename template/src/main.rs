//! Trains a classifier alone, or on the ranks that a launcher starts; killed and started again, it continues from its newest snapshot.
//!
//! What is yours: the data (`points.rs`), the network (`network`), the loss in `train`. The rest is the same in every training
//! with DistributedDataParallel.

mod points;

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Result;
use clap::Parser;
use lockstep::data::Dataset;
use lockstep::device::DeviceChoice;
use lockstep::loader::{DataLoader, Position};
use lockstep::metrics::evaluate;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::rng::seed_step;
use lockstep::sampler::DistributedSampler;
use lockstep::snapshot::{Run, Snapshots};
use lockstep::{DdpOptions, DistributedDataParallel, LaunchEnv, Reporter, exit, init_process_group};
use tch::Device;
use tch::nn::{ModuleT, Path, SequentialT, VarStore, linear, seq_t};

use points::Spirals;

/// Train on one device, or under `lockstep run` on several
#[derive(Parser)]
struct Args {
    /// Total epochs to train the model
    #[arg(long, default_value_t = 20)]
    epochs: u64,
    /// Samples in a batch of one rank
    #[arg(long, default_value = "32")]
    batch_size: NonZeroUsize,
    /// Learning rate
    #[arg(long, default_value_t = 0.05)]
    lr: f64,
    /// Seed of the initial weights and of the order of the samples
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The folder of snapshots; training continues from the newest one
    #[arg(long, default_value = "snapshots")]
    snapshots: PathBuf,
    /// Where to train
    #[arg(long, value_enum, default_value_t)]
    device: DeviceChoice,
}

fn main() -> ExitCode {
    exit::main(|| train(&LaunchEnv::from_env_or_alone()?, &Args::parse()))
}

// ANCHOR: network
/// Points of the plane, shape `[n, 2]`, to logits, shape `[n, CLASSES]`.
fn network(vs: &Path<'_>) -> SequentialT {
    let hidden = 64;
    seq_t()
        .add(linear(vs / "0", 2, hidden, Default::default()))
        .add_fn(|points| points.tanh())
        .add(linear(vs / "1", hidden, hidden, Default::default()))
        .add_fn(|points| points.tanh())
        .add(linear(vs / "2", hidden, points::CLASSES, Default::default()))
}
// ANCHOR_END: network

fn train(env: &LaunchEnv, args: &Args) -> Result<()> {
    // ANCHOR: join
    // Each rank on its own GPU where there are any, and a process group that suits the device.
    let device = args.device.pick(env.local_rank, env.local_world_size)?;
    let group = Rc::new(init_process_group(env, device, &Default::default())?);
    let report = Reporter::new(env, device)?;
    // ANCHOR_END: join

    let (train_set, test_set) = (Arc::new(Spirals::new(0..900)), Arc::new(Spirals::new(900..1200)));
    let batch_size = args.batch_size.get();
    let run = Run { seed: args.seed, samples: train_set.len(), data: train_set.fingerprint()?, batch_size };
    // ANCHOR: share
    // Each rank reads its own share of the samples, in a new order in each epoch.
    let sampler = DistributedSampler::new(train_set.len(), env.rank, env.world_size)?.seed(args.seed);
    let sampler = Arc::new(sampler);
    let loader = DataLoader::new(train_set, Arc::clone(&sampler), batch_size)?.workers(1);
    // ANCHOR_END: share

    tch::manual_seed(args.seed as i64);
    let mut vs = VarStore::new(Device::Cpu);
    let net = network(&vs.root());
    vs.set_device(device);
    let options = SgdOptions { lr: args.lr, momentum: 0.9, ..Default::default() };
    let mut optimizer = Sgd::new(named_parameters(&vs), options)?;
    // ANCHOR: wrap
    // With fixed buckets, a run that resumes adds in the same order as an uninterrupted run.
    let fixed = DdpOptions { fixed_buckets: true, ..Default::default() };
    let model = DistributedDataParallel::new(net, &vs, group, &fixed)?;
    // ANCHOR_END: wrap

    let mut snapshots = Snapshots::new(&args.snapshots, run, Default::default(), &report);
    let start = snapshots.resume(&vs, &mut optimizer, model.group())?;
    for epoch in start.epoch..args.epochs {
        let from = start.within(epoch);
        report.epoch_at(from, &loader, batch_size, &sampler);
        for (step, batch) in (from.step..).zip(loader.epoch_at(from)) {
            let batch = batch?.to(device);
            seed_step(args.seed, epoch, step, env.rank); // for a network with dropout
            // ANCHOR: step
            optimizer.zero_grad();
            let loss = model.forward_with(|net| net.forward_t(&batch.inputs, true))?;
            let loss = loss.cross_entropy_for_logits(&batch.targets);
            model.backward(&loss)?;
            optimizer.step()?;
            // ANCHOR_END: step
            report.step(epoch, step, loss.double_value(&[]), batch.len());
            // Not due here; but a signal may ask for a snapshot at any step.
            let next = loader.after(from, step);
            if !next.is_start() {
                snapshots.save_if(false, next, &vs, &optimizer, model.group())?;
            }
        }
        report.eval(epoch, &evaluate(&model, test_set.clone(), device)?);
        snapshots.save_if(true, Position::start_of(epoch + 1), &vs, &optimizer, model.group())?;
    }
    snapshots.finish()?;
    Ok(())
}
