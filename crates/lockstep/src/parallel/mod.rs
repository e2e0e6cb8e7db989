//! Ways to divide one model's training over ranks other than by whole copies, each small enough to read.
//!
//! - [`FullyShard`]: parameters, gradients and optimizer states in parts, gathered unit by unit;
//! - [`mappings`], and the layers of [`tensor`]: parts of each layer on each rank;
//! - [`Schedule`] and [`Pipeline`]: whole layers on each rank;
//! - [`Layout`]: what a rank would hold, and what a step would take;
//! - [`c10d::checkpoint`]: fewer activations, computed twice.
//!
//! Data parallelism by whole copies is [`DistributedDataParallel`](crate::DistributedDataParallel); with the optimizer's states
//! divided, [`ZeroRedundancyOptimizer`](crate::optim::ZeroRedundancyOptimizer). [`DeviceMesh`](crate::DeviceMesh) combines them.

mod fully_shard;
mod gradients;
pub mod mappings;
mod pipeline;
pub mod tensor;

pub use fully_shard::{FullyShard, FullyShardOptions, MixedPrecision, Piece, ShardBytes};
pub use gradients::average_gradients;
pub use lockstep_cost::{
    Action, Cluster, ClusterFile, ClusterFileError, Job, Layout, Link, Schedule, ScheduleError, Slot,
};
pub use pipeline::{Activations, Pipeline, PipelineError, StepReport};
pub use tensor::{
    ColumnParallelLinear, ParallelMlp, RowParallelLinear, VocabParallelEmbedding, vocab_parallel_cross_entropy,
};
