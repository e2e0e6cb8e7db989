//! Passes the grader's inputs to each task's function and its results back. You do not change this file.

use c10d::ProcessGroup;
use lockstep_exercise::{Task, numbers};
use tch::{Kind, Tensor};

use crate::crop::{Key, Row};
use crate::learning_rate::Recipe;

/// Inputs: a picture, the padding, and the keys (seed, epoch, index) of each rank's crops.
pub fn crop(answer: fn(&[Row], usize, Key) -> Vec<Row>) -> Task {
    type Input = (Vec<Row>, usize, Vec<Vec<(u64, u64, u64)>>);
    Task::in_group("crop", move |group, (picture, padding, keys): Input| {
        let own = keys[group.rank().get()].iter();
        let crop = |&(seed, epoch, index)| answer(&picture, padding, Key { seed, epoch, index });
        Ok(own.map(crop).collect::<Vec<_>>())
    })
}

/// Inputs: the rows of each rank's batch.
pub fn statistics(answer: fn(&ProcessGroup, &Tensor) -> anyhow::Result<(Tensor, Tensor)>) -> Task {
    Task::in_group("statistics", move |group, batches: Vec<Vec<Vec<f64>>>| {
        let own = &batches[group.rank().get()];
        let batch = Tensor::from_slice(&own.concat()).view([own.len() as i64, -1]);
        let (mean, variance) = answer(group, &batch)?;
        Ok([numbers(&mean)?, numbers(&variance)?])
    })
}

/// Inputs: the recipe's rate and batch, a rank's batch, the number of ranks, the steps of the warm-up; and the step.
pub fn learning_rate(answer: fn(Recipe, u64) -> f64) -> Task {
    type Input = ((f64, usize, usize, usize, u64), u64);
    Task::new("learning_rate", move |((rate, batch, batch_of_rank, world_size, warmup), step): Input| {
        let rate = answer(Recipe { rate, batch, batch_of_rank, world_size, warmup }, step);
        Ok(rate.is_finite().then_some(rate))
    })
}

/// Inputs: samples, world size, rank.
pub fn evaluation_shard(answer: fn(usize, usize, usize) -> Vec<usize>) -> Task {
    Task::new("evaluation_shard", move |(samples, world_size, rank)| Ok(answer(samples, world_size, rank)))
}

/// A batch: predicted and right classes.
type Batch<T> = (T, T);

/// Inputs: the batches of each rank.
pub fn accuracy(answer: fn(&ProcessGroup, &[Batch<Tensor>]) -> anyhow::Result<f64>) -> Task {
    Task::in_group("accuracy", move |group, by_rank: Vec<Vec<Batch<Vec<i64>>>>| {
        let classes = |classes: &[i64]| Tensor::from_slice(classes).to_kind(Kind::Int64);
        let own = by_rank[group.rank().get()].iter();
        let batches: Vec<_> = own.map(|(predicted, right)| (classes(predicted), classes(right))).collect();
        let accuracy = answer(group, &batches)?;
        Ok(accuracy.is_finite().then_some(accuracy))
    })
}
