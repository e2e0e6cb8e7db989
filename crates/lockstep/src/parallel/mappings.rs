//! Where a divided tensor becomes whole and a whole one divided: each of these is one exchange in the forward pass and another in
//! the backward pass. All ranks of the group call them in the same order, with tensors of the same shape, and run backward by
//! [`c10d::backward_over`].
//!
//! Source: Megatron-LM, `megatron/core/tensor_parallel/mappings.py`; the two papers that [`tensor`](super::tensor) names.

use c10d::Exchange::{AllGather, AllReduce, Identity, OwnPart, ReduceScatter};
use c10d::{ProcessGroup, Result, exchange};
use tch::Tensor;

/// The tensor itself, which all ranks hold and each uses in its own way: the gradient is the sum of theirs. Megatron's *f*.
pub fn copy_to_ranks(group: &ProcessGroup, whole: &Tensor) -> Result<Tensor> {
    exchange(group, whole, Identity, AllReduce, 0)
}

/// The sum of all ranks' tensors, which all go on to use in the same way: the gradient needs no exchange. Megatron's *g*.
pub fn sum_over_ranks(group: &ProcessGroup, part: &Tensor) -> Result<Tensor> {
    exchange(group, part, AllReduce, Identity, 0)
}

/// All ranks' parts, one after another along `dim`, which each uses in its own way: the gradient is each rank's part of the sum.
/// Before a column-wise layer in sequence parallelism.
pub fn all_gather(group: &ProcessGroup, part: &Tensor, dim: usize) -> Result<Tensor> {
    exchange(group, part, AllGather, ReduceScatter, dim)
}

/// This rank's part, along `dim`, of the sum of all ranks' tensors; after a row-wise layer in sequence parallelism.
pub fn reduce_scatter(group: &ProcessGroup, whole: &Tensor, dim: usize) -> Result<Tensor> {
    exchange(group, whole, ReduceScatter, AllGather, dim)
}

/// All ranks' parts, one after another along `dim`, which all go on to use in the same way: the gradient is the rank's own part.
pub fn gather_parts(group: &ProcessGroup, part: &Tensor, dim: usize) -> Result<Tensor> {
    exchange(group, part, AllGather, OwnPart, dim)
}

/// This rank's part, along `dim`, of a tensor that all ranks hold: the gradient is put together again.
pub fn own_part(group: &ProcessGroup, whole: &Tensor, dim: usize) -> Result<Tensor> {
    exchange(group, whole, OwnPart, AllGather, dim)
}
