//! Right, and slower with each epoch: draws the epochs before again, and throws them away.

use std::ops::Range;

use lockstep::data::rng::KeyedRng;

use crate::order::shuffled;

pub fn order(seed: u64, samples: usize, epochs: Range<u64>) -> Vec<Vec<usize>> {
    let mut random = KeyedRng::new(&[seed]);
    let mut all: Vec<_> = (0..epochs.end).map(|_| shuffled(samples, &mut random)).collect();
    all.split_off(epochs.start as usize)
}
