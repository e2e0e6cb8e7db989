//! Other answers to `epochs`: wrong ones, and right ones that look unusual.

use std::ops::Range;

use lockstep::data::rng::KeyedRng;

use crate::epochs::Sampler;

/// The sampler never hears of the epoch: `set_epoch` is forgotten.
pub fn same(sampler: Sampler, epochs: Range<u64>) -> Vec<Vec<usize>> {
    epochs.map(|_| sampler.indices()).collect()
}

/// The sampler hears of the epoch when its order is drawn already.
pub fn late(mut sampler: Sampler, epochs: Range<u64>) -> Vec<Vec<usize>> {
    let mut visited = Vec::new();
    for epoch in epochs {
        visited.push(sampler.indices());
        sampler.set_epoch(epoch);
    }
    visited
}

/// Each rank shuffles in its own way, "so that they see different samples".
pub fn by_rank(mut sampler: Sampler, epochs: Range<u64>) -> Vec<Vec<usize>> {
    sampler.seed += sampler.rank as u64;
    let mut visited = Vec::new();
    for epoch in epochs {
        sampler.set_epoch(epoch);
        visited.push(sampler.indices());
    }
    visited
}

/// The first order of a run is always the same; the epochs are counted from where the run begins.
pub fn runs_on(mut sampler: Sampler, epochs: Range<u64>) -> Vec<Vec<usize>> {
    let mut visited = Vec::new();
    for _ in epochs {
        visited.push(sampler.indices());
        sampler.epoch += 1;
    }
    visited
}

/// Right, in its own way: sorts the samples by a random number that each has in each epoch.
pub fn keyed(sampler: Sampler, epochs: Range<u64>) -> Vec<Vec<usize>> {
    let Sampler { samples, world_size, rank, seed, .. } = sampler;
    let of_epoch = |epoch: u64| {
        let mut order: Vec<usize> = (0..samples).collect();
        order.sort_by_key(|sample| KeyedRng::new(&[seed, epoch, *sample as u64]).next_u64());
        let each = samples / world_size;
        order[rank * each..(rank + 1) * each].to_vec()
    };
    epochs.map(of_epoch).collect()
}
