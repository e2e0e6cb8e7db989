//! Task 2: messages to both neighbours at the same time.
//!
//! A row of numbers that is too long for one device is dealt out to the ranks in pieces, and so are images and volumes. A
//! convolution looks at the neighbours of every number, and those of the two at the ends of a piece are on other ranks. So
//! before each layer the ranks exchange what lies along their borders. Here the row is a ring: behind the last rank's piece
//! comes the first rank's.

use anyhow::Result;
use c10d::{ProcessGroup, Rank};
use tch::Tensor;

/// The tag of a message that goes to the next rank.
const TO_NEXT: u16 = 0;
/// The tag of a message that goes to the previous rank.
const TO_PREVIOUS: u16 = 1;

/// The piece of this rank with the number before it in front and the number after it behind. There are two ranks at least.
pub fn exchange(group: &ProcessGroup, piece: &Tensor) -> Result<Tensor> {
    let (me, size) = (group.rank().get(), group.size().get());
    let (next, previous) = (Rank::new((me + 1) % size), Rank::new((me + size - 1) % size));
    let (first, last) = (piece.narrow(0, 0, 1), piece.narrow(0, -1, 1));
    // <answer>
    //~ // Start two `isend`s and two `irecv`s, then `wait` for all four: only `wait` gives a tensor back. Of two ranks, each is
    //~ // both neighbours of the other; then tags tell two messages apart.
    //~ todo!("exchange the numbers at both ends, and put what came around the piece: `Tensor::cat(&[…], 0)`")
    let (before, after) = (first.empty_like(), last.empty_like());
    let sent = [group.isend(last, next, TO_NEXT)?, group.isend(first, previous, TO_PREVIOUS)?];
    let before = group.irecv(before, previous, TO_NEXT)?;
    let after = group.irecv(after, next, TO_PREVIOUS)?;
    let (before, after) = (before.wait()?, after.wait()?);
    for message in sent {
        drop(message.wait()?);
    }
    Ok(Tensor::cat(&[&before, piece, &after], 0))
    // </answer>
}
