//! Layers divided over ranks against the same layers on one rank, and what they send; sequences on a ring; and experts on their ranks.
//!
//! Pipelines against one rank on the whole batch: the same gradients by any schedule, the messages of the theory, and failures that
//! name their place in the schedule; alone and as copies on a mesh, with tensor parallelism next to them.

use std::rc::Rc;

use c10d::{ErrorKind, ProcessGroup, ReduceOp, Splits, Traffic};
use lockstep::loss::CrossEntropy;
use lockstep::optim::named_parameters;
use lockstep::parallel::{
    Action, Activations, ColumnParallelLinear, MixtureOfExperts, ParallelMlp, Pipeline, RowParallelLinear, Schedule,
    StepReport, VocabParallelEmbedding, average_gradients, context, ring_attention, tensor,
    vocab_parallel_cross_entropy,
};
use lockstep::{DdpOptions, DistributedDataParallel};
use tch::nn::{Module, VarStore};
use tch::{Device, Kind, Tensor};

use crate::common::{formula_tensor, grid, ranks};

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
    let loss = CrossEntropy::default().loss(&logits, &tokens(3).flatten(0, -1));
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
        let part = tensor::own_part(group, &embedded, 0).unwrap();
        let block = block.try_forward(&part).unwrap();
        tensor::gather_parts(group, &(part + block), 0).unwrap()
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
        let error = tensor::reduce_scatter(&group, &odd, 0).unwrap_err();
        assert!(error.to_string().contains("cannot be divided into 2 equal parts"), "{error}");
        let error = tensor::all_gather(&group, &odd, 2).unwrap_err();
        assert!(error.to_string().contains("no dimension 2"), "{error}");
    });
}

/// Positions that 2, 4, 6 and 8 divide.
const LENGTH: i64 = 24;

/// Queries, keys and values of two sequences and three heads; large scores, so that single blocks dominate.
fn heads(kind: Kind) -> [Tensor; 3] {
    [11, 12, 13].map(|salt| formula_tensor(&[2, 3, LENGTH, 4], salt, 3.0).to_kind(kind).set_requires_grad(true))
}

/// What the loss multiplies the outputs with, so that each has a gradient of its own.
fn pull(kind: Kind) -> Tensor {
    formula_tensor(&[2, 3, LENGTH, 4], 14, 1.0).to_kind(kind)
}

/// libtorch's attention and its gradients, on one rank.
fn attended(kind: Kind) -> [Tensor; 4] {
    let [q, k, v] = heads(kind);
    let output = Tensor::scaled_dot_product_attention(&q, &k, &v, None::<Tensor>, 0.0, true, None, false);
    (&output * pull(kind)).sum(None::<Kind>).backward();
    [output.detach(), q.grad(), k.grad(), v.grad()]
}

/// The largest difference of the same on a ring, and what it sends forward and backward.
fn on_a_ring(group: &ProcessGroup, kind: Kind) -> (f64, [Traffic; 2]) {
    let mine = |whole: &Tensor| context::zigzag(group, whole, 2).unwrap();
    let [q, k, v] = heads(kind).map(|whole| mine(&whole.detach()).set_requires_grad(true));
    let mut output = None;
    let sent = traffic(group, || {
        let attended = ring_attention(group, &q, &k, &v).unwrap();
        let loss = &attended * mine(&pull(kind));
        output = Some(attended.detach());
        loss
    });
    let found = [output.unwrap(), q.grad(), k.grad(), v.grad()];
    let difference = |(found, whole): (&Tensor, &Tensor)| (found - mine(whole)).abs().max().double_value(&[]);
    (found.iter().zip(&attended(kind)).map(difference).fold(0.0, f64::max), sent)
}

#[test]
fn attention_on_a_ring_equals_one_rank_to_1e_10_and_sends_each_block_around_once_each_way() {
    for (kind, tolerance) in [(Kind::Double, 1e-10), (Kind::Float, 1e-4)] {
        for world in [1, 2, 3, 4] {
            let found = ranks(world, |group| on_a_ring(&group, kind));
            println!("{world} ranks, {kind:?}: {found:?}");
            let others = world as u64 - 1;
            let block = 2 * (2 * 3 * 4) * LENGTH as u64 / world as u64 * kind.elt_size_in_bytes() as u64;
            let each_way = Traffic { calls: others, bytes: others * block };
            for (difference, sent) in found {
                assert!(difference < tolerance, "{world} ranks: {difference:e}");
                assert_eq!(sent, [each_way; 2], "{world} ranks");
            }
        }
    }
}

