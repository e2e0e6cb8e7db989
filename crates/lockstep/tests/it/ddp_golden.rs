//! A DDP run against the same run in Python: the loss of every step, on both ranks.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::common::{formula, formula_tensor, ranks};
use c10d::ProcessGroup;
use lockstep::data::{Batch, Dataset};
use lockstep::loader::DataLoader;
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::sampler::DistributedSampler;
use lockstep::{DdpOptions, DistributedDataParallel};
use lockstep_testkit::margin;
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

#[test]
fn the_loss_of_every_step_is_pythons_within_1e_6() {
    let golden: Golden = serde_json::from_str(include_str!("../../golden/ddp.json")).unwrap();
    assert_eq!(golden.torch, "2.11.0");
    let small = DdpOptions { bucket_cap_mb: 0.0005, ..DdpOptions::default() };
    let runs = [
        ("default", DdpOptions::default()),
        ("small_buckets", small),
        ("bucket_view", DdpOptions { gradient_as_bucket_view: true, ..small }),
    ];
    for (name, options) in runs {
        let losses = ranks(2, |group| train(group, &options));
        let mut worst = 0f64;
        for (ours, theirs) in losses.iter().zip(&golden.losses[name]) {
            assert_eq!(ours.len(), theirs.len());
            assert!(ours.iter().all(|loss| loss.is_finite()), "{name}: {ours:?}");
            worst = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs() / b.abs()).fold(worst, f64::max);
        }
        margin::below(format!("{name}: losses from Python's, as a part of them"), worst, 1e-6);
    }
}
