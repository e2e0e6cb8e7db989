//! The training step that is measured: ResNet-18 with 10 classes and SGD on one batch of 32 pictures of 32 × 32, with weights
//! and pictures computed by formulas.
//!
//! `lockstep bench ddp` trains a narrow one; its twin in Python (`harness/bench/src/python/steps.py`) has bit-identical weights and
//! pictures. The learning rate is 0: all the work is done, but the loss stays constant, so that equal losses show that both did the
//! same work. With any other rate, rounding would reach every digit after some hundred steps. Leaves out processes, timing, and
//! reading data.
#![allow(dead_code, unreachable_pub)] // each program uses its part

use super::formula::formula;
use lockstep::models::{Depth, Norm, ResNet, ResNetOptions};
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use tch::nn::{ModuleT, VarStore};
use tch::{Device, Kind, Tensor, no_grad};

const BATCH: i64 = 32;
const SIDE: i64 = 32;
const CLASSES: i64 = 10;
/// The width of the first stage, as in torchvision.
const WIDTH: i64 = 64;
/// Salt of the pictures' formula; parameters use 1 to 62.
const PICTURES_SALT: i64 = 100;

/// A model with its optimizer and its batch; every step does the same work.
pub struct Trainer {
    net: ResNet,
    optimizer: Sgd,
    inputs: Tensor,
    targets: Tensor,
}

impl Trainer {
    pub fn new(norm: Norm) -> anyhow::Result<Self> {
        let vs = VarStore::new(Device::Cpu);
        let net = network(&vs, norm, WIDTH);
        let params = named_parameters(&vs);
        let options = SgdOptions { lr: 0.0, momentum: 0.9, weight_decay: 1e-5, ..SgdOptions::default() };
        let (inputs, targets) = batch(0, BATCH);
        Ok(Trainer { net, optimizer: Sgd::new(params, options)?, inputs, targets })
    }

    /// Clear gradients, forward, cross-entropy, backward, update; the loss is not read.
    pub fn step(&mut self) -> anyhow::Result<Tensor> {
        self.optimizer.zero_grad();
        let loss = self.forward();
        c10d::backward(&loss)?;
        self.optimizer.step()?;
        Ok(loss)
    }

    /// The first half of the step.
    pub fn forward(&self) -> Tensor {
        self.net.forward_t(&self.inputs, true).cross_entropy_for_logits(&self.targets)
    }
}

/// The network, with channels of this width in its first stage.
pub fn network(vs: &VarStore, norm: Norm, width: i64) -> ResNet {
    let options = ResNetOptions { norm, width, ..ResNetOptions::new(CLASSES) };
    let net = ResNet::new(&vs.root(), Depth::Eighteen, &options);
    for ((_, param), salt) in named_parameters(vs).iter().zip(1..) {
        no_grad(|| param.shallow_clone().copy_(&start(&param.size(), salt)));
    }
    net
}

/// The inputs and targets of a rank's batch of `count` pictures.
pub fn batch(rank: i64, count: i64) -> (Tensor, Tensor) {
    let targets = (Tensor::arange(count, (Kind::Int64, Device::Cpu)) * 7).remainder(CLASSES);
    (formula(&[count, 3, SIDE, SIDE], PICTURES_SALT + rank, 1.0), targets)
}

/// Normalization layers start near ones and zeros, everything else within ±√(3/inputs).
fn start(shape: &[i64], salt: i64) -> Tensor {
    match *shape {
        [_] => formula(shape, salt, 0.1) + if salt % 3 == 2 { 1.0 } else { 0.0 },
        [_, ref inputs @ ..] => formula(shape, salt, (3.0 / inputs.iter().product::<i64>() as f64).sqrt()),
        [] => formula(shape, salt, 1.0),
    }
}
