//! The buffer is read between irecv and wait.

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
    for _ in 0..batches {
        let buffer = buffer();
        let work = group.irecv(buffer.shallow_clone(), Rank::ZERO, 0)?;
        results.push(compute(&buffer));
        drop(work.wait()?);
    }
    Ok(results)
}
