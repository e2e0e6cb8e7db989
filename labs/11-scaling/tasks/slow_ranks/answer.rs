//! Task 2: who is slow?
//!
//! The counters come from runs on 4 to 6 ranks that are slower than they could be, for one of three reasons: the program exchanges more
//! than gradients in each step, one rank has a slow loader, or one rank is a straggler. All ranks take the same time for a step, whichever
//! is slow: the fast ones wait for the others in their all-reduce. The network may be slow in any run. The last three runs are real
//! ones of this lab.

use serde::{Deserialize, Serialize};

/// What was counted and timed on one rank, over all steps of a run that is too slow.
#[derive(Clone, Debug, Deserialize)]
pub struct Counters {
    /// Steps.
    pub steps: u64,
    /// Buckets of gradients in a step.
    pub buckets: u64,
    /// Operations that the rank has passed to its group.
    pub calls: u64,
    /// Milliseconds in which the training loop waited for its loader.
    pub data_ms: f64,
    /// Milliseconds of forward pass, backward pass and optimizer.
    pub compute_ms: f64,
    /// Milliseconds in which the rank waited in operations of its group.
    pub exchange_ms: f64,
}

/// Why ranks are slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Cause {
    /// The program exchanges more than gradients in each step, on all ranks.
    Logging,
    /// A rank's loader does not keep up.
    Loader,
    /// A rank computes for longer than the others.
    Straggler,
}

/// Returns the cause, and the slow rank if there is one.
pub fn slow_ranks(ranks: &[Counters]) -> (Cause, Option<usize>) {
    // <answer>
    //~ // The first guess of many: the rank that waits for longest.
    //~ let slowest = (0..ranks.len()).max_by(|a, b| ranks[*a].exchange_ms.total_cmp(&ranks[*b].exchange_ms));
    //~ (Cause::Straggler, slowest)
    let most = |of: fn(&Counters) -> f64| {
        let rank = (0..ranks.len()).max_by(|a, b| of(&ranks[*a]).total_cmp(&of(&ranks[*b]))).unwrap_or(0);
        let least = ranks.iter().map(of).fold(f64::INFINITY, f64::min);
        (of(&ranks[rank]) - least, rank)
    };
    let (data, starved) = most(|rank| rank.data_ms);
    let (compute, straggler) = most(|rank| rank.compute_ms);
    if ranks.iter().any(|rank| rank.calls > rank.steps * rank.buckets) {
        (Cause::Logging, None)
    } else if data > compute {
        (Cause::Loader, Some(starved))
    } else {
        (Cause::Straggler, Some(straggler))
    }
    // </answer>
}
