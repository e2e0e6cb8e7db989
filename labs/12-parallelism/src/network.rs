//! What the schemes train: a network of units, where all ranks start, and the text that it learns.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use c10d::ProcessGroup;
use lockstep::data::rng::KeyedRng;
use lockstep::nn::raise;
use lockstep::parallel::FullyShard;
use lockstep::parallel::context::zigzag;
use tch::nn::VarStore;
use tch::{Kind, Tensor};

use crate::model::{self, Layers, Transformer, Weights};
use crate::resnet::{Pictures, ResNetPart, ResNetStart};
use crate::{Args, Model, Scheme};

/// A network, or this rank's part of it.
pub(crate) trait Network {
    /// The part of the way from inputs to outputs which this rank has; `run` runs the layers of each unit.
    fn forward(&self, inputs: &Tensor, run: &dyn Run) -> Tensor;

    /// The mean loss of the whole network's outputs.
    fn loss(&self, outputs: &Tensor, targets: &Tensor) -> Tensor;

    /// How many of this rank's tokens found no place in the last forward pass, if it has experts.
    fn dropped(&self) -> Option<i64> {
        None
    }

    /// The units, by the names with which their variables begin.
    fn units(&self) -> Vec<String>;
}

/// Layers that are computed again in the backward pass.
pub(crate) type Again = Box<dyn Fn(&Tensor) -> Tensor + Send>;

/// Runs a unit: its name, its inputs and its layers.
pub(crate) trait Run {
    fn unit(&self, name: &str, inputs: &Tensor, layers: &dyn Fn(&Tensor) -> Tensor) -> Tensor;

    /// The same, but of the activations only `inputs` are kept.
    fn unit_again(&self, name: &str, inputs: &Tensor, layers: Again) -> Tensor;
}

/// Runs a unit's layers, and nothing else.
pub(crate) struct Plain;

impl Run for Plain {
    fn unit(&self, _: &str, inputs: &Tensor, layers: &dyn Fn(&Tensor) -> Tensor) -> Tensor {
        layers(inputs)
    }

    fn unit_again(&self, _: &str, inputs: &Tensor, layers: Again) -> Tensor {
        c10d::checkpoint(inputs, layers).unwrap_or_else(|error| raise(error))
    }
}

/// Gathers a unit before its layers run, and frees it afterwards.
impl Run for FullyShard {
    fn unit(&self, name: &str, inputs: &Tensor, layers: &dyn Fn(&Tensor) -> Tensor) -> Tensor {
        self.forward(name, inputs, layers).unwrap_or_else(|error| raise(error))
    }

    fn unit_again(&self, name: &str, inputs: &Tensor, layers: Again) -> Tensor {
        self.forward_checkpointed(name, inputs, layers).unwrap_or_else(|error| raise(error))
    }
}

