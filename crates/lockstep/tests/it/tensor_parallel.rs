//! Layers divided over ranks against the same layers on one rank, and what they send.

use std::rc::Rc;

use crate::common::{formula_tensor, ranks};
use c10d::{ErrorKind, ProcessGroup, Traffic};
use lockstep::loss::CrossEntropy;
use lockstep::parallel::{
    ColumnParallelLinear, ParallelMlp, RowParallelLinear, VocabParallelEmbedding, mappings,
    vocab_parallel_cross_entropy,
};
use tch::nn::VarStore;
use tch::{Device, Kind, Tensor};

const VOCABULARY: i64 = 24;
const FEATURES: i64 = 12;
const INNER: i64 = 36;
/// Sequence and batch; 12 can be divided by 2, 3 and 4.
const TOKENS: [i64; 2] = [12, 2];

/// The whole model's weights: embedding, first layer, second layer, output.
fn weights(kind: Kind) -> Vec<Tensor> {
    let shapes: [&[i64]; 6] = [
        &[VOCABULARY, FEATURES],
        &[INNER, FEATURES],
        &[INNER],
        &[FEATURES, INNER],
        &[FEATURES],
        &[VOCABULARY, FEATURES],
    ];
    let weight = |(salt, shape): (usize, &&[i64])| formula_tensor(shape, salt as i64 + 1, 0.3).to_kind(kind);
    shapes.iter().enumerate().map(weight).collect()
}

fn tokens(salt: i64) -> Tensor {
    let count = TOKENS[0] * TOKENS[1];
    (Tensor::arange(count, (Kind::Int64, Device::Cpu)) * 7 + salt).remainder(VOCABULARY).reshape(TOKENS)
}

/// The loss, and the gradient of each weight, on one rank.
fn whole(kind: Kind) -> (f64, Vec<Tensor>) {
    let weights: Vec<_> = weights(kind).into_iter().map(|weight| weight.set_requires_grad(true)).collect();
    let [embedding, weight1, bias1, weight2, bias2, output] = &weights[..] else { unreachable!() };
    let embedded = Tensor::embedding(embedding, &tokens(0), -1, false, false);
    let block = embedded.linear(weight1, Some(bias1)).gelu("none").linear(weight2, Some(bias2));
    let logits = (embedded + block).reshape([-1, FEATURES]).linear(output, None::<Tensor>);
    // `cross_entropy_for_logits` computes in single precision.
    let loss = CrossEntropy { label_smoothing: 0.0 }.loss(&logits, &tokens(3).flatten(0, -1));
    loss.backward();
    (loss.double_value(&[]), weights.iter().map(Tensor::grad).collect())
}

/// The same divided over a group's ranks: the largest difference of the loss and of any gradient from those of one rank.
fn divided(group: &Rc<ProcessGroup>, kind: Kind, by_sequence: bool) -> f64 {
    let mut vs = VarStore::new(Device::Cpu);
    vs.set_kind(kind);
    let (root, whole_weights) = (vs.root(), weights(kind));
    let [embedding, weight1, bias1, weight2, bias2, output] = &whole_weights[..] else { unreachable!() };
    let embedding = VocabParallelEmbedding::new(&(&root / "embedding"), embedding, group).unwrap();
    let fc1 = ColumnParallelLinear::new(&(&root / "fc1"), weight1, Some(bias1), group).unwrap();
    let fc2 = RowParallelLinear::new(&(&root / "fc2"), weight2, Some(bias2), group).unwrap();
    let block =
        if by_sequence { ParallelMlp::new(fc1.gathering(0), fc2.scattering(0)) } else { ParallelMlp::new(fc1, fc2) };
    let head = ColumnParallelLinear::new(&(&root / "head"), output, None, group).unwrap();

    let embedded = embedding.try_forward(&tokens(0)).unwrap();
    let hidden = if by_sequence {
        let part = mappings::own_part(group, &embedded, 0).unwrap();
        let block = block.try_forward(&part).unwrap();
        mappings::gather_parts(group, &(part + block), 0).unwrap()
    } else {
        let block = block.try_forward(&embedded).unwrap();
        embedded + block
    };
    let logits = head.try_forward(&hidden.reshape([-1, FEATURES])).unwrap();
    let loss = vocab_parallel_cross_entropy(group, &logits, &tokens(3).flatten(0, -1)).unwrap();
    c10d::backward_over(group, &loss).unwrap();

    let (expected, grads) = whole(kind);
    let variables = vs.variables();
    let names = ["embedding.weight", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "head.weight"];
    let divided_along = [Some(0), Some(0), Some(0), Some(1), None, Some(0)];
    let difference = |((name, dim), grad): ((&str, Option<i64>), &Tensor)| {
        let (world, rank) = (group.size().get() as i64, group.rank().get());
        let part = dim.map_or_else(|| grad.shallow_clone(), |dim| grad.chunk(world, dim)[rank].shallow_clone());
        (variables[name].grad() - part).abs().max().double_value(&[])
    };
    let gradients = names.into_iter().zip(divided_along).zip(&grads).map(difference);
    gradients.fold((loss.double_value(&[]) - expected).abs(), f64::max)
}

