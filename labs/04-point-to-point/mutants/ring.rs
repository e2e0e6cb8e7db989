//! Answers to `ring`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{ProcessGroup, Rank};
use tch::Tensor;

/// Sends first on all ranks, so all of them wait for a receive.
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

/// Sends and receives with one tensor, so a rank that receives first loses what it should send.
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

/// Sends the rank's own tensor in every step.
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

/// Stores the tensors as if they came from the other direction.
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

/// Right but slower: only rank 0 receives first, which breaks the cycle.
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
    // The tensor that came in step s belongs to the rank s places before this one.
    Ok((0..size).map(|of| around[(me + size - of) % size].shallow_clone()).collect())
}
