//! Task 3: a new order every epoch. Spot the bug.
//!
//! All ranks shuffle the numbers of all samples in the same way, and each takes its share of the result. So no rank has to send
//! the order to the others. The order depends only on the seed and the epoch: a run that resumes at epoch 5 visits the samples
//! in the same order as a run that never stopped.

use std::ops::Range;

use lockstep::data::rng::KeyedRng;

/// Shuffles the samples and gives each rank its share, as PyTorch's `DistributedSampler` does, but without padding: task 1 has
/// that, and nothing here waits for other ranks.
pub struct Sampler {
    /// The number of samples in the data set.
    pub samples: usize,
    /// The number of ranks that share the data set.
    pub world_size: usize,
    /// The rank of this process.
    pub rank: usize,
    /// The seed, which is the same on all ranks.
    pub seed: u64,
    /// The epoch of the next order.
    pub epoch: u64,
}

impl Sampler {
    /// Sets the epoch for [`indices`](Self::indices).
    pub fn set_epoch(&mut self, epoch: u64) {
        self.epoch = epoch;
    }

    /// Returns this rank's share, in the order in which the rank visits it.
    pub fn indices(&self) -> Vec<usize> {
        let mut random = KeyedRng::new(&[self.seed, self.epoch]);
        let mut order: Vec<usize> = (0..self.samples).collect();
        (1..self.samples).rev().for_each(|place| order.swap(place, random.below(place + 1)));
        order.into_iter().skip(self.rank).step_by(self.world_size).collect()
    }
}

/// Returns the samples that this rank visits in each of the `epochs`.
pub fn epochs(mut sampler: Sampler, epochs: Range<u64>) -> Vec<Vec<usize>> {
    let mut visited = Vec::new();
    for epoch in epochs {
        println!("epoch {epoch} begins");
        // <answer>
        //~ visited.push(sampler.indices());
        sampler.set_epoch(epoch);
        visited.push(sampler.indices());
        // </answer>
    }
    visited
}
