//! The GPT and what trains it (accumulation, clipping, the cosine schedule, autocast) against PyTorch 2.11 (`golden/gpt.py`): on one
//! rank, on several with DDP, and fully sharded.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use c10d::ProcessGroup;
use lockstep::accumulate::accumulate;
use lockstep::amp::Precision;
use lockstep::data::Batch;
use lockstep::loss::{CrossEntropy, IGNORE_INDEX};
use lockstep::models::gpt::{Gpt, GptConfig, Positions, Sampling};
use lockstep::nn::raise;
use lockstep::optim::schedule::{Cosine, Warmup};
use lockstep::optim::{AdamW, AdamWOptions, GradParts, Optimizer, clip_grad_norm, named_parameters};
use lockstep::parallel::{FullyShard, FullyShardOptions};
use lockstep::{DdpOptions, DistributedDataParallel};
use serde::Deserialize;
use tch::nn::{ModuleT, VarStore};
use tch::{Device, Kind, Tensor, no_grad};

use crate::common::{formula_double, grid, ranks, values};

const CONFIG: GptConfig = GptConfig {
    vocabulary: 11,
    context: 8,
    layers: 2,
    heads: 2,
    width: 8,
    positions: Positions::Learned,
    dropout: 0.0,
};

#[derive(Deserialize)]
struct Golden {
    runs: Vec<Run>,
}

#[derive(Deserialize)]
struct Run {
    rotary: bool,
    logits: Vec<f64>,
    loss: f64,
    /// The norm of each gradient, and its first elements.
    grads: BTreeMap<String, Vec<f64>>,
    bfloat16: f64,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    loss: f64,
    norm: f64,
    lr: f64,
}

fn golden() -> Vec<Run> {
    let golden: Golden = serde_json::from_str(include_str!("../../golden/gpt.json")).unwrap();
    assert_eq!(golden.runs.len(), 2);
    golden.runs
}

fn model(rotary: bool, kind: Kind) -> (VarStore, Gpt) {
    let mut vs = VarStore::new(Device::Cpu);
    vs.set_kind(kind);
    let positions = if rotary { Positions::Rotary } else { Positions::Learned };
    let gpt = Gpt::new(&vs.root(), GptConfig { positions, ..CONFIG }).unwrap();
    let variables: BTreeMap<_, _> = vs.variables().into_iter().collect();
    for (salt, (name, mut variable)) in variables.into_iter().enumerate() {
        let is_norm = name.contains("ln_") && name.ends_with("weight");
        let weight = formula_double(&variable.size(), salt as i64, 0.4) + f64::from(is_norm);
        no_grad(|| variable.copy_(&weight));
    }
    (vs, gpt)
}

/// The two micro-batches of a step.
fn batches() -> Vec<Batch> {
    let batch = |salt: i64, ignored: i64| {
        let tokens =
            Tensor::from_slice(&(0..14).map(|i| (i * i * 3 + i * 7 + salt) % 11).collect::<Vec<i64>>()).reshape([2, 7]);
        let targets = tokens.narrow(1, 1, 6).copy();
        let _ignored = targets.select(0, 1).narrow(0, 6 - ignored, ignored).fill_(IGNORE_INDEX);
        Batch { inputs: tokens.narrow(1, 0, 6), targets }
    };
    vec![batch(1, 0), batch(4, 5)]
}

fn near(value: f64, expected: f64, of: &str) {
    assert!((value - expected).abs() <= 1e-10 * expected.abs().max(1.0), "{of}: {value} {expected}");
}

