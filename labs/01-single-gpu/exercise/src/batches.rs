//! Task 1: cut the samples into batches.
//!
//! Before a loader loads anything, it decides which samples go into which batch. Every sample must be in exactly one batch, and a batch
//! must not contain a sample that does not exist.

use std::ops::Range;

/// Returns the range of sample numbers of each batch, in order. All batches have `batch_size` samples; the last may have fewer.
pub fn batches(samples: usize, batch_size: usize) -> Vec<Range<usize>> {
    // For 10 samples and a batch size of 4: 0..4, 4..8, 8..10.
    todo!("the range of each batch")
}
