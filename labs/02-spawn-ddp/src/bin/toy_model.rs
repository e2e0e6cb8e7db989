//! Lab 02, first part: one step of the tutorials' ToyModel on several processes.
//!
//! Follows `mp.py`: each rank has different inputs and labels, and after one step all ranks hold the same weights.

use std::process::ExitCode;
use std::rc::Rc;

use anyhow::{Result, ensure};
use c10d::ReduceOp;
use clap::Parser;
use lockstep::device::DeviceChoice;
use lockstep::models::ToyModel;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::{DdpOptions, DistributedDataParallel, LaunchEnv, exit, init_process_group, spawn};
use tch::nn::VarStore;
use tch::{Device, Kind, Reduction, Tensor};

/// Run one DDP step of a toy model on several processes
#[derive(Parser)]
struct Args {
    /// Processes to start
    #[arg(long, default_value_t = 2)]
    nprocs: usize,
    /// Where to train
    #[arg(long, value_enum, default_value_t)]
    device: DeviceChoice,
}

fn main() -> ExitCode {
    exit::main(|| {
        let args = Args::parse();
        Ok(spawn(args.nprocs, &args.device, demo_basic)?)
    })
}

// ANCHOR: demo
fn demo_basic(env: &LaunchEnv, device: DeviceChoice) -> Result<()> {
    println!("Running basic DDP example on rank {}.", env.rank);
    let device = device.pick(env.local_rank, env.local_world_size)?;
    let group = Rc::new(init_process_group(env, device, &Default::default())?);

    // Each rank starts with different weights and data. The constructor replaces the weights by rank 0's.
    tch::manual_seed(env.rank.get() as i64);
    let mut vs = VarStore::new(Device::Cpu);
    let net = ToyModel::new(&vs.root());
    vs.set_device(device);
    let model = DistributedDataParallel::new(net, &vs, group, &DdpOptions::default())?;
    let mut optimizer = Sgd::new(named_parameters(&vs), SgdOptions::default())?;

    optimizer.zero_grad();
    let outputs = model.forward(&Tensor::randn([20, 10], (Kind::Float, device)))?;
    let labels = Tensor::randn([20, 5], (Kind::Float, device));
    let loss = outputs.mse_loss(&labels, Reduction::Mean);
    model.backward(&loss)?;
    optimizer.step()?;

    let spread = largest_difference(&model, &vs)?;
    println!("Rank {}: loss {:.4}, weights differ between ranks by {spread}", env.rank, loss.double_value(&[]));
    ensure!(spread == 0.0, "the ranks' weights differ by {spread} after a step that should have made them equal");
    Ok(())
}

/// The largest difference between the ranks' values of any weight.
fn largest_difference<M>(model: &DistributedDataParallel<M>, vs: &VarStore) -> Result<f64> {
    let weights: Vec<Tensor> = named_parameters(vs).into_iter().map(|(_, w)| w.detach().flatten(0, -1)).collect();
    let (mut most, mut least) = (Tensor::cat(&weights, 0), Tensor::cat(&weights, 0));
    model.group().all_reduce(&mut most, ReduceOp::Max)?;
    model.group().all_reduce(&mut least, ReduceOp::Min)?;
    Ok((most - least).max().double_value(&[]))
}
// ANCHOR_END: demo
