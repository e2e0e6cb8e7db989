//! Passes the grader's inputs to each task's function and its results back. You do not change this file.

use std::rc::Rc;

use anyhow::{Context, Result};
use c10d::ProcessGroup;
use lockstep::parallel::{Action, Cluster, Job, Layout, Link};
use lockstep_exercise::{Task, numbers, tensor};
use serde::Serialize;
use tch::Tensor;

use crate::count::count;
use crate::division::{Bytes, Model, Scheme};
use crate::layer::Weight;

/// What one call of `column_row` returned and took.
#[derive(Serialize)]
struct Divided {
    outputs: Vec<f64>,
    /// Numbers of each weight.
    taken: [i64; 2],
    calls: u64,
    bytes: u64,
}

type Answer = fn(&ProcessGroup, &Tensor, &Weight, &Weight) -> Result<Tensor>;

/// Inputs: the sizes n, f and h; the numbers of x and of both weights, row by row.
pub fn column_row(answer: Answer) -> Task {
    type Inputs = ([i64; 3], Vec<f64>, Vec<f64>, Vec<f64>);
    Task::in_group("column_row", move |group, ([n, f, h], x, first, second): Inputs| {
        let (x, first, second) = (tensor(&x).view([n, f]), tensor(&first).view([h, f]), tensor(&second).view([f, h]));
        let (first, second) = (Weight::new(first), Weight::new(second));
        let traffic = || group.traffic().context("Gloo counts");
        let before = traffic()?;
        let outputs = answer(group, &x, &first, &second)?;
        let sent = traffic()? - before;
        let taken = [first.taken(), second.taken()];
        Ok(Divided { outputs: numbers(&outputs)?, taken, calls: sent.calls, bytes: sent.bytes })
    })
}

/// What each stage does.
type Table = Vec<Vec<Action>>;

/// Inputs: stages and micro-batches. Results: the table, as `F0` and `B0`, and the bubble.
pub fn fill_pipeline(answer: fn(usize, usize) -> Result<(Table, f64)>) -> Task {
    Task::new("fill_pipeline", move |(stages, micro_batches): (usize, usize)| {
        let (table, bubble) = answer(stages, micro_batches)?;
        let text = |actions: Vec<Action>| actions.iter().map(Action::to_string).collect::<Vec<_>>();
        Ok((table.into_iter().map(text).collect::<Vec<_>>(), bubble))
    })
}

/// Inputs: the model and the scheme. Results: what was predicted for this rank, and what was then counted.
pub fn predict_bytes(answer: fn(&Model, Scheme, u64, u64) -> Bytes) -> Task {
    Task::in_group("predict_bytes", move |group, (model, scheme): (Model, Scheme)| {
        let predicted = answer(&model, scheme, group.size().get() as u64, group.rank().get() as u64);
        let all: Vec<_> = group.size().ranks().collect();
        let own = group.new_group(&all, group.options())?.context("every rank is a member")?;
        Ok((predicted, count(&Rc::new(own), scheme, model)?))
    })
}

/// Inputs: a job's blocks, heads and micro-batches, a cluster's nodes and ranks on each; the job's parameters, activations, kept bytes and
/// seconds, and a rank's memory; latency and bandwidth of both links. Results: data, tensor, pipeline.
pub fn choose_layout(answer: fn(&Job, &Cluster) -> Option<Layout>) -> Task {
    type Inputs = ([usize; 5], [f64; 5], [[f64; 2]; 2]);
    Task::new("choose_layout", move |(whole, numbers, links): Inputs| {
        let [blocks, heads, micro_batches, nodes, per_node] = whole;
        let [parameters, activations, kept, compute, memory] = numbers;
        let [inside, between] = links.map(|[latency, bandwidth]| Link { latency, bandwidth });
        let job = Job { blocks, heads, parameters, activations, kept, compute, micro_batches };
        let layout = answer(&job, &Cluster { nodes, per_node, memory, inside, between });
        Ok(layout.map(|layout| [layout.data, layout.tensor, layout.pipeline]))
    })
}
