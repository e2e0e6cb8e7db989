//! Task 3: where does the memory go?
//!
//! Predict what a rank holds and sends in each scheme. The grader then runs a real step in each of them, on real ranks, and counts.

use crate::division::{Bytes, Model, Scheme};

/// What rank `rank` of `ranks` holds, and passes to its group in a step.
pub fn predict_bytes(model: &Model, scheme: Scheme, ranks: u64, rank: u64) -> Bytes {
    let Model { blocks, features, rows } = *model;
    todo!("count the numbers of a block and of its outputs; a number has 4 bytes")
}
