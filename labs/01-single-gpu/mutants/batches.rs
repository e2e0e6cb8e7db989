//! Other answers to `batches`: wrong ones, and right ones that look unusual.

use std::ops::Range;

/// The samples that do not fill a batch are dropped.
pub fn dropped(samples: usize, batch_size: usize) -> Vec<Range<usize>> {
    (0..samples / batch_size).map(|batch| batch * batch_size..(batch + 1) * batch_size).collect()
}

/// The last batch is as large as the others, whether there are samples for it or not.
pub fn overrun(samples: usize, batch_size: usize) -> Vec<Range<usize>> {
    (0..samples).step_by(batch_size).map(|begin| begin..begin + batch_size).collect()
}

/// One batch more than fit in, which has no samples if the others have all.
pub fn empty(samples: usize, batch_size: usize) -> Vec<Range<usize>> {
    let count = samples / batch_size + 1;
    (0..count).map(|batch| batch * batch_size..samples.min((batch + 1) * batch_size)).collect()
}

/// Right, in its own way: cuts a list of all places into pieces.
pub fn chunks(samples: usize, batch_size: usize) -> Vec<Range<usize>> {
    let places: Vec<usize> = (0..samples).collect();
    places.chunks(batch_size).map(|batch| batch[0]..batch[0] + batch.len()).collect()
}
