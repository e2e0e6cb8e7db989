//! Sparse gradients, static graphs and logging data of DDP, compared with Python's (`scripts/golden/ddp_features.py`), over Gloo and
//! in shared memory. Here are the models and the runs that Python made as well.

mod logging;
mod sparse;
mod static_graph;

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::common::{formula_tensor, ranks_on};
use c10d::{Backend, CommHook, ProcessGroup};
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::{DdpLoggingData, DdpOptions, DdpVariables, DistributedDataParallel};
use lockstep_testkit::margin;
use serde_json::Value;
use tch::nn::{self, EmbeddingConfig, Module, VarStore};
use tch::{Device, Kind, Tensor, no_grad};

const BACKENDS: [Backend; 2] = [Backend::Gloo, Backend::SharedMemory];
const STEPS: usize = 6;

#[derive(serde::Deserialize)]
struct Golden {
    torch: String,
    runs: BTreeMap<String, Vec<Run>>,
}

#[derive(serde::Deserialize)]
struct Run {
    losses: Vec<f64>,
    logged_at_the_start: BTreeMap<String, Value>,
    logged_at_the_end: BTreeMap<String, Value>,
}

fn golden() -> Golden {
    let golden: Golden = serde_json::from_str(include_str!("../../../golden/ddp_features.json")).unwrap();
    assert_eq!(golden.torch, "2.11.0");
    golden
}

/// Gives the parameters the values that Python's have, whose order is `names`.
fn fill(vs: &VarStore, names: &[&str]) {
    let variables = vs.variables();
    assert_eq!(variables.len(), names.len());
    for (salt, name) in names.iter().enumerate() {
        let mut variable = variables[*name].shallow_clone();
        no_grad(|| variable.copy_(&formula_tensor(&variable.size(), salt as i64 + 1, 0.5)));
    }
}

/// The largest difference between two lists of tensors' values.
fn apart(ours: &[Vec<f64>], theirs: &[Vec<f64>]) -> f64 {
    let pairs = ours.iter().zip(theirs).flat_map(|(ours, theirs)| ours.iter().zip(theirs));
    pairs.map(|(ours, theirs)| (ours - theirs).abs()).fold(0.0, f64::max)
}

// ---- the models

/// An embedding of ten words, of which each step uses a few.
struct Words {
    table: nn::Embedding,
    head: nn::Linear,
}

impl Words {
    fn new(vs: &VarStore, sparse: bool) -> Self {
        let root = vs.root();
        let table = nn::embedding(&root / "table", 10, 4, EmbeddingConfig { sparse, ..Default::default() });
        let words = Words { table, head: nn::linear(&root / "head", 4, 3, Default::default()) };
        fill(vs, &["table.weight", "head.weight", "head.bias"]);
        words
    }

    fn forward(&self, words: &Tensor) -> Tensor {
        self.head.forward(&self.table.forward(words).mean_dim(1, false, Kind::Float))
    }
}

fn words(rank: usize, step: usize) -> Tensor {
    let words: Vec<i64> = (0..4).map(|i| ((3 * i + 2 * step + 5 * rank) % 10) as i64).collect();
    Tensor::from_slice(&words).view([2, 2])
}

const SPARSE: DdpVariables<'static> = DdpVariables { ignored: &[], sparse: &["table.weight"] };

/// A layer that two functions use which are computed again in the backward pass, and one that nothing uses.
struct Twice {
    shared: [Tensor; 2],
    head: nn::Linear,
}

impl Twice {
    fn new(vs: &VarStore) -> Self {
        let root = vs.root();
        let shared = nn::linear(&root / "shared", 6, 6, Default::default());
        let head = nn::linear(&root / "head", 6, 3, Default::default());
        let _idle = nn::linear(&root / "idle", 2, 2, Default::default());
        fill(vs, &["shared.weight", "shared.bias", "head.weight", "head.bias", "idle.weight", "idle.bias"]);
        Twice { shared: [shared.ws, shared.bs.expect("a linear layer has a bias")], head }
    }

