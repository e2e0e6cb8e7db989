//! Task 4: every test picture once. Spot the bug.
//!
//! The ranks share the test set. For a correct accuracy, every picture must count exactly once, on one rank. And since an
//! evaluation takes as long as its slowest rank, the lengths of the shares must differ by at most one picture.

/// Returns the numbers of the test pictures that `rank` evaluates. The test set has `samples` pictures.
pub fn evaluation_shard(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    // <answer>
    //~ let each = samples.div_ceil(world_size);
    //~ (rank..each * world_size).step_by(world_size).map(|place| place % samples).collect()
    (rank..samples).step_by(world_size).collect()
    // </answer>
}
