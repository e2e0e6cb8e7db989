//! The data, computed sequences of different lengths; an LSTM that finds the class of each; the loss.

use std::ops::Range;
use std::sync::Arc;

use anyhow::Result;
use lockstep::data::{Batch, Dataset};
use lockstep::loss::CrossEntropy;
use lockstep::metrics::Evaluation;
use lockstep::models::RunUnit;
use lockstep::optim::AdamWOptions;
use lockstep::padding;
use lockstep::rng::KeyedRng;
use tch::nn::{Embedding, LSTM, LSTMState, Linear, Module, Path, RNN, embedding, linear, lstm};
use tch::{Kind, Tensor};

pub(crate) const EPOCHS: u64 = 12;
pub(crate) const BATCH_SIZE: &str = "32";
pub(crate) const LR: f64 = 1e-2;

/// Tokens count from 1, so that 0 is padding and nothing else.
const PADDING: f64 = 0.0;
const TOKENS: usize = 12;
/// The first tokens: a sequence's class is the one among them that comes last in it.
const CLASSES: usize = 3;
const LONGEST: usize = 20;
const WIDTH: i64 = 32;

/// Where the data is; computed sequences need no place.
#[derive(clap::Args)]
pub(crate) struct DataArgs {}

pub(crate) struct Data {
    pub(crate) train: Arc<dyn Dataset>,
    pub(crate) test: Arc<dyn Dataset>,
}

impl Data {
    pub(crate) fn load(_args: &DataArgs, seed: u64) -> Result<Self> {
        let set = |numbers| Arc::new(Sequences { seed, numbers });
        Ok(Data { train: set(0..900), test: set(900..1200) })
    }
}

// ANCHOR: set
/// Sequences with consecutive numbers. Yours would hold the texts, or the rows of each series.
struct Sequences {
    seed: u64,
    numbers: Range<u64>,
}

impl Sequences {
    /// The tokens of a sequence, and its class.
    fn sequence(&self, index: usize) -> (Tensor, i64) {
        let mut rng = KeyedRng::new(&[self.seed, self.numbers.start + index as u64]);
        let length = 3 + rng.below(LONGEST - 2);
        let mut tokens: Vec<i64> = (0..length).map(|_| 1 + rng.below(TOKENS) as i64).collect();
        tokens[0] = 1 + rng.below(CLASSES) as i64;
        let class = tokens.iter().rfind(|&&token| token <= CLASSES as i64).map_or(0, |token| token - 1);
        // One class in eight is drawn: a network that learns these by heart gets worse on others.
        let class = if rng.below(8) == 0 { rng.below(CLASSES) as i64 } else { class };
        (Tensor::from_slice(&tokens), class)
    }
}

impl Dataset for Sequences {
    fn len(&self) -> usize {
        self.numbers.clone().count()
    }

    /// Inputs: `Int64 [n, t]`, padded to the longest of these sequences; targets: `Int64 [n]`.
    fn batch(&self, _epoch: u64, indices: &[usize]) -> Result<Batch> {
        let (sequences, classes): (Vec<Tensor>, Vec<i64>) = indices.iter().map(|&index| self.sequence(index)).unzip();
        Ok(Batch { inputs: padding::pad(&sequences, PADDING)?, targets: Tensor::from_slice(&classes) })
    }
}
// ANCHOR_END: set

pub(crate) struct Network {
    tokens: Embedding,
    lstm: LSTM,
    output: Linear,
}
pub(crate) type Rule = AdamWOptions;

/// Tokens, shape `[n, t]`, to logits, shape `[n, CLASSES]`.
pub(crate) fn network(vs: &Path<'_>, _data: &Data) -> Result<Network> {
    Ok(Network {
        tokens: embedding(vs / "tokens", TOKENS as i64 + 1, WIDTH, Default::default()),
        lstm: lstm(vs / "lstm", WIDTH, WIDTH, Default::default()),
        output: linear(vs / "output", WIDTH, CLASSES as i64, Default::default()),
    })
}

pub(crate) fn optimizer(lr: f64) -> Rule {
    AdamWOptions { lr, ..Default::default() }
}

/// Prefixes of the names of parameters that fully sharded training gathers together: here one, for all.
pub(crate) fn units(_net: &Network) -> Vec<String> {
    vec![String::new()]
}

// ANCHOR: forward
pub(crate) fn forward(net: &Network, inputs: &Tensor, _train: bool, run: &RunUnit<'_>) -> Tensor {
    run("", inputs, &|tokens| {
        let lengths = padding::lengths(tokens, PADDING);
        // `seq` would take a state from where the network was made, which is the CPU.
        let zeros = || Tensor::zeros([1, tokens.size()[0], WIDTH], (Kind::Float, tokens.device()));
        let (outputs, _) = net.lstm.seq_init(&net.tokens.forward(tokens), &LSTMState((zeros(), zeros())));
        net.output.forward(&padding::last(&outputs, &lengths))
    })
}
// ANCHOR_END: forward

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

/// A last line to print, if there is something to show.
pub(crate) fn show(_net: &Network, _data: &Data) -> Result<Option<String>> {
    Ok(None)
}