    fn forward(&self, inputs: &Tensor, checkpointed: bool) -> Tensor {
        let mut x = inputs.shallow_clone();
        for _ in 0..2 {
            let [ws, bs] = [0, 1].map(|i: usize| self.shared[i].shallow_clone());
            let layer = move |x: &Tensor| x.linear(&ws, Some(&bs)).tanh();
            x = if checkpointed { c10d::checkpoint(&x, layer).unwrap() } else { layer(&x) };
        }
        self.head.forward(&x)
    }
}

fn numbers(rank: usize, step: usize) -> Tensor {
    formula_tensor(&[2, 6], (10 * rank + step) as i64, 1.0)
}

fn targets(rank: usize, step: usize) -> Tensor {
    Tensor::from_slice(&[0, 1].map(|i| ((step + i + rank) % 3) as i64))
}

// ---- training

/// What a run gave: the losses, and the logging data before and after.
type Found = (Vec<f64>, DdpLoggingData, DdpLoggingData);

fn train<M>(ddp: &DistributedDataParallel<M>, vs: &VarStore, output: impl Fn(&M, usize) -> Tensor) -> Found {
    let rank = ddp.group().rank().get();
    let mut optimizer = Sgd::new(named_parameters(vs), SgdOptions { lr: 0.5, ..Default::default() }).unwrap();
    let (mut losses, start) = (vec![], ddp.logging_data().unwrap());
    for step in 0..STEPS {
        optimizer.zero_grad();
        let output = ddp.forward_with(|model| output(model, step)).unwrap();
        let loss = output.cross_entropy_for_logits(&targets(rank, step));
        ddp.backward(&loss).unwrap();
        optimizer.step().unwrap();
        losses.push(loss.double_value(&[]));
    }
    (losses, start, ddp.logging_data().unwrap())
}

fn run(name: &str, group: Rc<ProcessGroup>) -> Found {
    let (vs, rank) = (VarStore::new(Device::Cpu), group.rank().get());
    let small = DdpOptions { bucket_cap_mb: 0.0001, ..Default::default() };
    match name {
        "sparse" => {
            let model = Words::new(&vs, true);
            let ddp = DistributedDataParallel::new_with(model, &vs, group, &DdpOptions::default(), &SPARSE).unwrap();
            train(&ddp, &vs, |model, step| model.forward(&words(rank, step)))
        }
        "static_graph" => {
            let options = DdpOptions { static_graph: true, ..small };
            let ddp = DistributedDataParallel::new(Twice::new(&vs), &vs, group, &options).unwrap();
            train(&ddp, &vs, |model, step| model.forward(&numbers(rank, step), true))
        }
        "plain" => {
            let root = vs.root();
            let first = nn::linear(&root / "0", 6, 8, Default::default());
            let net = nn::seq().add(first).add_fn(|x| x.tanh()).add(nn::linear(&root / "2", 8, 3, Default::default()));
            fill(&vs, &["0.weight", "0.bias", "2.weight", "2.bias"]);
            let options = DdpOptions { gradient_as_bucket_view: true, comm_hook: Some(CommHook::AllReduce), ..small };
            let ddp = DistributedDataParallel::new(net, &vs, group, &options).unwrap();
            train(&ddp, &vs, |model, step| model.forward(&numbers(rank, step)))
        }
        other => panic!("no run {other}"),
    }
}

#[test]
fn golden_losses_of_sparse_gradients_and_a_static_graph_are_pythons_within_1e_6() {
    for (name, python) in golden().runs {
        for backend in BACKENDS {
            let found = ranks_on(backend, 2, |group| run(&name, group));
            let pairs = found.iter().zip(&python).flat_map(|((losses, ..), python)| losses.iter().zip(&python.losses));
            let worst = pairs.map(|(ours, theirs)| (ours - theirs).abs() / theirs).fold(0.0, f64::max);
            assert!(
                found.iter().all(|(losses, ..)| losses.len() == STEPS && losses.iter().all(|loss| loss.is_finite()))
            );
            margin::below(
                format!("{name} on {}: losses from Python's, as a part of them", backend.name()),
                worst,
                1e-6,
            );
        }
    }
}
