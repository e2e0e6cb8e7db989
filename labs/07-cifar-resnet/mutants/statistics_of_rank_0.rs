//! Rank 0's, broadcast, as DDP does with buffers.

use c10d::{ProcessGroup, Rank};
use tch::{Kind, Tensor};

pub fn statistics(group: &ProcessGroup, batch: &Tensor) -> anyhow::Result<(Tensor, Tensor)> {
    let (mut mean, mut variance) = (batch.mean_dim(0, false, Kind::Double), batch.var_dim(0, false, false));
    group.broadcast(&mut mean, Rank::ZERO)?;
    group.broadcast(&mut variance, Rank::ZERO)?;
    Ok((mean, variance))
}
