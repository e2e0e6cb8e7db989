//! Wrong answers to `shard`.

/// Gives each rank a block of neighbours.
pub fn blocks(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    let each = samples.div_ceil(world_size);
    (rank * each..(rank + 1) * each).map(|place| place % samples).collect()
}

/// Gives some ranks one sample less than others.
pub fn short(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    (rank..samples).step_by(world_size).collect()
}
