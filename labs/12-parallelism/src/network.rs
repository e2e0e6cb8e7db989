//! What the schemes train: a network of units, where all ranks start, and what it learns.

use std::ops::Range;
use std::rc::Rc;

use anyhow::Result;
use c10d::ProcessGroup;
use lockstep::nn::raise;
use lockstep::parallel::FullyShard;
use tch::nn::VarStore;
use tch::{Kind, Tensor};

use crate::args::{Args, Model};
use crate::model::{self, Layers, Transformer, Weights};
use crate::resnet::{Pictures, ResNetPart, ResNetStart};
use crate::text::{Batch, Text};

/// A network, or this rank's part of it.
pub(crate) trait Network {
    /// The part of the way from inputs to outputs which this rank has; `run` runs the layers of each unit.
    fn forward(&self, inputs: &Tensor, run: &dyn Run) -> Tensor;

    /// The mean loss of the whole network's outputs.
    fn loss(&self, outputs: &Tensor, targets: &Tensor) -> Tensor;

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

/// What a rank has of a network.
pub(crate) struct Part<'a> {
    /// The blocks.
    pub(crate) blocks: Range<i64>,
    /// The ranks that have parts of each layer.
    pub(crate) tensor: Option<&'a Rc<ProcessGroup>>,
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
            Model::Transformer => {
                Start::Transformer { weights: model::draw(args.blocks, args.seed, kind), blocks: args.blocks }
            }
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
                let layers = Layers { vs: vs.root(), weights, tensor: part.tensor };
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
