//! As it is given: the next message is received into the memory of the batch that is computed on.

use anyhow::Result;
use c10d::{ProcessGroup, Rank};
use tch::{Kind, Tensor};

pub fn prefetch(
    group: &ProcessGroup,
    batches: usize,
    length: i64,
    compute: &mut dyn FnMut(&Tensor) -> f64,
) -> Result<Vec<f64>> {
    let buffer = || Tensor::zeros([length], (Kind::Double, group.device()));
    let mut results = Vec::new();
    let mut coming = Some(group.irecv(buffer(), Rank::ZERO, 0)?);
    while let Some(work) = coming.take() {
        let batch = work.wait()?;
        if results.len() + 1 < batches {
            coming = Some(group.irecv(batch.shallow_clone(), Rank::ZERO, 0)?);
        }
        results.push(compute(&batch));
    }
    Ok(results)
}
