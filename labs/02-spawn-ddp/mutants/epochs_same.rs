//! The sampler never hears of the epoch: `set_epoch` is forgotten.

use std::ops::Range;

use crate::epochs::Sampler;

pub fn epochs(sampler: Sampler, epochs: Range<u64>) -> Vec<Vec<usize>> {
    epochs.map(|_| sampler.indices()).collect()
}
