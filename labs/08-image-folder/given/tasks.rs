//! Passes the grader's inputs to each task's function and its results back. You do not change this file.

use std::time::Duration;

use c10d::ProcessGroup;
use lockstep_exercise::{Task, numbers, tensor};
use tch::nn::{OptimizerConfig, Sgd, VarStore, batch_norm1d, linear};
use tch::{Device, Kind, Tensor};

use crate::best::Best;
use crate::job::{Killed, TwoFileJob};
use crate::plateau::Plateau;

/// Inputs: the head's name, and the layers' names and widths. Results: the answer's count, the variables that a training step has changed,
/// and the buffers that a gradient would be computed for.
pub fn freeze(answer: fn(&VarStore, &str) -> usize) -> Task {
    Task::new("freeze", move |(head, layers): (String, Vec<(String, i64)>)| {
        let vs = VarStore::new(Device::Cpu);
        for (name, width) in &layers {
            let path = name.split('.').fold(vs.root(), |path, part| path / part);
            linear(&path, *width, *width, Default::default());
        }
        batch_norm1d(vs.root() / "norm", 4, Default::default());
        batch_norm1d(vs.root() / &*head / "1", 4, Default::default());
        let is_buffer = |name: &str| name.contains(".running_");
        let count = answer(&vs, &head);
        let trained = vs.variables().into_iter().filter(|(name, tensor)| is_buffer(name) && tensor.requires_grad());
        let mut buffers: Vec<String> = trained.map(|(name, _)| name).collect();
        buffers.sort();
        let before: Vec<(String, Tensor)> =
            vs.variables().into_iter().map(|(name, tensor)| (name, tensor.copy())).collect();
        let loss: Tensor = vs.trainable_variables().iter().map(|tensor| tensor.sum(Kind::Float)).sum();
        if loss.requires_grad() {
            Sgd::default().build(&vs, 0.1)?.backward_step(&loss);
        }
        let after = vs.variables();
        let mut changed: Vec<String> =
            before.into_iter().filter(|(name, tensor)| after[name] != *tensor).map(|(name, _)| name).collect();
        changed.sort();
        Ok((count, changed, buffers))
    })
}

/// Inputs: logits by picture, right classes, ε.
pub fn smoothing(answer: fn(&Tensor, &Tensor, f64) -> Tensor) -> Task {
    Task::new("smoothing", move |(logits, right, epsilon): (Vec<Vec<f64>>, Vec<i64>, f64)| {
        let logits = tensor(&logits.concat()).view([right.len() as i64, -1]);
        numbers(&answer(&logits, &Tensor::from_slice(&right), epsilon))
    })
}

/// Inputs: rate, factor, patience, and the losses of the epochs; `None` stands for NaN. Results: the rate after each epoch.
pub fn plateau(answer: fn(&mut Plateau, f64)) -> Task {
    Task::new("plateau", move |(rate, factor, patience, losses): (f64, f64, u64, Vec<Option<f64>>)| {
        let mut schedule = Plateau { rate, factor, patience, best: f64::INFINITY, bad: 0 };
        let mut step = |loss: Option<f64>| {
            answer(&mut schedule, loss.unwrap_or(f64::NAN));
            schedule.rate
        };
        Ok(losses.into_iter().map(&mut step).collect::<Vec<f64>>())
    })
}

/// The signature of `best`.
type Answer = fn(&ProcessGroup, &mut Option<Best>, u64, u64, u64) -> anyhow::Result<()>;

/// Inputs: the right predictions and the photographs of each epoch and rank. Results: the best epoch after each epoch, and its
/// accuracy; `None` stands for NaN.
pub fn best(answer: Answer) -> Task {
    Task::in_group("best", move |group, epochs: Vec<Vec<(u64, u64)>>| {
        let (mut best, mut kept) = (None, Vec::new());
        for (epoch, ranks) in (0..).zip(epochs) {
            let (right, photographs) = ranks[group.rank().get()];
            answer(group, &mut best, epoch, right, photographs)?;
            wait_for_all(group)?;
            kept.push(best.map(|best: Best| (best.epoch, best.accuracy.is_finite().then_some(best.accuracy))));
        }
        Ok(kept)
    })
}

/// Waits until all ranks have ended the epoch, without a call of the group: no call meets one of another epoch, and a rank that leaves one out
/// is seen where it does.
fn wait_for_all(group: &ProcessGroup) -> anyhow::Result<()> {
    /// Longer than the grader waits for ranks that hang.
    const SILENCE: Duration = Duration::from_secs(600);
    let (store, ranks) = (group.store(), group.size().get() as i64);
    let ended = store.add("best/ended", 1)?;
    let key = format!("best/epoch/{}", (ended - 1) / ranks);
    if ended % ranks == 0 {
        store.set(&key, "")?;
    }
    Ok(store.wait(&[&key], SILENCE)?)
}

/// Inputs: the accuracy of each epoch, and after how many calls each run is killed.
pub fn two_files(answer: fn(&mut TwoFileJob) -> Result<(), Killed>) -> Task {
    Task::new("two_files", move |(accuracies, kills): (Vec<f64>, Vec<u64>)| {
        let mut job = TwoFileJob::new(accuracies);
        for kill in kills.into_iter().map(Some).chain([None]) {
            job.start(kill);
            if answer(&mut job).is_ok() {
                break;
            }
        }
        Ok(job.end())
    })
}
