//! Shards for evaluation: no padding, no duplicates.

use super::distributed::check_member;
use super::{RankOutsideWorld, Sampler};
use crate::{Rank, WorldSize};

/// A rank's shard of an evaluation set: every sample is on exactly one rank, in the same position each epoch.
///
/// [`DistributedSampler`](super::DistributedSampler) makes its shards equally long by repeating samples, and an accuracy over
/// them counts the repeated ones twice: with 5 samples on 4 ranks, 3 of the 8 answers are duplicates. Here rank `r` gets only
/// `r`, `r + world`, `r + 2 · world`, …
///
/// So lengths differ by up to one, and a rank may have no samples. Do not call a collective per batch in the evaluation loop
/// (including DDP's forward with buffers to broadcast): the rank with one more batch would wait forever. Sum the correct
/// answers and their number locally, and all-reduce the two sums once after the loop.
#[derive(Clone, Debug)]
pub struct EvalSampler {
    samples: usize,
    rank: Rank,
    world: WorldSize,
}

impl EvalSampler {
    /// The shard of `rank` from a data set of `samples`.
    pub fn new(samples: usize, rank: Rank, world: WorldSize) -> Result<Self, RankOutsideWorld> {
        check_member(rank, world)?;
        Ok(EvalSampler { samples, rank, world })
    }
}

impl Sampler for EvalSampler {
    fn indices(&self, epoch: u64) -> Vec<usize> {
        self.indices_from(epoch, 0)
    }

    fn len(&self) -> usize {
        self.len_from(0)
    }

    fn shards(&self) -> usize {
        self.world.get()
    }

    fn indices_from(&self, _epoch: u64, taken: usize) -> Vec<usize> {
        (taken.saturating_add(self.rank.get())..self.samples).step_by(self.world.get()).collect()
    }

    fn len_from(&self, taken: usize) -> usize {
        self.samples.saturating_sub(taken).saturating_sub(self.rank.get()).div_ceil(self.world.get())
    }
}
