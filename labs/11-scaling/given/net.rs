//! A linear layer under DDP that records how many samples it has to remember at a time. You do not change this file.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use c10d::{GroupOptions, ProcessGroup, Rank};
use lockstep::{DdpOptions, DistributedDataParallel};
use tch::nn::{Init, ModuleT, VarStore};
use tch::{Device, Tensor};

/// The layer's weights at the start.
const WEIGHT: f64 = 0.5;

/// `inputs` (`Double [n, 3]`) to predictions (`Double [n]`).
#[derive(Debug)]
pub struct Net {
    weight: Tensor,
    seen: Arc<Mutex<Seen>>,
}

/// The forward passes whose graphs are in memory, until a backward pass frees them.
#[derive(Debug, Default)]
pub struct Seen {
    /// The gradient when the last forward pass began: if it is the same at the next one, there was no backward pass.
    gradient: Option<Tensor>,
    passes: u64,
    samples: i64,
    /// The most forward passes without a backward pass.
    pub most_passes: u64,
    /// The samples in them.
    pub most_samples: i64,
}

/// The model that you train.
pub type Model = DistributedDataParallel<Net>;

/// A model, and what is seen of it.
pub struct Observed {
    pub model: Model,
    pub weight: Tensor,
    pub seen: Arc<Mutex<Seen>>,
}

impl Observed {
    /// A model on a group of its own, so that what it sends is counted apart.
    pub fn new(group: &ProcessGroup) -> Result<Self> {
        let ranks: Vec<Rank> = group.size().ranks().collect();
        let group = group.new_group(&ranks, &GroupOptions::default())?.context("each rank is a member")?;
        let mut vs = VarStore::new(Device::Cpu);
        let _ = vs.root().var("weight", &[3], Init::Const(WEIGHT));
        vs.double();
        let weight = vs.variables().remove("weight").context("the layer's only variable")?;
        let seen = Arc::default();
        let net = Net { weight: weight.shallow_clone(), seen: Arc::clone(&seen) };
        let options = DdpOptions { fixed_buckets: true, ..Default::default() };
        Ok(Observed { model: Model::new(net, &vs, Rc::new(group), &options)?, weight, seen })
    }
}

impl Seen {
    /// A forward pass of this many samples begins.
    fn begin(&mut self, gradient: &Tensor, samples: i64) {
        let gradient = gradient.defined().then(|| gradient.copy());
        if gradient != self.gradient {
            (self.passes, self.samples) = (0, 0);
        }
        self.gradient = gradient;
        self.passes += 1;
        self.samples += samples;
        self.most_passes = self.most_passes.max(self.passes);
        self.most_samples = self.most_samples.max(self.samples);
    }
}

impl ModuleT for Net {
    fn forward_t(&self, inputs: &Tensor, _train: bool) -> Tensor {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.begin(&self.weight.grad(), inputs.size()[0]);
        inputs.matmul(&self.weight)
    }
}
