//! One training step in each scheme. In all of them a step has the same batch and leaves the weights that one rank alone would leave.

use std::rc::Rc;

use anyhow::{Result, ensure};
use c10d::{ProcessGroup, ReduceOp};
use lockstep::optim::{Adam, AdamOptions, Optimizer, ZeroRedundancyOptimizer, named_parameters};
use lockstep::parallel::{Activations, Pipeline, Schedule, StepReport};
use lockstep::{DdpOptions, DistributedDataParallel, nn};
use tch::nn::VarStore;
use tch::{Kind, Tensor};

use crate::args::{Args, Order, Scheme};
use crate::model::{Layers, Transformer, Weights};
use crate::text::Batch;
use crate::threads::Threads;

/// A model that is being trained, or this rank's part of it.
pub(crate) struct Training {
    pub(crate) vs: VarStore,
    group: Rc<ProcessGroup>,
    optimizer: Updates,
    how: How,
    /// A pipeline's last step, and the bubble of its schedule.
    pub(crate) report: Option<(StepReport, f64)>,
}

/// Who updates the parameters.
enum Updates {
    /// This rank, all that it has.
    Own(Adam),
    /// This rank, a share; then all have all.
    Shared(ZeroRedundancyOptimizer<AdamOptions>),
}

impl Updates {
    fn optimizer(&mut self) -> &mut dyn Optimizer {
        match self {
            Updates::Own(adam) => adam,
            Updates::Shared(zero) => zero,
        }
    }
}

enum How {
    Replicated(DistributedDataParallel<Transformer>),
    Divided(Transformer),
    Staged(Transformer, Pipeline),
    Threads(Threads),
}

impl Training {
    pub(crate) fn new(args: &Args, weights: &Weights, group: &Rc<ProcessGroup>) -> Result<Self> {
        let (world, rank) = (group.size().get(), group.rank().get());
        let kind = weights["head"].kind();
        let mut vs = VarStore::new(group.device());
        vs.set_kind(kind);
        let layers = Layers { vs: vs.root(), weights, tensor: None };
        let whole = || Transformer::new(&layers, 0..args.blocks, args.blocks, args.recompute);
        let parts = match args.scheme {
            Scheme::Pipeline => args.micro_batches.get(),
            Scheme::Threads => args.replicas.get(),
            Scheme::Tensor => 1,
            Scheme::Ddp | Scheme::Zero => world,
        } as i64;
        ensure!(
            args.batch_size % parts == 0,
            "--batch-size {} cannot be divided into {parts} equal parts",
            args.batch_size
        );
        let how = match args.scheme {
            Scheme::Ddp | Scheme::Zero => {
                let options = DdpOptions { fixed_buckets: true, ..Default::default() };
                How::Replicated(DistributedDataParallel::new(whole()?, &vs, Rc::clone(group), &options)?)
            }
            Scheme::Tensor => {
                let layers = Layers { tensor: Some(group), ..layers };
                How::Divided(Transformer::new(&layers, 0..args.blocks, args.blocks, args.recompute)?)
            }
            Scheme::Pipeline => {
                let first = |rank: usize| args.blocks * rank as i64 / world as i64;
                ensure!(world as i64 <= args.blocks, "{world} stages need at least as many --blocks");
                let stage = Transformer::new(&layers, first(rank)..first(rank + 1), args.blocks, args.recompute)?;
                let schedule = match args.schedule {
                    Order::OneFOneB => Schedule::one_f_one_b(world, args.micro_batches.get()),
                    Order::Gpipe => Schedule::gpipe(world, args.micro_batches.get()),
                };
                let received = Activations { size: Transformer::activations(args.batch_size / parts), kind };
                How::Staged(stage, Pipeline::new(Rc::clone(group), schedule, received)?)
            }
            Scheme::Threads => {
                ensure!(world == 1, "the scheme `threads` is one process: run it without a launcher, with --replicas");
                drop(whole()?);
                How::Threads(Threads { replicas: args.replicas.get(), blocks: args.blocks })
            }
        };
        let (params, options) = (named_parameters(&vs), AdamOptions { lr: args.lr, ..Default::default() });
        let optimizer = match args.scheme {
            Scheme::Zero => Updates::Shared(ZeroRedundancyOptimizer::new(params, options, Rc::clone(group))?),
            _ => Updates::Own(Adam::new(params, options)?),
        };
        Ok(Training { vs, group: Rc::clone(group), optimizer, how, report: None })
    }

    // ANCHOR: step
    /// One step; returns the mean loss over the whole batch, on every rank.
    pub(crate) fn step(&mut self, batch: &Batch) -> Result<f64> {
        self.optimizer.optimizer().zero_grad();
        let (world, rank) = (self.group.size().get(), self.group.rank().get());
        let loss = match &self.how {
            How::Replicated(model) => {
                let mine = batch.chunk(world).swap_remove(rank);
                let loss = model.forward_with(|model| model.loss(&model.forward(&mine.inputs), &mine.targets))?;
                model.backward(&loss)?;
                self.sum_over_ranks(loss.double_value(&[]) / world as f64)?
            }
            How::Divided(model) => {
                let loss = nn::caught(|| model.loss(&model.forward(&batch.inputs), &batch.targets))?;
                c10d::backward_over(&self.group, &loss)?;
                loss.double_value(&[])
            }
            How::Staged(stage, pipeline) => {
                let micro = batch.chunk(pipeline.schedule().micro_batches());
                let report = pipeline.step(
                    |number| micro[number].inputs.shallow_clone(),
                    |x| stage.forward(x),
                    |number, logits| stage.loss(logits, &micro[number].targets),
                )?;
                let loss = report.loss.unwrap_or(0.0);
                self.report = Some((report, pipeline.schedule().bubble(1, 1)));
                self.sum_over_ranks(loss)?
            }
            How::Threads(threads) => threads.step(&self.vs, batch)?,
        };
        self.optimizer.optimizer().step()?;
        Ok(loss)
    }
    // ANCHOR_END: step

    /// The optimizer's states that this rank holds.
    pub(crate) fn states(&self) -> Result<Vec<Tensor>> {
        let state = match &self.optimizer {
            Updates::Own(adam) => adam.shared_state()?,
            Updates::Shared(zero) => zero.local_state(),
        };
        Ok(state.tensors().into_iter().map(|(_, tensor)| tensor).collect())
    }

    fn sum_over_ranks(&self, number: f64) -> Result<f64> {
        let mut sum = Tensor::from(number).to_kind(Kind::Double).to(self.group.device());
        self.group.all_reduce(&mut sum, ReduceOp::Sum)?;
        Ok(sum.double_value(&[]))
    }
}
