//! Passes the grader's inputs to each task's function and its results back. You do not change this file.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Context, Result};
use c10d::{GroupOptions, ProcessGroup, Rank};
use lockstep::broadcast_object;
use lockstep::parallel::context::zigzag;
use lockstep_exercise::{Task, numbers, tensor};
use serde::{Deserialize, Serialize};
use tch::{Kind, Tensor};

use crate::accumulating::{Batch as Micro, Model};
use crate::mixture::{Mixture, Routed, Used};
use crate::norm::Gradient;
use crate::resumable::{Batch, Run, Settings, Simulated, Snapshot};
use crate::ring::Ring;
use crate::speed::{Sizes, Speed, StepTimes};

/// A training and its starts: where gradients overflow, the number of ranks, and the batches until the stop.
#[derive(Deserialize)]
struct Starts {
    #[serde(flatten)]
    settings: Settings,
    loud: Vec<(u64, usize, f64)>,
    starts: Vec<(usize, Option<usize>)>,
}

/// This rank's batches in each start, each epoch's order, and the learning rate after each number of steps.
#[derive(Default, Serialize)]
struct Done {
    starts: Vec<Vec<Batch>>,
    orders: Vec<Vec<usize>>,
    rates: Vec<f64>,
}

/// Inputs: a training and its starts, each on the first ranks. Results: what was trained in each.
pub fn resume(answer: fn(&mut Run) -> Result<()>) -> Task {
    Task::in_group("resume", move |group, Starts { settings, loud, starts }: Starts| {
        let (mut last, mut done) = (Snapshot::default(), Done::default());
        for (ranks, until_stop) in starts {
            let members: Vec<Rank> = (0..ranks).map(Rank::new).collect();
            let mut batches = Vec::new();
            if let Some(part) = group.new_group(&members, &GroupOptions::default())? {
                // As the job's group, it lives until the process ends: others may wait for this rank, and must not lose it as a peer.
                let part = Box::leak(Box::new(part));
                let passes = Rc::new(RefCell::new(Simulated::new(settings, part, &loud, &last, until_stop)));
                let mut run = Run::new(settings, part, last.numbers.clone(), passes.clone());
                let ended = answer(&mut run);
                if !passes.borrow().was_stopped() {
                    ended?;
                }
                done.orders = (0..settings.epochs).map(|epoch| run.order(epoch)).collect();
                done.rates = (0..=settings.batches()).map(|steps| run.learning_rate(steps)).collect();
                (last, batches) = passes.borrow().end();
            }
            last = broadcast_object(group, group.rank().is_zero().then_some(&last))?;
            done.starts.push(batches);
        }
        Ok(done)
    })
}

/// A run: the model, the peak of a rank, and each rank's steps.
#[derive(Deserialize)]
struct Measured {
    sizes: Sizes,
    peak: f64,
    ranks: Vec<Vec<StepTimes>>,
}

/// Inputs: a run. Results: how fast it was.
pub fn speed(answer: fn(&Sizes, f64, &[Vec<StepTimes>]) -> Speed) -> Task {
    Task::new("speed", move |Measured { sizes, peak, ranks }: Measured| Ok(answer(&sizes, peak, &ranks)))
}

/// A stream, and the rank that asks for its windows.
#[derive(Deserialize)]
struct Share {
    stream: Vec<u32>,
    window: usize,
    rank: usize,
    ranks: usize,
    done: usize,
}

/// Inputs and targets of windows.
type Windows = Vec<(Vec<u32>, Vec<u32>)>;

/// Inputs: a stream, and a rank. Results: the rank's windows.
pub fn windows(answer: fn(&[u32], usize, usize, usize, usize) -> Windows) -> Task {
    Task::new("windows", move |Share { stream, window, rank, ranks, done }: Share| {
        Ok(answer(&stream, window, rank, ranks, done))
    })
}

/// The weights of a model that predicts a token from three numbers, and each rank's micro-batches.
#[derive(Deserialize)]
struct Accumulated {
    weights: Vec<[f64; 3]>,
    ranks: Vec<Vec<Tokens>>,
}

/// A micro-batch.
#[derive(Deserialize)]
struct Tokens {
    inputs: Vec<[f64; 3]>,
    targets: Vec<i64>,
}

/// The mean loss, the gradient, how often it was exchanged, and how many operations the group had.
#[derive(Serialize)]
struct Passed {
    mean: f64,
    gradient: Vec<f64>,
    exchanges: u64,
    calls: u64,
}

