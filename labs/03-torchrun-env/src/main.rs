//! Lab 03: MNIST with ranks from the environment.
//!
//! A launcher, `lockstep run` or Python's `torchrun`, starts this program once per rank and passes each rank its place in
//! torchrun's variables. Two lines of `main` differ from lab 02, and training may now span several nodes.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Result;
use clap::Parser;
use lockstep::data::{Dataset, mnist_or_drawn};
use lockstep::device::DeviceChoice;
use lockstep::loader::DataLoader;
use lockstep::metrics::evaluate;
use lockstep::models::ConvNet;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::sampler::DistributedSampler;
use lockstep::{DdpOptions, DistributedDataParallel, LaunchEnv, Reporter, checkpoint, exit, init_process_group};
use tch::Device;
use tch::nn::VarStore;

/// Train MNIST on the ranks that a launcher starts: lockstep run --standalone --nproc-per-node=2 PROGRAM
#[derive(Parser)]
struct Args {
    /// Total epochs to train the model
    #[arg(long, default_value_t = 3)]
    epochs: u64,
    /// Samples in a batch of one rank
    #[arg(long, default_value = "32")]
    batch_size: NonZeroUsize,
    /// Learning rate
    #[arg(long, default_value_t = 0.01)]
    lr: f64,
    /// Seed of drawn digits, order and initial weights
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// A folder with MNIST's four files; without one, digits are drawn
    #[arg(long)]
    data: Option<PathBuf>,
    /// Digits to draw for training; a quarter as many are drawn for the test
    #[arg(long, default_value = "4096")]
    samples: NonZeroUsize,
    /// A folder in which each rank saves its weights at the end
    #[arg(long, value_parser = lockstep::output::parse_folder)]
    weights: Option<PathBuf>,
    /// Where to train
    #[arg(long, value_enum, default_value_t)]
    device: DeviceChoice,
}

// ANCHOR: main
fn main() -> ExitCode {
    exit::main(|| {
        let args = Args::parse();
        train(&LaunchEnv::from_env()?, args)
    })
}
// ANCHOR_END: main

// ANCHOR: train
fn train(env: &LaunchEnv, args: Args) -> Result<()> {
    // ANCHOR: join
    let device = args.device.pick(env.local_rank, env.local_world_size)?;
    let group = Rc::new(init_process_group(env, device, &Default::default())?);
    // ANCHOR_END: join
    let (train_digits, test_digits) = (args.samples.get(), args.samples.get().div_ceil(4));
    let (train_set, test_set) = mnist_or_drawn(args.data.as_deref(), args.seed, train_digits, test_digits)?;

    tch::manual_seed(args.seed as i64);
    let mut vs = VarStore::new(Device::Cpu);
    let net = ConvNet::new(&vs.root());
    vs.set_device(device);
    let options = SgdOptions { lr: args.lr, momentum: 0.9, ..Default::default() };
    let mut optimizer = Sgd::new(named_parameters(&vs), options)?;
    let model = DistributedDataParallel::new(net, &vs, group, &DdpOptions::default())?;

    let sampler = DistributedSampler::new(train_set.len(), env.rank, env.world_size)?.seed(args.seed);
    let loader = DataLoader::new(Arc::new(train_set), sampler, args.batch_size.get())?.workers(1);
    let test_set = Arc::new(test_set);
    let report = Reporter::new(env, device)?;

    for epoch in 0..args.epochs {
        report.epoch(epoch, &loader);
        for (step, batch) in loader.epoch(epoch).enumerate() {
            let batch = batch?.to(device);
            optimizer.zero_grad();
            let loss = model.forward(&batch.inputs)?.cross_entropy_for_logits(&batch.targets);
            model.backward(&loss)?;
            optimizer.step()?;
            report.step(epoch, step, loss.double_value(&[]), batch.len());
        }
        report.eval(epoch, &evaluate(&model, test_set.clone(), device)?);
    }
    if let Some(folder) = args.weights {
        checkpoint::save_of_rank(&vs, &folder, env.rank)?;
    }
    Ok(())
}
// ANCHOR_END: train
