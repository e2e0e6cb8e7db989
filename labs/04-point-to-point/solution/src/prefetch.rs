//! Task 3, spot the bug: the next batch comes while this one is computed on.
//!
//! Rank 0 sends batches, rank 1 computes something of each. So that computing and receiving overlap, rank 1 starts to receive
//! the next batch before it computes on the one that it has.

use anyhow::Result;
use c10d::{ProcessGroup, Rank};
use tch::{Kind, Tensor};

/// Receives `batches` batches of `length` numbers each from rank 0, and gives what `compute` makes of each.
pub fn prefetch(
    group: &ProcessGroup,
    batches: usize,
    length: i64,
    compute: &mut dyn FnMut(&Tensor) -> f64,
) -> Result<Vec<f64>> {
    // <answer>
    //~ let buffer = Tensor::zeros([length], (Kind::Double, group.device()));
    //~ let mut results = Vec::new();
    //~ let mut coming = Some(group.irecv(buffer, Rank::ZERO, 0)?);
    //~ while let Some(work) = coming.take() {
    //~     let batch = work.wait()?;
    //~     if results.len() + 1 < batches {
    //~         coming = Some(group.irecv(batch.shallow_clone(), Rank::ZERO, 0)?);
    //~     }
    //~     results.push(compute(&batch));
    //~ }
    //~ Ok(results)
    let receive = || group.irecv(Tensor::zeros([length], (Kind::Double, group.device())), Rank::ZERO, 0);
    let mut results = Vec::new();
    let mut coming = Some(receive()?);
    while let Some(work) = coming.take() {
        let batch = work.wait()?;
        if results.len() + 1 < batches {
            coming = Some(receive()?);
        }
        results.push(compute(&batch));
    }
    Ok(results)
    // </answer>
}