#[test]
fn refuses_a_sequence_that_does_not_have_two_chunks_for_each_rank() {
    ranks(2, |group| {
        let error = context::zigzag_positions(&group, 10).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::BadArgument);
        assert!(error.to_string().contains("10 positions cannot be divided into 4 equal chunks"), "{error}");
    });
}

const TOKENS_OF_ALL: i64 = 24;
const EXPERTS: i64 = 12;

/// Tokens, router, and the two layers of all experts.
fn mixture() -> [Tensor; 4] {
    let shapes: [(&[i64], f64); 4] = [
        (&[TOKENS_OF_ALL, FEATURES], 1.0),
        (&[EXPERTS, FEATURES], 1.0),
        (&[EXPERTS, INNER, FEATURES], 0.3),
        (&[EXPERTS, FEATURES, INNER], 0.3),
    ];
    let of = |(salt, (shape, scale)): (usize, (&[i64], f64))| {
        formula_tensor(shape, salt as i64 + 21, scale).to_kind(Kind::Double)
    };
    let all: Vec<Tensor> = shapes.into_iter().enumerate().map(of).collect();
    all.try_into().unwrap()
}

/// What the loss multiplies the outputs with.
fn pull_of_tokens() -> Tensor {
    formula_tensor(&[TOKENS_OF_ALL, FEATURES], 25, 1.0).to_kind(Kind::Double)
}

/// Token by token on one rank: outputs, dropped tokens, the balancing loss, and the gradients of tokens, router and layers for the sum of
/// outputs and, ten times, the balancing loss.
fn token_by_token(capacity: f64) -> (Tensor, i64, f64, [Tensor; 4]) {
    let all = mixture().map(|whole| whole.set_requires_grad(true));
    let [tokens, router, fc1, fc2] = &all;
    let limit = (capacity * TOKENS_OF_ALL as f64 / EXPERTS as f64).ceil() as usize;
    let probabilities = tokens.matmul(&router.tr()).softmax(-1, None::<Kind>);
    let (mut taken, mut chosen) = (vec![0; EXPERTS as usize], vec![0.0; EXPERTS as usize]);
    let rows: Vec<Tensor> = (0..TOKENS_OF_ALL)
        .map(|at| {
            let of = probabilities.get(at);
            let expert = of.argmax(None, false).int64_value(&[]);
            chosen[expert as usize] += 1.0 / TOKENS_OF_ALL as f64;
            if taken[expert as usize] == limit {
                return Tensor::zeros([FEATURES], (Kind::Double, Device::Cpu));
            }
            taken[expert as usize] += 1;
            let inner = fc1.get(expert).matmul(&tokens.get(at)).gelu("none");
            fc2.get(expert).matmul(&inner) * of.get(expert)
        })
        .collect();
    let output = Tensor::stack(&rows, 0);
    let mean = probabilities.mean_dim([0].as_slice(), false, None::<Kind>);
    let balance = (mean * Tensor::from_slice(&chosen)).sum(None::<Kind>) * EXPERTS as f64;
    ((&output * pull_of_tokens()).sum(None::<Kind>) + &balance * 10.0).backward();
    let dropped = TOKENS_OF_ALL - taken.iter().sum::<usize>() as i64;
    (output.detach(), dropped, balance.double_value(&[]), all.map(|whole| whole.grad()))
}

