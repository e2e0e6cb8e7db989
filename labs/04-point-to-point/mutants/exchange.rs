//! Wrong answers to `exchange`.

use anyhow::Result;
use c10d::{ProcessGroup, Rank};
use tch::Tensor;

/// Uses one tag for all messages. If both neighbours are the same rank, the two messages are swapped.
pub fn one_tag(group: &ProcessGroup, piece: &Tensor) -> Result<Tensor> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let (first, last) = (piece.narrow(0, 0, 1), piece.narrow(0, -1, 1));
    let (before, after) = (first.empty_like(), last.empty_like());
    let sent = [group.isend(first, previous, 0)?, group.isend(last, next, 0)?];
    let before = group.irecv(before, previous, 0)?;
    let after = group.irecv(after, next, 0)?;
    let (before, after) = (before.wait()?, after.wait()?);
    for message in sent {
        drop(message.wait()?);
    }
    Ok(Tensor::cat(&[&before, piece, &after], 0))
}

/// Sends the first number to the next rank and the last one to the previous rank.
pub fn far_ends(group: &ProcessGroup, piece: &Tensor) -> Result<Tensor> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let (first, last) = (piece.narrow(0, 0, 1), piece.narrow(0, -1, 1));
    let (before, after) = (first.empty_like(), last.empty_like());
    let sent = [group.isend(first, next, 0)?, group.isend(last, previous, 1)?];
    let before = group.irecv(before, previous, 0)?;
    let after = group.irecv(after, next, 1)?;
    let (before, after) = (before.wait()?, after.wait()?);
    for message in sent {
        drop(message.wait()?);
    }
    Ok(Tensor::cat(&[&before, piece, &after], 0))
}

/// Waits for each send before it receives anything.
pub fn waits_early(group: &ProcessGroup, piece: &Tensor) -> Result<Tensor> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let (first, last) = (piece.narrow(0, 0, 1), piece.narrow(0, -1, 1));
    let (before, after) = (first.empty_like(), last.empty_like());
    drop(group.isend(last, next, 0)?.wait()?);
    drop(group.isend(first, previous, 1)?.wait()?);
    let before = group.irecv(before, previous, 0)?.wait()?;
    let after = group.irecv(after, next, 1)?.wait()?;
    Ok(Tensor::cat(&[&before, piece, &after], 0))
}
