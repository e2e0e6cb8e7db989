//! Lab 06: fault tolerance. Kill this program at any moment and start it again: it ends with the same bits.
//!
//! New since lab 03: it saves snapshots and resumes from them, random numbers are keyed by the step, and the layout of the gradient
//! buckets never changes. [`train`] is a library, since lab 09 trains with it on many nodes.

use std::num::{NonZeroU64, NonZeroUsize};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Result;
use c10d::ProcessGroup;
use clap::Parser;
use lockstep::data::{Dataset, mnist_or_drawn};
use lockstep::device::DeviceChoice;
use lockstep::loader::{DataLoader, Position};
use lockstep::metrics::evaluate;
use lockstep::models::DigitModel;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::rng::seed_step;
use lockstep::sampler::DistributedSampler;
use lockstep::snapshot::{OnSaveError, Run, Save, SnapshotOptions, Snapshots};
use lockstep::virtual_ranks::VirtualLoader;
use lockstep::{DdpOptions, DistributedDataParallel, LaunchEnv, Reporter, checkpoint};
use tch::Device;
use tch::nn::VarStore;

// ANCHOR: train
/// Trains on all ranks of `group`, from the newest good snapshot on, and returns the final weights.
///
/// # Errors
/// What a step, a batch, or a snapshot reports.
pub fn train(env: &LaunchEnv, group: ProcessGroup, args: &Args) -> Result<VarStore> {
    let (device, group) = (group.device(), Rc::new(group));
    let (train_digits, test_digits) = (args.samples.get(), args.samples.get().div_ceil(4));
    let (train_set, test_set) = mnist_or_drawn(args.data.as_deref(), args.seed, train_digits, test_digits)?;
    let (samples, test_set, batch_size) = (train_set.len(), Arc::new(test_set), args.batch_size.get());
    let data = train_set.fingerprint()?;

    tch::manual_seed(args.seed as i64);
    let mut vs = VarStore::new(Device::Cpu);
    let net = args.model.build(&vs.root());
    vs.set_device(device);
    let options = SgdOptions { lr: args.lr, momentum: 0.9, ..Default::default() };
    let mut optimizer = Sgd::new(named_parameters(&vs), options)?;
    let fixed = DdpOptions { fixed_buckets: true, virtual_ranks: args.virtual_ranks, ..Default::default() };
    let model = DistributedDataParallel::new(net, &vs, group, &fixed)?;
    let (ranks, train_set) = (model.virtual_ranks(), Arc::new(train_set));
    let loader = VirtualLoader::new(ranks, |v| {
        let sampler = DistributedSampler::new(samples, v, ranks.count())?.seed(args.seed);
        anyhow::Ok(DataLoader::new(train_set.clone(), sampler, batch_size)?.workers(1).pin_memory(device))
    })?;
    let report = Reporter::new(env, device)?;

    // ANCHOR: resume
    let run = Run { seed: args.seed, samples, data, batch_size };
    let (on_error, virtual_ranks) = (args.on_save_error, args.virtual_ranks);
    let options = SnapshotOptions { keep: args.keep, on_error, virtual_ranks, ..Default::default() };
    let mut snapshots = Snapshots::new(&args.snapshots, run, options, &report);
    let start = snapshots.resume(&vs, &mut optimizer, model.group())?;
    // ANCHOR_END: resume

    // ANCHOR: loop
    for epoch in start.epoch..args.epochs {
        let from = start.within(epoch);
        report.epoch_at(from, &loader);
        for (step, batches) in (from.step..).zip(loader.epoch_at(from)) {
            optimizer.zero_grad();
            let (mut losses, mut taken) = (Vec::new(), 0);
            for (v, batch) in batches? {
                let batch = batch.to(device);
                seed_step(args.seed, epoch, step, v);
                let loss = model.forward(&batch.inputs)?.cross_entropy_for_logits(&batch.targets);
                model.backward(&loss)?;
                losses.push(loss.detach());
                taken += batch.len();
            }
            optimizer.step()?;
            let losses: Vec<f64> = losses.iter().map(|loss| loss.double_value(&[])).collect();
            report.virtual_step(ranks, epoch, step, ranks.mean(model.group(), &losses)?, taken);
            let next = loader.after(from, step);
            if !next.is_start() {
                let due = args.save_every_steps.is_some_and(|every| next.step % every == 0);
                snapshots.save_if(due, Save::new(next, &vs, &optimizer), model.group())?;
            }
        }
        report.eval(epoch, &evaluate(&model, test_set.clone(), device)?);
        let due = (epoch + 1) % args.save_every == 0 || epoch + 1 == args.epochs;
        snapshots.save_if(due, Save::new(Position::start_of(epoch + 1), &vs, &optimizer), model.group())?;
    }
    snapshots.finish()?;
    // ANCHOR_END: loop
    if let Some(folder) = &args.weights {
        checkpoint::save_of_rank(&vs, folder, env.rank)?;
    }
    Ok(vs)
}
// ANCHOR_END: train

/// Train MNIST so that a kill costs no more than the steps since the last snapshot
#[derive(Parser)]
pub struct Args {
    /// Total epochs to train the model
    #[arg(long, default_value_t = 3)]
    pub epochs: u64,
    /// The folder of snapshots; training resumes from the newest good one
    #[arg(long, default_value = "snapshots")]
    pub snapshots: PathBuf,
    /// Save a snapshot every this many epochs, and after the last one
    #[arg(long, default_value = "1")]
    pub save_every: NonZeroU64,
    /// Also save a snapshot every this many steps of an epoch
    #[arg(long)]
    pub save_every_steps: Option<NonZeroUsize>,
    /// How many snapshots to keep
    #[arg(long, default_value = "2")]
    pub keep: NonZeroUsize,
    /// What to do when a snapshot cannot be saved
    #[arg(long, value_enum, default_value_t)]
    pub on_save_error: OnSaveError,
    /// The network
    #[arg(long, value_enum, default_value_t)]
    pub model: DigitModel,
    /// Samples in a batch of one rank
    #[arg(long, default_value = "32")]
    pub batch_size: NonZeroUsize,
    /// Train so many virtual ranks, each with its own batch, on any number of ranks up to theirs: with the same bits on all
    #[arg(long)]
    pub virtual_ranks: Option<NonZeroUsize>,
    /// Learning rate
    #[arg(long, default_value_t = 0.01)]
    pub lr: f64,
    /// Seed of drawn digits, order, initial weights and dropout
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// A folder with MNIST's four files; without one, digits are drawn
    #[arg(long)]
    pub data: Option<PathBuf>,
    /// Digits to draw for training; a quarter as many are drawn for the test
    #[arg(long, default_value = "4096")]
    pub samples: NonZeroUsize,
    /// A folder in which each rank saves its weights at the end
    #[arg(long, value_parser = lockstep::output::parse_folder)]
    pub weights: Option<PathBuf>,
    /// Where to train
    #[arg(long, value_enum, default_value_t)]
    pub device: DeviceChoice,
}
