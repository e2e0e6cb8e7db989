//! Other answers to `evaluation_shard`: wrong ones, and right ones that look unusual.

/// `DistributedSampler` on a test set. As it is given.
pub fn padded(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    let each = samples.div_ceil(world_size);
    (rank..each * world_size).step_by(world_size).map(|place| place % samples).collect()
}

/// `drop_last=True`: equal shares, without what is left over.
pub fn dropped(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    (rank..samples / world_size * world_size).step_by(world_size).collect()
}

/// The last rank takes all that is left over.
pub fn rest_to_last(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    let each = samples / world_size;
    let end = if rank + 1 == world_size { samples } else { (rank + 1) * each };
    (rank * each..end).collect()
}

/// Every rank evaluates all of it.
pub fn everything(samples: usize, _: usize, _: usize) -> Vec<usize> {
    (0..samples).collect()
}

/// Rank 0 evaluates, and the others wait.
pub fn rank_0(samples: usize, _: usize, rank: usize) -> Vec<usize> {
    if rank == 0 { (0..samples).collect() } else { Vec::new() }
}

/// Right: blocks of neighbours, the first ones longer by one.
pub fn blocks(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    let begin = |rank: usize| rank * (samples / world_size) + rank.min(samples % world_size);
    (begin(rank)..begin(rank + 1)).collect()
}
