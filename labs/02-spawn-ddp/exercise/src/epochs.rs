//! Task 3: a new order every epoch. Spot the bug.
//!
//! A sampler that shuffles. All ranks shuffle the numbers of all samples alike, and each takes its share of the result, so
//! nobody has to send an order around. It depends on the seed and the epoch alone: a run that is resumed at epoch 5 visits
//! the samples as one that never stopped.

use std::ops::Range;

use lockstep::data::rng::KeyedRng;

/// Deals out shuffled samples, after the model of PyTorch's `DistributedSampler`.
pub struct Sampler {
    /// In the whole data set.
    pub samples: usize,
    /// How many ranks share it.
    pub world_size: usize,
    /// The one whose share this is.
    pub rank: usize,
    /// The same on all ranks.
    pub seed: u64,
    /// Which epoch the next order is for.
    pub epoch: u64,
}

impl Sampler {
    /// Chooses the epoch whose order [`indices`](Self::indices) tells.
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// This rank's share, in the order in which it is visited.
    pub fn indices(&self) -> Vec<usize> {
        let mut random = KeyedRng::new(&[self.seed, self.epoch]);
        let mut order: Vec<usize> = (0..self.samples).collect();
        (1..self.samples).rev().for_each(|place| order.swap(place, random.below(place + 1)));
        order.into_iter().skip(self.rank).step_by(self.world_size).collect()
    }
}

/// The samples that this rank visits in each of the `epochs`.
pub fn epochs(mut sampler: Sampler, epochs: Range<u64>) -> Vec<Vec<usize>> {
    let mut visited = Vec::new();
    for epoch in epochs {
        println!("epoch {epoch} begins");
        visited.push(sampler.indices());
    }
    visited
}