/// The largest difference of the same on several ranks; what this rank drops and passes to the group, forward and backward.
fn on_their_ranks(group: &Rc<ProcessGroup>, capacity: f64) -> (f64, i64, [Traffic; 2]) {
    let (world, rank) = (group.size().get(), group.rank().get());
    let mine = |whole: &Tensor| whole.chunk(world as i64, 0)[rank].shallow_clone();
    let [tokens, router, fc1, fc2] = mixture();
    let vs = store(Kind::Double);
    let layer = MixtureOfExperts::new(&vs.root(), [&router, &fc1, &fc2], capacity, group).unwrap();
    let tokens = mine(&tokens).set_requires_grad(true);
    let mut found = None;
    let sent = traffic(group, || {
        let routed = layer.try_forward(&tokens).unwrap();
        let loss =
            (&routed.output * mine(&pull_of_tokens())).sum(Kind::Double) + &routed.balance * (10.0 / world as f64);
        found = Some(routed);
        loss
    });
    let (output, dropped, balance, grads) = token_by_token(capacity);
    let found = found.unwrap();
    let summed = |tensor: &Tensor| {
        let mut sum = tensor.detach().copy();
        group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
        sum
    };
    let all_dropped = summed(&Tensor::from(found.dropped)).int64_value(&[]);
    assert_eq!(all_dropped, dropped);
    let variables = vs.variables();
    let pairs = [
        (found.output.detach(), mine(&output)),
        (summed(&found.balance) / world as f64, Tensor::from(balance)),
        (tokens.grad(), mine(&grads[0])),
        (summed(&variables["router"].grad()), grads[1].shallow_clone()),
        (variables["experts.fc1.weight"].grad(), mine(&grads[2])),
        (variables["experts.fc2.weight"].grad(), mine(&grads[3])),
    ];
    let difference = |(found, right): &(Tensor, Tensor)| (found - right).abs().max().double_value(&[]);
    (pairs.iter().map(difference).fold(0.0, f64::max), found.dropped, sent)
}

/// With a capacity of 1, some find no place; with 12, all do.
#[test]
fn experts_on_their_ranks_equal_one_rank_to_1e_10_and_send_each_token_there_and_back() {
    for (capacity, drops) in [(1.0, true), (12.0, false)] {
        for world in [1, 2, 3, 4] {
            let found = ranks(world, |group| on_their_ranks(&group, capacity));
            println!("{world} ranks, capacity {capacity}: {found:?}");
            assert!(found.iter().all(|(difference, ..)| *difference < 1e-10), "{world} ranks: {found:?}");
            let dropped: i64 = found.iter().map(|(_, dropped, _)| dropped).sum();
            assert_eq!(dropped > 0, drops, "{found:?}");
            let row = FEATURES as u64 * 8;
            let both_ways = 2 * (TOKENS_OF_ALL - dropped) as u64 * row;
            let counts = world as u64 * EXPERTS as u64 * 8;
            let sum = |way: usize| found.iter().map(|(.., sent)| sent[way].bytes).sum::<u64>();
            assert_eq!([sum(0), sum(1)], [both_ways + counts, both_ways], "{world} ranks");
            assert!(found.iter().all(|(.., sent)| [sent[0].calls, sent[1].calls] == [3, 2]), "{found:?}");
        }
    }
}

#[test]
fn rows_and_their_gradients_go_to_any_rank_and_back_even_if_a_rank_gets_none() {
    for world in [1, 2, 3] {
        ranks(world, |group| {
            let rank = group.rank().get();
            // Rank r sends r rows to rank 0, and one to itself unless it is the last.
            let of =
                |from: usize, to: usize| from as i64 * i64::from(to == 0) + i64::from(from == to && from + 1 < world);
            let splits = Splits::Sizes {
                input: (0..world).map(|to| of(rank, to)).collect(),
                output: (0..world).map(|from| of(from, rank)).collect(),
            };
            let Splits::Sizes { input, output } = &splits else { unreachable!() };
            let rows: i64 = input.iter().sum();
            let given =
                (Tensor::ones([rows, 2], (Kind::Double, Device::Cpu)) * (rank as f64 + 1.0)).set_requires_grad(true);
            let found = c10d::all_to_all_single(&group, &given, &splits).unwrap();
            let expected: Vec<f64> =
                (0..world).flat_map(|from| vec![from as f64 + 1.0; 2 * output[from] as usize]).collect();
            assert_eq!(Vec::<f64>::try_from(found.flatten(0, -1)).unwrap(), expected);
            c10d::backward_over(&group, &(found * (rank as f64 + 10.0)).sum(Kind::Double)).unwrap();
            let expected: Vec<f64> = (0..world).flat_map(|to| vec![to as f64 + 10.0; 2 * input[to] as usize]).collect();
            assert_eq!(Vec::<f64>::try_from(given.grad().flatten(0, -1)).unwrap(), expected);
        });
    }
}

