//! Sparse gradients and static graphs of DDP, compared with Python's (`golden/ddp_features.py`), over Gloo and in shared
//! memory; models with several outputs, and parameters that DDP leaves alone. Here are the models and the runs that Python made as well.

use std::collections::BTreeMap;
use std::rc::Rc;

use c10d::{Backend, CommHook, ErrorKind, ProcessGroup};
use lockstep::optim::{Optimizer, Sgd, SgdOptions, named_parameters};
use lockstep::{DdpOptions, DdpVariables, DistributedDataParallel};
use lockstep_testkit::margin;
use tch::nn::{EmbeddingConfig, Module, VarStore};
use tch::{Device, Kind, Tensor, nn, no_grad};

use crate::common::{formula_tensor, ranks, ranks_on, values};

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
}

fn golden() -> Golden {
    let golden: Golden = serde_json::from_str(include_str!("../../golden/ddp_features.json")).unwrap();
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

/// The losses of a run.
fn train<M>(ddp: &DistributedDataParallel<M>, vs: &VarStore, output: impl Fn(&M, usize) -> Tensor) -> Vec<f64> {
    let rank = ddp.group().rank().get();
    let mut optimizer = Sgd::new(named_parameters(vs), SgdOptions { lr: 0.5, ..Default::default() }).unwrap();
    let mut losses = vec![];
    for step in 0..STEPS {
        optimizer.zero_grad();
        let output = ddp.forward_with(|model| output(model, step)).unwrap();
        let loss = output.cross_entropy_for_logits(&targets(rank, step));
        ddp.backward(&loss).unwrap();
        optimizer.step().unwrap();
        losses.push(loss.double_value(&[]));
    }
    losses
}

fn run(name: &str, group: Rc<ProcessGroup>) -> Vec<f64> {
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
            let pairs = found.iter().zip(&python).flat_map(|(losses, python)| losses.iter().zip(&python.losses));
            let worst = pairs.map(|(ours, theirs)| (ours - theirs).abs() / theirs).fold(0.0, f64::max);
            assert!(found.iter().all(|losses| losses.len() == STEPS && losses.iter().all(|loss| loss.is_finite())));
            margin::below(
                format!("{name} on {}: losses from Python's, as a part of them", backend.name()),
                worst,
                1e-6,
            );
        }
    }
}

/// The gradients of a step on this rank: that of the table made dense, and the others.
fn gradients(group: Rc<ProcessGroup>, sparse: bool, options: &DdpOptions) -> (bool, Vec<Vec<f64>>) {
    let (vs, rank) = (VarStore::new(Device::Cpu), group.rank().get());
    let model = Words::new(&vs, sparse);
    let variables = if sparse { SPARSE } else { DdpVariables::default() };
    let ddp = DistributedDataParallel::new_with(model, &vs, group, options, &variables).unwrap();
    let mut last = (false, vec![]);
    for step in 0..3 {
        named_parameters(&vs).iter_mut().for_each(|(_, parameter)| c10d::clear_grad(parameter).unwrap());
        let output = ddp.forward_with(|model| model.forward(&words(rank, step))).unwrap();
        ddp.backward(&output.cross_entropy_for_logits(&targets(rank, step))).unwrap();
        let grads: Vec<Tensor> = named_parameters(&vs).iter().map(|(_, parameter)| parameter.grad()).collect();
        let dense = |grad: &Tensor| if grad.is_sparse() { grad.to_dense(None, false) } else { grad.shallow_clone() };
        last = (grads[0].is_sparse(), grads.iter().map(|grad| values(&dense(grad).flatten(0, -1))).collect());
    }
    last
}

#[test]
fn sparse_gradients_are_the_mean_over_ranks_as_dense_ones_are() {
    for backend in BACKENDS {
        for world in [1, 3] {
            for options in [
                DdpOptions::default(),
                DdpOptions { bucket_cap_mb: 0.0001, ..Default::default() },
                DdpOptions { find_unused_parameters: true, ..Default::default() },
                DdpOptions { fixed_buckets: true, ..Default::default() },
                DdpOptions { static_graph: true, ..Default::default() },
            ] {
                let sparse = ranks_on(backend, world, |group| gradients(group, true, &options));
                let dense = ranks_on(backend, world, |group| gradients(group, false, &options));
                for ((is_sparse, ours), (is_dense, theirs)) in sparse.iter().zip(&dense) {
                    assert!(*is_sparse && !*is_dense, "{options:?}");
                    assert_eq!(ours, &sparse[0].1, "all ranks have the same: {options:?}");
                    let worst = apart(ours, theirs);
                    assert!(worst < 1e-6, "{worst} on {}, {world} ranks: {options:?}", backend.name());
                }
            }
        }
    }
}

#[test]
fn sparse_gradients_have_the_same_bits_on_both_backends() {
    // Dense ones are added in another order.
    let table = |group| gradients(group, true, &DdpOptions::default()).1.swap_remove(0);
    let on = |backend| ranks_on(backend, 3, table);
    assert_eq!(on(Backend::Gloo), on(Backend::SharedMemory));
}

