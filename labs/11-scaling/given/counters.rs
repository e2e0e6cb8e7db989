//! What was counted and timed in a run that is too slow, and the causes that there can be. You do not change this file.

use serde::{Deserialize, Serialize};

/// One rank's sums over all steps of a run.
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
