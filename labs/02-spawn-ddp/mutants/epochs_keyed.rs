//! Right, in its own way: sorts the samples by a random number that each has in each epoch.

use std::ops::Range;

use lockstep::data::rng::KeyedRng;

use crate::epochs::Sampler;

pub fn epochs(sampler: Sampler, epochs: Range<u64>) -> Vec<Vec<usize>> {
    let Sampler { samples, world_size, rank, seed, .. } = sampler;
    let of_epoch = |epoch: u64| {
        let mut order: Vec<usize> = (0..samples).collect();
        order.sort_by_key(|sample| KeyedRng::new(&[seed, epoch, *sample as u64]).next_u64());
        let each = samples / world_size;
        order[rank * each..(rank + 1) * each].to_vec()
    };
    epochs.map(of_epoch).collect()
}
