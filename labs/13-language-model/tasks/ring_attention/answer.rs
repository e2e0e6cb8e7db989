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
    // <answer>
    //~ // The sequence ends where the rank's own keys do.
    //~ let (output, _log_sum) = ring.attend(queries, keys, values, true)?;
    //~ Ok(output)
    type Part = (Tensor, Tensor);
    // Attention to the keys of both: each output counts by its share of the sum.
    let merge = |one: &Part, other: &Part| {
        let log_sum = one.1.logaddexp(&other.1);
        let share = |part: &Part| &part.0 * (&part.1 - &log_sum).exp();
        (share(one) + share(other), log_sum)
    };
    let half = queries.size()[0] / 2;
    let early = |x: &Tensor| x.narrow(0, 0, half);
    let late = |x: &Tensor| x.narrow(0, half, half);
    // The own chunks are in the order of the sequence.
    let (output, log_sum) = ring.attend(queries, keys, values, true)?;
    let mut first = (early(&output), early(&log_sum));
    let mut second = (late(&output), late(&log_sum));
    let mut block = Tensor::stack(&[keys, values], 0);
    for step in 1..ring.ranks() {
        block = ring.to_next(&block)?;
        let (keys, values) = (block.get(0), block.get(1));
        if step <= ring.rank() {
            // Of a lower rank: its first chunk comes before both of mine, its second after both.
            let (output, log_sum) = ring.attend(queries, &early(&keys), &early(&values), false)?;
            first = merge(&first, &(early(&output), early(&log_sum)));
            second = merge(&second, &(late(&output), late(&log_sum)));
        } else {
            // Of a higher rank: both of its chunks lie between mine.
            second = merge(&second, &ring.attend(&late(queries), &keys, &values, false)?);
        }
    }
    Ok(Tensor::cat(&[first.0, second.0], 0))
    // </answer>
}
