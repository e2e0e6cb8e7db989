//! The three ways to train one network on many ranks. What each rank holds differs; losses are the same, within rounding.
//!
//! | `--wrap` | parameters | gradients | optimizer's states | PyTorch |
//! |---|---|---|---|---|
//! | `ddp` | all | all | all | `DistributedDataParallel` |
//! | `zero` | all | all | a part | the same, with `ZeroRedundancyOptimizer` |
//! | `fsdp` | a part | a part | a part | `fully_shard` |

use std::num::NonZeroUsize;
use std::path::Path;
use std::rc::Rc;

use anyhow::Result;
use clap::ValueEnum;
use lockstep::accumulate::{AveragesGradients, accumulate_virtual};
use lockstep::best::Best;
use lockstep::data::Batch;
use lockstep::exit::UsageError;
use lockstep::loader::Position;
use lockstep::nn::{caught, raise};
use lockstep::optim::{
    FusedOptimizer, GradParts, Optimizer, ZeroRedundancyOptimizer, clip_grad_norm, named_parameters,
};
use lockstep::parallel::{FullyShard, FullyShardOptions};
use lockstep::snapshot::{Save, SnapshotError, Snapshots, Variables};
use lockstep::virtual_ranks::VirtualRanks;
use lockstep::{DdpOptions, DistributedDataParallel, Rank, checkpoint};
use tch::Tensor;
use tch::nn::VarStore;

use crate::task::{self, Network, Rule};

