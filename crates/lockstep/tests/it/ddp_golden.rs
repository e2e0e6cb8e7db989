//! A DDP run against the same run in Python: the loss of every step, on both ranks, over Gloo and in shared memory.
//!
//! What Python gave is recorded. Where there is a Python with PyTorch 2.11 (`LOCKSTEP_PYTHON`, otherwise `python3`), it also runs here.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{formula, formula_tensor, ranks_on};
use c10d::{Backend, ProcessGroup};
use lockstep::data::{Batch, Dataset};
use lockstep::loader::DataLoader;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::sampler::DistributedSampler;
use lockstep::{DdpOptions, DistributedDataParallel};
use lockstep_testkit::{Job, margin};
use std::rc::Rc;
use tch::nn::{self, VarStore};
use tch::{Device, Tensor, no_grad};

const SAMPLES: usize = 50;
const FEATURES: usize = 20;
const CLASSES: usize = 4;

#[derive(serde::Deserialize)]
struct Golden {
    torch: String,
    losses: BTreeMap<String, Vec<Vec<f64>>>,
}

struct Formula;

impl Dataset for Formula {
    fn len(&self) -> usize {
        SAMPLES
    }

    fn batch(&self, _epoch: u64, indices: &[usize]) -> anyhow::Result<Batch> {
        let all = formula(SAMPLES * FEATURES, 9, 1.0);
        let rows: Vec<f32> =
            indices.iter().flat_map(|&i| all[i * FEATURES..(i + 1) * FEATURES].iter().copied()).collect();
        let targets: Vec<i64> = indices.iter().map(|&i| ((i * i + i / 3) % CLASSES) as i64).collect();
        let inputs = Tensor::from_slice(&rows).reshape([indices.len() as i64, FEATURES as i64]);
        Ok(Batch { inputs, targets: Tensor::from_slice(&targets) })
    }
}

/// `make_model` of the script: parameter k of Python's order (weights before biases) has salt k + 1.
fn model(vs: &VarStore) -> nn::Sequential {
    let root = vs.root();
    let net = nn::seq().add(nn::linear(&root / "0", 20, 16, Default::default())).add_fn(|x| x.relu()).add(nn::linear(
        &root / "2",
        16,
        4,
        Default::default(),
    ));
    let variables = vs.variables();
    for (salt, name) in ["0.weight", "0.bias", "2.weight", "2.bias"].iter().enumerate() {
        let mut variable = variables[*name].shallow_clone();
        no_grad(|| variable.copy_(&formula_tensor(&variable.size(), salt as i64 + 1, 0.25)));
    }
    net
}

fn train(group: Rc<ProcessGroup>, options: &DdpOptions) -> Vec<f64> {
    let vs = VarStore::new(Device::Cpu);
    let net = model(&vs);
    let sampler = DistributedSampler::new(SAMPLES, group.rank(), group.size()).unwrap().seed(3);
    let loader = DataLoader::new(Arc::new(Formula), sampler, 8).unwrap();
    let options_sgd = SgdOptions { lr: 0.1, momentum: 0.9, ..SgdOptions::default() };
    let mut optimizer = Sgd::new(named_parameters(&vs), options_sgd).unwrap();
    let ddp = DistributedDataParallel::new(net, &vs, group, options).unwrap();
    let mut losses = Vec::new();
    for epoch in 0..3 {
        for batch in loader.epoch(epoch) {
            let Batch { inputs, targets } = batch.unwrap();
            optimizer.zero_grad();
            let loss = ddp.forward(&inputs).unwrap().cross_entropy_for_logits(&targets);
            ddp.backward(&loss).unwrap();
            optimizer.step().unwrap();
            losses.push(loss.double_value(&[]));
        }
    }
    losses
}

/// Of each run of the script, its name, and the losses of both ranks.
fn runs_on(backend: Backend) -> Vec<(&'static str, Vec<Vec<f64>>)> {
    let small = DdpOptions { bucket_cap_mb: 0.0005, ..DdpOptions::default() };
    let runs = [
        ("default", DdpOptions::default()),
        ("small_buckets", small),
        ("bucket_view", DdpOptions { gradient_as_bucket_view: true, ..small }),
    ];
    runs.into_iter().map(|(name, options)| (name, ranks_on(backend, 2, |group| train(group, &options)))).collect()
}

#[test]
fn the_loss_of_every_step_is_pythons_within_1e_6() {
    let golden: Golden = serde_json::from_str(include_str!("../../golden/ddp.json")).unwrap();
    assert_eq!(golden.torch, "2.11.0");
    for backend in [Backend::Gloo, Backend::SharedMemory] {
        for (name, losses) in runs_on(backend) {
            let mut worst = 0f64;
            for (ours, theirs) in losses.iter().zip(&golden.losses[name]) {
                assert_eq!(ours.len(), theirs.len());
                assert!(ours.iter().all(|loss| loss.is_finite()), "{name}: {ours:?}");
                worst = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs() / b.abs()).fold(worst, f64::max);
            }
            let backend = backend.name();
            margin::below(format!("{name} on {backend}: losses from Python's, as a part of them"), worst, 1e-6);
        }
    }
}

#[test]
fn two_ranks_in_shared_memory_have_the_bits_of_gloo() {
    assert_eq!(runs_on(Backend::SharedMemory), runs_on(Backend::Gloo));
}

/// Runs the last run of the script that made the golden values, in the same way.
const SCRIPT: &str = r#"
import json, pathlib, sys
import torch
if not torch.__version__.startswith("2.11."):
    sys.exit(3)
sys.path.insert(0, sys.argv[1])
import ddp

class Files:
    def __setitem__(self, rank, losses):
        pathlib.Path(f"{rank}.json").write_text(json.dumps(losses))

options = {"gradient_as_bucket_view": True, "bucket_cap_mb": 0.0005}
ddp.mp.spawn(ddp.worker, (ddp.free_port(), Files(), options), nprocs=ddp.WORLD)
"#;

/// The losses whose bits are Python's, by their positions.
fn alike(losses: &[Vec<f64>], python: &[Vec<f64>]) -> Vec<(usize, usize)> {
    let of = |rank: usize| (0..losses[rank].len()).map(move |step| (rank, step));
    (0..losses.len()).flat_map(of).filter(|&(rank, step)| losses[rank][step] == python[rank][step]).collect()
}

#[test]
fn two_ranks_in_shared_memory_have_pythons_bits_where_gloo_has_them() {
    let what = "the bits of Python's DDP";
    let Some(job) = Job::in_python(what) else { return };
    std::fs::write(job.path("script.py"), SCRIPT).unwrap();
    let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/golden");
    let output = job.alone(&["script.py", scripts]);
    if output.status.code() == Some(3) {
        return println!("not verified here: {what} (set LOCKSTEP_PYTHON to a Python with PyTorch 2.11)");
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let losses = |rank| std::fs::read(job.path(&format!("{rank}.json"))).unwrap();
    let python: Vec<Vec<f64>> = [0, 1].map(|rank| serde_json::from_slice(&losses(rank)).unwrap()).into();
    let [gloo, memory] = [Backend::Gloo, Backend::SharedMemory].map(|backend| {
        let (_, losses) = runs_on(backend).pop().unwrap();
        alike(&losses, &python)
    });
    println!("{} of {} losses have Python's bits", memory.len(), python.iter().map(Vec::len).sum::<usize>());
    assert!(memory.len() > python.len());
    assert_eq!(memory, gloo);
}
