//! Task 5: bandwidth as nccl-tests counts it.
//!
//! Algorithm bandwidth is the size of the operation by its time. Bus bandwidth is that of the busiest link, which can be compared with what
//! the link can do, whatever the collective and the number of ranks.

use crate::bandwidth::{Bandwidth, Collective, Measured};

/// Returns both bandwidths, in 10⁹ bytes a second.
pub fn bus_bandwidth(measured: &Measured) -> Bandwidth {
    todo!("the size of the operation, then the part of it that crosses each link")
}
