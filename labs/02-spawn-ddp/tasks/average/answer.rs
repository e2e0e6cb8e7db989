//! Task 2: what `DistributedDataParallel` does to gradients.
//!
//! After the backward pass, each rank has the gradients of its own samples. The mean over the ranks is the gradient of all
//! samples, so every rank must end with that mean. Here you average one gradient after the other; DDP sends several of them in
//! one bucket while the backward pass still runs.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use tch::Tensor;

/// Replaces each gradient by its mean over all ranks of the group.
pub fn average(group: &ProcessGroup, gradients: &mut [Tensor]) -> Result<()> {
    // <answer>
    //~ // `group.all_reduce(tensor, ReduceOp::Sum)?` leaves the sum on every rank; `group.size().get()` is the number of ranks.
    //~ todo!("average each gradient over all ranks")
    let ranks = group.size().get() as i64;
    for gradient in gradients {
        group.all_reduce(gradient, ReduceOp::Sum)?;
        let _ = gradient.g_div_scalar_(ranks);
    }
    Ok(())
    // </answer>
}
