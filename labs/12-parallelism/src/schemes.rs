//! One training step in each scheme. In all of them a step has the same batch and leaves the weights that one rank alone would leave.

use std::num::NonZeroUsize;
use std::rc::Rc;
use std::thread;

use anyhow::{Result, ensure};
use c10d::{ProcessGroup, ReduceOp};
use lockstep::memory::MemoryBytes;
use lockstep::optim::{Adam, AdamOptions, Optimizer, ZeroRedundancyOptimizer, named_parameters};
use lockstep::parallel::{
    Activations, FullyShard, FullyShardOptions, MixtureOfExperts, Pipeline, Schedule, ShardBytes, StepReport,
};
use lockstep::{DdpOptions, DistributedDataParallel, nn};
use tch::nn::VarStore;
use tch::{Kind, Tensor};

use crate::model::{Layers, Transformer, Weights};
use crate::network::Batch;
use crate::network::{Divided, Network, Part, Plain, Start};
use crate::{Args, Model, Order, Scheme};

/// A model that is being trained, or this rank's part of it.
pub(crate) struct Training {
    vs: VarStore,
    /// What this rank updates, or helps to update.
    params: Vec<(String, Tensor)>,
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
    Replicated(DistributedDataParallel<Box<dyn Network>>),
    Sharded(Box<dyn Network>, FullyShard),
    Divided(Box<dyn Network>),
    /// And this rank's part of a batch. Parameters that all ranks have get the mean of their gradients.
    Averaged(Box<dyn Network>, fn(&Batch, &ProcessGroup) -> c10d::Result<Batch>),
    Staged(Box<dyn Network>, Pipeline),
    Threads(Threads),
}

impl Training {
    pub(crate) fn new(args: &Args, start: &Start, group: &Rc<ProcessGroup>) -> Result<Self> {
        let (world, rank) = (group.size().get(), group.rank().get());
        let parts = check(args, world)?;
        let all = 0..start.blocks();
        let whole = Part { blocks: all.clone(), divided: Divided::Nothing, data: None, recompute: args.recompute };
        let mut vs = VarStore::new(group.device());
        let how = match args.scheme {
            Scheme::Ddp | Scheme::Zero => {
                let net = start.network(&mut vs, Part { data: Some(group), ..whole })?;
                let options =
                    DdpOptions { fixed_buckets: true, virtual_ranks: args.virtual_ranks, ..Default::default() };
                How::Replicated(DistributedDataParallel::new(net, &vs, Rc::clone(group), &options)?)
            }
            Scheme::Sharded => {
                let net = start.network(&mut vs, Part { data: Some(group), ..whole })?;
                let names = net.units();
                let names: Vec<&str> = names.iter().map(String::as_str).collect();
                let units = FullyShard::new(&vs, Rc::clone(group), &names, &FullyShardOptions::default())?;
                How::Sharded(net, units)
            }
            Scheme::Tensor => How::Divided(start.network(&mut vs, Part { divided: Divided::Layers(group), ..whole })?),
            Scheme::Context => How::Averaged(
                start.network(&mut vs, Part { divided: Divided::Sequences(group), ..whole })?,
                Batch::positions,
            ),
            Scheme::Expert => How::Averaged(
                start.network(&mut vs, Part { divided: Divided::Experts(group), ..whole })?,
                |batch, group| Ok(batch.chunk(group.size().get()).swap_remove(group.rank().get())),
            ),
            Scheme::Pipeline => {
                let first = |rank: usize| all.end * rank as i64 / world as i64;
                ensure!(world as i64 <= all.end, "{world} stages need at least as many --blocks");
                let blocks = first(rank)..first(rank + 1);
                let size = start.activations(blocks.start, args.batch_size / parts);
                let stage = start.network(&mut vs, Part { blocks, ..whole })?;
                let schedule = match args.schedule {
                    Order::OneFOneB => Schedule::one_f_one_b(world, args.micro_batches.get()),
                    Order::Gpipe => Schedule::gpipe(world, args.micro_batches.get()),
                };
                let received = Activations { size, kind: vs.kind() };
                How::Staged(stage, Pipeline::new(Rc::clone(group), schedule, received)?)
            }
            Scheme::Threads => {
                drop(start.network(&mut vs, whole)?);
                How::Threads(Threads { replicas: args.replicas.get(), blocks: all.end })
            }
        };
        let params = match &how {
            How::Sharded(_, units) => units.named_parameters(),
            _ => named_parameters(&vs),
        };
        let own = params.iter().map(|(name, param)| (name.clone(), param.shallow_clone())).collect();
        let options = AdamOptions { lr: args.lr, ..Default::default() };
        let optimizer = match args.scheme {
            Scheme::Zero => Updates::Shared(ZeroRedundancyOptimizer::new(own, options, Rc::clone(group))?),
            _ => Updates::Own(Adam::new(own, options)?),
        };
        Ok(Training { vs, params, group: Rc::clone(group), optimizer, how, report: None })
    }

