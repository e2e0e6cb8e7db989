//! Wrong answers to `device`.

use anyhow::{Result, ensure};
use lockstep_answers::{edit, given};

use crate::device::Decisions;
use crate::environment::Worker;

/// The given program: uses the local rank for everything, as the tutorials use `gpu_id`.
#[given]
pub fn local() {}

/// Uses the rank for everything.
#[edit(gpu: local_rank => gpu: rank)]
pub fn global() {}

/// Assumes that all nodes have the same number of GPUs.
#[edit(gpu: local_rank => gpu: rank % gpus)]
pub fn modulo() {}

/// Refuses all processes of a node that has too few GPUs.
#[edit(local_rank < gpus => worker.local_world_size <= gpus)]
pub fn whole_node() {}

/// Saves on the first process of each node.
#[edit(saves: rank == 0 => saves: local_rank == 0)]
pub fn node_saves() {}
