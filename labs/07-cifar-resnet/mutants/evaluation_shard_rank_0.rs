//! Rank 0 evaluates, and the others wait.

pub fn evaluation_shard(samples: usize, _: usize, rank: usize) -> Vec<usize> {
    if rank == 0 { (0..samples).collect() } else { Vec::new() }
}