#[test]
fn names_of_other_than_trained_parameters_are_refused() {
    ranks_on(Backend::Gloo, 1, |group| {
        for (ignored, sparse, named) in [
            (&["tabel.weight"][..], &[][..], "tabel.weight"),
            (&[], &["head"], "head"),
            (&["table.weight"], &["table.weight"], "table.weight"),
        ] {
            let vs = VarStore::new(Device::Cpu);
            let (model, variables) = (Words::new(&vs, true), DdpVariables { ignored, sparse });
            let refused =
                DistributedDataParallel::new_with(model, &vs, Rc::clone(&group), &DdpOptions::default(), &variables);
            let error = refused.err().expect("a refusal");
            assert_eq!(error.kind(), ErrorKind::BadArgument);
            assert!(error.to_string().contains(named), "{error}");
        }
    });
}

#[test]
fn a_sparse_gradient_that_was_not_announced_fails_the_step() {
    ranks_on(Backend::Gloo, 1, |group| {
        let vs = VarStore::new(Device::Cpu);
        let ddp = DistributedDataParallel::new(Words::new(&vs, true), &vs, group, &DdpOptions::default()).unwrap();
        let output = ddp.forward_with(|model| model.forward(&words(0, 0))).unwrap();
        let error = ddp.backward(&output.sum(Kind::Float)).unwrap_err();
        assert!(error.to_string().to_lowercase().contains("sparse"), "{error}");
    });
}

/// The gradients that the parameters have, empty lists where there are none.
fn gradients_of(vs: &VarStore) -> Vec<Vec<f64>> {
    let of = |(_, parameter): &(String, Tensor)| {
        let grad = parameter.grad();
        if grad.defined() { values(&grad.flatten(0, -1)) } else { vec![] }
    };
    named_parameters(vs).iter().map(of).collect()
}

/// Those of the last of some steps.
fn of_twice(group: Rc<ProcessGroup>, options: &DdpOptions, accumulate: bool) -> c10d::Result<Vec<Vec<f64>>> {
    let (vs, rank) = (VarStore::new(Device::Cpu), group.rank().get());
    let ddp = DistributedDataParallel::new(Twice::new(&vs), &vs, group, options)?;
    for step in 0..3 {
        named_parameters(&vs).iter_mut().for_each(|(_, parameter)| c10d::clear_grad(parameter).unwrap());
        let pass = |step| {
            let output = ddp.forward_with(|model| model.forward(&numbers(rank, step), true))?;
            ddp.backward(&output.cross_entropy_for_logits(&targets(rank, step)))
        };
        if accumulate {
            ddp.no_sync(|| pass(step + 10))?;
        }
        pass(step)?;
    }
    Ok(gradients_of(&vs))
}

/// What one process computes for all ranks, without recomputation.
fn due(world: usize, accumulate: bool) -> Vec<Vec<f64>> {
    let vs = VarStore::new(Device::Cpu);
    let model = Twice::new(&vs);
    let steps: &[usize] = if accumulate { &[2, 12] } else { &[2] };
    let loss = |rank: usize, step: usize| {
        model.forward(&numbers(rank, step), false).cross_entropy_for_logits(&targets(rank, step))
    };
    let losses = (0..world).flat_map(|rank| steps.iter().map(move |step| (rank, *step)));
    let sum = losses.map(|(rank, step)| loss(rank, step)).reduce(|a, b| a + b).unwrap();
    c10d::backward(&(sum / world as f64)).unwrap();
    gradients_of(&vs)
}

#[test]
fn a_static_graph_may_use_a_parameter_in_two_recomputations_and_leave_one_out() {
    for backend in BACKENDS {
        for world in 1..=3 {
            for (gradient_as_bucket_view, accumulate) in [(false, false), (true, false), (false, true)] {
                let options = DdpOptions { static_graph: true, gradient_as_bucket_view, ..Default::default() };
                let found = ranks_on(backend, world, |group| of_twice(group, &options, accumulate).unwrap());
                let due = due(world, accumulate);
                for grads in &found {
                    assert_eq!(grads, &found[0]);
                    assert_eq!(
                        grads.iter().map(Vec::len).collect::<Vec<_>>(),
                        due.iter().map(Vec::len).collect::<Vec<_>>()
                    );
                    let worst = apart(grads, &due);
                    assert!(worst < 1e-6, "{worst}, {world} ranks on {}", backend.name());
                }
            }
        }
    }
}

#[test]
fn without_a_static_graph_the_same_model_fails_with_the_reason() {
    let errors = ranks_on(Backend::Gloo, 2, |group| of_twice(group, &DdpOptions::default(), false).unwrap_err());
    for error in errors {
        assert!(
            error.to_string().contains("marked as ready twice") || error.to_string().contains("ready only once"),
            "{error}"
        );
    }
}

