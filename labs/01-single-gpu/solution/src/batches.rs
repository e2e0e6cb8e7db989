//! Task 1: cut the samples into batches.
//!
//! What a loader does before it loads anything: which samples make which batch. In the end every sample must have been in one
//! batch, and no batch may ask for a sample that is not there.

use std::ops::Range;

/// The places of each batch, of `samples` in all, in order. All batches have `batch_size` samples; the last may have fewer.
pub fn batches(samples: usize, batch_size: usize) -> Vec<Range<usize>> {
    // <answer>
    //~ // For 10 samples and a batch size of 4: 0..4, 4..8, 8..10.
    //~ todo!("the places of each batch")
    (0..samples).step_by(batch_size).map(|begin| begin..samples.min(begin + batch_size)).collect()
    // </answer>
}