/// Inputs: a model, and each rank's micro-batches. Results: what this rank has after the passes.
pub fn token_mean(answer: fn(&Model<'_>, &[Micro]) -> Result<f64>) -> Task {
    Task::in_group("token_mean", move |group, Accumulated { weights, ranks }: Accumulated| {
        let rows = |rows: &[[f64; 3]]| Tensor::from_slice(&rows.concat()).view([-1, 3]);
        let weights = rows(&weights).set_requires_grad(true);
        let params = vec![("weights".to_owned(), weights.shallow_clone())];
        let model = Model::new(group, params, Box::new(|inputs| (inputs.matmul(&weights.tr()), None)));
        let micro = |of: &Tokens| Micro::new(rows(&of.inputs), Tensor::from_slice(&of.targets));
        let batches: Vec<Micro> = ranks[group.rank().get()].iter().map(micro).collect();
        let before = calls(group)?;
        let mean = answer(&model, &batches)?;
        Ok(Passed { mean, gradient: gradient(&weights)?, exchanges: model.exchanges(), calls: calls(group)? - before })
    })
}

fn calls(group: &ProcessGroup) -> Result<u64> {
    Ok(group.traffic().context("Gloo counts")?.calls)
}

/// The limit, and each rank's gradients.
#[derive(Deserialize)]
struct Clipped {
    max_norm: f64,
    ranks: Vec<Vec<(Vec<f64>, bool)>>,
}

/// The norm, the gradients' numbers after clipping, and how many operations the group had.
#[derive(Serialize)]
struct Norm {
    norm: f64,
    values: Vec<Vec<f64>>,
    calls: u64,
}

/// Inputs: a limit, and each rank's gradients. Results: what this rank has after clipping.
pub fn norm(answer: fn(&ProcessGroup, &mut [Gradient], f64) -> Result<f64>) -> Task {
    Task::in_group("norm", move |group, Clipped { max_norm, ranks }: Clipped| {
        let gradient =
            |(values, divided): &(Vec<f64>, bool)| Gradient { values: tensor(values).unsqueeze(0), divided: *divided };
        let mut gradients: Vec<Gradient> = ranks[group.rank().get()].iter().map(gradient).collect();
        let before = calls(group)?;
        let norm = answer(group, &mut gradients, max_norm)?;
        let calls = calls(group)? - before;
        let values = gradients.iter().map(|gradient| numbers(&gradient.values));
        Ok(Norm { norm, values: values.collect::<Result<_>>()?, calls })
    })
}

/// Four numbers for each position.
type Positions = Vec<[f64; 4]>;

/// A sequence, and the gradient of its result.
#[derive(Deserialize)]
struct Divided {
    queries: Positions,
    keys: Positions,
    values: Positions,
    pull: Positions,
}

/// This rank's result and gradients, how often it has sent, and how many pairs it has computed.
#[derive(Serialize)]
struct Attended {
    output: Vec<f64>,
    queries: Vec<f64>,
    keys: Vec<f64>,
    values: Vec<f64>,
    shifts: u64,
    pairs: i64,
}

/// Inputs: a sequence. Results: what this rank has after both passes.
pub fn ring_attention(answer: fn(&Ring<'_>, &Tensor, &Tensor, &Tensor) -> Result<Tensor>) -> Task {
    Task::in_group("ring_attention", move |group, Divided { queries, keys, values, pull }: Divided| {
        let mine = |whole: Positions| zigzag(group, &Tensor::from_slice(&whole.concat()).view([-1, 4]), 0);
        let own = [mine(queries)?, mine(keys)?, mine(values)?].map(|own| own.set_requires_grad(true));
        let [queries, keys, values] = &own;
        let ring = Ring::new(group);
        let output = answer(&ring, queries, keys, values)?;
        let (shifts, pairs) = ring.end();
        let pull = mine(pull)?;
        if output.size() == pull.size() && output.requires_grad() {
            c10d::backward_over(group, &(&output * pull).sum(Kind::Double))?;
        }
        let [queries, keys, values] = [gradient(queries)?, gradient(keys)?, gradient(values)?];
        Ok(Attended { output: doubles(&output)?, queries, keys, values, shifts, pairs })
    })
}

fn doubles(tensor: &Tensor) -> Result<Vec<f64>> {
    Ok(tensor.detach().to_kind(Kind::Double).flatten(0, -1).try_into()?)
}

/// No numbers, if the tensor has no gradient.
fn gradient(of: &Tensor) -> Result<Vec<f64>> {
    numbers_of(&of.grad())
}

fn numbers_of(gradient: &Tensor) -> Result<Vec<f64>> {
    if gradient.defined() { doubles(gradient) } else { Ok(Vec::new()) }
}

/// Six numbers for each token.
type Rows = Vec<[f64; 6]>;

/// Each rank's tokens and the gradients of their outputs; the layer, and what its balancing loss counts.
#[derive(Deserialize)]
struct Layer {
    tokens: Vec<Rows>,
    pull: Vec<Rows>,
    router: Rows,
    experts: Vec<Rows>,
    limit: usize,
    balance: f64,
}

/// What this rank has after both passes: outputs, gradients, and what it did.
#[derive(Serialize)]
struct Passages {
    output: Vec<f64>,
    dropped: usize,
    balance: f64,
    tokens: Vec<f64>,
    router: Vec<f64>,
    experts: Vec<Vec<f64>>,
    used: Used,
}

/// Inputs: a layer and each rank's tokens. Results: what this rank has after both passes.
pub fn experts(answer: fn(&Mixture<'_>, &Tensor) -> Result<Routed>) -> Task {
    Task::in_group("experts", move |group, layer: Layer| {
        let rows = |rows: &[[f64; 6]]| Tensor::from_slice(&rows.concat()).view([-1, 6]);
        let learns = |rows: Tensor| rows.set_requires_grad(true);
        let (rank, each) = (group.rank().get(), layer.experts.len() / group.size().get());
        let own = layer.experts[rank * each..(rank + 1) * each].iter().map(|expert| learns(rows(expert)));
        let mixture = Mixture::new(group, learns(rows(&layer.router)), own.collect(), layer.limit);
        let tokens = learns(rows(&layer.tokens[rank]));
        let Routed { output, dropped, balance } = answer(&mixture, &tokens)?;
        let pull = rows(&layer.pull[rank]);
        if output.size() == pull.size() {
            let loss = (&output * pull).sum(Kind::Double) + &balance * layer.balance;
            c10d::backward_over(group, &loss)?;
        }
        let (used, gradients) = mixture.end();
        let mut gradients = gradients.iter().map(numbers_of);
        Ok(Passages {
            output: doubles(&output)?,
            dropped,
            balance: balance.double_value(&[]),
            tokens: gradient(&tokens)?,
            router: gradients.next().transpose()?.unwrap_or_default(),
            experts: gradients.collect::<Result<_>>()?,
            used,
        })
    })
}
