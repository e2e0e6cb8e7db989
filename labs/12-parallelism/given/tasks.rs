//! Passes the grader's inputs to each task's function and its results back. You do not change this file.

use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result};
use c10d::ProcessGroup;
use lockstep::parallel::{Action, Layout};
use lockstep_exercise::{Task, numbers, tensor};
use serde::Serialize;
use tch::Tensor;

use crate::count::count;
use crate::layers::{Seen, Unit, Weight};
use crate::predict_bytes::{Bytes, Model, Scheme};

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

/// What one call of `free_units` returned and took.
#[derive(Serialize)]
struct Sharded {
    gradients: Vec<Vec<f64>>,
    gathers: u64,
    frees: u64,
    reduces: u64,
    freed: [bool; 2],
    bytes: u64,
    most: [u64; 2],
}

type ShardedStep = fn(&[Unit<'_>], &Tensor, &Tensor) -> Result<Vec<Tensor>>;
/// Rows of numbers of each rank.
type OfRanks = Vec<Vec<f64>>;

/// Inputs: the sizes n and f; the numbers of each unit's weight, and of each rank's inputs and targets, row by row.
pub fn free_units(answer: ShardedStep) -> Task {
    Task::in_group(
        "free_units",
        move |group, ([n, f], weights, x, targets): ([i64; 2], Vec<Vec<f64>>, OfRanks, OfRanks)| {
            let seen = Rc::new(Seen::default());
            let unit = |numbers: &Vec<f64>| Unit::new(&tensor(numbers).view([f, f]), group, &seen);
            let units: Vec<_> = weights.iter().map(unit).collect();
            let mine = |ranks: &OfRanks| tensor(&ranks[group.rank().get()]).view([n, f]);
            let traffic = || group.traffic().context("Gloo counts");
            let before = traffic()?;
            let gradients = answer(&units, &mine(&x), &mine(&targets))?;
            let bytes = (traffic()? - before).bytes;
            let gradients = gradients.iter().map(numbers).collect::<Result<_>>()?;
            Ok(Sharded {
                gradients,
                gathers: seen.gathers.get(),
                frees: seen.frees.get(),
                reduces: seen.reduces.get(),
                freed: seen.freed.get(),
                bytes,
                most: seen.most.get(),
            })
        },
    )
}

/// Inputs: the text of a file with a transformer and a cluster. Results: data, tensor, pipeline.
pub fn choose_layout(answer: fn(&Path) -> Result<Option<Layout>>) -> Task {
    Task::new("choose_layout", move |text: String| {
        let file = std::env::current_dir()?.join("cluster.toml");
        std::fs::write(&file, text)?;
        Ok(answer(&file)?.map(|layout| [layout.data, layout.tensor, layout.pipeline]))
    })
}
