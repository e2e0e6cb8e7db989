//! The guarantees of every sampler, for any length, world size, seed and epoch; their indices are compared with PyTorch 2.11's own
//! (`golden/sampler.py` makes `golden/sampler.json`). And of data sets: a small convolutional network learns drawn digits, a
//! linear model not quite, and the published digits, if present (`LOCKSTEP_DATA`, or `shared/data` next to the checkout), are read as
//! they are.

use flate2::Crc;
use lockstep::data::{Batch, Dataset, Digits, Mnist, Split, real_data_dir};
use lockstep::sampler::{
    DistributedSampler, EvalSampler, RandomSampler, RankOutsideWorld, Sampler, SequentialSampler, randperm,
};
use lockstep::{Rank, WorldSize};
use lockstep_testkit::margin;
use proptest::prelude::*;
use serde::Deserialize;
use tch::nn::{Module, OptimizerConfig};
use tch::{Device, Kind, nn, no_grad};

const BATCH: usize = 50;

/// Trains `model` for `epochs` in the set's own order and returns its accuracy on `test`.
fn accuracy(
    store: &nn::VarStore,
    model: &impl Module,
    train: &Mnist,
    test: &Mnist,
    epochs: usize,
) -> anyhow::Result<f64> {
    let mut optimizer = nn::Adam::default().build(store, 2e-3)?;
    for first in (0..epochs).flat_map(|_| (0..train.len()).step_by(BATCH)) {
        let Batch { inputs, targets } = train.batch(0, &(first..first + BATCH).collect::<Vec<_>>())?;
        optimizer.backward_step(&model.forward(&inputs).cross_entropy_for_logits(&targets));
    }
    let Batch { inputs, targets } = test.batch(0, &(0..test.len()).collect::<Vec<_>>())?;
    Ok(no_grad(|| model.forward(&inputs).accuracy_for_logits(&targets).double_value(&[])))
}

fn convolutional(path: &nn::Path<'_>) -> impl Module {
    let strided = nn::ConvConfig { stride: 2, ..Default::default() };
    nn::seq()
        .add(nn::conv2d(path / "c1", 1, 8, 5, strided))
        .add_fn(|x| x.relu())
        .add(nn::conv2d(path / "c2", 8, 16, 5, strided))
        .add_fn(|x| x.relu().flatten(1, -1))
        .add(nn::linear(path / "f1", 16 * 4 * 4, 64, Default::default()))
        .add_fn(|x| x.relu())
        .add(nn::linear(path / "f2", 64, 10, Default::default()))
}

fn linear(path: &nn::Path<'_>) -> impl Module {
    nn::seq().add_fn(|x| x.flatten(1, -1)).add(nn::linear(path / "f", 28 * 28, 10, Default::default()))
}

#[test]
fn a_convolutional_net_learns_drawn_digits_and_a_linear_model_falls_short() -> anyhow::Result<()> {
    tch::set_num_threads(1);
    let seed = margin::seed(1);
    tch::manual_seed(seed as i64);
    let (train, test) = (Digits::generate(seed, 8_000), Digits::new(seed, Split::Test).first(1_000));

    let store = nn::VarStore::new(Device::Cpu);
    let net = accuracy(&store, &convolutional(&store.root()), &train, &test, 5)?;
    let store = nn::VarStore::new(Device::Cpu);
    let straight = accuracy(&store, &linear(&store.root()), &train, &test, 3)?;

    margin::below("errors of the convolutional net on 1,000 held-out digits", 1.0 - net, 0.03);
    margin::below("errors of a linear model", 1.0 - straight, 0.5);
    margin::above("errors of a linear model", 1.0 - straight, 0.02);
    margin::above("what the convolutional net is better by", net - straight, 0.015);
    Ok(())
}

/// Reads both splits, or prints why not.
fn real_mnist() -> anyhow::Result<Option<(Mnist, Mnist)>> {
    let dir = real_data_dir().map(|data| data.join("mnist")).filter(|dir| dir.is_dir());
    let Some(dir) = dir else {
        println!("not verified here: the real MNIST; set LOCKSTEP_DATA to a folder that has mnist/ to verify it");
        return Ok(None);
    };
    Ok(Some((Mnist::from_dir(&dir, Split::Train)?, Mnist::from_dir(&dir, Split::Test)?)))
}

