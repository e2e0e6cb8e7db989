//! Passes the grader's inputs to each task's function and its results back. You do not change this file.

use std::collections::HashMap;

use anyhow::Result;
use c10d::{Called, ProcessGroup};
use lockstep_exercise::{Task, numbers, tensor};
use serde::Serialize;
use tch::Tensor;

use crate::ring::Ring;

/// Inputs: the losses of each rank's samples.
pub fn mean(answer: fn(&ProcessGroup, &Tensor) -> Result<f64>) -> Task {
    Task::in_group("mean", move |group, by_rank: Vec<Vec<f64>>| answer(group, &tensor(&by_rank[group.rank().get()])))
}

/// A call of the answer: the ranks of the group, and the operation.
#[derive(Serialize)]
struct Call {
    members: Vec<usize>,
    operation: String,
    waited: bool,
}

/// A result, and the calls that it took.
fn called<T>(group: &ProcessGroup, answer: impl FnOnce() -> Result<T>) -> Result<(T, Vec<Call>)> {
    group.record_calls();
    let result = answer()?;
    let call = |called: Called| Call {
        members: called.members.iter().map(|rank| rank.get()).collect(),
        operation: called.call.operation,
        waited: called.waited,
    };
    Ok((result, group.called().into_iter().map(call).collect()))
}

#[derive(Serialize)]
struct Matrix {
    size: Vec<i64>,
    numbers: Vec<f64>,
}

/// Inputs: the rows of the whole matrix. Results with the calls, and the bytes that the rank has passed to them.
pub fn transpose(answer: fn(&ProcessGroup, &Tensor) -> Result<Tensor>) -> Task {
    Task::in_group("transpose", move |group, rows: Vec<Vec<f64>>| {
        let each = rows.len() / group.size().get();
        let own = &rows[group.rank().get() * each..][..each];
        let block = tensor(&own.concat()).view([i64::try_from(each)?, -1]);
        let bytes = || group.traffic().map_or(0, |traffic| traffic.bytes);
        let before = bytes();
        let (transposed, calls) = called(group, || answer(group, &block))?;
        Ok((Matrix { size: transposed.size(), numbers: numbers(&transposed)? }, calls, bytes() - before))
    })
}

/// The metrics of one rank by name, or their means over all ranks.
type Metrics = HashMap<String, f64>;

/// Inputs: the metrics of each rank.
pub fn same_order(answer: fn(&ProcessGroup, &Metrics) -> Result<Metrics>) -> Task {
    Task::in_group("same_order", move |group, by_rank: Vec<Metrics>| {
        let rank = group.rank().get();
        answer(group, &visited_by(by_rank[rank].clone(), rank))
    })
}

/// The same map, in which rank 1 visits any two metrics the other way round than rank 0. Hash maps often have such orders; here they
/// always have.
fn visited_by(metrics: Metrics, rank: usize) -> Metrics {
    if rank > 1 {
        return metrics;
    }
    let mut names: Vec<String> = metrics.keys().cloned().collect();
    names.sort_unstable();
    if rank == 1 {
        names.reverse();
    }
    // Each new map has a different order, one of 720 for six names.
    let redrawn =
        std::iter::repeat_with(|| metrics.iter().map(|(name, value)| (name.clone(), *value)).collect::<Metrics>());
    redrawn.take(100_000).find(|map| map.keys().eq(&names)).unwrap_or(metrics)
}

/// Inputs: the number of ranks on each node; the numbers of each rank. Results with the calls.
pub fn leaders(answer: fn(&ProcessGroup, &[usize], &mut Tensor) -> Result<()>) -> Task {
    Task::in_group("leaders", move |group, (nodes, by_rank): (Vec<usize>, Vec<Vec<f64>>)| {
        let mut tensor = tensor(&by_rank[group.rank().get()]);
        let ((), calls) = called(group, || answer(group, &nodes, &mut tensor))?;
        Ok((numbers(&tensor)?, calls))
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
