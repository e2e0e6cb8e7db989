//! The data, points of the plane on three spirals, which are computed; a network that finds the spiral of each; the loss.

use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use lockstep::data::{Batch, Dataset};
use lockstep::loss::CrossEntropy;
use lockstep::metrics::Evaluation;
use lockstep::models::RunUnit;
use lockstep::optim::SgdOptions;
use tch::nn::{ModuleT, Path, SequentialT, linear, seq_t};
use tch::{Kind, Tensor};

pub(crate) const EPOCHS: u64 = 20;
pub(crate) const BATCH_SIZE: &str = "32";
pub(crate) const LR: f64 = 0.05;

/// The number of spirals.
const CLASSES: i64 = 3;

/// Where the data is; computed points need no place.
#[derive(clap::Args)]
pub(crate) struct DataArgs {}

pub(crate) struct Data {
    pub(crate) train: Arc<dyn Dataset>,
    pub(crate) test: Arc<dyn Dataset>,
}

impl Data {
    pub(crate) fn load(_args: &DataArgs, _seed: u64) -> Result<Self> {
        Ok(Data { train: Arc::new(Spirals::new(0..900)), test: Arc::new(Spirals::new(900..1200)) })
    }
}

// ANCHOR: set
/// Samples with consecutive numbers. Yours would hold the paths of files, or the rows of a table.
struct Spirals {
    numbers: Range<i64>,
}

impl Spirals {
    /// Samples of these numbers; other numbers are other points.
    fn new(numbers: Range<i64>) -> Self {
        Spirals { numbers }
    }
}

impl Dataset for Spirals {
    fn len(&self) -> usize {
        self.numbers.clone().count()
    }

    /// Inputs: `Float [n, 2]`; targets: `Int64 [n]`. Any thread may call this, in any order, so nothing may be kept between calls.
    fn batch(&self, _epoch: u64, indices: &[usize]) -> Result<Batch> {
        let indices: Vec<i64> = indices.iter().map(|&index| self.numbers.start + index as i64).collect();
        let numbers = Tensor::from_slice(&indices);
        let targets = numbers.remainder(CLASSES);
        // From the centre to the rim: 997 is prime, so neighbours in number are far from each other.
        let radius = ((&numbers * 383).remainder(997) + 1).to_kind(Kind::Double) / 997.0;
        let angle = &radius * 4.0 + targets.to_kind(Kind::Double) * (std::f64::consts::TAU / CLASSES as f64);
        let inputs = Tensor::stack(&[&radius * angle.cos(), &radius * angle.sin()], 1);
        Ok(Batch { inputs: inputs.to_kind(Kind::Float), targets })
    }
}
// ANCHOR_END: set

pub(crate) type Network = SequentialT;
pub(crate) type Rule = SgdOptions;

// ANCHOR: network
/// Points of the plane, shape `[n, 2]`, to logits, shape `[n, CLASSES]`.
pub(crate) fn network(vs: &Path<'_>, _data: &Data) -> Result<Network> {
    let hidden = 64;
    Ok(seq_t()
        .add(linear(vs / "0", 2, hidden, Default::default()))
        .add_fn(|points| points.tanh())
        .add(linear(vs / "1", hidden, hidden, Default::default()))
        .add_fn(|points| points.tanh())
        .add(linear(vs / "2", hidden, CLASSES, Default::default())))
}
// ANCHOR_END: network

pub(crate) fn optimizer(lr: f64) -> Rule {
    SgdOptions { lr, momentum: 0.9, ..Default::default() }
}

/// Prefixes of the names of parameters that fully sharded training gathers together: here one, for all.
pub(crate) fn units(_net: &Network) -> Vec<String> {
    vec![String::new()]
}

pub(crate) fn forward(net: &Network, inputs: &Tensor, train: bool, run: &RunUnit<'_>) -> Tensor {
    run("", inputs, &|inputs| net.forward_t(inputs, train))
}

// ANCHOR: loss
/// How many targets of a batch count.
pub(crate) fn count(targets: &Tensor) -> i64 {
    CrossEntropy::default().count(targets)
}

/// The sum of their losses.
pub(crate) fn loss(outputs: &Tensor, targets: &Tensor) -> c10d::Result<Tensor> {
    CrossEntropy::default().sum(outputs, targets)
}

/// Adds the right answers and the loss of a batch that is held out.
pub(crate) fn score(all: &mut Evaluation, outputs: &Tensor, targets: &Tensor) -> c10d::Result<()> {
    all.score(&CrossEntropy::default(), outputs, targets)
}
// ANCHOR_END: loss

/// A last line to print, if there is something to show.
pub(crate) fn show(_net: &Network, _data: &Data) -> Result<Option<String>> {
    Ok(None)
}