#[test]
fn reads_the_published_digits() -> anyhow::Result<()> {
    let Some((train, test)) = real_mnist()? else { return Ok(()) };
    for (name, set) in [("train", &train), ("test", &test)] {
        println!("{name}: {} digits of {} x {}", set.len(), set.rows(), set.columns());
        assert!(set.len() >= 1_000 && (set.rows(), set.columns()) == (28, 28));
        assert!((0..10).all(|digit| set.labels().contains(&digit)));
    }
    assert!(train.len() > test.len());
    Ok(())
}

#[test]
fn normalises_the_published_digits_to_mean_zero_and_variance_one() -> anyhow::Result<()> {
    let Some((train, _)) = real_mnist()? else { return Ok(()) };
    let inputs = train.batch(0, &(0..train.len()).collect::<Vec<_>>())?.inputs;
    assert_eq!(inputs.size()[1..], [1, 28, 28]);
    let (mean, spread) = (inputs.mean(Kind::Double).double_value(&[]), inputs.std(true).double_value(&[]));
    assert!(mean.abs() < 0.02 && (spread - 1.0).abs() < 0.02, "mean {mean}, standard deviation {spread}");
    Ok(())
}

proptest! {
    #[test]
    fn permutes_every_number_once(n in 0usize..500, seed: u64) {
        let mut order = randperm(n, seed);
        order.sort_unstable();
        prop_assert!(order.into_iter().eq(0..n));
    }

    #[test]
    fn takes_the_low_half_of_the_seed(n in 0usize..100, seed: u32, high: u32) {
        prop_assert_eq!(randperm(n, u64::from(seed)), randperm(n, u64::from(high) << 32 | u64::from(seed)));
    }

    #[test]
    fn pads_until_every_rank_has_the_same_number(n in 1usize..300, world in 1usize..9, shuffle: bool, seed: u64, epoch: u64) {
        let shards = distributed(n, world, |s| s.shuffle(shuffle).seed(seed), epoch);
        prop_assert!(shards.iter().all(|shard| shard.len() == n.div_ceil(world)));
        let counts = visits(n, &shards);
        prop_assert!(counts.iter().all(|&count| count >= 1), "a sample was left out: {:?}", counts);
        prop_assert_eq!(counts.iter().sum::<usize>(), n.div_ceil(world) * world);
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        prop_assert!(most - least <= 1, "padding is uneven: {:?}", counts);
    }

    #[test]
    fn drops_fewer_samples_than_ranks(n in 0usize..300, world in 1usize..9, shuffle: bool, seed: u64, epoch: u64) {
        let shards = distributed(n, world, |s| s.shuffle(shuffle).seed(seed).drop_last(true), epoch);
        prop_assert!(shards.iter().all(|shard| shard.len() == n / world));
        let counts = visits(n, &shards);
        prop_assert!(counts.iter().all(|&count| count <= 1), "a sample came twice: {:?}", counts);
        prop_assert_eq!(counts.iter().filter(|&&count| count == 0).count(), n % world);
    }

    #[test]
    fn returns_the_rest_of_an_epoch_in_any_world(
        n in 1usize..200, world in 1usize..7, other in 1usize..7, turns in 0usize..40, seed: u64, drop_last: bool,
    ) {
        let make = |rank, world| DistributedSampler::new(n, rank, world).unwrap().seed(seed).drop_last(drop_last);
        let taken = (turns * world).min(n / world * world);
        let same = all_ranks(world, |rank, world| make(rank, world).indices_from(4, taken));
        let whole = all_ranks(world, |rank, world| make(rank, world).indices(4));
        prop_assert!(same.iter().zip(&whole).all(|(rest, whole)| rest[..] == whole[taken / world..]));

        let elsewhere = all_ranks(other, make);
        let rest: Vec<_> = elsewhere.iter().map(|sampler| sampler.indices_from(4, taken)).collect();
        prop_assert!(elsewhere.iter().zip(&rest).all(|(sampler, rest)| sampler.len_from(taken) == rest.len()));
        let before: Vec<_> = whole.iter().map(|whole| whole[..taken / world].to_vec()).collect();
        let counts = visits(n, &[before, rest].concat());
        if drop_last {
            prop_assert!(counts.iter().all(|&count| count <= 1));
            prop_assert!(counts.iter().filter(|&&count| count == 0).count() < other);
        } else {
            prop_assert!(counts.iter().all(|&count| count >= 1));
            prop_assert!(counts.iter().sum::<usize>() - n < other);
        }
    }

    #[test]
    fn has_nothing_left_beyond_the_end(n in 0usize..50, beyond: usize) {
        let world = WorldSize::new(3).unwrap();
        let taken = n.saturating_add(beyond);
        for rank in world.ranks() {
            prop_assert!(DistributedSampler::new(n, rank, world).unwrap().indices_from(0, taken).is_empty());
            prop_assert!(EvalSampler::new(n, rank, world).unwrap().indices_from(0, taken).is_empty());
        }
        prop_assert_eq!(RandomSampler::new(n).len_from(taken), 0);
    }

    #[test]
    fn evaluates_every_sample_exactly_once(n in 0usize..300, world in 1usize..9, epoch: u64) {
        let samplers = all_ranks(world, |rank, world| EvalSampler::new(n, rank, world).unwrap());
        let shards: Vec<_> = samplers.iter().map(|s| s.indices(epoch)).collect();
        prop_assert!(visits(n, &shards).iter().all(|&count| count == 1));
        for (sampler, shard) in samplers.iter().zip(&shards) {
            prop_assert_eq!(sampler.len(), shard.len());
            prop_assert!(shard.len() == n / world || shard.len() == n.div_ceil(world));
        }
    }

    #[test]
    fn answers_independently_of_earlier_requests(n in 0usize..100, seed: u64, epoch: u64, other: u64) {
        let asked = DistributedSampler::new(n, Rank::ZERO, WorldSize::ONE).unwrap().seed(seed);
        asked.indices(other);
        let fresh = DistributedSampler::new(n, Rank::ZERO, WorldSize::ONE).unwrap().seed(seed);
        prop_assert_eq!(asked.indices(epoch), fresh.indices(epoch));
    }
}

