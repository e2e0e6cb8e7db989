//! The samples that do not fill a batch are dropped.

use std::ops::Range;

pub fn batches(samples: usize, batch_size: usize) -> Vec<Range<usize>> {
    (0..samples / batch_size).map(|batch| batch * batch_size..(batch + 1) * batch_size).collect()
}
