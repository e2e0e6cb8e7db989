//! Task 1: a ring of blocking messages.
//!
//! Each rank starts with one tensor and must end with the tensors of all ranks. A rank exchanges messages only with its two neighbours. In
//! every step it sends the tensor that it received in the previous step (in the first step, its own tensor) to the next rank, and receives
//! a tensor from the previous rank. After `size - 1` steps, every tensor has been on every rank. `send` and `recv` block: a send ends when
//! the other side receives. Use these two alone. A job may also have a single rank, which sends nothing.

use anyhow::Result;
use c10d::{ProcessGroup, Rank};
use tch::Tensor;

/// Returns the tensors of all ranks, by rank. All have the same shape.
pub fn ring(group: &ProcessGroup, own: &Tensor) -> Result<Vec<Tensor>> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let mut all: Vec<Tensor> = (0..size).map(|_| own.zeros_like()).collect();
    all[me].copy_(own);
    // `group.send(&tensor, next, 0)?` and `group.recv(&mut tensor, previous, 0)?`: in what order, and on which ranks?
    todo!("pass the tensors around until every rank has all of them")
}
