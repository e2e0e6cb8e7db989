//! The last batch is as large as the others, whether there are samples for it or not.

use std::ops::Range;

pub fn batches(samples: usize, batch_size: usize) -> Vec<Range<usize>> {
    (0..samples).step_by(batch_size).map(|begin| begin..begin + batch_size).collect()
}