#[test]
fn refuses_to_send_rows_that_are_not_there() {
    ranks(2, |group| {
        let rows = Tensor::zeros([3, 1], (Kind::Float, Device::Cpu));
        let sizes = |input: &[i64], output: &[i64]| Splits::Sizes { input: input.to_vec(), output: output.to_vec() };
        for (splits, says) in [
            (sizes(&[1, 1], &[1, 1]), "does not have the 2 rows that are to be sent"),
            (sizes(&[3], &[3]), "1 numbers of rows for a group of 2"),
            (sizes(&[3, 0], &[3]), "2 numbers of rows to send and 1 to receive"),
            (sizes(&[4, -1], &[3, 0]), "numbers of rows below 0"),
            (Splits::Equal, "cannot be divided into 2 equal parts"),
        ] {
            let error = c10d::all_to_all_single(&group, &rows, &splits).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::BadArgument, "{error}");
            assert!(error.to_string().contains(says), "{error}");
        }
    });
}

const LAYERS: usize = 12; // can be divided by 2, 3 and 4
const WIDTH: i64 = 6;
const MICRO_BATCHES: usize = 4;
const SAMPLES: i64 = 8;

fn weight(layer: usize, kind: Kind) -> Tensor {
    formula_tensor(&[WIDTH, WIDTH], layer as i64 + 1, 0.6).to_kind(kind)
}

fn inputs(kind: Kind) -> Tensor {
    formula_tensor(&[SAMPLES, WIDTH], 50, 1.0).to_kind(kind)
}

fn loss(outputs: &Tensor, targets: &Tensor) -> Tensor {
    (outputs - targets).square().mean(None::<Kind>)
}

fn targets(kind: Kind) -> Tensor {
    formula_tensor(&[SAMPLES, WIDTH], 51, 1.0).to_kind(kind)
}

/// Consecutive layers tanh(x Wᵀ), as variables.
fn layers(vs: &VarStore, which: impl Iterator<Item = usize>) -> Vec<Tensor> {
    which.map(|layer| vs.root().var_copy(&format!("{layer:02}"), &weight(layer, vs.kind()))).collect()
}

fn forward(layers: &[Tensor], inputs: &Tensor) -> Tensor {
    layers.iter().fold(inputs.shallow_clone(), |x, weight| x.matmul(&weight.tr()).tanh())
}

fn store(kind: Kind) -> VarStore {
    let mut vs = VarStore::new(Device::Cpu);
    vs.set_kind(kind);
    vs
}

/// The loss on the whole batch and the gradient of each layer, on one rank.
fn on_one_rank(kind: Kind) -> (f64, Vec<Tensor>) {
    let vs = store(kind);
    let all = layers(&vs, 0..LAYERS);
    let loss = loss(&forward(&all, &inputs(kind)), &targets(kind));
    loss.backward();
    (loss.double_value(&[]), all.iter().map(Tensor::grad).collect())
}

/// This rank's stage of the pipeline on samples of this copy: its parameters, with gradients, and the report.
fn run(
    group: &Rc<ProcessGroup>,
    schedule: Schedule,
    (kind, copies, copy): (Kind, usize, usize),
    recompute: bool,
) -> (Vec<(String, Tensor)>, StepReport) {
    let each = LAYERS / group.size().get();
    let first = each * group.rank().get();
    let vs = store(kind);
    let layers = layers(&vs, first..first + each);
    let micro = schedule.micro_batches() as i64;
    let mine = |all: Tensor| all.chunk(copies as i64, 0)[copy].chunk(micro, 0);
    let (inputs, targets) = (mine(inputs(kind)), mine(targets(kind)));
    let received = Activations { size: vec![SAMPLES / copies as i64 / micro, WIDTH], kind };
    let pipeline = Pipeline::new(Rc::clone(group), schedule, received).unwrap();
    let stage = |x: &Tensor| {
        if !recompute {
            return forward(&layers, x);
        }
        let layers: Vec<_> = layers.iter().map(Tensor::shallow_clone).collect();
        c10d::checkpoint(x, move |x| forward(&layers, x)).unwrap()
    };
    let report = pipeline.step(|m| inputs[m].shallow_clone(), stage, |m, outputs| loss(outputs, &targets[m])).unwrap();
    (named_parameters(&vs), report)
}