    // ANCHOR: step
    /// One step; returns the mean loss over the whole batch, on every rank.
    pub(crate) fn step(&mut self, batch: &Batch) -> Result<f64> {
        self.optimizer.optimizer().zero_grad();
        let (world, rank) = (self.group.size().get(), self.group.rank().get());
        let loss = match &self.how {
            How::Replicated(model) => {
                let ranks = model.virtual_ranks();
                let (parts, mut losses) = (batch.chunk(ranks.count().get()), Vec::new());
                for v in ranks.own() {
                    let mine = &parts[v.get()];
                    let loss = model.forward_with(|net| net.loss(&net.forward(&mine.inputs, &Plain), &mine.targets))?;
                    model.backward(&loss)?;
                    losses.push(loss.double_value(&[]));
                }
                match ranks.are_asked_for() {
                    true => ranks.mean(&self.group, &losses)?,
                    false => self.sum_over_ranks(losses[0] / world as f64)?,
                }
            }
            How::Sharded(net, units) => {
                let mine = batch.chunk(world).swap_remove(rank);
                let loss = nn::caught(|| net.loss(&net.forward(&mine.inputs, units), &mine.targets))?;
                units.backward(&loss)?;
                self.sum_over_ranks(loss.double_value(&[]) / world as f64)?
            }
            How::Divided(net) => {
                let loss = nn::caught(|| net.loss(&net.forward(&batch.inputs, &Plain), &batch.targets))?;
                c10d::backward_over(&self.group, &loss)?;
                loss.double_value(&[])
            }
            How::Averaged(net, part) => {
                let mine = part(batch, &self.group)?;
                let loss = nn::caught(|| net.loss(&net.forward(&mine.inputs, &Plain), &mine.targets))?;
                c10d::backward_over(&self.group, &loss)?;
                MixtureOfExperts::average_gradients(&self.group, &self.params)?;
                self.sum_over_ranks(loss.double_value(&[]) / world as f64)?
            }
            How::Staged(stage, pipeline) => {
                let micro = batch.chunk(pipeline.schedule().micro_batches());
                let report = pipeline.step(
                    |number| micro[number].inputs.shallow_clone(),
                    |x| stage.forward(x, &Plain),
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

    /// How many of this rank's tokens found no place at the experts in the last step.
    pub(crate) fn dropped(&self) -> Option<i64> {
        if let How::Averaged(net, _) = &self.how { net.dropped() } else { None }
    }

    /// What this rank holds.
    pub(crate) fn held(&self) -> Result<MemoryBytes> {
        let bytes = |tensor: &Tensor| (tensor.numel() * tensor.kind().elt_size_in_bytes()) as u64;
        let gradients = self.params.iter().map(|(_, param)| param.grad()).filter(Tensor::defined);
        let states = match &self.optimizer {
            Updates::Own(adam) => adam.shared_state()?,
            Updates::Shared(zero) => zero.local_state(),
        };
        Ok(MemoryBytes {
            parameters: self.params.iter().map(|(_, param)| bytes(param)).sum(),
            gradients: gradients.map(|grad| bytes(&grad)).sum(),
            optimizer: states.tensors().iter().map(|(_, tensor)| bytes(tensor)).sum(),
            buckets: self.shard().map_or(0, |shard| shard.most_whole),
            ..MemoryBytes::default()
        })
    }

    /// The bytes of a fully sharded model.
    fn shard(&self) -> Option<ShardBytes> {
        match &self.how {
            How::Sharded(_, units) => Some(units.bytes()),
            _ => None,
        }
    }

    fn sum_over_ranks(&self, number: f64) -> Result<f64> {
        let mut sum = Tensor::from(number).to_kind(Kind::Double).to(self.group.device());
        self.group.all_reduce(&mut sum, ReduceOp::Sum)?;
        Ok(sum.double_value(&[]))
    }
}

/// The number of parts into which a batch is divided.
fn check(args: &Args, world: usize) -> Result<i64> {
    let parts = match args.scheme {
        Scheme::Pipeline => args.micro_batches.get(),
        Scheme::Threads => args.replicas.get(),
        Scheme::Tensor | Scheme::Context => 1,
        Scheme::Ddp | Scheme::Zero => args.virtual_ranks.map_or(world, NonZeroUsize::get),
        Scheme::Sharded | Scheme::Expert => world,
    } as i64;
    let size = args.batch_size;
    ensure!(
        args.virtual_ranks.is_none() || matches!(args.scheme, Scheme::Ddp | Scheme::Zero),
        "--virtual-ranks is for the schemes ddp and zero: any other divides the training by its real ranks, so that its bits follow their number; \
         leave out one of the two flags"
    );
    ensure!(size % parts == 0, "--batch-size {size} cannot be divided into {parts} equal parts");
    let is_threads = args.scheme == Scheme::Threads;
    ensure!(
        !is_threads || world == 1,
        "the scheme `threads` is one process: run it without a launcher, with --replicas"
    );
    ensure!(
        args.scheme != Scheme::Expert || !args.recompute,
        "--recompute is not for --scheme expert: the balancing loss would count no gradient"
    );
    let resnets = [Scheme::Ddp, Scheme::Zero, Scheme::Sharded, Scheme::Pipeline];
    ensure!(
        args.model == Model::Transformer || (resnets.contains(&args.scheme) && !args.recompute),
        "--model resnet is for the schemes ddp, zero, sharded and pipeline, without --recompute: its convolutions have no parts here, and batch \
         normalization would count a batch twice"
    );
    Ok(parts)
}

/// DataParallel: one process, one model, and in each step a copy of it for each thread.
///
/// This is what DDP replaced. The model's owner copies all weights out and gathers all gradients in each step, and it alone updates them; in
/// Python the threads also share one interpreter. Source: `torch/nn/parallel/data_parallel.py`.
pub(crate) struct Threads {
    pub(crate) replicas: usize,
    pub(crate) blocks: i64,
}

impl Threads {
    /// Adds the gradients of all copies to the model's; returns the mean loss.
    pub(crate) fn step(&self, vs: &VarStore, batch: &Batch) -> Result<f64> {
        let params = named_parameters(vs);
        // The names of the parameters end with what the layer calls them; those of the weights do not.
        let name = |name: &str| name.strip_suffix(".weight").unwrap_or(name).to_owned();
        let copy = || params.iter().map(|(from, param)| (from.clone(), param.detach().copy())).collect::<Vec<_>>();
        let parts: Vec<_> = batch.chunk(self.replicas).into_iter().map(|part| (copy(), part)).collect();
        let replica = |(copies, part): (Vec<(String, Tensor)>, Batch)| -> Result<(f64, Vec<Tensor>)> {
            let mut own = VarStore::new(part.inputs.device());
            own.set_kind(copies[0].1.kind());
            let weights: Weights = copies.iter().map(|(from, copy)| (name(from), copy.shallow_clone())).collect();
            let model = Transformer::new(
                &Layers { vs: own.root(), weights: &weights, divided: Divided::Nothing },
                0..self.blocks,
                self.blocks,
                false,
            )?;
            let mine = named_parameters(&own);
            // A layer begins with a bias of zeros; this one continues.
            tch::no_grad(|| mine.iter().zip(&copies).for_each(|((_, to), (_, from))| to.shallow_clone().copy_(from)));
            let loss = model.loss(&model.forward(&part.inputs, &Plain), &part.targets);
            c10d::backward(&loss)?;
            Ok((loss.double_value(&[]), mine.iter().map(|(_, param)| param.grad()).collect()))
        };
        let done: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> = parts.into_iter().map(|part| scope.spawn(|| replica(part))).collect();
            threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect()
        });
        let (mut sum, share) = (0.0, 1.0 / self.replicas as f64);
        for replica in done {
            let (loss, grads) = replica?;
            sum += loss * share;
            for ((_, param), grad) in params.iter().zip(grads) {
                // A scalar with exactly this gradient.
                c10d::backward(&(param * (grad * share)).sum(None::<Kind>))?;
            }
        }
        Ok(sum)
    }
}
