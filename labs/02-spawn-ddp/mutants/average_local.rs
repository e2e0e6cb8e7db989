//! Nothing is reduced.

use c10d::ProcessGroup;
use tch::Tensor;

pub fn average(_: &ProcessGroup, _: &mut [Tensor]) -> anyhow::Result<()> {
    Ok(())
}
