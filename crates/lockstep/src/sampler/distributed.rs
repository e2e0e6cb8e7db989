//! PyTorch's `DistributedSampler`: one shard of equal length for every rank.
//!
//! Source: torch/utils/data/distributed.py of PyTorch 2.11.

use thiserror::Error;

use super::{Sampler, epoch_seed, randperm};
use crate::{Rank, WorldSize};

/// A rank's shard of the data in each epoch, the same indices as `torch.utils.data.DistributedSampler` yields.
///
/// Every rank permutes all samples in the same way (`randperm` seeded with `seed + epoch`), makes the count divisible by the
/// world size, and takes each `world`-th index starting from its own rank. So all ranks have the same number of steps, which
/// the collectives in a training step need. "Divisible" means either *padding*, which repeats the first indices (the default),
/// or *dropping* the tail ([`drop_last`](Self::drop_last)).
///
/// **In the middle of an epoch** ([`indices_from`](Sampler::indices_from)) the same is done with the rest of the order: rank
/// `r` of `W` takes the positions `taken + r`, `taken + r + W`, …, and positions past the end are padding, the order's first
/// indices again. In the world that the epoch began with, this is the rest of each shard; in another one, each sample still
/// occurs once in the epoch, and the padding is fewer samples than the *last* world has ranks.
///
/// Padding counts some samples twice: for evaluation use [`EvalSampler`](super::EvalSampler).
///
/// ```no_run
/// use lockstep::sampler::{DistributedSampler, Sampler};
/// use lockstep::{Rank, WorldSize};
///
/// let world = WorldSize::new(2).expect("2 is not 0");
/// let sampler = DistributedSampler::new(5, Rank::new(1), world)?.shuffle(false);
/// assert_eq!(sampler.indices(0), [1, 3, 0]); // the 0 is padding
/// # Ok::<(), lockstep::sampler::RankOutsideWorld>(())
/// ```
#[derive(Clone, Debug)]
pub struct DistributedSampler {
    samples: usize,
    rank: Rank,
    world: WorldSize,
    shuffle: bool,
    seed: u64,
    drop_last: bool,
}

/// The rank does not exist in this world.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error(
    "rank {rank} is outside a world of {world}: ranks count from 0, so pass the process group's own rank and size \
     (RANK and WORLD_SIZE under a launcher, never LOCAL_RANK)"
)]
pub struct RankOutsideWorld {
    /// The given rank.
    pub rank: Rank,
    /// The given world size.
    pub world: WorldSize,
}

impl DistributedSampler {
    /// The shard of `rank` from a data set of `samples`, with PyTorch's defaults: shuffled, seed 0, padded.
    pub fn new(samples: usize, rank: Rank, world: WorldSize) -> Result<Self, RankOutsideWorld> {
        check_member(rank, world)?;
        Ok(DistributedSampler { samples, rank, world, shuffle: true, seed: 0, drop_last: false })
    }

    /// Whether each epoch has its own order, or all have 0, 1, 2, …
    pub fn shuffle(mut self, shuffle: bool) -> Self {
        self.shuffle = shuffle;
        self
    }

    /// The seed of the shuffling. **All ranks must pass the same**, otherwise their shards overlap. The generator sees the low
    /// 32 bits of `seed + epoch`, so seed 1 in epoch 0 shuffles as seed 0 does in epoch 1.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Whether to leave out the tail (fewer samples than ranks) instead of padding.
    pub fn drop_last(mut self, drop_last: bool) -> Self {
        self.drop_last = drop_last;
        self
    }

    fn order(&self, epoch: u64) -> Vec<usize> {
        if self.shuffle { randperm(self.samples, epoch_seed(self.seed, epoch)) } else { (0..self.samples).collect() }
    }
}

impl Sampler for DistributedSampler {
    fn indices(&self, epoch: u64) -> Vec<usize> {
        self.indices_from(epoch, 0)
    }

    fn len(&self) -> usize {
        self.len_from(0)
    }

    fn shards(&self) -> usize {
        self.world.get()
    }

    fn indices_from(&self, epoch: u64, taken: usize) -> Vec<usize> {
        let (left, world) = (self.len_from(taken), self.world.get());
        if left == 0 {
            return Vec::new();
        }
        let order = self.order(epoch);
        // Padding starts over at the front, as often as necessary when there are more ranks than samples.
        (0..left).map(|turn| order[(taken + self.rank.get() + turn * world) % self.samples]).collect()
    }

    fn len_from(&self, taken: usize) -> usize {
        let (left, world) = (self.samples.saturating_sub(taken), self.world.get());
        if self.drop_last { left / world } else { left.div_ceil(world) }
    }
}

/// Rejects a rank that does not exist in this world.
pub(super) fn check_member(rank: Rank, world: WorldSize) -> Result<(), RankOutsideWorld> {
    if world.contains(rank) { Ok(()) } else { Err(RankOutsideWorld { rank, world }) }
}
