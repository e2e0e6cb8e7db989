//! Answers to `distributed`: wrong ones, and unusual right ones.

use std::rc::Rc;

use anyhow::Result;
use c10d::{ProcessGroup, Rank, ReduceOp};
use lockstep::loader::DataLoader;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::sampler::{DistributedSampler, RandomSampler, Sampler};
use lockstep::{DistributedDataParallel, LaunchEnv, init_process_group};
use lockstep_answers::given;
use tch::nn::VarStore;
use tch::{Device, Reduction, Tensor};

use crate::job::{Net, TrainingRun};

/// How ranks combine their gradients.
#[derive(Clone, Copy, PartialEq)]
enum Gradients {
    Ddp,
    Own,
    AroundDdp,
    ByHand,
}

/// Which loss is reported.
#[derive(Clone, Copy, PartialEq)]
enum Loss {
    OfAll,
    OfOne,
    Summed,
    MeanOfSteps,
    OnRank0,
    Gathered,
}

/// What comes between training and reading the checkpoint.
#[derive(Clone, Copy, PartialEq)]
enum Save {
    OnceForAll,
    Everyone,
    NoBarrier,
    BarrierInside,
    Broadcast,
}

/// A program, part by part.
#[derive(Clone, Copy)]
struct Program {
    seed_of_weights: fn(&LaunchEnv, u64) -> u64,
    sampler: fn(&LaunchEnv, usize, u64) -> Result<Box<dyn Sampler>>,
    epoch: fn(u64) -> u64,
    batch: fn(&LaunchEnv, usize) -> usize,
    rate: fn(&LaunchEnv, f64) -> f64,
    gradients: Gradients,
    loss: Loss,
    reports: fn(&LaunchEnv) -> bool,
    save: Save,
}

/// The course's answer.
const RIGHT: Program = Program {
    seed_of_weights: |_, seed| seed,
    sampler: |env, samples, seed| Ok(Box::new(DistributedSampler::new(samples, env.rank, env.world_size)?.seed(seed))),
    epoch: |epoch| epoch,
    batch: |env, size| size / env.world_size.get(),
    rate: |_, rate| rate,
    gradients: Gradients::Ddp,
    loss: Loss::OfAll,
    reports: |env| env.rank.is_zero(),
    save: Save::OnceForAll,
};

enum Model {
    Plain(Net),
    Wrapped(DistributedDataParallel<Net>),
}

impl Model {
    fn step(&self, inputs: &Tensor, targets: &Tensor, gradients: Gradients) -> Result<f64> {
        let mean = |outputs: Tensor| outputs.mse_loss(targets, Reduction::Mean);
        let loss = match self {
            Model::Wrapped(model) if gradients == Gradients::Ddp => {
                let loss = mean(model.forward(inputs)?);
                model.backward(&loss)?;
                loss
            }
            Model::Wrapped(model) => {
                let loss = mean(model.module().forward(inputs));
                c10d::backward(&loss)?;
                loss
            }
            Model::Plain(net) => {
                let loss = mean(net.forward(inputs));
                c10d::backward(&loss)?;
                loss
            }
        };
        Ok(loss.double_value(&[]))
    }
}