#[test]
fn shuffles_each_epoch_differently() {
    let sampler = DistributedSampler::new(1000, Rank::ZERO, WorldSize::ONE).unwrap();
    assert_ne!(sampler.indices(0), sampler.indices(1));
    assert_eq!(sampler.indices(1), sampler.clone().seed(1).indices(0));
}

#[test]
fn shuffles_alone_as_in_a_world_of_one() {
    let alone = RandomSampler::new(100).seed(7);
    let world_of_one = DistributedSampler::new(100, Rank::ZERO, WorldSize::ONE).unwrap().seed(7);
    assert_eq!(alone.indices(3), world_of_one.indices(3));
    assert_ne!(alone.indices(3), alone.indices(4));
}

#[test]
fn visits_in_order_without_shuffling() {
    assert_eq!(SequentialSampler::new(4).indices(9), [0, 1, 2, 3]);
    assert!(SequentialSampler::new(0).is_empty());
}

#[test]
fn pads_repeatedly_when_ranks_outnumber_samples() {
    let shards = distributed(2, 5, |s| s.shuffle(false), 0);
    assert_eq!(shards.concat(), [0, 1, 0, 1, 0]);
    assert_eq!(distributed(5, 2, |s| s.shuffle(false), 0)[1], [1, 3, 0]);
}

#[test]
fn gives_every_rank_nothing_of_an_empty_set() {
    assert!(distributed(0, 3, |s| s, 0).iter().all(Vec::is_empty));
}

#[test]
fn rejects_a_rank_outside_the_world() {
    let (rank, world) = (Rank::new(2), WorldSize::new(2).unwrap());
    assert_eq!(EvalSampler::new(10, rank, world).unwrap_err(), RankOutsideWorld { rank, world });
    let error = DistributedSampler::new(10, rank, world).unwrap_err();
    assert!(error.to_string().starts_with("rank 2 is outside a world of 2: "), "{error}");
}

fn all_ranks<T>(world: usize, make: impl Fn(Rank, WorldSize) -> T) -> Vec<T> {
    let world = WorldSize::new(world).unwrap();
    world.ranks().map(|rank| make(rank, world)).collect()
}

fn distributed(
    n: usize,
    world: usize,
    with: impl Fn(DistributedSampler) -> DistributedSampler,
    epoch: u64,
) -> Vec<Vec<usize>> {
    all_ranks(world, |rank, world| with(DistributedSampler::new(n, rank, world).unwrap()).indices(epoch))
}

/// How often each of `n` samples occurs, over all shards.
fn visits(n: usize, shards: &[Vec<usize>]) -> Vec<usize> {
    let mut counts = vec![0; n];
    shards.iter().flatten().for_each(|&index| counts[index] += 1);
    counts
}

