//! Passes the grader's inputs to each task's function and its results back. You do not change this file.

use std::ops::Range;

use lockstep_exercise::{Task, numbers, tensor};
use tch::nn::{self, Linear, VarStore};
use tch::{Device, Kind, Tensor};

use crate::mean_loss::{Batch, Report};

/// Inputs: samples, batch size. Results: the start and end of each batch; the end is excluded.
pub fn batches(answer: fn(usize, usize) -> Vec<Range<usize>>) -> Task {
    Task::new("batches", move |(samples, batch_size)| {
        Ok(answer(samples, batch_size).into_iter().map(|batch| (batch.start, batch.end)).collect::<Vec<_>>())
    })
}

/// Inputs: for each batch, the scores and the target of each sample. Results: loss, accuracy.
pub fn mean_loss(answer: fn(&[Batch]) -> Report) -> Task {
    Task::new("mean_loss", move |batches: Vec<Vec<(Vec<f64>, i64)>>| {
        let batch = |samples: Vec<(Vec<f64>, i64)>| {
            let (scores, targets): (Vec<Vec<f64>>, Vec<i64>) = samples.into_iter().unzip();
            let rows: Vec<Tensor> = scores.iter().map(|row| tensor(row)).collect();
            Batch { scores: Tensor::stack(&rows, 0).to_kind(Kind::Float), targets: Tensor::from_slice(&targets) }
        };
        let batches: Vec<Batch> = batches.into_iter().map(batch).collect();
        let Report { loss, accuracy } = answer(&batches);
        Ok([loss, accuracy])
    })
}

/// Inputs: the number of epochs, the number of epochs between two checkpoints.
pub fn checkpoints(answer: fn(u64, u64) -> Vec<u64>) -> Task {
    Task::new("checkpoints", move |(total_epochs, save_every)| Ok(answer(total_epochs, save_every)))
}

/// The signature of `learns`.
type Training = fn(&VarStore, &Linear, &Tensor, &Tensor, usize) -> anyhow::Result<Vec<f64>>;

/// Inputs: the inputs and the target of each sample; the number of steps. Results: weights and bias before and after the
/// training, the last gradients, the losses.
pub fn learns(answer: Training) -> Task {
    Task::new("learns", move |(samples, steps): (Vec<(Vec<f64>, f64)>, usize)| {
        let (inputs, targets): (Vec<Vec<f64>>, Vec<f64>) = samples.into_iter().unzip();
        let rows: Vec<Tensor> = inputs.iter().map(|row| tensor(row)).collect();
        let inputs = Tensor::stack(&rows, 0).to_kind(Kind::Float);
        let targets = tensor(&targets).to_kind(Kind::Float).unsqueeze(1);
        tch::manual_seed(0);
        let vs = VarStore::new(Device::Cpu);
        let layer = nn::linear(vs.root(), inputs.size()[1], 1, Default::default());
        let before = weights(&layer)?;
        let losses = answer(&vs, &layer, &inputs, &targets, steps)?;
        Ok((before, weights(&layer)?, gradients(&layer)?, losses))
    })
}

/// The weights of a layer with one output, followed by its bias.
fn weights(layer: &Linear) -> anyhow::Result<Vec<f64>> {
    let bias = layer.bs.as_ref().map(numbers).transpose()?.unwrap_or_default();
    Ok([numbers(&layer.ws)?, bias].concat())
}

fn gradients(layer: &Linear) -> anyhow::Result<Vec<f64>> {
    let gradient = layer.ws.grad();
    if gradient.defined() { numbers(&gradient) } else { Ok(Vec::new()) }
}
