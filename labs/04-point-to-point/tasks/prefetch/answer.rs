//! Task 3: receive the next batch while computing on this one. Spot the bug.
//!
//! Rank 0 sends batches, and rank 1 computes a number from each. Receiving and computing overlap: rank 1 starts to receive the
//! next batch before it computes on the current one, so that a receive is in progress while it computes. There are more batches than
//! memory: rank 1 has room for two, the one that it computes on and the one that comes.

use anyhow::Result;
use c10d::{ProcessGroup, Rank};
use tch::{Kind, Tensor};

/// Receives `batches` batches of `length` numbers each from rank 0, and returns the result of `compute` for each.
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
    let mut coming = if batches > 0 { Some(receive()?) } else { None };
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
