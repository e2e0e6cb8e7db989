//! The training step that is measured: an MLP 784-1024-1024-10 with SGD on one batch of 64, with weights and samples computed
//! by formulas.
//!
//! `lockstep bench ddp` trains the same network; its twin in Python (`harness/bench/src/python/steps.py`) has bit-identical weights and
//! samples, so that equal losses show that both did the same work. Leaves out processes, timing, and reading data.
#![allow(dead_code, unreachable_pub)] // each program uses its part

use std::rc::Rc;

use super::formula::formula;
use c10d::ProcessGroup;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::{DdpOptions, DistributedDataParallel};
use tch::nn::{self, ModuleT, VarStore};
use tch::{Device, Kind, Tensor, no_grad};

/// Samples in a batch of one rank.
pub const BATCH: i64 = 64;
/// Units of each layer, the inputs first.
const LAYERS: [i64; 4] = [784, 1024, 1024, 10];
const LEARNING_RATE: f64 = 0.01;
/// Salts of the formula: parameters use 1 to 6, samples use 9 and their rank.
const SAMPLES_SALT: i64 = 9;

/// How gradients are cleared before the next backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ZeroGrad {
    /// `Optimizer::zero_grad`, which drops them.
    ToNone,
    /// Set to zero in place, as Python's `zero_grad(set_to_none=False)` does.
    InPlace,
}

/// A model with its optimizer and its batch; every step does the same work.
pub struct Trainer {
    model: Model,
    optimizer: Sgd,
    zero_grad: ZeroGrad,
    params: Vec<Tensor>,
    inputs: Tensor,
    targets: Tensor,
}

enum Model {
    Alone(nn::Sequential),
    Together(DistributedDataParallel<nn::Sequential>),
}

impl Trainer {
    /// A rank of a group that averages gradients.
    pub fn together(group: Rc<ProcessGroup>, options: &DdpOptions, zero_grad: ZeroGrad) -> anyhow::Result<Self> {
        let rank = group.rank().get();
        Self::new(rank, zero_grad, |net, vs| {
            Ok(Model::Together(DistributedDataParallel::new(net, vs, group, options)?))
        })
    }

    /// The same step without communication.
    pub fn alone(rank: usize, zero_grad: ZeroGrad) -> anyhow::Result<Self> {
        Self::new(rank, zero_grad, |net, _| Ok(Model::Alone(net)))
    }

    fn new(
        rank: usize,
        zero_grad: ZeroGrad,
        wrap: impl FnOnce(nn::Sequential, &VarStore) -> anyhow::Result<Model>,
    ) -> anyhow::Result<Self> {
        let vs = VarStore::new(Device::Cpu);
        let net = network(&vs);
        let optimizer = Sgd::new(named_parameters(&vs), SgdOptions { lr: LEARNING_RATE, ..SgdOptions::default() })?;
        let (params, model) = (vs.trainable_variables(), wrap(net, &vs)?);
        let (inputs, targets) = batch(rank as i64, BATCH);
        Ok(Trainer { model, optimizer, zero_grad, params, inputs, targets })
    }

    /// Clear gradients, forward, cross-entropy, backward (with the all-reduce, if any), update; the loss is not read.
    pub fn step(&mut self) -> anyhow::Result<Tensor> {
        self.clear();
        let loss = match &self.model {
            Model::Alone(net) => {
                let loss = net.forward_t(&self.inputs, true).cross_entropy_for_logits(&self.targets);
                c10d::backward(&loss)?;
                loss
            }
            Model::Together(ddp) => {
                let loss = ddp.forward(&self.inputs)?.cross_entropy_for_logits(&self.targets);
                ddp.backward(&loss)?;
                loss
            }
        };
        self.optimizer.step()?;
        Ok(loss)
    }

    fn clear(&mut self) {
        match self.zero_grad {
            ZeroGrad::ToNone => self.optimizer.zero_grad(),
            ZeroGrad::InPlace => self.params.iter().map(Tensor::grad).filter(Tensor::defined).for_each(|mut grad| {
                let _zeroed = no_grad(|| grad.zero_());
            }),
        }
    }
}

/// Linear layers with ReLU between them; a parameter is uniform within ±1/√inputs, PyTorch's initialization.
pub fn network(vs: &VarStore) -> nn::Sequential {
    let root = vs.root();
    let mut net = nn::seq();
    for (layer, sizes) in LAYERS.windows(2).enumerate() {
        let (inputs, outputs) = (sizes[0], sizes[1]);
        let mut linear = nn::linear(&root / layer, inputs, outputs, Default::default());
        let (salt, scale) = (2 * layer as i64 + 1, 1.0 / (inputs as f64).sqrt());
        no_grad(|| {
            linear.ws.copy_(&formula(&[outputs, inputs], salt, scale));
            linear.bs.iter_mut().for_each(|bias| bias.copy_(&formula(&[outputs], salt + 1, scale)));
        });
        net = if layer == 0 { net.add(linear) } else { net.add_fn(|x| x.relu()).add(linear) };
    }
    net
}

/// The inputs and targets of a rank's batch of `count` samples.
pub fn batch(rank: i64, count: i64) -> (Tensor, Tensor) {
    let numbers = Tensor::arange(count, (Kind::Int64, Device::Cpu)) + rank;
    let targets = (&numbers * 7 + numbers.divide_scalar_mode(3, "floor")).remainder(LAYERS[3]);
    (formula(&[count, LAYERS[0]], SAMPLES_SALT + rank, 1.0), targets)
}
