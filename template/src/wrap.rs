//! The three ways to train one network on many ranks. What each rank holds differs; losses are the same, within rounding.
//!
//! | `--wrap` | parameters | gradients | optimizer's states | PyTorch |
//! |---|---|---|---|---|
//! | `ddp` | all | all | all | `DistributedDataParallel` |
//! | `zero` | all | all | a part | the same, with `ZeroRedundancyOptimizer` |
//! | `fsdp` | a part | a part | a part | `fully_shard` |

use std::path::Path;
use std::rc::Rc;

use anyhow::Result;
use clap::ValueEnum;
use lockstep::loader::Position;
use lockstep::nn::{caught, raise};
use lockstep::optim::{FusedOptimizer, Optimizer, ZeroRedundancyOptimizer, named_parameters};
use lockstep::parallel::{FullyShard, FullyShardOptions};
use lockstep::snapshot::{SnapshotError, Snapshots};
use lockstep::{DdpOptions, DistributedDataParallel, checkpoint};
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

/// A network that is trained on the ranks of a group, and its optimizer.
pub(crate) enum Wrapped {
    Ddp { model: DistributedDataParallel<Network>, optimizer: FusedOptimizer<Rule> },
    Zero { model: DistributedDataParallel<Network>, optimizer: ZeroRedundancyOptimizer<Rule> },
    Fsdp { net: Network, model: FullyShard, optimizer: FusedOptimizer<Rule> },
}

impl Wrapped {
    // ANCHOR: wrap
    /// Copies rank 0's weights to all ranks, and divides what `wrap` divides.
    pub(crate) fn new(wrap: Wrap, net: Network, vs: &VarStore, group: c10d::ProcessGroup, rule: Rule) -> Result<Self> {
        let group = Rc::new(group);
        // With fixed buckets, a run that resumes adds in the same order as an uninterrupted run.
        let fixed = DdpOptions { fixed_buckets: true, ..Default::default() };
        Ok(match wrap {
            Wrap::Ddp => {
                let model = DistributedDataParallel::new(net, vs, group, &fixed)?;
                Wrapped::Ddp { model, optimizer: FusedOptimizer::new(named_parameters(vs), rule)? }
            }
            Wrap::Zero => {
                let model = DistributedDataParallel::new(net, vs, Rc::clone(&group), &fixed)?;
                Wrapped::Zero { model, optimizer: ZeroRedundancyOptimizer::new(named_parameters(vs), rule, group)? }
            }
            Wrap::Fsdp => {
                let units = task::units(&net);
                let units: Vec<&str> = units.iter().map(String::as_str).collect();
                let model = FullyShard::new(vs, group, &units, &FullyShardOptions::default())?;
                let optimizer = FusedOptimizer::new(model.named_parameters(), rule)?;
                Wrapped::Fsdp { net, model, optimizer }
            }
        })
    }
    // ANCHOR_END: wrap

    pub(crate) fn group(&self) -> &c10d::ProcessGroup {
        match self {
            Wrapped::Ddp { model, .. } | Wrapped::Zero { model, .. } => model.group(),
            Wrapped::Fsdp { model, .. } => model.group(),
        }
    }

    /// One step on a batch; returns its loss before the step.
    pub(crate) fn step(&mut self, inputs: &Tensor, targets: &Tensor) -> Result<f64> {
        let loss = match self {
            Wrapped::Ddp { model, optimizer } => step_ddp(model, optimizer, inputs, targets),
            Wrapped::Zero { model, optimizer } => step_ddp(model, optimizer, inputs, targets),
            Wrapped::Fsdp { net, model, optimizer } => {
                optimizer.zero_grad();
                let sharded = |unit: &str, inputs: &Tensor, layers: &dyn Fn(&Tensor) -> Tensor| {
                    model.forward(unit, inputs, layers).unwrap_or_else(|error| raise(error))
                };
                let outputs = caught(|| task::forward(net, inputs, true, &sharded))?;
                let loss = task::loss(&outputs, targets)?;
                model.backward(&loss)?;
                optimizer.step()?;
                Ok(loss)
            }
        };
        Ok(loss?.double_value(&[]))
    }

    /// Calls `body` with the network and all of its parameters, for what needs no gradients. `body` must not communicate; all ranks call
    /// this.
    pub(crate) fn whole<T>(&self, body: impl FnOnce(&Network) -> T) -> Result<T> {
        match self {
            Wrapped::Ddp { model, .. } | Wrapped::Zero { model, .. } => {
                model.sync_buffers()?;
                Ok(tch::no_grad(|| body(model.module())))
            }
            Wrapped::Fsdp { net, model, .. } => Ok(model.summon_full_params(|| body(net))?),
        }
    }

    /// Rank 0 writes the weights.
    pub(crate) fn save_weights(&self, vs: &VarStore, path: &Path) -> Result<()> {
        let is_first = self.group().rank().is_zero();
        self.whole(|_| if is_first { checkpoint::save(vs, path) } else { Ok(()) })?
    }

    pub(crate) fn resume(&mut self, snapshots: &mut Snapshots, vs: &VarStore) -> Result<Position, SnapshotError> {
        match self {
            Wrapped::Ddp { model, optimizer } => snapshots.resume(vs, optimizer, model.group()),
            Wrapped::Zero { model, optimizer } => snapshots.resume(vs, optimizer, model.group()),
            Wrapped::Fsdp { model, optimizer, .. } => snapshots.resume_sharded(vs, model, optimizer),
        }
    }

    /// Saves if a snapshot is due, or a signal has asked for one.
    pub(crate) fn save_if(
        &mut self,
        due: bool,
        next: Position,
        snapshots: &mut Snapshots,
        vs: &VarStore,
    ) -> Result<(), SnapshotError> {
        match self {
            Wrapped::Ddp { model, optimizer } => snapshots.save_if(due, next, vs, optimizer, model.group()),
            Wrapped::Zero { model, optimizer } => snapshots.save_gathered_if(due, next, vs, optimizer, model.group()),
            Wrapped::Fsdp { model, optimizer, .. } => snapshots.save_sharded_if(due, next, vs, model, optimizer),
        }
    }
}

// ANCHOR: step
fn step_ddp(
    model: &DistributedDataParallel<Network>,
    optimizer: &mut impl Optimizer,
    inputs: &Tensor,
    targets: &Tensor,
) -> Result<Tensor> {
    optimizer.zero_grad();
    let outputs = model.forward_with(|net| task::forward(net, inputs, true, &plain))?;
    let loss = task::loss(&outputs, targets)?;
    model.backward(&loss)?;
    optimizer.step()?;
    Ok(loss)
}
// ANCHOR_END: step
