//! Answers to `ring`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{ProcessGroup, Rank};
use lockstep_answers::edit;
use tch::Tensor;

/// Sends first on all ranks, so all of them wait for a receive.
#[edit(me % 2 == 0 => true)]
pub fn all_send() {}

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
#[edit(all[(me + size + 1 - step) % size].shallow_clone() => own.shallow_clone())]
pub fn keeps() {}

/// Stores the tensors as if they came from the other direction.
#[edit(me + size + 1 - step => me + step - 1)]
#[edit(me + size - step => me + step)]
pub fn backwards() {}

/// Lets each rank in turn send its tensor to all others, which are not all its neighbours.
pub fn to_all(group: &ProcessGroup, own: &Tensor) -> Result<Vec<Tensor>> {
    let (me, size) = (group.rank().get(), group.size().get());
    let mut all: Vec<Tensor> = (0..size).map(|_| own.copy()).collect();
    for (turn, place) in all.iter_mut().enumerate() {
        if turn != me {
            group.recv(place, Rank::new(turn), 0)?;
            continue;
        }
        for other in (0..size).filter(|other| *other != me) {
            group.send(own, Rank::new(other), 0)?;
        }
    }
    Ok(all)
}

/// Starts the sends and does not block in them.
#[edit(me % 2 == 0 => true)]
#[edit(group.send(&leaves, next, 0)?; group.recv(arrives, previous, 0)?; =>
    let sending = group.isend(leaves, next, 0)?;
    group.recv(arrives, previous, 0)?;
    drop(sending.wait()?);
)]
pub fn does_not_block() {}

/// Receives into one tensor, which it puts into all places.
#[edit(for step in 1..size => let mut held = own.zeros_like(); for step in 1..size)]
#[edit(all[(me + size + 1 - step) % size].shallow_clone(); let arrives = &mut all[(me + size - step) % size]; =>
    if step == 1 { own.copy() } else { held.copy() };
    all[(me + size - step) % size] = held.shallow_clone();
    let arrives = &mut held;
)]
pub fn one_buffer() {}

/// Takes `size` steps, the last of which brings the rank's own tensor back.
#[edit(1..size => (1..=size).filter(|_| size > 1))]
pub fn all_the_way() {}

/// Stores what arrives in the place of the rank from which it came, in each step.
pub fn one_place(group: &ProcessGroup, own: &Tensor) -> Result<Vec<Tensor>> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let mut all: Vec<Tensor> = (0..size).map(|_| own.zeros_like()).collect();
    all[me].copy_(own);
    let mut held = own.copy();
    for _ in 1..size {
        let arrives = &mut all[previous.get()];
        if me == 0 {
            group.recv(arrives, previous, 0)?;
            group.send(&held, next, 0)?;
        } else {
            group.send(&held, next, 0)?;
            group.recv(arrives, previous, 0)?;
        }
        held = arrives.copy();
    }
    Ok(all)
}

/// Numbers the tags by the owner of the tensor when it sends, and by the step when it receives.
pub fn two_tags(group: &ProcessGroup, own: &Tensor) -> Result<Vec<Tensor>> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let mut all: Vec<Tensor> = (0..size).map(|_| own.copy()).collect();
    for step in 1..size {
        let owner = (me + size + 1 - step) % size;
        let (leaves, arrives) = (all[owner].copy(), &mut all[(me + size - step) % size]);
        if me % 2 == 0 {
            group.send(&leaves, next, owner as u16)?;
            group.recv(arrives, previous, step as u16)?;
        } else {
            group.recv(arrives, previous, step as u16)?;
            group.send(&leaves, next, owner as u16)?;
        }
    }
    Ok(all)
}

/// Right: slower, as only rank 0 receives first, which breaks the cycle.
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

/// Right: each rank's tensor travels around the ring before the next one's does.
pub fn one_after_another(group: &ProcessGroup, own: &Tensor) -> Result<Vec<Tensor>> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let mut all: Vec<Tensor> = (0..size).map(|_| own.zeros_like()).collect();
    all[me].copy_(own);
    for owner in 0..size {
        if me != owner {
            group.recv(&mut all[owner], previous, 0)?;
        }
        if next.get() != owner {
            group.send(&all[owner], next, 0)?;
        }
    }
    Ok(all)
}
