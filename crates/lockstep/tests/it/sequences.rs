//! Losses and metrics of targets of any shape, against PyTorch 2.11 (`golden/metrics.py`), and over several ranks.

use std::rc::Rc;
use std::sync::Arc;

use lockstep::data::{Batch, Dataset, Tokenizer, Windows};
use lockstep::loader::{DataLoader, Position};
use lockstep::loss::{CrossEntropy, IGNORE_INDEX};
use lockstep::metrics::{EvalOptions, Evaluation, TopK, evaluate, evaluate_classes, over_my_share};
use lockstep::sampler::{DistributedSampler, Sampler};
use lockstep::{DdpOptions, DistributedDataParallel, Rank, WorldSize};
use serde::Deserialize;
use tch::nn::{Func, Init, VarStore};
use tch::{Device, Kind, Tensor};

use crate::common::{formula_tensor, ranks};

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    shape: Vec<i64>,
    targets: Vec<i64>,
    ignore_index: i64,
    label_smoothing: f64,
    counted: i64,
    mean: f64,
    sum: f64,
    perplexity: f64,
    top: Vec<f64>,
}

#[test]
fn golden_losses_and_fractions_of_any_shape() {
    let golden: Golden = serde_json::from_str(include_str!("../../golden/metrics.json")).unwrap();
    let near = |value: f64, expected: f64| assert!((value - expected).abs() < 1e-12, "{value} {expected}");
    for case in golden.cases {
        let criterion = CrossEntropy { label_smoothing: case.label_smoothing, ignore_index: case.ignore_index };
        let targets = Tensor::from_slice(&case.targets).reshape(&case.shape);
        let logits = crate::common::formula_double(&[&case.shape[..], &[7]].concat(), 3, 2.0);
        assert_eq!(criterion.count(&targets), case.counted);
        near(criterion.loss(&logits, &targets).double_value(&[]), case.mean);
        near(criterion.sum(&logits, &targets).unwrap().double_value(&[]), case.sum);
        let mut all = Evaluation::default();
        all.score(&criterion, &logits, &targets).unwrap();
        near(all.loss(), case.mean);
        near(all.perplexity(), case.perplexity);
        near(all.accuracy(), case.top[0]);
        assert_eq!(all.samples(), case.counted as u64);
        for (k, expected) in (1..).zip(case.top) {
            let mut top = TopK::new(k);
            top.add(&logits, &targets, case.ignore_index).unwrap();
            near(top.accuracy(), expected);
        }
    }
}

/// Sequences of 3 tokens out of 4; of sample `i`, the last `i % 3` targets are ignored.
struct Sequences;

impl Dataset for Sequences {
    fn len(&self) -> usize {
        7
    }

    fn batch(&self, _epoch: u64, indices: &[usize]) -> anyhow::Result<Batch> {
        let row = |&index: &usize| (0..3).map(move |at| (index * 3 + at) as i64 * 5 % 4);
        let kept = |&index: &usize| {
            row(&index)
                .enumerate()
                .map(move |(at, token)| if at < 3 - index % 3 { (token + 1) % 4 } else { IGNORE_INDEX })
        };
        let n = indices.len() as i64;
        let inputs = Tensor::from_slice(&indices.iter().flat_map(row).collect::<Vec<_>>()).view([n, 3]);
        let targets = Tensor::from_slice(&indices.iter().flat_map(kept).collect::<Vec<_>>()).view([n, 3]);
        Ok(Batch { inputs, targets })
    }
}

/// A table of logits for each token.
fn table(vs: &VarStore) -> Func<'static> {
    let weight = vs.root().var("weight", &[4, 4], Init::Const(0.0));
    let mut copy = weight.shallow_clone();
    tch::no_grad(|| copy.copy_(&formula_tensor(&[4, 4], 1, 1.0)));
    tch::nn::func(move |tokens| Tensor::embedding(&weight, tokens, -1, false, false))
}

#[test]
fn sequences_on_several_ranks_are_evaluated_as_on_one_rank() {
    let over = |world| {
        ranks(world, |group: Rc<c10d::ProcessGroup>| {
            let vs = VarStore::new(Device::Cpu);
            let model =
                DistributedDataParallel::new(table(&vs), &vs, Rc::clone(&group), &DdpOptions::default()).unwrap();
            let options = EvalOptions { batch_size: 2, ..Default::default() };
            let classes = ["a", "b", "c", "d"].map(str::to_owned);
            let (all, confusion) =
                evaluate_classes(&model, Arc::new(Sequences), Device::Cpu, &options, &classes).unwrap();
            let mut top = TopK::new(2);
            let forward = |tokens: &Tensor| tch::nn::Module::forward(model.module(), tokens);
            over_my_share(&group, Arc::new(Sequences), Device::Cpu, &options, forward, |logits, targets| {
                top.add(logits, targets, IGNORE_INDEX)
            })
            .unwrap();
            let counts: Vec<i64> = (0..16).map(|at| confusion.count(at / 4, at % 4)).collect();
            (all, counts, top.all_reduce(&group).unwrap().accuracy())
        })
    };
    let (whole, counts, top) = over(1).remove(0);
    // 7 samples of 3 tokens, without 0 + 1 + 2 + 0 + 1 + 2 + 0.
    assert_eq!((whole.samples(), counts.iter().sum::<i64>()), (15, 15));
    assert!(top > whole.accuracy() && whole.accuracy() > 0.0, "{top} {whole:?}");
    for (all, others, another) in over(3) {
        assert_eq!((all.samples(), all.accuracy(), another), (15, whole.accuracy(), top));
        assert!((all.loss() - whole.loss()).abs() < 1e-6, "{all:?} {whole:?}");
        assert_eq!(others, counts);
    }
}