#[test]
fn golden_logits_and_gradients() {
    for run in golden() {
        let (vs, gpt) = model(run.rotary, Kind::Double);
        let Batch { inputs, targets } = batches().remove(1);
        let logits = gpt.try_forward(&inputs).unwrap();
        assert_eq!(logits.size(), [2, 6, 11]);
        values(&logits.detach())
            .into_iter()
            .zip(&run.logits)
            .for_each(|(value, expected)| near(value, *expected, "logits"));
        let loss = CrossEntropy::default().loss(&logits, &targets);
        near(loss.double_value(&[]), run.loss, "loss");
        c10d::backward(&loss).unwrap();
        let named = named_parameters(&vs);
        assert_eq!(named.len(), run.grads.len());
        for (name, param) in named {
            let grad = values(&param.grad().flatten(0, -1));
            let norm = grad.iter().map(|value| value * value).sum::<f64>().sqrt();
            let own = std::iter::once(norm).chain(grad).take(4);
            own.zip(&run.grads[&name]).for_each(|(value, expected)| near(value, *expected, &name));
        }
    }
}

#[test]
fn golden_loss_under_autocast() {
    for run in golden() {
        let (_vs, gpt) = model(run.rotary, Kind::Float);
        let Batch { inputs, targets } = batches().remove(1);
        let logits = Precision::Bfloat16.autocast(Device::Cpu, || gpt.try_forward(&inputs).unwrap()).unwrap();
        assert_eq!(logits.kind(), Kind::BFloat16);
        let loss =
            Precision::Bfloat16.autocast(Device::Cpu, || CrossEntropy::default().loss(&logits, &targets)).unwrap();
        let loss = loss.double_value(&[]);
        // 8 significant bits, which processors round differently.
        assert!((loss - run.bfloat16).abs() < 0.02, "{loss} {}", run.bfloat16);
    }
}

/// How the model is wrapped.
#[derive(Clone, Copy, Debug)]
enum Wrapping {
    Copies,
    FullyShard,
}

/// The norm of each step, the share of the loss, and the rates.
fn train(group: &Rc<ProcessGroup>, run: &Run, wrapping: Wrapping) -> Vec<Step> {
    let (vs, gpt) = model(run.rotary, Kind::Double);
    let criterion = CrossEntropy::default();
    let options = AdamWOptions { lr: 0.02, betas: (0.9, 0.95), weight_decay: 0.1, ..Default::default() };
    let schedule = Cosine::new(Warmup::new(0.02, 0.25, 2).unwrap(), 0.002, 6).unwrap();
    // One rank takes both micro-batches, two take one each.
    let (world, rank) = (group.size().get(), group.rank().get());
    let mut own = batches();
    if world == 2 {
        own = vec![own.remove(rank)];
    }
    let count = |batch: &Batch| criterion.count(&batch.targets);
    let part = own.iter().map(count).sum::<i64>() as f64 / batches().iter().map(count).sum::<i64>() as f64;
    let steps = 0..run.steps.len() as u64;
    match wrapping {
        Wrapping::Copies => {
            let model = DistributedDataParallel::new(gpt, &vs, Rc::clone(group), &DdpOptions::default()).unwrap();
            let params = named_parameters(&vs);
            let mut optimizer = AdamW::new(named_parameters(&vs), options).unwrap();
            let step = |step| {
                optimizer.zero_grad();
                schedule.apply(step, &mut optimizer);
                let loss = accumulate(&model, &own, count, |batch| {
                    let logits = model.forward_with(|gpt| gpt.forward_t(&batch.inputs, true))?;
                    criterion.sum(&logits, &batch.targets)
                });
                let norm = clip_grad_norm(&[GradParts::whole(&params)], 0.5).unwrap();
                optimizer.step().unwrap();
                Step { loss: loss.unwrap() * part, norm, lr: optimizer.lr() }
            };
            steps.map(step).collect()
        }
        Wrapping::FullyShard => {
            let units = gpt.units();
            let units: Vec<&str> = units.iter().map(String::as_str).collect();
            let model = FullyShard::new(&vs, Rc::clone(group), &units, &FullyShardOptions::default()).unwrap();
            let params = model.named_parameters();
            let mut optimizer = AdamW::new(model.named_parameters(), options).unwrap();
            let step = |step| {
                optimizer.zero_grad();
                schedule.apply(step, &mut optimizer);
                let loss = accumulate(&model, &own, count, |batch| {
                    let logits = gpt.forward_units(&batch.inputs, true, &|unit, inputs, layers| {
                        model.forward(unit, inputs, layers).unwrap_or_else(|error| raise(error))
                    });
                    criterion.sum(&logits, &batch.targets)
                });
                let parts = [GradParts { params: &params, divided_over: &[model.group()] }];
                let norm = clip_grad_norm(&parts, 0.5).unwrap();
                optimizer.step().unwrap();
                Step { loss: loss.unwrap() * part, norm, lr: optimizer.lr() }
            };
            steps.map(step).collect()
        }
    }
}

