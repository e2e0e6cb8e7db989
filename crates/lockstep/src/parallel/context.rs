//! Context parallelism: each rank holds a part of every sequence, for the whole batch, and computes every layer for its positions. All
//! layers but attention work on one position at a time; in attention, blocks of keys and values go round a ring of ranks.
//!
//! Under a causal mask, later positions have more to attend to. So a sequence of p ranks is cut into 2p chunks, and rank r holds the
//! chunks r and 2p − 1 − r (zigzag): then each block that arrives takes the same work on every rank, half of its pairs of positions.
//!
//! Parameters are whole on each rank and get the gradients of its positions: [`average_gradients`](super::average_gradients) adds up the
//! rest. Leaves out overlap of communication and computation, and the recomputation that would free the blocks after the forward pass:
//! autograd keeps all of them, so what is divided is the activations of the other layers and the table of scores.
//!
//! Source: Liu, Zaharia, Abbeel, "Ring Attention with Blockwise Transformers for Near-Infinite Context" (2023); for the order, Grattafiori
//! and others, "The Llama 3 Herd of Models" (2024), section 3.3.2.

use c10d::{Error, ProcessGroup, Result, Splits, all_to_all_single};
use tch::{Kind, Tensor};

use crate::virtual_ranks::refuse_in_pass;

/// The positions of a sequence of `length` that this rank holds, in their order: `[length / p]`.
///
/// Errors: `BadArgument` if the sequence cannot be divided into two equal chunks for each rank.
pub fn zigzag_positions(group: &ProcessGroup, length: i64) -> Result<Tensor> {
    let (ranks, rank) = (group.size().get() as i64, group.rank().get() as i64);
    if length % (2 * ranks) != 0 {
        let detail = format!(
            "a sequence of {length} positions cannot be divided into {} equal chunks, two for each rank",
            2 * ranks
        );
        return Err(Error::bad_argument("divide a sequence", detail));
    }
    let chunk = length / (2 * ranks);
    let of = |number: i64| Tensor::arange_start(number * chunk, (number + 1) * chunk, (Kind::Int64, group.device()));
    Ok(Tensor::cat(&[of(rank), of(2 * ranks - 1 - rank)], 0))
}

/// This rank's positions of a tensor that all ranks hold, whose dimension `dim` is the sequence.
pub fn zigzag(group: &ProcessGroup, whole: &Tensor, dim: usize) -> Result<Tensor> {
    let positions = zigzag_positions(group, whole.size()[dim])?.to(whole.device());
    Ok(whole.index_select(dim as i64, &positions))
}

/// Exact causal attention over sequences that are divided by [`zigzag`]: queries, keys and values of this rank's positions,
/// `[n, heads, t / p, d]`, to what these attend to, of the same shape. Each of p − 1 exchanges sends a rank's keys and values to the next
/// rank, and in the backward pass their gradients to the one before.
pub fn ring_attention(group: &ProcessGroup, queries: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
    refuse_in_pass("context parallelism")?;
    let (ranks, rank) = (group.size().get(), group.rank().get());
    let half = queries.size()[2] / 2;
    let chunk = |x: &Tensor, number: i64| x.narrow(2, number * half, half);
    // The own chunks are in order, so the mask is that of a whole sequence.
    let own = Partial::attend(queries, keys, values, true);
    let mut early = own.of(|x| chunk(x, 0));
    let mut late = own.of(|x| chunk(x, 1));
    let mut block = Tensor::stack(&[keys, values], 0);
    // ANCHOR: ring
    for step in 1..ranks {
        block = to_next(group, &block)?;
        let (keys, values) = (block.get(0), block.get(1));
        if step <= rank {
            // Of a lower rank: all queries come after its first chunk and before its second.
            let seen = Partial::attend(queries, &chunk(&keys, 0), &chunk(&values, 0), false);
            early = early.merge(&seen.of(|x| chunk(x, 0)));
            late = late.merge(&seen.of(|x| chunk(x, 1)));
        } else {
            // Of a higher rank: both of its chunks lie between those of the queries.
            late = late.merge(&Partial::attend(&chunk(queries, 1), &keys, &values, false));
        }
    }
    // ANCHOR_END: ring
    Ok(Tensor::cat(&[early.output, late.output], 2))
}

/// Attention to some of the keys, and the logarithm of the sum by which its weights are divided.
struct Partial {
    /// `[n, heads, t, d]`
    output: Tensor,
    /// `[n, heads, t, 1]`
    log_sum: Tensor,
}

impl Partial {
    fn attend(queries: &Tensor, keys: &Tensor, values: &Tensor, causal: bool) -> Self {
        let mut scores = queries.matmul(&keys.transpose(-2, -1)) / (queries.size()[3] as f64).sqrt();
        if causal {
            let t = queries.size()[2];
            let later = Tensor::ones([t, t], (Kind::Bool, queries.device())).triu(1);
            scores = scores.masked_fill(&later, f64::NEG_INFINITY);
        }
        let log_sum = scores.logsumexp([-1].as_slice(), true);
        Partial { output: (scores - &log_sum).exp().matmul(values), log_sum }
    }

    /// Attention to the keys of both.
    fn merge(&self, other: &Partial) -> Self {
        let log_sum = self.log_sum.logaddexp(&other.log_sum);
        let share = |of: &Partial| &of.output * (&of.log_sum - &log_sum).exp();
        Partial { output: share(self) + share(other), log_sum }
    }

    fn of(&self, part: impl Fn(&Tensor) -> Tensor) -> Self {
        Partial { output: part(&self.output), log_sum: part(&self.log_sum) }
    }
}

/// Sends a tensor to the next rank of the ring, and returns that of the rank before, which has the same shape. In the backward pass the
/// gradient goes the other way, so all ranks must use what they get.
pub fn to_next(group: &ProcessGroup, block: &Tensor) -> Result<Tensor> {
    let (ranks, rank) = (group.size().get(), group.rank().get());
    let rows = |of: usize| (0..ranks).map(|rank| if rank == of { block.size()[0] } else { 0 }).collect();
    let splits = Splits::Sizes { input: rows((rank + 1) % ranks), output: rows((rank + ranks - 1) % ranks) };
    all_to_all_single(group, block, &splits)
}
