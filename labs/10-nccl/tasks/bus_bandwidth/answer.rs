//! Task 5: bandwidth as nccl-tests counts it.
//!
//! Algorithm bandwidth is the size of the operation divided by its time. Bus bandwidth is the bandwidth of the busiest link, which can be compared
//! with what the link can do, whatever the collective and the number of ranks.

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
    /// Seconds of one call, on average.
    pub seconds: f64,
}

/// Gigabytes (10⁹ bytes) a second.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bandwidth {
    /// What the caller gets: the operation's bytes divided by its time.
    pub algorithm: f64,
    /// What the links carry.
    pub bus: f64,
}

/// Returns both bandwidths, in 10⁹ bytes a second.
pub fn bus_bandwidth(measured: &Measured) -> Bandwidth {
    // <answer>
    //~ todo!("the size of the operation, then the part of it that crosses each link")
    let Measured { collective, ranks, count, element, seconds } = *measured;
    let n = ranks as f64;
    let one = (count * element) as f64;
    let (size, factor) = match collective {
        Collective::AllReduce => (one, 2.0 * (n - 1.0) / n),
        Collective::ReduceScatter | Collective::AllGather => (n * one, (n - 1.0) / n),
        Collective::Broadcast => (one, 1.0),
    };
    let algorithm = size / seconds / 1e9;
    Bandwidth { algorithm, bus: algorithm * factor }
    // </answer>
}
