//! One generator that runs on from epoch to epoch. As it is given.

use std::ops::Range;

use lockstep::data::rng::KeyedRng;

use crate::order::shuffled;

pub fn order(seed: u64, samples: usize, epochs: Range<u64>) -> Vec<Vec<usize>> {
    let mut random = KeyedRng::new(&[seed]);
    epochs.map(|_| shuffled(samples, &mut random)).collect()
}
