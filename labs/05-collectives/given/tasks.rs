//! Passes the grader's inputs to each task's function and its results back. You do not change this file.

use std::collections::HashMap;

use anyhow::Result;
use c10d::ProcessGroup;
use lockstep_exercise::{Task, numbers, tensor};
use serde::Serialize;
use tch::Tensor;

use crate::ring::Ring;

/// Inputs: the losses of each rank's samples.
pub fn mean(answer: fn(&ProcessGroup, &Tensor) -> Result<f64>) -> Task {
    Task::in_group("mean", move |group, by_rank: Vec<Vec<f64>>| answer(group, &tensor(&by_rank[group.rank().get()])))
}

/// A matrix by rows.
#[derive(Serialize)]
struct Matrix {
    size: Vec<i64>,
    numbers: Vec<f64>,
}

/// Inputs: the rows of the whole matrix.
pub fn transpose(answer: fn(&ProcessGroup, &Tensor) -> Result<Tensor>) -> Task {
    Task::in_group("transpose", move |group, rows: Vec<Vec<f64>>| {
        let each = rows.len() / group.size().get();
        let own = &rows[group.rank().get() * each..][..each];
        let block = tensor(&own.concat()).view([i64::try_from(each)?, -1]);
        let transposed = answer(group, &block)?;
        Ok(Matrix { size: transposed.size(), numbers: numbers(&transposed)? })
    })
}

/// The metrics of one rank by name, or their means over all ranks.
type Metrics = HashMap<String, f64>;

/// Inputs: the metrics of each rank.
pub fn same_order(answer: fn(&ProcessGroup, &Metrics) -> Result<Metrics>) -> Task {
    Task::in_group("same_order", move |group, by_rank: Vec<Metrics>| answer(group, &by_rank[group.rank().get()]))
}

/// Inputs: the number of ranks on each node; the numbers of each rank.
pub fn leaders(answer: fn(&ProcessGroup, &[usize], &mut Tensor) -> Result<()>) -> Task {
    Task::in_group("leaders", move |group, (nodes, by_rank): (Vec<usize>, Vec<Vec<f64>>)| {
        let mut tensor = tensor(&by_rank[group.rank().get()]);
        answer(group, &nodes, &mut tensor)?;
        numbers(&tensor)
    })
}

/// A rank's result, and the number of elements that it has sent.
#[derive(Serialize)]
struct Reduced {
    numbers: Vec<f64>,
    sent: usize,
}

/// Inputs: the numbers of each rank.
pub fn ring_all_reduce(answer: fn(&Ring<'_>, &mut Tensor) -> Result<()>) -> Task {
    Task::in_group("ring_all_reduce", move |group, by_rank: Vec<Vec<f64>>| {
        let (ring, mut tensor) = (Ring::new(group), tensor(&by_rank[group.rank().get()]));
        answer(&ring, &mut tensor)?;
        Ok(Reduced { numbers: numbers(&tensor)?, sent: ring.sent() })
    })
}
