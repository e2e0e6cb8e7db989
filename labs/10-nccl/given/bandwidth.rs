//! What is measured of a collective. You do not change this file.

use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Collective {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
}

/// One line of a benchmark.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Measured {
    pub collective: Collective,
    pub ranks: usize,
    /// The `count` that each rank passes to NCCL's function.
    pub count: u64,
    /// Bytes of an element.
    pub element: u64,
    /// Of one call, on average.
    pub seconds: f64,
}

/// Gigabytes (10⁹ bytes) a second.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bandwidth {
    /// What the caller gets: bytes of the operation by its time.
    pub algorithm: f64,
    /// What the links carry.
    pub bus: f64,
}
