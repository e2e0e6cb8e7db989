//! Other answers to `ring`: wrong ones, and right ones that look unusual.

use anyhow::Result;
use c10d::{ProcessGroup, Rank};
use tch::Tensor;

/// All ranks send first: a full circle of ranks that wait for a receive.
pub fn all_send(group: &ProcessGroup, own: &Tensor) -> Result<Vec<Tensor>> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let mut all: Vec<Tensor> = (0..size).map(|_| own.zeros_like()).collect();
    all[me].copy_(own);
    for step in 1..size {
        group.send(&all[(me + size + 1 - step) % size], next, 0)?;
        group.recv(&mut all[(me + size - step) % size], previous, 0)?;
    }
    Ok(all)
}

/// One tensor is both sent and received into: who receives first has lost what it was to send.
pub fn overwrites(group: &ProcessGroup, own: &Tensor) -> Result<Vec<Tensor>> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let mut all: Vec<Tensor> = (0..size).map(|_| own.copy()).collect();
    let mut held = own.copy();
    for step in 1..size {
        if me % 2 == 0 {
            group.send(&held, next, 0)?;
            group.recv(&mut held, previous, 0)?;
        } else {
            group.recv(&mut held, previous, 0)?;
            group.send(&held, next, 0)?;
        }
        all[(me + size - step) % size].copy_(&held);
    }
    Ok(all)
}

/// Every step sends the rank's own tensor again.
pub fn keeps(group: &ProcessGroup, own: &Tensor) -> Result<Vec<Tensor>> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let mut all: Vec<Tensor> = (0..size).map(|_| own.copy()).collect();
    for step in 1..size {
        let arrives = &mut all[(me + size - step) % size];
        if me == 0 {
            group.recv(arrives, previous, 0)?;
            group.send(own, next, 0)?;
        } else {
            group.send(own, next, 0)?;
            group.recv(arrives, previous, 0)?;
        }
    }
    Ok(all)
}

/// The tensors are filed as if they came from the other direction.
pub fn backwards(group: &ProcessGroup, own: &Tensor) -> Result<Vec<Tensor>> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let mut all: Vec<Tensor> = (0..size).map(|_| own.copy()).collect();
    let mut held = own.copy();
    for step in 1..size {
        let mut arrives = own.zeros_like();
        if me % 2 == 0 {
            group.send(&held, next, 0)?;
            group.recv(&mut arrives, previous, 0)?;
        } else {
            group.recv(&mut arrives, previous, 0)?;
            group.send(&held, next, 0)?;
        }
        all[(me + step) % size].copy_(&arrives);
        held = arrives;
    }
    Ok(all)
}

/// Right, if slower: rank 0 alone receives first, and the circle opens there.
pub fn one_breaks(group: &ProcessGroup, own: &Tensor) -> Result<Vec<Tensor>> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let mut around = vec![own.copy()];
    for step in 1..size {
        let mut arrives = own.zeros_like();
        if me == 0 {
            group.recv(&mut arrives, previous, 0)?;
            group.send(&around[step - 1], next, 0)?;
        } else {
            group.send(&around[step - 1], next, 0)?;
            group.recv(&mut arrives, previous, 0)?;
        }
        around.push(arrives);
    }
    // What came in step s is of the rank that is s before this one.
    Ok((0..size).map(|of| around[(me + size - of) % size].shallow_clone()).collect())
}
