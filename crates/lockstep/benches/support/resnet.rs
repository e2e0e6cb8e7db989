//! The training step that is measured: ResNet-18 with 10 classes and SGD on one batch of 32 pictures of 32 × 32, with weights
//! and pictures computed by formulas.
//!
//! `scripts/bench/resnet_step.py` is its twin in Python, with torchvision's network and bit-identical weights and pictures. The
//! learning rate is 0: all the work is done, but the loss stays constant, so that equal losses show that both did the same
//! work. With any other rate, rounding would reach every digit after some hundred steps. Leaves out processes, timing, and
//! reading data.
#![allow(dead_code, unreachable_pub)] // each program uses its part

use lockstep::models::{Depth, Norm, ResNet, ResNetOptions};
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use tch::nn::{ModuleT, VarStore};
use tch::{Device, Kind, Tensor, no_grad};

const BATCH: i64 = 32;
const SIDE: i64 = 32;
const CLASSES: i64 = 10;
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
        let net = ResNet::new(&vs.root(), Depth::Eighteen, &ResNetOptions { norm, ..ResNetOptions::new(CLASSES) });
        let params = named_parameters(&vs);
        for ((_, param), salt) in params.iter().zip(1..) {
            no_grad(|| param.shallow_clone().copy_(&start(&param.size(), salt)));
        }
        let options = SgdOptions { lr: 0.0, momentum: 0.9, weight_decay: 1e-5, ..SgdOptions::default() };
        let inputs = formula(&[BATCH, 3, SIDE, SIDE], PICTURES_SALT, 1.0);
        let targets = (Tensor::arange(BATCH, (Kind::Int64, Device::Cpu)) * 7).remainder(CLASSES);
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

/// Normalization layers start near ones and zeros, everything else within ±√(3/inputs).
fn start(shape: &[i64], salt: i64) -> Tensor {
    match *shape {
        [_] => formula(shape, salt, 0.1) + if salt % 3 == 2 { 1.0 } else { 0.0 },
        [_, ref inputs @ ..] => formula(shape, salt, (3.0 / inputs.iter().product::<i64>() as f64).sqrt()),
        [] => formula(shape, salt, 1.0),
    }
}

/// Numbers in [-1, 1] in steps of 1/1000, times `scale`; the same bits in Python.
fn formula(shape: &[i64], salt: i64, scale: f64) -> Tensor {
    let numbers = Tensor::arange(shape.iter().product::<i64>(), (Kind::Int64, Device::Cpu));
    let thousandths = (numbers * 7919 + salt * 104_729).remainder(2001) - 1000;
    (thousandths.to_kind(Kind::Double) / 1000.0 * scale).to_kind(Kind::Float).reshape(shape)
}
