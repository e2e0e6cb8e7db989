//! Answers to `evaluation_shard`: wrong ones, and unusual right ones.

use lockstep_answers::{edit, given};

/// The given program: `DistributedSampler` on a test set.
#[given]
pub fn padded() {}

/// As `drop_last=True`: equal shares without the remainder.
#[edit(rank..samples => rank..samples / world_size * world_size)]
pub fn dropped() {}

/// Gives the whole remainder to the last rank.
pub fn rest_to_last(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    let each = samples / world_size;
    let end = if rank + 1 == world_size { samples } else { (rank + 1) * each };
    (rank * each..end).collect()
}

/// Evaluates everything on every rank.
pub fn everything(samples: usize, _: usize, _: usize) -> Vec<usize> {
    (0..samples).collect()
}

/// Evaluates on rank 0 only.
pub fn rank_0(samples: usize, _: usize, rank: usize) -> Vec<usize> {
    if rank == 0 { (0..samples).collect() } else { Vec::new() }
}

/// Gives each rank a block of the rounded-up length, so what is missing is all missing on the last rank.
pub fn long_blocks(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    let each = samples.div_ceil(world_size);
    (rank * each..samples.min((rank + 1) * each)).collect()
}

/// Begins each block at the rank times its own length.
pub fn own_steps(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    let length = samples / world_size + usize::from(rank < samples % world_size);
    (rank * length..(rank + 1) * length).collect()
}

/// Right: blocks of neighbours, the first ones longer by one sample.
pub fn blocks(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    let begin = |rank: usize| rank * (samples / world_size) + rank.min(samples % world_size);
    (begin(rank)..begin(rank + 1)).collect()
}

/// Right: blocks between rounded fractions, the longer ones somewhere in the middle.
pub fn fractions(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    let begin = |rank: usize| (rank * samples + world_size / 2) / world_size;
    (begin(rank)..begin(rank + 1)).collect()
}
