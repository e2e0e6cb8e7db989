//! One batch more than fit in, which has no samples if the others have all.

use std::ops::Range;

pub fn batches(samples: usize, batch_size: usize) -> Vec<Range<usize>> {
    let count = samples / batch_size + 1;
    (0..count).map(|batch| batch * batch_size..samples.min((batch + 1) * batch_size)).collect()
}
