//! Other answers to `order`: wrong ones, and right ones that look unusual.

use std::ops::Range;

use lockstep::data::rng::KeyedRng;

use crate::order::shuffled;

/// One generator that runs on from epoch to epoch. As it is given.
pub fn history(seed: u64, samples: usize, epochs: Range<u64>) -> Vec<Vec<usize>> {
    let mut random = KeyedRng::new(&[seed]);
    epochs.map(|_| shuffled(samples, &mut random)).collect()
}

/// `set_epoch` forgotten: every epoch in the same order.
pub fn same(seed: u64, samples: usize, epochs: Range<u64>) -> Vec<Vec<usize>> {
    epochs.map(|_| shuffled(samples, &mut KeyedRng::new(&[seed]))).collect()
}

/// Keyed by the epoch alone.
pub fn seedless(_: u64, samples: usize, epochs: Range<u64>) -> Vec<Vec<usize>> {
    epochs.map(|epoch| shuffled(samples, &mut KeyedRng::new(&[epoch]))).collect()
}

/// Right, and slower with each epoch: draws the epochs before again, and throws them away.
pub fn replays(seed: u64, samples: usize, epochs: Range<u64>) -> Vec<Vec<usize>> {
    let mut random = KeyedRng::new(&[seed]);
    let mut all: Vec<_> = (0..epochs.end).map(|_| shuffled(samples, &mut random)).collect();
    all.split_off(epochs.start as usize)
}