impl Program {
    fn run(&self, env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
        let settings = &job.settings;
        let group = Rc::new(init_process_group(env, Device::Cpu, &Default::default())?);
        tch::manual_seed((self.seed_of_weights)(env, settings.seed) as i64);
        let mut vs = VarStore::new(Device::Cpu);
        let net = job.net(vs.root());
        let lr = (self.rate)(env, settings.lr);
        let mut optimizer = Sgd::new(named_parameters(&vs), SgdOptions { lr, ..Default::default() })?;
        let model = match self.gradients {
            Gradients::Ddp | Gradients::AroundDdp => {
                Model::Wrapped(DistributedDataParallel::new(net, &vs, Rc::clone(&group), &Default::default())?)
            }
            Gradients::Own | Gradients::ByHand => Model::Plain(net),
        };
        let data = job.data();
        let sampler = (self.sampler)(env, data.len(), settings.seed)?;
        let loader = DataLoader::new(data, sampler, (self.batch)(env, settings.batch_size))?;
        for epoch in 0..settings.epochs {
            let mut losses = Vec::new();
            for batch in loader.epoch((self.epoch)(epoch)) {
                let batch = batch?;
                optimizer.zero_grad();
                losses.push((model.step(&batch.inputs, &batch.targets, self.gradients)?, batch.len() as f64));
                if self.gradients == Gradients::ByHand {
                    for (_, parameter) in named_parameters(&vs) {
                        group.all_reduce(&mut parameter.grad(), ReduceOp::Sum)?;
                        let _ = parameter.grad().g_div_scalar_(group.size().get() as i64);
                    }
                }
                optimizer.step()?;
            }
            if let Some(loss) = self.loss.of(&group, env, &losses)? {
                if (self.reports)(env) {
                    job.report(epoch, loss);
                }
            }
        }
        self.save.run(&group, env, job, &vs)?;
        job.load(&mut vs)
    }
}

impl Loss {
    fn of(self, group: &ProcessGroup, env: &LaunchEnv, losses: &[(f64, f64)]) -> Result<Option<f64>> {
        let samples: f64 = losses.iter().map(|(_, samples)| samples).sum();
        let sum: f64 = losses.iter().map(|(loss, samples)| loss * samples).sum();
        let all = |own: &[f64]| -> Result<Vec<f64>> {
            let mut all = Tensor::from_slice(own);
            group.all_reduce(&mut all, ReduceOp::Sum)?;
            Ok(Vec::try_from(&all)?)
        };
        let ranks = group.size().get() as f64;
        Ok(match self {
            Loss::OfAll => Some(all(&[sum, samples])?).map(|all| all[0] / all[1]),
            Loss::OfOne => Some(sum / samples),
            Loss::Summed => Some(all(&[sum / samples])?[0]),
            Loss::MeanOfSteps => {
                let mean = losses.iter().map(|(loss, _)| loss).sum::<f64>() / losses.len() as f64;
                Some(all(&[mean])?[0] / ranks)
            }
            Loss::OnRank0 if env.rank.is_zero() => Some(all(&[sum, samples])?).map(|all| all[0] / all[1]),
            Loss::OnRank0 => None,
            Loss::Gathered => {
                let own = Tensor::from_slice(&[sum, samples]);
                let mut gathered: Vec<Tensor> = group.size().ranks().map(|_| own.zeros_like()).collect();
                group.all_gather(&mut gathered, &own)?;
                let total = |which: i64| gathered.iter().map(|of| of.double_value(&[which])).sum::<f64>();
                Some(total(0) / total(1))
            }
        })
    }
}

impl Save {
    fn run(self, group: &ProcessGroup, env: &LaunchEnv, job: &TrainingRun, vs: &VarStore) -> Result<()> {
        if env.rank.is_zero() || self == Save::Everyone {
            job.save(vs)?;
        }
        match self {
            Save::OnceForAll | Save::Everyone => group.barrier()?,
            Save::BarrierInside if env.rank.is_zero() => group.barrier()?,
            Save::Broadcast => group.broadcast(&mut Tensor::from(1.0), Rank::ZERO)?,
            Save::NoBarrier | Save::BarrierInside => {}
        }
        Ok(())
    }
}

/// The given program: a process alone.
#[given]
pub fn alone() {}

/// Keeps the sampler of one process.
pub fn no_sampler(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    let sampler: fn(&LaunchEnv, usize, u64) -> Result<Box<dyn Sampler>> =
        |_, samples, seed| Ok(Box::new(RandomSampler::new(samples).seed(seed)));
    Program { sampler, ..RIGHT }.run(env, job)
}

/// Gives each rank the share of rank 0.
pub fn same_shard(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    let sampler: fn(&LaunchEnv, usize, u64) -> Result<Box<dyn Sampler>> =
        |env, samples, seed| Ok(Box::new(DistributedSampler::new(samples, Rank::ZERO, env.world_size)?.seed(seed)));
    Program { sampler, ..RIGHT }.run(env, job)
}

