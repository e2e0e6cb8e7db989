//! Ways to divide one model's training over ranks other than by whole copies, each small enough to read.
//!
//! - [`FullyShard`]: parameters, gradients and optimizer states in parts, gathered unit by unit;
//! - the layers of [`tensor`], and the exchanges between them: parts of each layer on each rank;
//! - [`Schedule`] and [`Pipeline`]: whole layers on each rank;
//! - [`ring_attention`] and what is in [`context`]: parts of each sequence;
//! - [`MixtureOfExperts`]: some of the experts on each rank;
//! - [`Layout`]: what a rank would hold, and what a step would take;
//! - [`c10d::checkpoint`]: fewer activations, computed twice.
//!
//! Data parallelism by whole copies is [`DistributedDataParallel`](crate::DistributedDataParallel); with the optimizer's states
//! divided, [`ZeroRedundancyOptimizer`](crate::optim::ZeroRedundancyOptimizer). Groups along
//! the lines of a grid of ranks ([`new_group`](c10d::ProcessGroup::new_group)) combine them.

pub mod context;
mod experts;
mod pipeline;
pub mod tensor;

use c10d::{ProcessGroup, ReduceOp, Result};
use tch::{Tensor, no_grad};

pub use crate::fully_shard::{FullyShard, FullyShardOptions, MixedPrecision, Piece, ShardBytes};
pub use context::ring_attention;
pub use experts::{MixtureOfExperts, Routed};
pub use lockstep_cost::{
    Action, Cluster, ClusterFile, ClusterFileError, Experts, Layout, Link, Schedule, ScheduleError, Slot,
    TransformerStep,
};
pub use pipeline::{Activations, Pipeline, PipelineError, StepReport};
pub use tensor::{
    ColumnParallelLinear, ParallelMlp, RowParallelLinear, VocabParallelEmbedding, vocab_parallel_cross_entropy,
};

use crate::optim::by_dtype_and_device;

/// Replaces each gradient by its mean over the ranks of `group`, in one message for each dtype. All ranks have the same parameters in
/// the same order; those without a gradient have none on any rank.
pub fn average_gradients(group: &ProcessGroup, params: &[(String, Tensor)]) -> Result<()> {
    average(group, params.iter().map(|(_, param)| param))
}

fn average<'a>(group: &ProcessGroup, params: impl Iterator<Item = &'a Tensor>) -> Result<()> {
    let grads = params.map(Tensor::grad).filter(Tensor::defined).collect();
    for mut batch in by_dtype_and_device(grads, |grad| grad) {
        group.all_reduce_coalesced(&mut batch, ReduceOp::Sum)?;
        no_grad(|| batch.iter_mut().for_each(|grad| *grad /= group.size().get() as f64));
    }
    Ok(())
}