/// Runs the layers of a unit as they are, where nothing is sharded. Units are what fully sharded training gathers at once.
pub(crate) fn plain(_unit: &str, inputs: &Tensor, layers: &dyn Fn(&Tensor) -> Tensor) -> Tensor {
    layers(inputs)
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub(crate) enum Wrap {
    /// A copy of everything on each rank: DistributedDataParallel
    #[default]
    Ddp,
    /// The same, but each rank keeps a part of the optimizer's states: ZeroRedundancyOptimizer
    Zero,
    /// A part of parameters, gradients and states on each rank: FullyShard, on the CPU only
    Fsdp,
}

/// The program's own state, which each snapshot has: yours may be a tuple with more. The best model tells when to stop, too.
pub(crate) type SoFar = Option<Best>;

/// A network that is trained on the ranks of a group, with its optimizer.
pub(crate) struct Wrapped {
    of: Of,
    optimizer: Box<dyn Optimizer>,
    /// This rank's parameters, or its parts of them.
    params: Vec<(String, Tensor)>,
    clip: Option<f64>,
}

enum Of {
    /// The whole model on each rank.
    Copies(DistributedDataParallel<Network>),
    /// A part of it.
    Parts { net: Network, model: FullyShard },
}

impl Of {
    fn group(&self) -> &c10d::ProcessGroup {
        match self {
            Of::Copies(model) => model.group(),
            Of::Parts { model, .. } => model.group(),
        }
    }

    fn variables<'a>(&'a self, vs: &'a VarStore) -> Variables<'a> {
        match self {
            Of::Copies(_) => vs.into(),
            Of::Parts { model, .. } => (vs, model).into(),
        }
    }
}

impl Wrapped {
    // ANCHOR: wrap
    /// Copies rank 0's weights to all ranks, and divides what `wrap` divides.
    pub(crate) fn new(
        wrap: Wrap,
        virtual_ranks: Option<NonZeroUsize>,
        net: Network,
        vs: &VarStore,
        group: c10d::ProcessGroup,
        rule: Rule,
        clip: Option<f64>,
    ) -> Result<Self> {
        let (group, mut params) = (Rc::new(group), named_parameters(vs));
        // With fixed buckets, a run that resumes adds in the same order as an uninterrupted run.
        let fixed = DdpOptions { fixed_buckets: true, virtual_ranks, ..Default::default() };
        let (of, optimizer): (Of, Box<dyn Optimizer>) = match wrap {
            Wrap::Ddp => {
                let model = DistributedDataParallel::new(net, vs, group, &fixed)?;
                (Of::Copies(model), Box::new(FusedOptimizer::new(named_parameters(vs), rule)?))
            }
            Wrap::Zero => {
                let model = DistributedDataParallel::new(net, vs, Rc::clone(&group), &fixed)?;
                let optimizer = ZeroRedundancyOptimizer::new(named_parameters(vs), rule, group)?;
                (Of::Copies(model), Box::new(optimizer))
            }
            Wrap::Fsdp if virtual_ranks.is_some() => {
                let why = "--virtual-ranks is for --wrap ddp and zero: fsdp divides each parameter by the real ranks, so that its bits follow \
                           their number; leave out one of the two";
                return Err(UsageError(why.to_owned()).into());
            }
            Wrap::Fsdp => {
                let units = task::units(&net);
                let units: Vec<&str> = units.iter().map(String::as_str).collect();
                let model = FullyShard::new(vs, group, &units, &FullyShardOptions::default())?;
                params = model.named_parameters();
                let optimizer = FusedOptimizer::new(model.named_parameters(), rule)?;
                (Of::Parts { net, model }, Box::new(optimizer))
            }
        };
        Ok(Wrapped { of, optimizer, params, clip })
    }
    // ANCHOR_END: wrap

    pub(crate) fn group(&self) -> &c10d::ProcessGroup {
        self.of.group()
    }

    /// The virtual ranks of this rank: one, unless --virtual-ranks says otherwise.
    pub(crate) fn virtual_ranks(&self) -> VirtualRanks {
        match &self.of {
            Of::Copies(model) => model.virtual_ranks(),
            Of::Parts { model, .. } => model.virtual_ranks(),
        }
    }

    /// One step on the micro-batches of each virtual rank; returns their mean loss before the step. `seed` is called before each virtual
    /// rank's first.
    pub(crate) fn step(&mut self, batches: &[(Rank, Vec<Batch>)], seed: &dyn Fn(Rank)) -> Result<f64> {
        let Wrapped { of, optimizer, params, clip } = self;
        match of {
            Of::Copies(model) => {
                let forward = |inputs: &Tensor| model.forward_with(|net| task::forward(net, inputs, true, &plain));
                step(model, &mut **optimizer, batches, seed, forward, &GradParts::whole(params), *clip)
            }
            Of::Parts { net, model } => {
                let sharded = |unit: &str, inputs: &Tensor, layers: &dyn Fn(&Tensor) -> Tensor| {
                    model.forward(unit, inputs, layers).unwrap_or_else(|error| raise(error))
                };
                let forward = |inputs: &Tensor| caught(|| task::forward(net, inputs, true, &sharded));
                // Squares of gradients are added up over the ranks.
                let parts = GradParts { params, divided_over: &[model.group()] };
                step(model, &mut **optimizer, batches, seed, forward, &parts, *clip)
            }
        }
    }

    /// What a snapshot, or the best model, saves.
    pub(crate) fn variables<'a>(&'a self, vs: &'a VarStore) -> Variables<'a> {
        self.of.variables(vs)
    }

    /// Calls `body` with the network and all of its parameters, for what needs no gradients. `body` must not communicate; all ranks call
    /// this.
    pub(crate) fn whole<T>(&self, body: impl FnOnce(&Network) -> T) -> Result<T> {
        match &self.of {
            Of::Copies(model) => {
                model.sync_buffers()?;
                Ok(tch::no_grad(|| body(model.module())))
            }
            Of::Parts { net, model } => Ok(model.summon_full_params(|| body(net))?),
        }
    }

    /// Rank 0 writes the weights.
    pub(crate) fn save_weights(&self, vs: &VarStore, path: &Path) -> Result<()> {
        let is_first = self.group().rank().is_zero();
        self.whole(|_| if is_first { checkpoint::save(vs, path) } else { Ok(()) })?
    }

    pub(crate) fn resume(
        &mut self,
        snapshots: &mut Snapshots,
        vs: &VarStore,
    ) -> Result<(Position, SoFar), SnapshotError> {
        let Wrapped { of, optimizer, .. } = self;
        let (start, so_far) = snapshots.resume_with(of.variables(vs), &mut **optimizer, of.group())?;
        Ok((start, so_far.flatten()))
    }

    /// Saves if a snapshot is due, or a signal has asked for one.
    pub(crate) fn save_if(
        &self,
        due: bool,
        next: Position,
        snapshots: &mut Snapshots,
        vs: &VarStore,
        so_far: SoFar,
    ) -> Result<(), SnapshotError> {
        snapshots.save_if(due, Save::new(next, self.variables(vs), &*self.optimizer).with(&so_far), self.group())
    }
}

// ANCHOR: step
/// One step on micro-batches; returns their mean loss.
fn step(
    model: &impl AveragesGradients,
    optimizer: &mut dyn Optimizer,
    batches: &[(Rank, Vec<Batch>)],
    seed: &dyn Fn(Rank),
    forward: impl Fn(&Tensor) -> c10d::Result<Tensor>,
    parts: &GradParts<'_>,
    clip: Option<f64>,
) -> Result<f64> {
    optimizer.zero_grad();
    // Each target that counts weighs the same, on whatever rank it is: forward and backward.
    let loss = accumulate_virtual(
        model,
        batches,
        |batch| task::count(&batch.targets),
        |v, number, batch| {
            if number == 0 {
                seed(v);
            }
            task::loss(&forward(&batch.inputs)?, &batch.targets)
        },
    )?;
    if let Some(limit) = clip {
        clip_grad_norm(&[*parts], limit)?;
    }
    optimizer.step()?;
    Ok(loss)
}
// ANCHOR_END: step
