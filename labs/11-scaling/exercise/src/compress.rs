//! Task 5: half the bytes.
//!
//! A communication hook changes how a gradient is sent. The simplest sends half precision: 2 bytes for each number, with 11 bits
//! of mantissa, and nothing above 65504. The result must be a gradient again: `Float`, and the mean over all ranks.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use tch::{Kind, Tensor};

/// Returns the mean of `gradient` (`Float [n]`) over two to four ranks, as `Float`, and leaves `gradient` as it is. Passes 2·n bytes to the
/// group, in one operation. A gradient may have numbers as large as 60000 next to others as small as 0.0005: neither may lose more bits than
/// half precision costs.
pub fn compress(group: &ProcessGroup, gradient: &Tensor) -> Result<Tensor> {
    // This sends 4 bytes for each number. `gradient.to_kind(Kind::Half)` has 2.
    let mut sum = gradient.copy();
    group.all_reduce(&mut sum, ReduceOp::Sum)?;
    Ok(sum / group.size().get() as f64)
}
