//! Passes the grader's inputs to each task's function and its results back. You do not change this file.

use std::sync::PoisonError;

use anyhow::{Context, Result};
use c10d::{GroupOptions, ProcessGroup, Rank, Traffic};
use lockstep_exercise::{Task, numbers, tensor};
use serde::Serialize;
use tch::{Kind, Tensor};

use crate::alpha_beta::{Measured, Plan};
use crate::power_sgd::Memory;
use crate::slow_ranks::{Cause, Counters};
use crate::speed_up::SpeedUp;
use crate::training::{self, Model, Observed, Reading, Recipe, Seen};

/// A result, and the operations and bytes that it took.
#[derive(Serialize)]
struct Counted<T> {
    result: T,
    calls: u64,
    bytes: u64,
}

fn counted<T>(group: &ProcessGroup, run: impl FnOnce() -> Result<T>) -> Result<Counted<T>> {
    let traffic = || group.traffic().context("Gloo counts");
    let before = traffic()?;
    let result = run()?;
    let Traffic { calls, bytes } = traffic()? - before;
    Ok(Counted { result, calls, bytes })
}

/// The number of a new group, which counts all groups before it. Only rank 0 is a member and knows it, other ranks return 0.
fn next_group(group: &ProcessGroup) -> Result<u64> {
    let probe = group.new_group(&[Rank::new(0)], &GroupOptions::default())?;
    probe.map_or(Ok(0), |probe| probe.name().parse().context("a group's name is its number"))
}

/// Inputs: times, gradients and backward pass. Results: α, β and the bucket.
pub fn alpha_beta(answer: fn(&Measured) -> Result<Plan>) -> Task {
    Task::new("alpha_beta", move |measured| answer(&measured))
}

/// Inputs: the counters of all ranks. Results: the cause, and the rank.
pub fn slow_ranks(answer: fn(&[Counters]) -> (Cause, Option<usize>)) -> Task {
    Task::new("slow_ranks", move |ranks: Vec<Counters>| Ok(answer(&ranks)))
}

/// Inputs: each rank's losses, and the steps of a line. Results: the log and the number of groups that the answer has made, counted.
pub fn log_loss(answer: fn(&ProcessGroup, &[f64], usize) -> Result<Vec<f64>>) -> Task {
    Task::in_group("log_loss", move |group, (losses, every): (Vec<Vec<f64>>, usize)| {
        let before = next_group(group)?;
        let done = counted(group, || answer(group, &losses[group.rank().get()], every))?;
        let made = next_group(group)?.saturating_sub(before + 1);
        Ok(Counted { result: (done.result, made), calls: done.calls, bytes: done.bytes })
    })
}

/// Inputs and targets.
type Batch = (Tensor, Tensor);
/// Rows of numbers.
type Matrix = Vec<Vec<f64>>;
/// A rank's micro-batches: rows of inputs, and targets.
type Micro = Vec<(Matrix, Vec<f64>)>;

fn matrix(rows: &Matrix) -> Tensor {
    tensor(&rows.concat()).view([rows.len() as i64, -1])
}

/// Inputs: each rank's micro-batches. Results: the gradient, and the most passes and samples at a time, counted.
pub fn accumulate(answer: fn(&Model, &[Batch]) -> Result<()>) -> Task {
    Task::in_group("accumulate", move |group, ranks: Vec<Micro>| {
        let pair = |(rows, targets): &(Matrix, Vec<f64>)| (matrix(rows), tensor(targets));
        let micro: Vec<Batch> = ranks[group.rank().get()].iter().map(pair).collect();
        let Observed { model, weight, seen } = Observed::new(group)?;
        let done = counted(model.group(), || answer(&model, &micro))?;
        let gradient = if weight.grad().defined() { numbers(&weight.grad())? } else { Vec::new() };
        let Seen { most_passes, most_samples, .. } = *seen.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Counted { result: (gradient, most_passes, most_samples), calls: done.calls, bytes: done.bytes })
    })
}

/// Inputs: each rank's gradient. Results: the mean and its kind, counted.
pub fn compress(answer: fn(&ProcessGroup, &Tensor) -> Result<Tensor>) -> Task {
    Task::in_group("compress", move |group, gradients: Vec<Vec<f64>>| {
        let gradient = tensor(&gradients[group.rank().get()]).to_kind(Kind::Float);
        let before = gradient.copy();
        counted(group, || {
            let mean = answer(group, &gradient)?;
            Ok((numbers(&mean)?, format!("{:?}", mean.kind()), gradient.equal(&before)))
        })
    })
}

/// Inputs: the first right matrix, and each rank's gradient in each step. Results: each step's result and the part that it leaves out,
/// counted.
pub fn power_sgd(answer: fn(&ProcessGroup, &Tensor, &mut Memory) -> Result<(Tensor, f64)>) -> Task {
    Task::in_group("power_sgd", move |group, (right, steps): (Matrix, Vec<Vec<Matrix>>)| {
        let gradients: Vec<Tensor> = steps.iter().map(|ranks| matrix(&ranks[group.rank().get()])).collect();
        let mut memory = Memory { right: matrix(&right), lost: gradients[0].zeros_like() };
        counted(group, || {
            let step = |gradient| {
                let (result, part) = answer(group, gradient, &mut memory)?;
                Ok((numbers(&result)?, part))
            };
            gradients.iter().map(step).collect::<Result<Vec<_>>>()
        })
    })
}

/// Inputs: a recipe and each rank's samples. Results: the rate of each step, and the last loss.
pub fn large_batch(answer: fn(&Recipe, u64) -> f64) -> Task {
    Task::in_group("large_batch", move |group, (recipe, samples): (Recipe, Vec<Vec<f64>>)| {
        let samples = &samples[group.rank().get()];
        let steps = samples.len().div_ceil(recipe.batch_of_a_rank) as u64;
        let rates: Vec<f64> = (0..steps).map(|step| answer(&recipe, step)).collect();
        Ok((rates, [training::train(group, &recipe, samples, |step| answer(&recipe, step))?]))
    })
}

/// A number of ranks, and seconds.
type Time = (usize, f64);

/// Inputs: times by number of ranks, and a number of ranks. Results: what follows.
pub fn speed_up(answer: fn(&[Time], usize) -> Result<SpeedUp>) -> Task {
    Task::new("speed_up", move |(times, ranks): (Vec<Time>, usize)| answer(&times, ranks))
}

/// Inputs: a trace's text. Results: what it shows.
pub fn read_trace(answer: fn(&str) -> Result<Reading>) -> Task {
    Task::new("read_trace", move |json: String| answer(&json))
}
