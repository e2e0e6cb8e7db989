//! Task 4: every test picture once. Spot the bug.
//!
//! Ranks share the test set. An accuracy is a share of the pictures that there are, so each of them counts once, on one rank. And since
//! an evaluation lasts as long as its slowest rank, no share is longer than another by more than one picture.

/// The numbers of the test pictures that `rank` evaluates, of `samples` in all.
pub fn evaluation_shard(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    let each = samples.div_ceil(world_size);
    (rank..each * world_size).step_by(world_size).map(|place| place % samples).collect()
}
