//! This program is wrong on purpose: only rank 0 evaluates, and the evaluation is a collective. The book shows the error.

use std::process::ExitCode;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Result;
use c10d::GroupOptions;
use lockstep::metrics::Evaluation;
use lockstep::models::ToyModel;
use lockstep::{DdpOptions, DistributedDataParallel, LaunchEnv, exit, init_process_group, spawn};
use tch::nn::VarStore;
use tch::{Device, Kind, Reduction, Tensor};

fn main() -> ExitCode {
    exit::main(|| Ok(spawn(2, &(), train)?))
}

fn train(env: &LaunchEnv, (): ()) -> Result<()> {
    // The default deadline is 30 minutes.
    let options = GroupOptions { timeout: Duration::from_secs(3), ..Default::default() };
    let group = Rc::new(init_process_group(env, Device::Cpu, &options)?);
    let vs = VarStore::new(Device::Cpu);
    let model = DistributedDataParallel::new(ToyModel::new(&vs.root()), &vs, group, &DdpOptions::default())?;

    // ANCHOR: wrong
    for _epoch in 0..2 {
        let outputs = model.forward(&Tensor::randn([20, 10], (Kind::Float, Device::Cpu)))?;
        model.backward(&outputs.mse_loss(&outputs.zeros_like(), Reduction::Mean))?;
        if env.rank.is_zero() {
            Evaluation::default().all_reduce(model.group())?;
        }
    }
    // ANCHOR_END: wrong
    Ok(())
}
