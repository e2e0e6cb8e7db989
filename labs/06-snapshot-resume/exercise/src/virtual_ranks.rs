//! Task 7: samples and random numbers of virtual ranks. Spot the bug.
//!
//! A training has `virtual_ranks` virtual ranks for all its life, and now as many ranks as the scheduler has left it. Each step trains every
//! virtual rank once, on one of the ranks, and with the same samples and the same random numbers on any number of ranks:
//!
//! - Each rank has neighbouring virtual ranks, rank 0 the first ones, and no rank has two more than another.
//! - Virtual rank v has the samples that `DistributedSampler` gives to rank v of as many ranks: those at the places v, v + `virtual_ranks`,
//!   v + 2 `virtual_ranks`, … of the epoch's order, `batch_size` of them in a step.
//! - Its random numbers depend on the seed, the epoch, the step and v, and on nothing else.

use lockstep::data::rng::KeyedRng;

use crate::ranks::Training;

/// Trains the virtual ranks of rank `run.rank` in one step of an epoch, by one call of `run.train` for each.
pub fn virtual_ranks(run: &mut Training, epoch: u64, step: usize) {
    // A training without virtual ranks: with another number of ranks, a step has other samples and other random numbers.
    let share = run.order(epoch).into_iter().skip(run.rank).step_by(run.ranks);
    let batch: Vec<usize> = share.skip(step * run.batch_size).take(run.batch_size).collect();
    run.train(run.rank, &batch, &mut KeyedRng::new(&[run.seed, epoch, step as u64, run.rank as u64]));
}
