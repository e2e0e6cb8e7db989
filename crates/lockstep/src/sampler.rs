//! Samplers: which samples a rank sees, and in which order.
//!
//! | sampler | order | for |
//! |---|---|---|
//! | [`SequentialSampler`] | 0, 1, 2, … | one process, no shuffling |
//! | [`RandomSampler`] | a new permutation each epoch | one process |
//! | [`DistributedSampler`] | PyTorch's own, bit for bit, one shard a rank | training on several ranks |
//! | [`EvalSampler`] | each sample exactly once over all ranks | evaluation on several ranks |
//!
//! Samplers do not load data; [`crate::loader`] does.

use std::sync::Arc;

use lockstep_datasets::order::every;
pub use lockstep_datasets::order::randperm;
use thiserror::Error;

use crate::{Rank, WorldSize};

/// The order of the samples, as a pure function of the epoch.
///
/// PyTorch's samplers store the epoch, and a training loop that forgets `sampler.set_epoch(epoch)` silently repeats one order
/// forever. Here the epoch is an argument: there is no call to forget.
///
/// A pure function has no position either. To resume inside an epoch, ask for the rest of the same epoch:
/// [`indices_from`](Self::indices_from), which [`DataLoader::epoch_at`](crate::loader::DataLoader::epoch_at) calls.
pub trait Sampler: Send + Sync {
    /// The [`len`](Self::len) indices to visit in `epoch`, in that order: always the same for the same epoch.
    fn indices(&self, epoch: u64) -> Vec<usize>;

    /// The number of indices of an epoch, the same for every epoch.
    fn len(&self) -> usize;

    /// Returns true if an epoch has no indices.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many ranks share the order of an epoch, each taking every n-th index; 1 for a single process.
    fn shards(&self) -> usize {
        1
    }

    /// The rest of this rank's [`indices`](Self::indices) after all ranks together have taken the first `taken` of the epoch's
    /// order, in a world of any size: the rest is distributed over the current ranks. Empty if `taken` is the whole order or
    /// more.
    fn indices_from(&self, epoch: u64, taken: usize) -> Vec<usize> {
        self.indices(epoch).into_iter().skip(taken).collect()
    }

    /// The number of indices of [`indices_from`](Self::indices_from), the same for every epoch.
    fn len_from(&self, taken: usize) -> usize {
        self.len().saturating_sub(taken)
    }
}

/// A pointer to a sampler is a sampler.
macro_rules! forward {
    ($pointer:ident) => {
        impl<S: Sampler + ?Sized> Sampler for $pointer<S> {
            fn indices(&self, epoch: u64) -> Vec<usize> {
                (**self).indices(epoch)
            }

            fn len(&self) -> usize {
                (**self).len()
            }

            fn shards(&self) -> usize {
                (**self).shards()
            }

            fn indices_from(&self, epoch: u64, taken: usize) -> Vec<usize> {
                (**self).indices_from(epoch, taken)
            }

            fn len_from(&self, taken: usize) -> usize {
                (**self).len_from(taken)
            }
        }
    };
}

forward!(Arc);
forward!(Box);

/// The generator's seed for an epoch. PyTorch adds the two as well; a sum beyond 64 bits, which it rejects, wraps here.
fn epoch_seed(seed: u64, epoch: u64) -> u64 {
    seed.wrapping_add(epoch)
}

/// All samples from the first to the last.
#[derive(Clone, Debug)]
pub struct SequentialSampler {
    samples: usize,
}

impl SequentialSampler {
    /// Over a data set of `samples`.
    pub fn new(samples: usize) -> Self {
        SequentialSampler { samples }
    }
}

impl Sampler for SequentialSampler {
    fn indices(&self, _epoch: u64) -> Vec<usize> {
        (0..self.samples).collect()
    }

    fn len(&self) -> usize {
        self.samples
    }
}

/// All samples, in a different order each epoch: [`randperm`] seeded with `seed + epoch`.
///
/// This equals PyTorch's `RandomSampler` with a generator seeded for each epoch, and
/// [`DistributedSampler`] in a world of one. It is *not* the order of `DataLoader(shuffle=True,
/// generator=g)`: there one generator continues from epoch to epoch and also serves other draws, so an order depends on
/// everything before it, and a resumed run cannot repeat it.
#[derive(Clone, Debug)]
pub struct RandomSampler {
    samples: usize,
    seed: u64,
}

impl RandomSampler {
    /// Over a data set of `samples`, with seed 0.
    pub fn new(samples: usize) -> Self {
        RandomSampler { samples, seed: 0 }
    }

    /// The seed of the shuffling; the generator sees the low 32 bits of `seed + epoch`.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }
}

impl Sampler for RandomSampler {
    fn indices(&self, epoch: u64) -> Vec<usize> {
        randperm(self.samples, epoch_seed(self.seed, epoch))
    }

    fn len(&self) -> usize {
        self.samples
    }
}

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
/// Padding counts some samples twice: for evaluation use [`EvalSampler`].
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
        // Padding starts over at the front, as often as necessary when there are more ranks than samples.
        every(&self.order(epoch), taken + self.rank.get(), world, left)
    }

    fn len_from(&self, taken: usize) -> usize {
        let (left, world) = (self.samples.saturating_sub(taken), self.world.get());
        if self.drop_last { left / world } else { left.div_ceil(world) }
    }
}

/// Rejects a rank that does not exist in this world.
fn check_member(rank: Rank, world: WorldSize) -> Result<(), RankOutsideWorld> {
    if world.contains(rank) { Ok(()) } else { Err(RankOutsideWorld { rank, world }) }
}

/// A rank's shard of an evaluation set: every sample is on exactly one rank, in the same position each epoch.
///
/// [`DistributedSampler`] makes its shards equally long by repeating samples, and an accuracy over
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

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    #[derive(Deserialize)]
    struct Golden {
        wide_shuffle: Vec<Wide>,
    }

    #[derive(Deserialize)]
    struct Wide {
        n: usize,
        seed: u64,
        order: Vec<usize>,
    }

    #[test]
    fn shuffles_by_64_bits_as_pytorch_does() {
        let golden: Golden = serde_json::from_str(include_str!("../golden/sampler.json")).unwrap();
        assert!(!golden.wide_shuffle.is_empty());
        for case in golden.wide_shuffle {
            let order = lockstep_datasets::order::randperm_wide(case.n, case.seed);
            assert_eq!(order, case.order, "n {}, seed {}", case.n, case.seed);
        }
    }
}
