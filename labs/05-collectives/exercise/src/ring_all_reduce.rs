//! Task 5: an all-reduce around a ring.
//!
//! The ranks stand in a circle, and each sends to the next one only. The tensor is cut into as many chunks as there are ranks. In
//! the first half every chunk goes once around and collects its sum on the way: a reduce-scatter. In the second half the
//! finished chunks go around: an all-gather. In each step every rank sends one chunk, so in all it sends hardly more than twice
//! the tensor, however many ranks there are.

use anyhow::Result;
use tch::Tensor;

use crate::ring::Ring;

/// Replaces `tensor`, which has one dimension, by its sum over all ranks.
pub fn ring_all_reduce(ring: &Ring<'_>, tensor: &mut Tensor) -> Result<()> {
    let (me, size) = (ring.rank(), ring.size());
    // Views: to write into a chunk is to write into the tensor. The first ones are longer by an element if need be; of a tensor
    // with fewer elements than there are ranks, the last ones are empty.
    let mut chunks = tensor.tensor_split(size as i64, 0);
    // `ring.exchange(&chunk)?` sends a chunk to the next rank and gives the one that the previous rank sends in this step.
    // `let _ = chunks[c].g_add_(&arrived)` adds to a chunk, `chunks[c].copy_(&arrived)` replaces it.
    todo!("size - 1 steps in which chunks collect their sums, then size - 1 steps in which the sums go around")
}