/// The largest difference of a stage's gradients, and of the loss if this is the last stage, from one rank's.
fn difference(group: &ProcessGroup, params: &[(String, Tensor)], loss: Option<f64>, kind: Kind) -> f64 {
    let (expected, grads) = on_one_rank(kind);
    let first = params.len() * group.rank().get();
    let of = |(at, (_, param)): (usize, &(String, Tensor))| {
        (param.grad() - &grads[first + at]).abs().max().double_value(&[])
    };
    let loss = loss.map_or(0.0, |loss| (loss - expected).abs());
    params.iter().enumerate().map(of).fold(loss, f64::max)
}

fn schedules(stages: usize) -> [Schedule; 2] {
    [Schedule::gpipe(stages, MICRO_BATCHES), Schedule::one_f_one_b(stages, MICRO_BATCHES)]
}

#[test]
fn a_pipeline_equals_one_rank_to_1e_10_by_any_schedule_and_recomputed() {
    for world in [1, 2, 3, 4] {
        for (schedule, recompute) in
            schedules(world).into_iter().flat_map(|schedule| [(schedule.clone(), false), (schedule, true)])
        {
            let differences = ranks(world, |group| {
                let (params, report) = run(&group, schedule.clone(), (Kind::Double, 1, 0), recompute);
                assert_eq!(report.loss.is_some(), group.rank().get() + 1 == world);
                assert_eq!(report.peak, schedule.peak(group.rank().get()));
                difference(&group, &params, report.loss, Kind::Double)
            });
            assert!(differences.iter().all(|difference| *difference < 1e-10), "{world} ranks: {differences:?}");
        }
    }
}

#[test]
fn a_pipeline_equals_one_rank_to_1e_6_in_single_precision() {
    for world in [2, 3, 4] {
        let differences = ranks(world, |group| {
            let (params, report) = run(&group, Schedule::one_f_one_b(world, MICRO_BATCHES), (Kind::Float, 1, 0), false);
            difference(&group, &params, report.loss, Kind::Float)
        });
        println!("{world} ranks: {differences:?}");
        assert!(differences.iter().all(|difference| *difference < 1e-6), "{world} ranks: {differences:?}");
    }
}

#[test]
fn each_stage_sends_its_activations_and_gradients_once_a_micro_batch() {
    for world in [2, 3, 4] {
        for schedule in schedules(world) {
            let sent = ranks(world, |group| {
                drop(run(&group, schedule.clone(), (Kind::Double, 1, 0), false));
                group.traffic().unwrap()
            });
            let batch = (SAMPLES * WIDTH * 8) as u64;
            for (rank, sent) in sent.into_iter().enumerate() {
                let neighbours = u64::from(rank > 0) + u64::from(rank + 1 < world);
                let expected = Traffic { calls: neighbours * MICRO_BATCHES as u64, bytes: neighbours * batch };
                assert_eq!(sent, expected, "rank {rank} of {world}");
            }
        }
    }
}

#[test]
fn copies_of_a_pipeline_on_a_grid_equal_one_rank() {
    let differences = ranks(4, |world| {
        let [data, stages] = &grid(&world);
        let schedule = Schedule::one_f_one_b(2, 2);
        let (params, _) = run(stages, schedule, (Kind::Double, 2, data.rank().get()), false);
        let before = data.traffic().unwrap();
        average_gradients(data, &params).unwrap();
        let bytes = (LAYERS / 2) as u64 * (WIDTH * WIDTH * 8) as u64;
        assert_eq!(data.traffic().unwrap() - before, Traffic { calls: 1, bytes });
        difference(stages, &params, None, Kind::Double)
    });
    assert!(differences.iter().all(|difference| *difference < 1e-10), "{differences:?}");
}

#[test]
fn gradients_of_several_dtypes_are_averaged_in_their_own() {
    ranks(2, |group| {
        let of = |kind| {
            let param = Tensor::ones([3], (kind, Device::Cpu)).set_requires_grad(true);
            (&param * (group.rank().get() as f64 + 1.0)).sum(None::<Kind>).backward();
            param
        };
        let kinds = [Kind::Float, Kind::Double, Kind::Float];
        let params: Vec<_> = kinds.iter().map(|kind| (format!("{kind:?}"), of(*kind))).collect();
        average_gradients(&group, &params).unwrap();
        for ((_, param), kind) in params.iter().zip(kinds) {
            let grad = param.grad();
            assert_eq!((grad.kind(), Vec::<f64>::try_from(grad).unwrap()), (kind, vec![1.5; 3]));
        }
    });
}

