//! The data, a text as tokens; a GPT that predicts the token that follows each; the loss.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use lockstep::data::{Dataset, Texts, Tokenizer, Windows};
use lockstep::loss::CrossEntropy;
use lockstep::metrics::Evaluation;
use lockstep::models::RunUnit;
use lockstep::models::gpt::{Gpt, GptConfig, Positions, Sampling};
use lockstep::optim::AdamWOptions;
use tch::Tensor;
use tch::nn::Path;

pub(crate) const EPOCHS: u64 = 10;
pub(crate) const BATCH_SIZE: &str = "16";
pub(crate) const LR: f64 = 3e-3;

#[derive(clap::Args)]
pub(crate) struct DataArgs {
    /// A text file, or a folder of .txt files of which those named validation… are held out; without it, sums are written
    #[arg(long)]
    data: Option<PathBuf>,
    /// Learn this many tokens, 256 or more, as pairs of bytes; without it, each character is a token
    #[arg(long)]
    vocabulary: Option<usize>,
    /// Tokens in a sample, which are all that the model sees at once
    #[arg(long, default_value_t = 64)]
    window: usize,
}

pub(crate) struct Data {
    pub(crate) train: Arc<dyn Dataset>,
    pub(crate) test: Arc<dyn Dataset>,
    tokenizer: Tokenizer,
    window: usize,
    seed: u64,
    /// The beginning of the held-out text, which the model continues at the end.
    prompt: Vec<u32>,
}

impl Data {
    pub(crate) fn load(args: &DataArgs, seed: u64) -> Result<Self> {
        let Texts { train, validation } = match &args.data {
            Some(path) => Texts::read(path)?,
            None => Texts { train: sums(0..1800), validation: sums(1800..2000) },
        };
        // The held-out text may have characters that no other has: the tokenizer must know them.
        let tokenizer = match args.vocabulary {
            Some(vocabulary) => Tokenizer::byte_pairs(&train, vocabulary)?,
            None => Tokenizer::characters(&format!("{train}{validation}")),
        };
        let (train, validation) = (tokenizer.encode(&train)?, tokenizer.encode(&validation)?);
        let prompt = validation[..validation.len().min(8)].to_vec();
        let (train, test) = (Windows::new(train, args.window)?, Windows::new(validation, args.window)?);
        let (window, train, test) = (args.window, Arc::new(train), Arc::new(test));
        Ok(Data { train, test, tokenizer, window, seed, prompt })
    }
}

/// A line for each number: a sum and its result. 2003 is prime, so neighbours in number are far from each other.
fn sums(numbers: std::ops::Range<u64>) -> String {
    let line = |number: u64| {
        let (a, b) = (number * 383 % 2003 % 40, number * 751 % 2003 % 40);
        format!("{a}+{b}={}\n", a + b)
    };
    numbers.map(line).collect()
}

pub(crate) type Network = Gpt;
pub(crate) type Rule = AdamWOptions;

/// Tokens, shape `[n, t]`, to logits, shape `[n, t, vocabulary]`.
pub(crate) fn network(vs: &Path<'_>, data: &Data) -> Result<Network> {
    let (vocabulary, context) = (data.tokenizer.vocabulary(), data.window);
    let (layers, heads, width, positions, dropout) = (2, 4, 64, Positions::Rotary, 0.0);
    let config = GptConfig { vocabulary, context, layers, heads, width, positions, dropout };
    Ok(Gpt::new(vs, config)?)
}

pub(crate) fn optimizer(lr: f64) -> Rule {
    AdamWOptions { lr, ..Default::default() }
}

/// Prefixes of the names of parameters that fully sharded training gathers together: one for each block, and one for the rest.
pub(crate) fn units(net: &Network) -> Vec<String> {
    net.units()
}

pub(crate) fn forward(net: &Network, inputs: &Tensor, train: bool, run: &RunUnit<'_>) -> Tensor {
    net.forward_units(inputs, train, run)
}

/// How many targets of a batch count.
pub(crate) fn count(targets: &Tensor) -> i64 {
    CrossEntropy::default().count(targets)
}

/// The sum of their losses.
pub(crate) fn loss(outputs: &Tensor, targets: &Tensor) -> c10d::Result<Tensor> {
    CrossEntropy::default().sum(outputs, targets)
}

/// Adds the right tokens and the loss of a batch that is held out.
pub(crate) fn score(all: &mut Evaluation, outputs: &Tensor, targets: &Tensor) -> c10d::Result<()> {
    all.score(&CrossEntropy::default(), outputs, targets)
}

/// What the model writes after the beginning of the held-out text.
pub(crate) fn show(net: &Network, data: &Data) -> Result<Option<String>> {
    let written = net.generate(&data.prompt, 100, Sampling { temperature: 0.5, seed: data.seed })?;
    Ok(Some(format!("It writes:\n{}", data.tokenizer.decode(&written))))
}
