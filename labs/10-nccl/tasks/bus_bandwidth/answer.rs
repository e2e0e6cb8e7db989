//! Task 5: bandwidth as nccl-tests counts it.
//!
//! Algorithm bandwidth is the size of the operation by its time. Bus bandwidth is that of the busiest link, which can be compared with what
//! the link can do, whatever the collective and the number of ranks.

use crate::bandwidth::{Bandwidth, Collective, Measured};

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
