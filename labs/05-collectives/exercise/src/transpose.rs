//! Task 2: a transposition over all ranks.
//!
//! A matrix of `rows` x `columns` is dealt out in blocks of rows: with 2 ranks, rank 0 has the upper half and rank 1 the lower
//! one. Its transpose shall be dealt out in the same way, so every rank has something for every other. Long-sequence
//! transformers do this in each layer: before it a rank has a part of the sequence with all attention heads, in it the whole
//! sequence with a part of the heads.

use anyhow::Result;
use c10d::{ProcessGroup, Splits};
use tch::Tensor;

/// This rank's rows of the transpose: from a block of `rows / size` x `columns`, one of `columns / size` x `rows`. Both
/// divisions are without remainder.
pub fn transpose(group: &ProcessGroup, block: &Tensor) -> Result<Tensor> {
    // `group.all_to_all_single(&mut output, &input, &Splits::Equal)?` cuts the input's rows into as many parts as there are
    // ranks and sends part r to rank r; what comes from rank r is part r of the output's rows. Tensors must be contiguous.
    todo!("send every rank its part, and put together what comes")
}
