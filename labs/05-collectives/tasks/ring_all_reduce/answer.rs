//! Task 5: an all-reduce around a ring.
//!
//! The ranks form a ring, and each sends only to the next one. The tensor is divided into one chunk per rank. In the first half,
//! every chunk goes around the ring once and collects its sum: a reduce-scatter. In the second half, the finished chunks go
//! around: an all-gather. In each step every rank sends one chunk, so in total it sends less than twice the tensor's size,
//! whatever the number of ranks.

use anyhow::Result;
use tch::Tensor;

use crate::ring::Ring;

/// Replaces `tensor`, which has one dimension, by its sum over all ranks.
pub fn ring_all_reduce(ring: &Ring<'_>, tensor: &mut Tensor) -> Result<()> {
    let (me, size) = (ring.rank(), ring.size());
    // The chunks are views: a write to a chunk is a write to the tensor. If the length does not divide evenly, the first chunks
    // are longer by one element. If the tensor has fewer elements than there are ranks, the last chunks are empty.
    let mut chunks = tensor.tensor_split(size as i64, 0);
    // <answer>
    //~ // `ring.exchange(&chunk)?` sends a chunk to the next rank and returns the one that the previous rank sends in this step.
    //~ // `let _ = chunks[c].g_add_(&arrived)` adds to a chunk, `chunks[c].copy_(&arrived)` replaces it.
    //~ todo!("size - 1 steps in which chunks collect their sums, then size - 1 steps in which the sums go around")
    // The number of the chunk that lies this far behind this rank's own.
    let of = |behind: usize| (me + 2 * size - behind) % size;
    for step in 0..size - 1 {
        let arrived = ring.exchange(&chunks[of(step)])?;
        let _ = chunks[of(step + 1)].g_add_(&arrived);
    }
    // Now this rank has finished chunk me + 1.
    for step in 0..size - 1 {
        let arrived = ring.exchange(&chunks[of(step + size - 1)])?;
        chunks[of(step)].copy_(&arrived);
    }
    Ok(())
    // </answer>
}
