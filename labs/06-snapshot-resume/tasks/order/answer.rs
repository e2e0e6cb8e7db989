//! Task 3: an order that needs no saving. Spot the bug.
//!
//! Each epoch visits the samples in a different random order. A run that resumes in epoch 3 must use the same order there as a run that
//! began with epoch 0: it depends only on the seed and the epoch. Every seed, 0 too, and every epoch gives another order.

use std::ops::Range;

use lockstep::data::rng::KeyedRng;

/// Returns the order of `samples` samples for each of the epochs that this process trains.
pub fn order(seed: u64, samples: usize, epochs: Range<u64>) -> Vec<Vec<usize>> {
    // <answer>
    //~ let mut random = KeyedRng::new(&[seed]);
    //~ epochs.map(|_| shuffled(samples, &mut random)).collect()
    epochs.map(|epoch| shuffled(samples, &mut KeyedRng::new(&[seed, epoch]))).collect()
    // </answer>
}

/// Returns the numbers below `samples` in random order (Fisher-Yates shuffle).
pub fn shuffled(samples: usize, random: &mut KeyedRng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..samples).collect();
    (1..samples).rev().for_each(|place| order.swap(place, random.below(place + 1)));
    order
}
