//! The samplers against PyTorch 2.11's own indices (`scripts/golden/sampler.py` makes `golden/sampler.json`).

use flate2::Crc;
use lockstep::sampler::{DistributedSampler, RandomSampler, Sampler, randperm};
use lockstep::{Rank, WorldSize};
use serde::Deserialize;

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
