//! Answers to `batches`: wrong ones, and unusual right ones.

use std::ops::Range;

use lockstep_answers::edit;

/// Drops the samples that do not fill a batch.
pub fn dropped(samples: usize, batch_size: usize) -> Vec<Range<usize>> {
    (0..samples / batch_size).map(|batch| batch * batch_size..(batch + 1) * batch_size).collect()
}

/// Makes the last batch as large as the others, even without enough samples.
pub fn overrun(samples: usize, batch_size: usize) -> Vec<Range<usize>> {
    (0..samples).step_by(batch_size).map(|begin| begin..begin + batch_size).collect()
}

/// Always adds a last batch, which is empty if all others are full.
pub fn empty(samples: usize, batch_size: usize) -> Vec<Range<usize>> {
    let count = samples / batch_size + 1;
    (0..count).map(|batch| batch * batch_size..samples.min((batch + 1) * batch_size)).collect()
}

/// Cuts from the end, and returns the batches in that order.
#[edit((0..samples).step_by(batch_size).map(|begin| begin..samples.min(begin + batch_size)).collect() => (0..samples).step_by(batch_size).map(|begin| begin..samples.min(begin + batch_size)).rev().collect())]
pub fn backwards() {}

/// Right: splits a list of all positions.
pub fn chunks(samples: usize, batch_size: usize) -> Vec<Range<usize>> {
    let places: Vec<usize> = (0..samples).collect();
    places.chunks(batch_size).map(|batch| batch[0]..batch[0] + batch.len()).collect()
}
