//! Task 6: make it distributed.
//!
//! Lab 01's program trains on one device. Started once for each rank, it must train one model on all ranks together. Its losses and weights
//! must equal one process's with the same `batch_size`, which counts the samples of all ranks. Each epoch visits each sample once, in a
//! different order. One rank reports an epoch's mean loss over all samples, and one rank saves. At the end all ranks read the checkpoint.

use std::rc::Rc;

use anyhow::Result;
use c10d::ReduceOp;
use lockstep::loader::DataLoader;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::sampler::DistributedSampler;
use lockstep::{DistributedDataParallel, LaunchEnv, init_process_group};
use tch::nn::VarStore;
use tch::{Device, Reduction, Tensor};

use crate::job::TrainingRun;

/// Trains on this rank. `env` has its `rank`, which is 0 if `env.rank.is_zero()`, and the `world_size`; both have `get()`.
pub fn distributed(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    let settings = &job.settings;
    tch::manual_seed(settings.seed as i64);
    let mut vs = VarStore::new(Device::Cpu);
    // <answer>
    //~ // This is the program for one device. What must change?
    //~ let model = job.net(vs.root());
    //~ let mut optimizer = Sgd::new(named_parameters(&vs), SgdOptions { lr: settings.lr, ..Default::default() })?;
    //~ let data = job.data();
    //~ let sampler = lockstep::sampler::RandomSampler::new(data.len()).seed(settings.seed);
    //~ let loader = DataLoader::new(data, sampler, settings.batch_size)?;
    //~ for epoch in 0..settings.epochs {
    //~     let (mut sum, mut samples) = (0.0, 0.0);
    //~     for batch in loader.epoch(epoch) {
    //~         let batch = batch?;
    //~         optimizer.zero_grad();
    //~         let loss = model.forward(&batch.inputs).mse_loss(&batch.targets, Reduction::Mean);
    //~         c10d::backward(&loss)?;
    //~         optimizer.step()?;
    //~         sum += loss.double_value(&[]) * batch.len() as f64;
    //~         samples += batch.len() as f64;
    //~     }
    //~     job.report(epoch, sum / samples);
    //~ }
    //~ job.save(&vs)?;
    let group = Rc::new(init_process_group(env, Device::Cpu, &Default::default())?);
    let model = DistributedDataParallel::new(job.net(vs.root()), &vs, Rc::clone(&group), &Default::default())?;
    let mut optimizer = Sgd::new(named_parameters(&vs), SgdOptions { lr: settings.lr, ..Default::default() })?;
    let data = job.data();
    let sampler = DistributedSampler::new(data.len(), env.rank, env.world_size)?.seed(settings.seed);
    let loader = DataLoader::new(data, sampler, settings.batch_size / env.world_size.get())?;
    for epoch in 0..settings.epochs {
        let (mut sum, mut samples) = (0.0, 0.0);
        for batch in loader.epoch(epoch) {
            let batch = batch?;
            optimizer.zero_grad();
            let loss = model.forward(&batch.inputs)?.mse_loss(&batch.targets, Reduction::Mean);
            model.backward(&loss)?;
            optimizer.step()?;
            sum += loss.double_value(&[]) * batch.len() as f64;
            samples += batch.len() as f64;
        }
        let mut all = Tensor::from_slice(&[sum, samples]);
        group.all_reduce(&mut all, ReduceOp::Sum)?;
        if env.rank.is_zero() {
            job.report(epoch, all.double_value(&[0]) / all.double_value(&[1]));
        }
    }
    if env.rank.is_zero() {
        job.save(&vs)?;
    }
    group.barrier()?;
    // </answer>
    job.load(&mut vs)
}
