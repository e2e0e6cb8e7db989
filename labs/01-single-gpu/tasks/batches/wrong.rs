//! Answers to `batches`: wrong ones, and unusual right ones.

use std::ops::Range;

use lockstep_answers::edit;

/// Drops the samples that do not fill a batch.
#[edit(0..samples => 0..samples / batch_size * batch_size)]
pub fn dropped() {}

/// Makes the last batch as large as the others, even without enough samples.
#[edit(samples.min(begin + batch_size) => begin + batch_size)]
pub fn overrun() {}

/// Always adds a last batch, which is empty if all others are full.
#[edit(0..samples => 0..=samples)]
pub fn empty() {}

/// Cuts from the end, and returns the batches in that order.
#[edit((0..samples).step_by(batch_size).map(|begin| begin..samples.min(begin + batch_size)).collect() => (0..samples).step_by(batch_size).map(|begin| begin..samples.min(begin + batch_size)).rev().collect())]
pub fn backwards() {}

/// Right: splits a list of all positions.
pub fn chunks(samples: usize, batch_size: usize) -> Vec<Range<usize>> {
    let places: Vec<usize> = (0..samples).collect();
    places.chunks(batch_size).map(|batch| batch[0]..batch[0] + batch.len()).collect()
}
