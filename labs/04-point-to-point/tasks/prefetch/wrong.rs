//! Answers to `prefetch`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{ProcessGroup, Rank};
use lockstep_answers::{edit, given};
use tch::{Kind, Tensor};

/// The given program: receives the next message into the memory that `compute` reads.
#[given]
pub fn one_buffer() {}

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

/// Fixes the bug but loses the overlap: no receive is in progress during the computation.
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

/// Receives all batches, then computes.
pub fn all_before(
    group: &ProcessGroup,
    batches: usize,
    length: i64,
    compute: &mut dyn FnMut(&Tensor) -> f64,
) -> Result<Vec<f64>> {
    let receive = || {
        let mut batch = Tensor::zeros([length], (Kind::Double, group.device()));
        group.recv(&mut batch, Rank::ZERO, 0)?;
        anyhow::Ok(batch)
    };
    let all: Vec<Tensor> = (0..batches).map(|_| receive()).collect::<Result<_>>()?;
    Ok(all.iter().map(compute).collect())
}

/// Starts all receives before it computes on the first batch.
pub fn all_started(
    group: &ProcessGroup,
    batches: usize,
    length: i64,
    compute: &mut dyn FnMut(&Tensor) -> f64,
) -> Result<Vec<f64>> {
    let buffer = || Tensor::zeros([length], (Kind::Double, group.device()));
    let coming = (0..batches).map(|_| group.irecv(buffer(), Rank::ZERO, 0)).collect::<Result<Vec<_>, _>>()?;
    coming.into_iter().map(|work| Ok(compute(&work.wait()?))).collect()
}

/// Right: computes on a copy, while the next batch comes into the buffer.
#[given]
#[edit(let batch = work.wait()?; => let buffer = work.wait()?; let batch = buffer.copy();)]
#[edit(batch.shallow_clone() => buffer)]
pub fn copies() {}

/// Right: alternates between two buffers, one to compute on and one to receive into.
#[given]
#[edit(let mut results => let mut spare = buffer.zeros_like(); let mut results)]
#[edit(batch.shallow_clone() => spare)]
#[edit(results.push(compute(&batch)); => results.push(compute(&batch)); spare = batch;)]
pub fn two_buffers() {}

/// Copies the batch after the next receive was started.
#[given]
#[edit(compute(&batch) => compute(&batch.copy()))]
pub fn copies_late() {}

/// Starts a receive after the last batch.
pub fn one_too_many(
    group: &ProcessGroup,
    batches: usize,
    length: i64,
    compute: &mut dyn FnMut(&Tensor) -> f64,
) -> Result<Vec<f64>> {
    let receive = || group.irecv(Tensor::zeros([length], (Kind::Double, group.device())), Rank::ZERO, 0);
    let mut results = Vec::new();
    let mut coming = receive()?;
    for _ in 0..batches {
        let batch = coming.wait()?;
        coming = receive()?;
        results.push(compute(&batch));
    }
    Ok(results)
}

/// Starts a receive after the last batch, and waits for it.
#[edit(if results.len() + 1 < batches { coming = Some(receive()?); } results.push(compute(&batch)); => coming = Some(receive()?); results.push(compute(&batch));)]
pub fn waits_for_one_more() {}

/// Waits for the next batch before it computes on this one.
pub fn waits_before(
    group: &ProcessGroup,
    batches: usize,
    length: i64,
    compute: &mut dyn FnMut(&Tensor) -> f64,
) -> Result<Vec<f64>> {
    let receive = || group.irecv(Tensor::zeros([length], (Kind::Double, group.device())), Rank::ZERO, 0);
    let mut results = Vec::new();
    let mut batch = receive()?.wait()?;
    for number in 0..batches {
        let next = if number + 1 < batches { Some(receive()?.wait()?) } else { None };
        results.push(compute(&batch));
        if let Some(next) = next {
            batch = next;
        }
    }
    Ok(results)
}

/// Sums up the batches without `compute`.
#[edit(results.push(compute(&batch)) => results.push(batch.sum(Kind::Double).double_value(&[])))]
pub fn without_compute() {}

/// Calls `compute` twice.
#[edit(results.push(compute(&batch)) => results.push((compute(&batch) + compute(&batch)) / 2.0))]
pub fn computes_twice() {}
