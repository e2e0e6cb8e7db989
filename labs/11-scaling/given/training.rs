//! What tasks are given: a linear layer under DDP that records how many samples it has to remember at a time; a recipe for training with
//! a small batch, and a training with a large one; and a reader of traces in the format of Chrome's tracing, as torch.profiler and
//! Perfetto have it. You do not change this file.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result};
use c10d::{GroupOptions, ProcessGroup, Rank, ReduceOp};
use lockstep::{DdpOptions, DistributedDataParallel};
use serde::{Deserialize, Serialize};
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

/// A model, and what the grader sees of its calls.
pub struct Observed {
    pub model: Model,
    pub weight: Tensor,
    pub seen: Arc<Mutex<Seen>>,
}

impl Observed {
    /// A model on its own group, so that what it sends is counted separately.
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

/// What worked on one rank, and the ranks on which it is to work.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct Recipe {
    /// The recipe's learning rate.
    pub lr: f64,
    /// The recipe's batch.
    pub batch: usize,
    /// The batch of each rank now.
    pub batch_of_a_rank: usize,
    /// The number of ranks now.
    pub ranks: usize,
    /// Steps in which the rate is to rise.
    pub warm_up: u64,
}

/// Weights of the two layers at the start: far from the solution, where the loss is steep.
const START: f64 = 3.0;

/// Trains the smallest network with two layers, y = b·(a·x), to answer x: the loss is steep at the start and flat near the end, as
/// those of large networks are. `samples` are the rank's, for each step `batch_of_a_rank` of them. Returns the last step's loss over all
/// ranks.
pub fn train(group: &ProcessGroup, recipe: &Recipe, samples: &[f64], rate: impl Fn(u64) -> f64) -> Result<f64> {
    let (mut a, mut b, mut loss) = (START, START, f64::NAN);
    for (step, batch) in (0..).zip(samples.chunks(recipe.batch_of_a_rank)) {
        let mean = |of: &dyn Fn(f64, f64) -> f64| {
            batch.iter().map(|x| of(*x, (a * b - 1.0) * x)).sum::<f64>() / batch.len() as f64
        };
        let sums = [
            mean(&|x, error| 2.0 * error * b * x),
            mean(&|x, error| 2.0 * error * a * x),
            mean(&|_, error| error * error),
        ];
        let mut sums = Tensor::from_slice(&sums);
        group.all_reduce(&mut sums, ReduceOp::Sum)?;
        let mean = |which| sums.double_value(&[which]) / group.size().get() as f64;
        (a, b, loss) = (a - rate(step) * mean(0), b - rate(step) * mean(1), mean(2));
    }
    Ok(loss)
}

/// What a rank did from `begin` to `end`, in microseconds from the start of the trace. All ranks have the same clock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Span {
    pub rank: usize,
    pub kind: Kind,
    pub begin: f64,
    pub end: f64,
}

/// What it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The training thread computes.
    Compute,
    /// An all-reduce of a bucket is under way: from the rank's call to the end, which is the same on all ranks.
    Communication,
    /// The loader's thread reads a batch ahead.
    Loading,
}

/// What a trace shows.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Reading {
    /// For each rank, microseconds in which it communicates and does not compute.
    pub exposed: Vec<f64>,
    /// Of all ranks' time with communication, the percentage that is hidden behind computation.
    pub overlap: f64,
    /// The rank for which the others wait.
    pub straggler: usize,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Trace {
    trace_events: Vec<Event>,
}

#[derive(Deserialize)]
struct Event {
    /// `X` is a complete event with its duration; `M` names a process.
    ph: String,
    #[serde(default)]
    cat: String,
    /// The rank.
    pid: usize,
    #[serde(default)]
    ts: f64,
    #[serde(default)]
    dur: f64,
}

/// The spans of a trace, in its order: those of a rank may overlap, and are not sorted.
pub fn spans(json: &str) -> Result<Vec<Span>> {
    let trace: Trace = serde_json::from_str(json)?;
    let span = |event: Event| {
        let kind = match event.cat.as_str() {
            "compute" => Kind::Compute,
            "communication" => Kind::Communication,
            "loading" => Kind::Loading,
            _ => return None,
        };
        Some(Span { rank: event.pid, kind, begin: event.ts, end: event.ts + event.dur })
    };
    Ok(trace.trace_events.into_iter().filter(|event| event.ph == "X").filter_map(span).collect())
}
