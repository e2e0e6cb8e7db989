//! The sampler hears of the epoch when its order is drawn already.

use std::ops::Range;

use crate::epochs::Sampler;

pub fn epochs(mut sampler: Sampler, epochs: Range<u64>) -> Vec<Vec<usize>> {
    let mut visited = Vec::new();
    for epoch in epochs {
        visited.push(sampler.indices());
        sampler.set_epoch(epoch);
    }
    visited
}
