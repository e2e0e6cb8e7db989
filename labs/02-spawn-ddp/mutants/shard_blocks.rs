//! Each rank takes a block of neighbours.

pub fn shard(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    let each = samples.div_ceil(world_size);
    (rank * each..(rank + 1) * each).map(|place| place % samples).collect()
}