/// What the ranks of a group divide in each block.
#[derive(Clone, Copy)]
pub(crate) enum Divided<'a> {
    Nothing,
    Layers(&'a Rc<ProcessGroup>),
    Sequences(&'a Rc<ProcessGroup>),
    Experts(&'a Rc<ProcessGroup>),
}

/// What a rank has of a network.
pub(crate) struct Part<'a> {
    /// The blocks.
    pub(crate) blocks: Range<i64>,
    /// What the ranks have parts of.
    pub(crate) divided: Divided<'a>,
    /// The ranks that have shares of each batch.
    pub(crate) data: Option<&'a Rc<ProcessGroup>>,
    pub(crate) recompute: bool,
}

/// The whole network's initial weights, the same on every rank.
pub(crate) enum Start {
    Transformer { weights: Weights, blocks: i64 },
    ResNet(Box<ResNetStart>),
}

impl Start {
    pub(crate) fn draw(args: &Args, kind: Kind) -> Self {
        match args.model {
            Model::Transformer => Start::Transformer {
                weights: model::draw(args.blocks, args.scheme == Scheme::Expert, args.seed, kind),
                blocks: args.blocks,
            },
            Model::Resnet => Start::ResNet(Box::new(ResNetStart::draw(args.seed, kind))),
        }
    }

    /// How many blocks the whole network has.
    pub(crate) fn blocks(&self) -> i64 {
        match self {
            Start::Transformer { blocks, .. } => *blocks,
            Start::ResNet(_) => ResNetStart::blocks(),
        }
    }

    /// A part of the network, with its variables in `vs`.
    pub(crate) fn network(&self, vs: &mut VarStore, part: Part<'_>) -> Result<Box<dyn Network>> {
        Ok(match self {
            Start::Transformer { weights, blocks } => {
                vs.set_kind(weights["head"].kind());
                let layers = Layers { vs: vs.root(), weights, divided: part.divided };
                Box::new(Transformer::new(&layers, part.blocks, *blocks, part.recompute)?)
            }
            Start::ResNet(start) => Box::new(ResNetPart::new(start, vs, part)),
        })
    }

    /// What a stage that begins with this block receives for `n` samples.
    pub(crate) fn activations(&self, block: i64, n: i64) -> Vec<i64> {
        match self {
            Start::Transformer { .. } => Transformer::activations(n),
            Start::ResNet(start) => start.activations(block, n),
        }
    }
}

/// The batch of a step, given the step and the number of samples.
pub(crate) type Batches = Box<dyn Fn(u64, i64) -> Result<Batch>>;

/// What the network learns: a text or pictures, from files or made.
pub(crate) fn batches(args: &Args) -> Result<Batches> {
    Ok(match args.model {
        Model::Transformer => {
            let text = match &args.data {
                Some(path) => Text::read(path, args.seed)?,
                None => Text::made(args.seed),
            };
            Box::new(move |step, size| Ok(text.batch(step, size)))
        }
        Model::Resnet => {
            let pictures = Pictures::open(args.data.as_deref(), args.seed)?;
            Box::new(move |step, size| pictures.batch(step, size))
        }
    })
}

/// The characters: the line's end, and ASCII from the space to the tilde. 96 can be divided by 2, 3 and 4.
pub(crate) const VOCABULARY: i64 = 96;
/// Characters of a sequence.
pub(crate) const CONTEXT: i64 = 32;

/// Sequences in a step: inputs `[n, CONTEXT]`, and targets of the same shape, each the character that follows.
pub(crate) struct Batch {
    pub(crate) inputs: Tensor,
    pub(crate) targets: Tensor,
}

impl Batch {
    /// All sequences, of each the positions that are this rank's.
    pub(crate) fn positions(&self, group: &ProcessGroup) -> c10d::Result<Batch> {
        Ok(Batch { inputs: zigzag(group, &self.inputs, 1)?, targets: zigzag(group, &self.targets, 1)? })
    }

    /// Equal parts of the batch, in order.
    pub(crate) fn chunk(&self, parts: usize) -> Vec<Batch> {
        let [inputs, targets] = [&self.inputs, &self.targets].map(|tensor| tensor.chunk(parts as i64, 0));
        inputs.into_iter().zip(targets).map(|(inputs, targets)| Batch { inputs, targets }).collect()
    }
}

pub(crate) struct Text {
    characters: Tensor,
    seed: u64,
}

impl Text {
    /// A file's text. A character that is not of the vocabulary becomes a question mark.
    pub(crate) fn read(path: &Path, seed: u64) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        ensure!(
            text.chars().count() > CONTEXT as usize + 1,
            "{} has fewer than {} characters",
            path.display(),
            CONTEXT + 2
        );
        Ok(Self::of(&text, seed))
    }

    /// Sentences of subject, verb and object.
    pub(crate) fn made(seed: u64) -> Self {
        const SUBJECTS: [&str; 6] = ["the rank", "a worker", "the launcher", "one thread", "the store", "a bucket"];
        const VERBS: [&str; 6] = ["sends", "waits for", "adds up", "copies", "divides", "forgets"];
        const OBJECTS: [&str; 6] = ["the gradients", "a message", "its part", "the weights", "all sums", "nothing"];
        let mut random = KeyedRng::new(&[seed, u64::from_be_bytes(*b"sentence")]);
        let mut sentence = || {
            let mut word = |of: [&'static str; 6]| of[random.below(6)];
            format!("{} {} {}.\n", word(SUBJECTS), word(VERBS), word(OBJECTS))
        };
        Self::of(&(0..400).map(|_| sentence()).collect::<String>(), seed)
    }

    fn of(text: &str, seed: u64) -> Self {
        let number = |character: char| match character {
            '\n' => 0,
            ' '..='~' => i64::from(u32::from(character)) - 31,
            _ => i64::from(u32::from('?')) - 31,
        };
        Text { characters: Tensor::from_slice(&text.chars().map(number).collect::<Vec<_>>()), seed }
    }

    /// The sequences of a step, which depend on the seed and the step only.
    pub(crate) fn batch(&self, step: u64, size: i64) -> Batch {
        let mut random = KeyedRng::new(&[self.seed, u64::from_be_bytes(*b"sequence"), step]);
        let last = self.characters.size()[0] - CONTEXT - 1;
        let begins: Vec<i64> = (0..size).map(|_| random.below(last as usize) as i64).collect();
        let at = |begin: &i64, shift: i64| self.characters.narrow(0, begin + shift, CONTEXT);
        let [inputs, targets] =
            [0, 1].map(|shift| Tensor::stack(&begins.iter().map(|begin| at(begin, shift)).collect::<Vec<_>>(), 0));
        Batch { inputs, targets }
    }
}
