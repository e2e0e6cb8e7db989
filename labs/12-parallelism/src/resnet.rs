//! The labs' ResNet, narrow: whole, or some of its blocks; and the pictures that it learns.
//!
//! Batch normalization sees the samples of all ranks that have shares of a batch. A stage of a pipeline sees one micro-batch at a time, as one rank
//! with the same micro-batches does.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;

use anyhow::Result;
use lockstep::data::Dataset;
use lockstep::data::rng::KeyedRng;
use lockstep::loss::CrossEntropy;
use lockstep::models::{Depth, Norm, ResNet, ResNetOptions};
use lockstep_vision::{Normalize, Transformed, cifar_or_drawn};
use tch::nn::VarStore;
use tch::{Device, Kind, Tensor};

use crate::network::Batch;
use crate::network::{Network, Part, Run};

const CLASSES: i64 = 10;
/// Channels of the first stage.
const WIDTH: i64 = 8;
/// Pixels in a row and a column.
const SIDE: i64 = 32;
const DRAWN: usize = 256;
const DEPTH: Depth = Depth::Eighteen;

fn options(norm: Norm) -> ResNetOptions {
    ResNetOptions { width: WIDTH, norm, ..ResNetOptions::new(CLASSES) }
}

/// The whole network as it starts.
pub(crate) struct ResNetStart {
    vs: VarStore,
    net: ResNet,
}

impl ResNetStart {
    /// The same on every rank.
    pub(crate) fn draw(seed: u64, kind: Kind) -> Self {
        tch::manual_seed(seed as i64);
        let mut vs = VarStore::new(Device::Cpu);
        // Drawn in double precision, so that both precisions begin with nearly the same weights.
        vs.set_kind(Kind::Double);
        let net = ResNet::new(&vs.root(), DEPTH, &options(Norm::Batch));
        vs.set_kind(kind);
        ResNetStart { vs, net }
    }

    fn kind(&self) -> Kind {
        self.vs.kind()
    }

    pub(crate) fn blocks() -> i64 {
        DEPTH.block_count() as i64
    }

    /// Shape of a block's inputs, for `n` pictures.
    pub(crate) fn activations(&self, block: i64, n: i64) -> Vec<i64> {
        let sizes = RefCell::new(Vec::new());
        let run = |_: &str, x: &Tensor, layers: &dyn Fn(&Tensor) -> Tensor| {
            sizes.borrow_mut().push(x.size());
            layers(x)
        };
        let pictures = Tensor::zeros([n, 3, SIDE, SIDE], (self.kind(), Device::Cpu));
        tch::no_grad(|| drop(self.net.forward_units(&pictures, false, &run)));
        // The first unit is the one before all blocks.
        sizes.into_inner().swap_remove(block as usize + 1)
    }
}

pub(crate) struct ResNetPart {
    net: ResNet,
    kind: Kind,
}

impl ResNetPart {
    pub(crate) fn new(start: &ResNetStart, vs: &mut VarStore, part: Part<'_>) -> Self {
        let norm = part.data.map_or(Norm::Batch, |group| Norm::Sync(Rc::clone(group)));
        vs.set_kind(start.kind());
        let which = part.blocks.start as usize..part.blocks.end as usize;
        let net = ResNet::part(&vs.root(), DEPTH, &options(norm), which);
        // Running statistics are made in single precision.
        vs.set_kind(start.kind());
        let whole = start.vs.variables();
        tch::no_grad(|| vs.variables().iter_mut().for_each(|(name, own)| own.copy_(&whole[name])));
        ResNetPart { net, kind: start.kind() }
    }
}

impl Network for ResNetPart {
    /// Pictures `[n, 3, 32, 32]` to logits `[n, 10]`.
    fn forward(&self, inputs: &Tensor, run: &dyn Run) -> Tensor {
        let run = |unit: &str, x: &Tensor, layers: &dyn Fn(&Tensor) -> Tensor| run.unit(unit, x, layers);
        self.net.forward_units(&inputs.to_kind(self.kind), true, &run)
    }

    fn loss(&self, logits: &Tensor, classes: &Tensor) -> Tensor {
        // tch's own computes in single precision.
        CrossEntropy::default().loss(logits, classes)
    }

    fn units(&self) -> Vec<String> {
        self.net.units().into_iter().map(str::to_owned).collect()
    }
}

/// CIFAR-10's pictures, or drawn ones.
pub(crate) struct Pictures {
    set: Box<dyn Dataset>,
    seed: u64,
}

impl Pictures {
    pub(crate) fn open(folder: Option<&Path>, seed: u64) -> Result<Self> {
        let (train, _test) = cifar_or_drawn(folder, seed, DRAWN, 1)?;
        Ok(Pictures { set: Box::new(Transformed::new(train, Normalize::CIFAR10)), seed })
    }

    /// The pictures of a step, which depend on the seed and the step only.
    pub(crate) fn batch(&self, step: u64, size: i64) -> Result<Batch> {
        let mut random = KeyedRng::new(&[self.seed, u64::from_be_bytes(*b"pictures"), step]);
        let indices: Vec<usize> = (0..size).map(|_| random.below(self.set.len())).collect();
        let lockstep::data::Batch { inputs, targets } = self.set.batch(step, &indices)?;
        Ok(Batch { inputs, targets })
    }
}