#[test]
fn golden_steps_of_micro_batches_with_clipped_gradients_on_one_rank_and_several() {
    for run in golden() {
        for (wrapping, world) in
            [(Wrapping::Copies, 1), (Wrapping::Copies, 2), (Wrapping::FullyShard, 1), (Wrapping::FullyShard, 2)]
        {
            let ranks = ranks(world, |group| train(&group, &run, wrapping));
            for (at, expected) in run.steps.iter().enumerate() {
                let of = |what| format!("{what} of step {at}, {wrapping:?} on {world}");
                near(ranks.iter().map(|steps| steps[at].loss).sum(), expected.loss, &of("loss"));
                for steps in &ranks {
                    near(steps[at].norm, expected.norm, &of("norm"));
                    near(steps[at].lr, expected.lr, &of("lr"));
                }
            }
        }
    }
}

/// A parameter of this shape with a gradient.
fn with_grad(name: &str, grad: &Tensor) -> (String, Tensor) {
    let param = Tensor::zeros_like(grad).set_requires_grad(true);
    (&param * grad).sum(Kind::Double).backward();
    (name.to_owned(), param)
}

#[test]
fn counts_each_element_once_where_layers_are_divided_over_a_grid() {
    let (weight, bias) = (|stage| formula_double(&[8, 6], stage, 3.0), |stage| formula_double(&[6], stage + 5, 3.0));
    let squares = |tensor: Tensor| tensor.square().sum(Kind::Double).double_value(&[]);
    let whole = (0..2).map(|stage| squares(weight(stage)) + squares(bias(stage))).sum::<f64>().sqrt();
    ranks(4, |group| {
        let [stages, tensor] = &grid(&group);
        let stage = stages.rank().get() as i64;
        let own = weight(stage).chunk(2, 0)[tensor.rank().get()].shallow_clone();
        let (divided, copied) = (vec![with_grad("weight", &own)], vec![with_grad("bias", &bias(stage))]);
        let parts = [
            GradParts { params: &divided, divided_over: &[tensor, stages] },
            GradParts { params: &copied, divided_over: &[stages] },
        ];
        near(clip_grad_norm(&parts, f64::INFINITY).unwrap(), whole, "measured");
        near(clip_grad_norm(&parts, 2.0).unwrap(), whole, "not changed by measuring");
        let expected = own * (2.0 / (whole + 1e-6));
        assert!((divided[0].1.grad() - expected).abs().max().double_value(&[]) < 1e-12);
        near(clip_grad_norm(&parts, 9.0).unwrap(), 2.0 * whole / (whole + 1e-6), "clipped");
        // A rank without gradients takes part, too.
        let parts =
            if group.rank().is_zero() { vec![] } else { vec![with_grad("some", &Tensor::from_slice(&[3.0, 4.0]))] };
        let parts = [GradParts { params: &parts, divided_over: &[&group] }];
        near(clip_grad_norm(&parts, 1.0).unwrap(), 75f64.sqrt(), "three of four");
    });
}

