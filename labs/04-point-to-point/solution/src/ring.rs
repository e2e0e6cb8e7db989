//! Task 1: a ring of blocking messages.
//!
//! Every rank has a tensor, and all want to have all of them. Each talks to its two neighbours only: in every step it sends to
//! the next rank what it got in the step before (its own tensor in the first step), and receives what the previous rank sends.
//! After `size - 1` steps every tensor has been everywhere. `send` and `recv` block: a send is over when the other side receives.

use anyhow::Result;
use c10d::{ProcessGroup, Rank};
use tch::Tensor;

/// The tensors of all ranks, by rank. All have one shape.
pub fn ring(group: &ProcessGroup, own: &Tensor) -> Result<Vec<Tensor>> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let mut all: Vec<Tensor> = (0..size).map(|_| own.zeros_like()).collect();
    all[me].copy_(own);
    // <answer>
    //~ // `group.send(&tensor, next, 0)?` and `group.recv(&mut tensor, previous, 0)?`: in what order, and on which ranks?
    //~ todo!("pass the tensors around until every rank has all of them")
    for step in 1..size {
        let leaves = all[(me + size + 1 - step) % size].shallow_clone();
        let arrives = &mut all[(me + size - step) % size];
        if me % 2 == 0 {
            group.send(&leaves, next, 0)?;
            group.recv(arrives, previous, 0)?;
        } else {
            group.recv(arrives, previous, 0)?;
            group.send(&leaves, next, 0)?;
        }
    }
    Ok(all)
    // </answer>
}
