//! Answers to `exchange`: wrong ones, and unusual right ones.

use anyhow::Result;
use c10d::{P2pOp, ProcessGroup, Rank};
use lockstep_answers::edit;
use tch::Tensor;

const TO_NEXT: u16 = 0;
const TO_PREVIOUS: u16 = 1;

/// Uses one tag for all messages. If both neighbours are the same rank, the two messages are swapped.
#[edit([group.isend(last, next, TO_NEXT)?, group.isend(first, previous, TO_PREVIOUS)?] => [group.isend(first, previous, TO_NEXT)?, group.isend(last, next, TO_NEXT)?])]
#[edit(after, next, TO_PREVIOUS => after, next, TO_NEXT)]
pub fn one_tag() {}

/// Sends the first number to the next rank and the last one to the previous rank.
#[edit(last, next, TO_NEXT => first, next, TO_NEXT)]
#[edit(first, previous, TO_PREVIOUS => last, previous, TO_PREVIOUS)]
pub fn far_ends() {}

/// Waits for each send before it receives anything.
#[edit(for message in sent { drop(message.wait()?); } => )]
#[edit(let before = group.irecv => for message in sent { drop(message.wait()?); } let before = group.irecv)]
pub fn waits_early() {}

/// Receives with the tag with which it sends to the same neighbour.
#[edit(before, previous, TO_NEXT => before, previous, TO_PREVIOUS)]
#[edit(after, next, TO_PREVIOUS => after, next, TO_NEXT)]
pub fn own_tags() {}

/// As `own_tags`, with receives that block.
#[edit(let (before, after) = (first.empty_like(), last.empty_like()) => let (mut before, mut after) = (first.empty_like(), last.empty_like()))]
#[edit(let before = group.irecv(before, previous, TO_NEXT)? => group.recv(&mut before, previous, TO_PREVIOUS)?)]
#[edit(let after = group.irecv(after, next, TO_PREVIOUS)? => group.recv(&mut after, next, TO_NEXT)?)]
#[edit((before.wait()?, after.wait()?) => (before, after))]
pub fn own_tags_blocking() {}

/// Waits for the receives only; a barrier is to show that the sends are done.
#[edit(for message in sent { drop(message.wait()?); } => group.barrier()?; drop(sent);)]
pub fn no_wait() {}

/// Right: all four messages in one call.
pub fn batch(group: &ProcessGroup, piece: &Tensor) -> Result<Tensor> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let (first, last) = (piece.narrow(0, 0, 1), piece.narrow(0, -1, 1));
    let messages = vec![
        P2pOp::Recv { tensor: first.empty_like(), from: previous, tag: 0 },
        P2pOp::Recv { tensor: last.empty_like(), from: next, tag: 1 },
        P2pOp::Send { tensor: last, to: next, tag: 0 },
        P2pOp::Send { tensor: first, to: previous, tag: 1 },
    ];
    let works = group.batch_isend_irecv(messages)?;
    let done: Vec<Tensor> = works.into_iter().map(|work| work.wait()).collect::<Result<_, _>>()?;
    Ok(Tensor::cat(&[&done[0], piece, &done[1]], 0))
}

/// Right: one tag, with messages that match by their order; receives into the row, between starting to send and waiting for it.
pub fn in_order(group: &ProcessGroup, piece: &Tensor) -> Result<Tensor> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let (first, last) = (piece.narrow(0, 0, 1), piece.narrow(0, -1, 1));
    let row = Tensor::cat(&[&last, piece, &first], 0);
    let sent = [group.isend(last, next, 0)?, group.isend(first, previous, 0)?];
    group.recv(&mut row.narrow(0, 0, 1), previous, 0)?;
    group.recv(&mut row.narrow(0, -1, 1), next, 0)?;
    for message in sent {
        drop(message.wait()?);
    }
    Ok(row)
}

/// Right: all ranks meet at a barrier before the messages and after them.
pub fn barriers(group: &ProcessGroup, piece: &Tensor) -> Result<Tensor> {
    group.barrier()?;
    let row = in_order(group, piece)?;
    group.barrier()?;
    Ok(row)
}

/// Sends in one direction, waits, then in the other.
pub fn one_direction(group: &ProcessGroup, piece: &Tensor) -> Result<Tensor> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let (first, last) = (piece.narrow(0, 0, 1), piece.narrow(0, -1, 1));
    let sent = group.isend(last.copy(), next, 0)?;
    let before = group.irecv(last.zeros_like(), previous, 0)?.wait()?;
    let _ = sent.wait()?;
    let sent = group.isend(first.copy(), previous, 1)?;
    let after = group.irecv(first.zeros_like(), next, 1)?.wait()?;
    let _ = sent.wait()?;
    Ok(Tensor::cat(&[&before, piece, &after], 0))
}

/// Gathers the borders of all ranks on all.
pub fn gathers(group: &ProcessGroup, piece: &Tensor) -> Result<Tensor> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let (first, last) = (piece.narrow(0, 0, 1), piece.narrow(0, -1, 1));
    let own = Tensor::cat(&[&first, &last], 0);
    let mut all = Tensor::zeros([2 * size as i64], (piece.kind(), piece.device()));
    group.all_gather_into_tensor(&mut all, &own)?;
    let before = all.narrow(0, 2 * previous.get() as i64 + 1, 1);
    let after = all.narrow(0, 2 * next.get() as i64, 1);
    Ok(Tensor::cat(&[&before, piece, &after], 0))
}

/// Blocks, and ranks take turns.
pub fn takes_turns(group: &ProcessGroup, piece: &Tensor) -> Result<Tensor> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let (first, last) = (piece.narrow(0, 0, 1), piece.narrow(0, -1, 1));
    let (mut before, mut after) = (last.zeros_like(), first.zeros_like());
    if me % 2 == 0 {
        group.send(&last.contiguous(), next, 0)?;
        group.recv(&mut before, previous, 0)?;
        group.send(&first.contiguous(), previous, 1)?;
        group.recv(&mut after, next, 1)?;
    } else {
        group.recv(&mut before, previous, 0)?;
        group.send(&last.contiguous(), next, 0)?;
        group.recv(&mut after, next, 1)?;
        group.send(&first.contiguous(), previous, 1)?;
    }
    Ok(Tensor::cat(&[&before, piece, &after], 0))
}