#[derive(Deserialize)]
struct Golden {
    randperm: Vec<Permutation>,
    randperm_large: Vec<Permutation>,
    distributed: Vec<Shards>,
    random: Vec<RandomOrder>,
}

#[derive(Deserialize)]
struct Permutation {
    n: usize,
    seed: u64,
    #[serde(flatten)]
    digest: Digest,
}

#[derive(Deserialize)]
struct RandomOrder {
    len: usize,
    seed: u64,
    epoch: u64,
    #[serde(flatten)]
    digest: Digest,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Digest {
    count: usize,
    first: Vec<usize>,
    last: Vec<usize>,
    crc32: u32,
}

#[derive(Debug, Deserialize)]
struct Shards {
    len: usize,
    world: usize,
    shuffle: bool,
    drop_last: bool,
    seed: u64,
    epoch: u64,
    #[serde(flatten)]
    want: Want,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Want {
    Whole { ranks: Vec<Vec<usize>> },
    Digest { per_rank: usize, crc32: u32 },
}

#[test]
fn draws_the_permutation_that_the_documentation_shows() {
    assert_eq!(randperm(10, 0), [4, 1, 7, 5, 3, 9, 0, 8, 6, 2]);
}

#[test]
fn draws_the_same_permutations_as_pytorch() {
    let golden = golden();
    assert!(golden.randperm.len() > 30);
    for case in golden.randperm {
        assert_eq!(digest(&randperm(case.n, case.seed)), case.digest, "n {}, seed {}", case.n, case.seed);
    }
}

/// Both sides of the length at which PyTorch switches from 32 to 64 bits per draw.
#[test]
#[ignore = "needs 2 GB of memory and some 20 seconds; run with --run-ignored all (nextest) or --ignored"]
fn draws_the_same_permutations_as_pytorch_at_200_million() {
    let golden = golden();
    assert_eq!(golden.randperm_large.len(), 2);
    for case in golden.randperm_large {
        assert_eq!(digest(&randperm(case.n, case.seed)), case.digest, "n {}", case.n);
    }
}

#[test]
fn shards_the_same_indices_as_pytorch() {
    let golden = golden();
    assert!(golden.distributed.len() > 300);
    for case in golden.distributed {
        let ranks = shards(&case);
        match &case.want {
            Want::Whole { ranks: want } => assert_eq!(&ranks, want, "{case:?}"),
            Want::Digest { per_rank, crc32: want } => {
                assert!(ranks.iter().all(|shard| shard.len() == *per_rank), "{case:?}");
                assert_eq!(crc32(&ranks.concat()), *want, "{case:?}");
            }
        }
    }
}

#[test]
fn shuffles_alone_as_pytorchs_random_sampler() {
    let golden = golden();
    assert!(!golden.random.is_empty());
    for case in golden.random {
        let order = RandomSampler::new(case.len).seed(case.seed).indices(case.epoch);
        assert_eq!(digest(&order), case.digest, "len {}, seed {}, epoch {}", case.len, case.seed, case.epoch);
    }
}

fn golden() -> Golden {
    serde_json::from_str(include_str!("../../golden/sampler.json")).unwrap()
}

fn shards(case: &Shards) -> Vec<Vec<usize>> {
    let world = WorldSize::new(case.world).unwrap();
    world.ranks().map(|rank| shard(case, rank, world)).collect()
}

fn shard(case: &Shards, rank: Rank, world: WorldSize) -> Vec<usize> {
    let sampler = DistributedSampler::new(case.len, rank, world).unwrap();
    let sampler = sampler.shuffle(case.shuffle).seed(case.seed).drop_last(case.drop_last);
    let indices = sampler.indices(case.epoch);
    assert_eq!(indices.len(), sampler.len());
    indices
}

fn digest(indices: &[usize]) -> Digest {
    Digest {
        count: indices.len(),
        first: indices.iter().take(4).copied().collect(),
        last: indices[indices.len().saturating_sub(4)..].to_vec(),
        crc32: crc32(indices),
    }
}

fn crc32(indices: &[usize]) -> u32 {
    let mut crc = Crc::new();
    for chunk in indices.chunks(4096) {
        let bytes: Vec<u8> = chunk.iter().flat_map(|&index| (index as u64).to_le_bytes()).collect();
        crc.update(&bytes);
    }
    crc.sum()
}
