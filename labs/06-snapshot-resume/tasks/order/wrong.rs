//! Answers to `order`: wrong ones, and unusual right ones.

use std::ops::Range;

use lockstep::data::rng::KeyedRng;

use crate::order::shuffled;

/// The given program: uses one generator for all epochs.
pub fn history(seed: u64, samples: usize, epochs: Range<u64>) -> Vec<Vec<usize>> {
    let mut random = KeyedRng::new(&[seed]);
    epochs.map(|_| shuffled(samples, &mut random)).collect()
}

/// Leaves the epoch out of the key.
pub fn same(seed: u64, samples: usize, epochs: Range<u64>) -> Vec<Vec<usize>> {
    epochs.map(|_| shuffled(samples, &mut KeyedRng::new(&[seed]))).collect()
}

/// Leaves the seed out of the key.
pub fn seedless(_: u64, samples: usize, epochs: Range<u64>) -> Vec<Vec<usize>> {
    epochs.map(|epoch| shuffled(samples, &mut KeyedRng::new(&[epoch]))).collect()
}

/// Right: the sum of seed and epoch, as PyTorch's `DistributedSampler` takes it.
pub fn sum(seed: u64, samples: usize, epochs: Range<u64>) -> Vec<Vec<usize>> {
    epochs.map(|epoch| shuffled(samples, &mut KeyedRng::new(&[seed + epoch]))).collect()
}

/// Right: slower with each epoch, as it draws all earlier epochs again and discards them.
pub fn replays(seed: u64, samples: usize, epochs: Range<u64>) -> Vec<Vec<usize>> {
    let mut random = KeyedRng::new(&[seed]);
    let mut all: Vec<_> = (0..epochs.end).map(|_| shuffled(samples, &mut random)).collect();
    all.split_off(epochs.start as usize)
}
