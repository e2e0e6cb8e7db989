//! Answers to `order`: wrong ones, and unusual right ones.

use std::ops::Range;

use lockstep::data::rng::KeyedRng;
use lockstep_answers::{edit, given};

use crate::order::shuffled;

/// The given program: uses one generator for all epochs.
#[given]
pub fn history() {}

/// Leaves the epoch out of the key.
#[edit(&[seed, epoch] => &[seed])]
pub fn same() {}

/// Leaves the seed out of the key.
#[edit(&[seed, epoch] => &[epoch])]
pub fn seedless() {}

/// Right: the sum of seed and epoch, as PyTorch's `DistributedSampler` takes it.
#[edit(&[seed, epoch] => &[seed + epoch])]
pub fn sum() {}

/// Right: slower with each epoch, as it draws all earlier epochs again and discards them.
pub fn replays(seed: u64, samples: usize, epochs: Range<u64>) -> Vec<Vec<usize>> {
    let mut random = KeyedRng::new(&[seed]);
    let mut all: Vec<_> = (0..epochs.end).map(|_| shuffled(samples, &mut random)).collect();
    all.split_off(epochs.start as usize)
}

/// Keeps only a part of the epoch in the key, so orders return.
#[edit(&[seed, epoch] => &[seed, epoch % 10])]
pub fn remainder() {}

/// Multiplies: epoch 0 has the same order with every seed.
#[edit(&[seed, epoch] => &[seed * epoch])]
pub fn product() {}

/// With the seed 0, all epochs have the same order.
#[edit(&[seed, epoch] => &[seed * (epoch + 1)])]
pub fn product_of_next() {}

/// Begins one order at another sample in each epoch.
#[edit(shuffled(samples, &mut KeyedRng::new(&[seed, epoch])) => {
    let mut order = shuffled(samples, &mut KeyedRng::new(&[seed]));
    order.rotate_left(epoch as usize % samples);
    order
})]
pub fn rotates() {}

/// Has the process in the key, which is another after a restart.
#[edit(&[seed, epoch] => &[seed, epoch, u64::from(std::process::id())])]
pub fn process() {}

/// Shuffles the order of the epoch before further.
pub fn shuffles_further(seed: u64, samples: usize, epochs: Range<u64>) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..samples).collect();
    let mut orders = Vec::new();
    for epoch in epochs {
        let mut random = KeyedRng::new(&[seed, epoch]);
        (1..samples).rev().for_each(|place| order.swap(place, random.below(place + 1)));
        orders.push(order.clone());
    }
    orders
}

/// Right: sorts the samples by a random number for each.
pub fn sorts(seed: u64, samples: usize, epochs: Range<u64>) -> Vec<Vec<usize>> {
    let sorted = |epoch| {
        let mut order: Vec<usize> = (0..samples).collect();
        order.sort_by_key(|sample| KeyedRng::new(&[seed, epoch, *sample as u64]).next_u64());
        order
    };
    epochs.map(sorted).collect()
}