#[test]
fn a_graph_that_loses_a_gradient_although_it_was_said_to_be_static_fails_the_next_step() {
    ranks_on(Backend::Gloo, 1, |group| {
        let vs = VarStore::new(Device::Cpu);
        let options = DdpOptions { static_graph: true, ..Default::default() };
        let ddp = DistributedDataParallel::new(Twice::new(&vs), &vs, group, &options).unwrap();
        // The shared layer's gradients come twice, and then once.
        for checkpointed in [true, false] {
            let output = ddp.forward_with(|model| model.forward(&numbers(0, 0), checkpointed)).unwrap();
            ddp.backward(&output.sum(Kind::Float)).unwrap();
        }
        let error = ddp.forward_with(|model| model.forward(&numbers(0, 0), true)).unwrap_err().to_string();
        assert!(error.contains("graph has changed"), "{error}");
    });
}

#[test]
fn what_does_not_go_with_a_static_graph_is_refused() {
    ranks_on(Backend::Gloo, 1, |group| {
        let wrap = |fixed_buckets| {
            let vs = VarStore::new(Device::Cpu);
            let options = DdpOptions { static_graph: true, fixed_buckets, ..Default::default() };
            DistributedDataParallel::new(Twice::new(&vs), &vs, Rc::clone(&group), &options)
        };
        assert_eq!(wrap(true).err().unwrap().kind(), ErrorKind::BadArgument);
        assert!(wrap(false).is_ok());
    });
}

// ---- several outputs, and parameters that DDP leaves alone

fn linear() -> (VarStore, nn::Linear) {
    let mut vs = VarStore::new(Device::Cpu);
    vs.set_kind(Kind::Double);
    let net = nn::linear(vs.root(), 3, 2, Default::default());
    for (salt, (_, mut parameter)) in named_parameters(&vs).into_iter().enumerate() {
        no_grad(|| parameter.copy_(&formula_tensor(&parameter.size(), salt as i64 + 1, 0.5)));
    }
    (vs, net)
}

fn batch(rank: usize, step: usize) -> Tensor {
    formula_tensor(&[4, 3], (10 * rank + step) as i64, 1.0).to_kind(Kind::Double)
}

fn ignoring<'a>(names: &'a [&'a str]) -> DdpVariables<'a> {
    DdpVariables { ignored: names, ..Default::default() }
}

fn loss(output: &Tensor) -> Tensor {
    (output * output).mean(Kind::Double)
}

fn near(a: &[f64], b: &[f64]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12)
}

#[test]
fn a_model_may_have_several_outputs() {
    for find_unused_parameters in [false, true] {
        let found = ranks(2, |group| {
            let mine = group.rank().get();
            let (vs, net) = linear();
            let options = DdpOptions { find_unused_parameters, ..Default::default() };
            let model = DistributedDataParallel::new(net, &vs, group, &options).unwrap();
            let outputs = model.forward_with(|net| {
                let both = [batch(mine, 0), batch(mine, 1)].map(|batch| net.forward(&batch));
                let [first, second] = both;
                (first, Some(vec![second]))
            });
            let (first, rest) = outputs.unwrap();
            model.backward(&(loss(&first) + loss(&rest.unwrap()[0]))).unwrap();
            named_parameters(&vs).iter().flat_map(|(_, p)| values(&p.grad().flatten(0, -1))).collect::<Vec<_>>()
        });
        let (vs, net) = linear();
        let sum = |rank, step| loss(&net.forward(&batch(rank, step)));
        ((sum(0, 0) + sum(0, 1) + sum(1, 0) + sum(1, 1)) / 2.0).backward();
        let due: Vec<f64> = named_parameters(&vs).iter().flat_map(|(_, p)| values(&p.grad().flatten(0, -1))).collect();
        assert!(found.iter().all(|found| near(found, &due)));
    }
}

#[test]
fn parameters_that_are_ignored_stay_each_ranks_own() {
    ranks(2, |group| {
        let mine = group.rank().get();
        let (vs, net) = linear();
        let mut bias = vs.variables()["bias"].shallow_clone();
        let _ = no_grad(|| bias.fill_(mine as f64));
        let group_of = Rc::clone(&group);
        let model =
            DistributedDataParallel::new_with(net, &vs, group, &DdpOptions::default(), &ignoring(&["bias"])).unwrap();
        assert_eq!(values(&bias.detach()), [mine as f64; 2], "it is not copied at the start");
        let output = model.forward_with(|net| net.forward(&batch(mine, 0))).unwrap();
        model.backward(&(loss(&output) * (mine + 1) as f64)).unwrap();
        let mut sum = bias.grad().copy();
        group_of.all_reduce(&mut sum, c10d::ReduceOp::Sum).unwrap();
        assert!(!near(&values(&sum), &values(&(bias.grad() * 2))), "its gradient is not averaged");
        let absent = ignoring(&["weight", "bais"]);
        let (vs, net) = linear();
        let refused = DistributedDataParallel::new_with(net, &vs, group_of, &DdpOptions::default(), &absent);
        assert!(refused.unwrap_err().to_string().contains("\"bais\""));
    });
}
