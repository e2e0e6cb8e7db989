//! Samplers for a single process.

use super::{Sampler, epoch_seed, randperm};

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
/// [`DistributedSampler`](super::DistributedSampler) in a world of one. It is *not* the order of `DataLoader(shuffle=True,
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