#[test]
fn a_norm_that_is_not_finite_is_seen_and_a_limit_of_0_refused() {
    let params = [with_grad("a", &Tensor::from_slice(&[f64::NAN, 1.0])), with_grad("b", &Tensor::from_slice(&[2.0]))];
    assert!(clip_grad_norm(&[GradParts::whole(&params)], 1.0).unwrap().is_nan());
    assert!(values(&params[1].1.grad())[0].is_nan());
    let params = [with_grad("a", &Tensor::from_slice(&[f64::INFINITY, 1.0]))];
    assert!(clip_grad_norm(&[GradParts::whole(&params)], f64::INFINITY).unwrap().is_infinite());
    assert_eq!(values(&params[0].1.grad()), [f64::INFINITY, 1.0]);
    assert!(clip_grad_norm(&[GradParts::whole(&params)], 1.0).unwrap().is_infinite());
    let clipped = values(&params[0].1.grad());
    assert!(clipped[0].is_nan() && clipped[1] == 0.0, "{clipped:?}");
    for limit in [0.0, -1.0, f64::NAN] {
        let error = clip_grad_norm(&[GradParts::whole(&params)], limit).unwrap_err().to_string();
        assert!(error.contains("choose one above 0"), "{error}");
    }
}

#[test]
fn accumulation_sends_gradients_once_and_says_what_is_missing() {
    ranks(2, |group| {
        let (vs, gpt) = model(false, Kind::Double);
        let model = DistributedDataParallel::new(gpt, &vs, Rc::clone(&group), &DdpOptions::default()).unwrap();
        let criterion = CrossEntropy::default();
        let passes = Cell::new(0);
        let sent = |batches: &[Batch]| {
            let before = group.traffic().unwrap_or_default();
            let sum = |batch: &Batch| {
                passes.set(passes.get() + 1);
                let logits = model.forward_with(|gpt| gpt.forward_t(&batch.inputs, true))?;
                criterion.sum(&logits, &batch.targets)
            };
            accumulate(&model, batches, |batch| criterion.count(&batch.targets), sum)
                .map(|loss| (loss, group.traffic().unwrap_or_default() - before))
        };
        let all = batches();
        // From the second step on, the layout of the buckets is known.
        for _ in 0..2 {
            sent(&all[..1]).unwrap();
        }
        let (_, once) = sent(&all[..1]).unwrap();
        let (_, twice) = sent(&all).unwrap();
        assert_eq!((once, passes.get()), (twice, 5));
        let ignored =
            [Batch { inputs: all[0].inputs.shallow_clone(), targets: all[0].targets.full_like(IGNORE_INDEX) }];
        let error = sent(&ignored).unwrap_err().to_string();
        assert!(error.contains("no target of any rank counts"), "{error}");
        // All ranks learn that one has none.
        let error = sent(if group.rank().is_zero() { &[] } else { &all }).unwrap_err().to_string();
        assert!(error.contains("1 of 2 ranks have no micro-batch"), "{error}");
        // One that has nothing to count takes part.
        let own = if group.rank().is_zero() { &ignored[..] } else { &all[..] };
        let (loss, _) = sent(own).unwrap();
        assert_eq!(loss.is_nan(), group.rank().is_zero());
    });
}

#[test]
fn the_likeliest_token_is_chosen_from_what_the_context_shows() {
    let (_vs, gpt) = model(true, Kind::Double);
    let tokens = gpt.generate(&[1, 2], 12, Sampling { temperature: 0.0, seed: 0 }).unwrap();
    assert_eq!((tokens.len(), &tokens[..2]), (14, &[1, 2][..]));
    for end in 2..14_usize {
        let seen: Vec<i64> = tokens[end.saturating_sub(8)..end].iter().map(|token| i64::from(*token)).collect();
        let logits = gpt.try_forward(&Tensor::from_slice(&seen).unsqueeze(0)).unwrap();
        assert_eq!(logits.select(1, -1).argmax(-1, false).int64_value(&[0]), i64::from(tokens[end]));
    }
}
