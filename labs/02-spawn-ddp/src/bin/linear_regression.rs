//! Lab 02, second part: linear regression on several processes, compared with the line that produced the data.

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Result;
use clap::Parser;
use lockstep::data::{Dataset, LinearRegression};
use lockstep::device::DeviceChoice;
use lockstep::loader::DataLoader;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::sampler::DistributedSampler;
use lockstep::{DdpOptions, DistributedDataParallel, LaunchEnv, Reporter, exit, init_process_group, spawn};
use serde::{Deserialize, Serialize};
use tch::nn::{self, VarStore};
use tch::{Device, Reduction};

/// Fit a line on several processes
#[derive(Parser, Serialize, Deserialize)]
struct Args {
    /// Processes to start
    #[arg(long, default_value_t = 2)]
    nprocs: usize,
    /// Total epochs to train the model
    #[arg(long, default_value_t = 10)]
    epochs: u64,
    /// Samples in a batch of one rank
    #[arg(long, default_value = "16")]
    batch_size: NonZeroUsize,
    /// Learning rate
    #[arg(long, default_value_t = 0.05)]
    lr: f64,
    /// Samples in the data set
    #[arg(long, default_value = "1000")]
    samples: NonZeroUsize,
    /// Seed of data, order and initial weights
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Where to train
    #[arg(long, value_enum, default_value_t)]
    device: DeviceChoice,
}

fn main() -> ExitCode {
    exit::main(|| {
        let args = Args::parse();
        Ok(spawn(args.nprocs, &args, train)?)
    })
}

// ANCHOR: train
fn train(env: &LaunchEnv, args: Args) -> Result<()> {
    let device = args.device.pick(env.local_rank, env.local_world_size)?;
    let group = Rc::new(init_process_group(env, device, &Default::default())?);
    let data = Arc::new(LinearRegression::new(args.seed, args.samples.get(), 3, 0.1));
    let sampler = DistributedSampler::new(data.len(), env.rank, env.world_size)?.seed(args.seed);
    let loader = DataLoader::new(data.clone(), sampler, args.batch_size.get())?;

    tch::manual_seed(args.seed as i64);
    let mut vs = VarStore::new(Device::Cpu);
    let line = nn::linear(vs.root(), 3, 1, Default::default());
    vs.set_device(device);
    let mut optimizer = Sgd::new(named_parameters(&vs), SgdOptions { lr: args.lr, ..Default::default() })?;
    let model = DistributedDataParallel::new(line, &vs, group, &DdpOptions::default())?;
    let report = Reporter::new(env, device)?;

    for epoch in 0..args.epochs {
        report.epoch(epoch, &loader);
        for (step, batch) in loader.epoch(epoch).enumerate() {
            let batch = batch?.to(device);
            optimizer.zero_grad();
            let loss = model.forward(&batch.inputs)?.mse_loss(&batch.targets, Reduction::Mean);
            model.backward(&loss)?;
            optimizer.step()?;
            report.step(epoch, step, loss.double_value(&[]), batch.len());
        }
        let line = model.module();
        let bias = line.bs.as_ref().expect("a linear layer has a bias by default");
        report.say(format!("Epoch {epoch} | distance from the true line: {:.4}", data.distance(&line.ws, bias)?));
    }
    Ok(())
}
// ANCHOR_END: train
