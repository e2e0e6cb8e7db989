//! The last rank takes all that is left over.

pub fn evaluation_shard(samples: usize, world_size: usize, rank: usize) -> Vec<usize> {
    let each = samples / world_size;
    let end = if rank + 1 == world_size { samples } else { (rank + 1) * each };
    (rank * each..end).collect()
}