#[test]
fn a_divided_model_equals_one_rank_to_1e_10_in_double_precision() {
    for world in [1, 2, 3, 4] {
        for by_sequence in [false, true] {
            let differences = ranks(world, |group| divided(&group, Kind::Double, by_sequence));
            println!("{world} ranks, by sequence {by_sequence}: {differences:?}");
            assert!(differences.iter().all(|difference| *difference < 1e-10), "{world} ranks: {differences:?}");
        }
    }
}

/// Sums of 36 numbers below 1, added in another order: a few units of the last place of 1.
#[test]
fn a_divided_model_equals_one_rank_to_1e_5_in_single_precision() {
    for world in [2, 3, 4] {
        for by_sequence in [false, true] {
            let differences = ranks(world, |group| divided(&group, Kind::Float, by_sequence));
            println!("{world} ranks, by sequence {by_sequence}: {differences:?}");
            assert!(differences.iter().all(|difference| *difference < 1e-5), "{world} ranks: {differences:?}");
        }
    }
}

/// What the forward pass of `run` passes to the group's operations, and the backward pass.
fn traffic(group: &ProcessGroup, run: impl FnOnce() -> Tensor) -> [Traffic; 2] {
    let at = || group.traffic().unwrap();
    let start = at();
    let output = run();
    let between = at();
    c10d::backward_over(group, &output.sum(output.kind())).unwrap();
    [between - start, at() - between]
}

#[test]
fn a_block_sends_one_all_reduce_each_way_and_by_sequence_a_gather_and_a_scatter() {
    const SIZE: u64 = (TOKENS[0] * TOKENS[1] * FEATURES) as u64 * 8;
    for world in [2, 3, 4] {
        ranks(world, |group| {
            let mut vs = VarStore::new(Device::Cpu);
            vs.set_kind(Kind::Double);
            let weights = weights(Kind::Double);
            let fc1 = |name: &str| {
                ColumnParallelLinear::new(&(vs.root() / name), &weights[1], Some(&weights[2]), &group).unwrap()
            };
            let fc2 = |name: &str| {
                RowParallelLinear::new(&(vs.root() / name), &weights[3], Some(&weights[4]), &group).unwrap()
            };
            let input = formula_tensor(&[TOKENS[0], TOKENS[1], FEATURES], 9, 1.0).to_kind(Kind::Double);
            let input = input.set_requires_grad(true);

            let block = ParallelMlp::new(fc1("a"), fc2("b"));
            let once = Traffic { calls: 1, bytes: SIZE };
            assert_eq!(traffic(&group, || block.try_forward(&input).unwrap()), [once, once]);

            // A part in, the whole sum out; backward the same in the other order, and the gradient of the second layer's bias.
            let block = ParallelMlp::new(fc1("c").gathering(0), fc2("d").scattering(0));
            let part = input.detach().chunk(world as i64, 0)[group.rank().get()].contiguous().set_requires_grad(true);
            let (pair, bias) = (SIZE / world as u64 + SIZE, FEATURES as u64 * 8);
            let expected = [Traffic { calls: 2, bytes: pair }, Traffic { calls: 3, bytes: pair + bias }];
            assert_eq!(traffic(&group, || block.try_forward(&part).unwrap()), expected);
        });
    }
}

#[test]
fn cross_entropy_sends_three_numbers_a_token_forward_and_nothing_backward() {
    ranks(2, |group| {
        let logits = formula_tensor(&[10, VOCABULARY / 2], 3, 2.0).to_kind(Kind::Double).set_requires_grad(true);
        let targets = Tensor::arange(10, (Kind::Int64, Device::Cpu));
        let sent = traffic(&group, || vocab_parallel_cross_entropy(&group, &logits, &targets).unwrap());
        assert_eq!(sent, [Traffic { calls: 2, bytes: 3 * 10 * 8 }, Traffic::default()]);
    });
}

#[test]
fn huge_logits_on_one_rank_do_not_overflow() {
    let losses = ranks(2, |group| {
        let scale = if group.rank().is_zero() { 1e4 } else { 1.0 };
        let logits = formula_tensor(&[4, VOCABULARY / 2], 3, scale).to_kind(Kind::Double);
        let targets = Tensor::arange(4, (Kind::Int64, Device::Cpu));
        vocab_parallel_cross_entropy(&group, &logits, &targets).unwrap().double_value(&[])
    });
    assert!(losses[0].is_finite() && losses[0] == losses[1], "{losses:?}");
}

#[test]
fn refuses_what_cannot_be_divided() {
    ranks(2, |group| {
        let vs = VarStore::new(Device::Cpu);
        let odd = Tensor::zeros([5, 3], (Kind::Float, Device::Cpu));
        let error = VocabParallelEmbedding::new(&vs.root(), &odd, &group).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadArgument);
        assert!(
            error.to_string().contains("dimension 0 of a weight of shape [5, 3] cannot be divided into 2"),
            "{error}"
        );
        let error = mappings::reduce_scatter(&group, &odd, 0).unwrap_err();
        assert!(error.to_string().contains("cannot be divided into 2 equal parts"), "{error}");
        let error = mappings::all_gather(&group, &odd, 2).unwrap_err();
        assert!(error.to_string().contains("no dimension 2"), "{error}");
    });
}
