//! Each rank shuffles in its own way, "so that they see different samples".

use std::ops::Range;

use crate::epochs::Sampler;

pub fn epochs(mut sampler: Sampler, epochs: Range<u64>) -> Vec<Vec<usize>> {
    sampler.seed += sampler.rank as u64;
    let mut visited = Vec::new();
    for epoch in epochs {
        sampler.set_epoch(epoch);
        visited.push(sampler.indices());
    }
    visited
}
