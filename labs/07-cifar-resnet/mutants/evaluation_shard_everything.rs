//! Every rank evaluates all of it.

pub fn evaluation_shard(samples: usize, _: usize, _: usize) -> Vec<usize> {
    (0..samples).collect()
}
