//! Answers to `epochs`: wrong ones, and unusual right ones.

use std::ops::Range;

use lockstep::data::rng::KeyedRng;
use lockstep_answers::{edit, given};

use crate::epochs::Sampler;

/// The given program: forgets `set_epoch`, so the sampler never learns the epoch.
#[given]
pub fn same() {}

/// Sets the epoch after the order was drawn.
#[edit(sampler.set_epoch(epoch); visited.push(sampler.indices()); => visited.push(sampler.indices()); sampler.set_epoch(epoch);)]
pub fn late() {}

/// Sets the epoch on rank 0 only.
#[edit(sampler.set_epoch(epoch); => if sampler.rank == 0 { sampler.set_epoch(epoch); })]
pub fn on_rank_0() {}

/// Sets the number of the first epoch in each.
#[edit(sampler.set_epoch(epoch) => sampler.set_epoch(0 * epoch))]
pub fn always_the_first() {}

/// Gives each rank its own seed, "so that they see different samples".
#[edit(let mut visited => sampler.seed += sampler.rank as u64; let mut visited)]
pub fn by_rank() {}

/// Counts epochs from the start of the run, so the first order of every run is the same.
#[given]
#[edit(visited.push(sampler.indices()); => visited.push(sampler.indices()); sampler.epoch += 1;)]
pub fn runs_on() {}

/// Right: sorts the samples by a random number drawn for each sample and epoch.
pub fn keyed(sampler: Sampler, epochs: Range<u64>) -> Vec<Vec<usize>> {
    let Sampler { samples, world_size, rank, seed, .. } = sampler;
    let of_epoch = |epoch: u64| {
        let mut order: Vec<usize> = (0..samples).collect();
        order.sort_by_key(|sample| KeyedRng::new(&[seed, epoch, *sample as u64]).next_u64());
        let begin = |rank: usize| rank * samples / world_size;
        order[begin(rank)..begin(rank + 1)].to_vec()
    };
    epochs.map(of_epoch).collect()
}

/// Takes the share first, and shuffles that.
pub fn share_first(sampler: Sampler, epochs: Range<u64>) -> Vec<Vec<usize>> {
    let Sampler { samples, world_size, rank, seed, .. } = sampler;
    let of_epoch = |epoch: u64| {
        let mut share: Vec<usize> = (rank..samples).step_by(world_size).collect();
        share.sort_by_key(|sample| KeyedRng::new(&[seed, epoch, *sample as u64]).next_u64());
        share
    };
    epochs.map(of_epoch).collect()
}

/// Takes blocks of equal length, and drops the rest.
pub fn equal_blocks(sampler: Sampler, epochs: Range<u64>) -> Vec<Vec<usize>> {
    let one = |epoch| {
        let mut random = KeyedRng::new(&[sampler.seed, epoch]);
        let mut order: Vec<usize> = (0..sampler.samples).collect();
        (1..sampler.samples).rev().for_each(|place| order.swap(place, random.below(place + 1)));
        let each = sampler.samples / sampler.world_size;
        order[sampler.rank * each..][..each].to_vec()
    };
    epochs.map(one).collect()
}
