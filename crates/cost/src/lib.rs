//! Models of what communication costs. Pure, and without libtorch: the runtime and the harness both use them.
//!
//! - [`AlphaBeta`]: a message of n bytes takes α + β·n; fitted to measured times.
//! - [`Collective`]: what each collective must move, so that times of different sizes and numbers of ranks can be compared.
//! - [`Amdahl`], [`Gustafson`]: what part of a step more ranks do not divide; fitted to measured times.
//! - [`Schedule`]: which stage of a pipeline works on which micro-batch when, and its bubble.
//! - [`Layout`]: what a rank holds, and what a step takes, if the batch, layers, blocks, sequences and experts are divided.
//! - [`ClusterFile`]: a cluster and a transformer, read from a file.
//! - [`Prediction`]: what a training step takes on a cluster, and what bounds it.

mod alpha_beta;
mod cluster_file;
mod layout;
mod schedule;
mod step;

pub use alpha_beta::{AlphaBeta, Collective, FitError};
pub use cluster_file::{ClusterFile, ClusterFileError, first_unusable};
pub use layout::{Cluster, Experts, Layout, Sharding, TransformerStep};
pub use schedule::{Action, Schedule, ScheduleError, Slot};
pub use step::{AllReduce, Amdahl, Bound, Compute, Exchange, Gustafson, Link, Prediction, Sizes};
