//! `drop_last=True`: equal shares, without what is left over.

pub fn evaluation_shard(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    (rank..samples / world_size * world_size).step_by(world_size).collect()
}
