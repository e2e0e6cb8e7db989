//! Answers to `prefetch`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{ProcessGroup, Rank};
use tch::{Kind, Tensor};

/// The given program: receives the next message into the memory that `compute` reads.
pub fn one_buffer(
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

/// Reads the buffer between `irecv` and `wait`.
pub fn before_wait(
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

/// Fixes the bug but gives up the overlap: no receive is in progress during the computation.
pub fn serial(
    group: &ProcessGroup,
    batches: usize,
    length: i64,
    compute: &mut dyn FnMut(&Tensor) -> f64,
) -> Result<Vec<f64>> {
    let buffer = || Tensor::zeros([length], (Kind::Double, group.device()));
    let mut batch = buffer();
    let mut results = Vec::new();
    for _ in 0..batches {
        batch = group.irecv(batch, Rank::ZERO, 0)?.wait()?;
        results.push(compute(&batch));
    }
    Ok(results)
}

/// Right: alternates between two buffers, one to compute on and one to receive into.
pub fn two_buffers(
    group: &ProcessGroup,
    batches: usize,
    length: i64,
    compute: &mut dyn FnMut(&Tensor) -> f64,
) -> Result<Vec<f64>> {
    let buffer = || Tensor::zeros([length], (Kind::Double, group.device()));
    let mut spare = buffer();
    let mut results = Vec::new();
    let mut coming = Some(group.irecv(buffer(), Rank::ZERO, 0)?);
    while let Some(work) = coming.take() {
        let batch = work.wait()?;
        if results.len() + 1 < batches {
            coming = Some(group.irecv(spare, Rank::ZERO, 0)?);
        }
        results.push(compute(&batch));
        spare = batch;
    }
    Ok(results)
}
