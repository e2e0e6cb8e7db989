//! Task 3: an order that needs no saving. Spot the bug.
//!
//! Samples come in a random order, another one each epoch. A run that is resumed in epoch 3 must meet them in the order in which
//! one that began with epoch 0 meets them there.

use std::ops::Range;

use lockstep::data::rng::KeyedRng;

/// The order of `samples` samples in each of the epochs that this process trains.
pub fn order(seed: u64, samples: usize, epochs: Range<u64>) -> Vec<Vec<usize>> {
    let mut random = KeyedRng::new(&[seed]);
    epochs.map(|_| shuffled(samples, &mut random)).collect()
}

/// The numbers below `samples`, in an order that the generator draws (Fisher and Yates).
pub fn shuffled(samples: usize, random: &mut KeyedRng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..samples).collect();
    (1..samples).rev().for_each(|place| order.swap(place, random.below(place + 1)));
    order
}