/// Gives each rank's sampler its own seed.
pub fn own_seed(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    let sampler: fn(&LaunchEnv, usize, u64) -> Result<Box<dyn Sampler>> = |env, samples, seed| {
        let seed = seed + 100 * env.rank.get() as u64;
        Ok(Box::new(DistributedSampler::new(samples, env.rank, env.world_size)?.seed(seed)))
    };
    Program { sampler, ..RIGHT }.run(env, job)
}

/// Does not give the sampler the run's seed.
pub fn seed_0(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    let sampler: fn(&LaunchEnv, usize, u64) -> Result<Box<dyn Sampler>> =
        |env, samples, _| Ok(Box::new(DistributedSampler::new(samples, env.rank, env.world_size)?));
    Program { sampler, ..RIGHT }.run(env, job)
}

/// Never tells the sampler the epoch.
pub fn same_epoch(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    Program { epoch: |_| 0, ..RIGHT }.run(env, job)
}

/// Uses the batch size for each rank.
pub fn large_batch(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    Program { batch: |_, size| size, ..RIGHT }.run(env, job)
}

/// Joins the group but does not wrap the network.
pub fn not_wrapped(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    Program { gradients: Gradients::Own, ..RIGHT }.run(env, job)
}

/// Wraps the network, and calls the one inside.
pub fn around_ddp(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    Program { gradients: Gradients::AroundDdp, ..RIGHT }.run(env, job)
}

/// Multiplies the learning rate by the number of ranks.
pub fn rate_times_ranks(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    Program { rate: |env, rate| rate * env.world_size.get() as f64, ..RIGHT }.run(env, job)
}

/// Divides by the number of ranks what DDP has averaged.
pub fn rate_divided(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    Program { rate: |env, rate| rate / env.world_size.get() as f64, ..RIGHT }.run(env, job)
}

/// Reports rank 0's own loss.
pub fn own_loss(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    Program { loss: Loss::OfOne, ..RIGHT }.run(env, job)
}

/// Adds up the ranks' mean losses.
pub fn summed_losses(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    Program { loss: Loss::Summed, ..RIGHT }.run(env, job)
}

/// Takes the mean of the steps' losses, though the last step has fewer samples.
pub fn mean_of_steps(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    Program { loss: Loss::MeanOfSteps, ..RIGHT }.run(env, job)
}

/// Adds up the losses on rank 0 only.
pub fn loss_on_rank_0(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    Program { loss: Loss::OnRank0, ..RIGHT }.run(env, job)
}

/// Reports on every rank.
pub fn all_report(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    Program { reports: |_| true, ..RIGHT }.run(env, job)
}

/// Saves on every rank.
pub fn all_save(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    Program { save: Save::Everyone, ..RIGHT }.run(env, job)
}

/// Reads the checkpoint without waiting for rank 0.
pub fn no_barrier(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    Program { save: Save::NoBarrier, ..RIGHT }.run(env, job)
}

/// Calls the barrier on rank 0 only.
pub fn barrier_inside(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    Program { save: Save::BarrierInside, ..RIGHT }.run(env, job)
}

/// Right: each rank draws its own weights, which DDP replaces by rank 0's.
pub fn own_weights(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    Program { seed_of_weights: |env, seed| seed + env.rank.get() as u64, ..RIGHT }.run(env, job)
}

/// Right: averages gradients by hand, gathers the losses, and waits by a broadcast.
pub fn by_hand(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    Program { gradients: Gradients::ByHand, loss: Loss::Gathered, save: Save::Broadcast, ..RIGHT }.run(env, job)
}

/// Right: the last rank reports.
pub fn last_reports(env: &LaunchEnv, job: &TrainingRun) -> Result<()> {
    Program { reports: |env| env.rank.get() + 1 == env.world_size.get(), ..RIGHT }.run(env, job)
}
