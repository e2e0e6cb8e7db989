//! Right, in its own way: cuts a list of all places into pieces.

use std::ops::Range;

pub fn batches(samples: usize, batch_size: usize) -> Vec<Range<usize>> {
    let places: Vec<usize> = (0..samples).collect();
    places.chunks(batch_size).map(|batch| batch[0]..batch[0] + batch.len()).collect()
}