#[test]
fn no_rank_gets_a_mean_of_no_samples_and_one_sample_of_any_rank_is_enough() {
    let results = ranks(2, |group| {
        let mut one = (Evaluation::default(), TopK::new(1));
        if group.rank().is_zero() {
            let (logits, targets) = (Tensor::from_slice(&[2f32, 0.0]).view([1, 2]), Tensor::from_slice(&[0i64]));
            one.0.add(&logits, &targets, 0.5);
            one.1.add(&logits, &targets, IGNORE_INDEX).unwrap();
        }
        let all = (one.0.all_reduce(&group).unwrap(), one.1.all_reduce(&group).unwrap());
        let none = (Evaluation::default().all_reduce(&group), TopK::new(1).all_reduce(&group));
        let refused = [none.0.map(drop), none.1.map(drop)].map(|none| none.unwrap_err().to_string());
        ((all.0.loss(), all.0.accuracy(), all.1.accuracy()), refused)
    });
    for (all, refused) in results {
        assert_eq!(all, (0.5, 1.0, 1.0));
        assert!(refused.iter().all(|why| why.contains("it has no samples")), "{refused:?}");
    }
}

#[test]
fn outputs_that_do_not_fit_are_an_error_with_the_shapes_of_inputs_logits_and_targets() {
    ranks(1, |group| {
        let vs = VarStore::new(Device::Cpu);
        let table = table(&vs);
        let pooled = tch::nn::func(move |tokens| {
            tch::nn::Module::forward(&table, tokens).mean_dim([1_i64].as_slice(), false, Kind::Float)
        });
        let model = DistributedDataParallel::new(pooled, &vs, group, &DdpOptions::default()).unwrap();
        let error = evaluate(&model, Arc::new(Sequences), Device::Cpu).unwrap_err();
        let text = format!("{error:#}");
        for part in [
            "on inputs of shape [7, 3]",
            "logits of shape [7, 4] with targets of shape [7, 3]",
            "need targets of shape [7]",
        ] {
            assert!(text.contains(part), "{text}");
        }
    });
}

#[derive(Deserialize)]
struct GoldenText {
    text: String,
    other: String,
    cases: Vec<Vocabulary>,
}

#[derive(Deserialize)]
struct Vocabulary {
    vocabulary: usize,
    learned: usize,
    text: Vec<u32>,
    other: Vec<u32>,
}

#[test]
fn byte_pairs_are_those_of_a_plain_python_program() {
    let golden: GoldenText = serde_json::from_str(include_str!("../../golden/text.json")).unwrap();
    for case in golden.cases {
        let tokenizer = Tokenizer::byte_pairs(&golden.text, case.vocabulary).unwrap();
        assert_eq!(tokenizer.vocabulary(), case.learned);
        assert_eq!(tokenizer.encode(&golden.text).unwrap(), case.text);
        assert_eq!(tokenizer.encode(&golden.other).unwrap(), case.other);
        assert_eq!(tokenizer.decode(&case.other), golden.other);
    }
}

/// The targets that count, over all ranks from a position on, in order of their values.
fn targets_from(set: &Arc<Windows>, world: usize, seed: u64, from: Position) -> Vec<i64> {
    let of = |rank| {
        let sampler = DistributedSampler::new(set.len(), Rank::new(rank), WorldSize::new(world).unwrap()).unwrap();
        let loader = DataLoader::new(Arc::clone(set) as _, sampler.seed(seed), 2).unwrap().workers(1);
        let batches: Vec<Batch> = loader.epoch_at(from).collect::<Result<_, _>>().unwrap();
        batches
            .into_iter()
            .flat_map(|batch| Vec::<i64>::try_from(batch.targets.flatten(0, -1)).unwrap())
            .collect::<Vec<_>>()
    };
    let mut all: Vec<i64> = (0..world).flat_map(of).filter(|target| *target != IGNORE_INDEX).collect();
    all.sort_unstable();
    all
}

#[test]
fn ranks_share_windows_without_overlap_and_resume_on_another_number_of_ranks() {
    // 24 windows of 4, the last one not full.
    let set = Arc::new(Windows::new((0..95).collect::<Vec<u32>>(), 4).unwrap());
    let every: Vec<i64> = (1..95).collect();
    for world in [1, 2, 3, 4] {
        assert_eq!(targets_from(&set, world, 7, Position::start_of(2)), every, "{world} ranks");
    }
    // Two ranks take two steps of two windows each, the rest is for three ranks: 16 windows, and 2 of padding.
    let taken = Position { epoch: 2, step: 2, samples: 8 };
    let sampler = DistributedSampler::new(set.len(), Rank::ZERO, WorldSize::ONE).unwrap().seed(7);
    let order = sampler.indices(2);
    let mut rest = targets_from(&set, 3, 7, taken);
    rest.dedup();
    let mut first = set.batch(2, &order[..8]).unwrap().targets;
    first = first.masked_select(&first.ne(IGNORE_INDEX));
    let mut all = [rest, Vec::try_from(first).unwrap()].concat();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all, every);
    let bits = |from: usize| {
        let loader = DataLoader::new(Arc::clone(&set) as _, sampler.clone(), 2).unwrap();
        loader.epoch_from(2, from).map(|batch| batch.unwrap().inputs).collect::<Vec<_>>()
    };
    assert_eq!(bits(0)[4..], bits(4)[..]);
}