#[test]
fn ddp_of_divided_layers_on_a_grid_equals_one_rank() {
    let [weight1, weight2] = [weight(0, Kind::Double), weight(1, Kind::Double)].map(|w| w.set_requires_grad(true));
    let block = |x: &Tensor| x.matmul(&weight1.tr()).gelu("none").matmul(&weight2.tr());
    loss(&block(&inputs(Kind::Double)), &targets(Kind::Double)).backward();
    let expected: Vec<Vec<f64>> = [(&weight1, 0), (&weight2, 1)]
        .into_iter()
        .flat_map(|(weight, dim)| weight.grad().chunk(2, dim))
        .map(|part| Vec::try_from(part.flatten(0, -1)).unwrap())
        .collect();
    let differences = ranks(4, |world| {
        let [data, tensor] = &grid(&world);
        let vs = store(Kind::Double);
        let fc1 = ColumnParallelLinear::new(&(vs.root() / "fc1"), &weight(0, Kind::Double), None, tensor).unwrap();
        let fc2 = RowParallelLinear::new(&(vs.root() / "fc2"), &weight(1, Kind::Double), None, tensor).unwrap();
        let ddp =
            DistributedDataParallel::new(ParallelMlp::new(fc1, fc2), &vs, Rc::clone(data), &DdpOptions::default());
        let ddp = ddp.unwrap();
        let mine = |all: Tensor| all.chunk(2, 0)[data.rank().get()].shallow_clone();
        let outputs = ddp.forward_with(|block| block.forward(&mine(inputs(Kind::Double)))).unwrap();
        ddp.backward(&loss(&outputs, &mine(targets(Kind::Double)))).unwrap();
        let variables = vs.variables();
        let difference = |name: &str, expected: &[f64]| {
            let part = Tensor::from_slice(expected).reshape_as(&variables[name]);
            (variables[name].grad() - part).abs().max().double_value(&[])
        };
        let part = tensor.rank().get();
        difference("fc1.weight", &expected[part]).max(difference("fc2.weight", &expected[2 + part]))
    });
    assert!(differences.iter().all(|difference| *difference < 1e-10), "{differences:?}");
}

#[test]
fn a_lost_stage_is_named_with_the_place_in_the_schedule() {
    let errors = ranks(2, |group| {
        let schedule = Schedule::gpipe(2, 2);
        let received = Activations { size: vec![2, 3], kind: Kind::Float };
        let pipeline = Pipeline::new(Rc::clone(&group), schedule, received).unwrap();
        if group.rank().get() == 1 {
            // Receives both micro-batches, so that rank 0 has sent them, and leaves.
            let mut activations = Tensor::zeros([2, 3], (Kind::Float, Device::Cpu));
            [0, 2].into_iter().for_each(|tag| group.recv(&mut activations, c10d::Rank::ZERO, tag).unwrap());
            return None;
        }
        let weight = Tensor::ones([3, 3], (Kind::Float, Device::Cpu)).set_requires_grad(true);
        let input = |_| Tensor::ones([2, 3], (Kind::Float, Device::Cpu));
        let error = pipeline.step(input, |x| x.matmul(&weight), |_, _| unreachable!()).unwrap_err();
        assert_eq!((error.stage, error.position, error.action), (0, 2, Action::Backward(1)));
        Some((error.to_string(), error.source.to_string()))
    });
    let (error, cause) = errors[0].clone().unwrap();
    assert_eq!(error, "stage 0 of 2 failed in B1, action 3 of 4");
    assert!(cause.contains("recv (gradient of micro-batch 1)"), "{cause}");
    assert!(cause.contains("rank 1 has left"), "{cause}");
}

#[test]
fn refuses_a_schedule_for_another_number_of_ranks() {
    ranks(1, |group| {
        let received = Activations { size: vec![1], kind: Kind::Float };
        let error = Pipeline::new(group, Schedule::gpipe(2, 2), received).unwrap_err();
        assert!(error.to_string().contains("a schedule of 2 stages on 1 ranks"), "{error}");
    });
}
