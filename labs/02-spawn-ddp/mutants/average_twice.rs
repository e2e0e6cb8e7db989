//! Divided before the sum and after it.

use c10d::{ProcessGroup, ReduceOp};
use tch::Tensor;

pub fn average(group: &ProcessGroup, gradients: &mut [Tensor]) -> anyhow::Result<()> {
    let ranks = group.size().get() as i64;
    for gradient in gradients {
        let _ = gradient.g_div_scalar_(ranks);
        group.all_reduce(gradient, ReduceOp::Sum)?;
        let _ = gradient.g_div_scalar_(ranks);
    }
    Ok(())
}
