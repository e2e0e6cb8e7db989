//! Task 2: who is slow?
//!
//! The counters are those of runs on 4 to 6 ranks that are slower than they could be, of three kinds of program: one exchanges more than
//! gradients in each step, one has a loader that starves on one rank, one has a straggler. All ranks take the same time for a step,
//! whoever is to blame: those that are fast wait for the others in their all-reduce. The network may be slow in any of them. The last three
//! runs are real ones of this lab.

use crate::counters::{Cause, Counters};

/// Names the cause, and the rank if there is one to blame.
pub fn slow_ranks(ranks: &[Counters]) -> (Cause, Option<usize>) {
    // The first guess of many: the rank that waits for longest.
    let slowest = (0..ranks.len()).max_by(|a, b| ranks[*a].exchange_ms.total_cmp(&ranks[*b].exchange_ms));
    (Cause::Straggler, slowest)
}
