//! Answers to `ring_all_reduce`: wrong ones, and unusual right ones.

use anyhow::Result;
use lockstep_answers::edit;
use tch::Tensor;

use crate::ring::Ring;

/// Sends the whole tensor around and adds it up on every rank.
pub fn whole(ring: &Ring<'_>, tensor: &mut Tensor) -> Result<()> {
    let size = ring.size();
    let mut held = tensor.copy();
    for _ in 1..size {
        held = ring.exchange(&held)?;
        let _ = tensor.g_add_(&held);
    }
    Ok(())
}

/// Takes a step too many in each half: chunks come back to where they began.
pub fn all_around(ring: &Ring<'_>, tensor: &mut Tensor) -> Result<()> {
    let (me, size) = (ring.rank(), ring.size());
    let own = tensor.copy();
    let mut chunks = tensor.tensor_split(size as i64, 0);
    let starts = own.tensor_split(size as i64, 0);
    let of = |behind: usize| (me + 2 * size - behind) % size;
    for step in 0..size {
        let arrived = ring.exchange(&chunks[of(step)])?;
        // In the last step, the finished sum of the chunk that began here.
        let sum = if step + 1 < size { arrived + &starts[of(step + 1)] } else { arrived };
        chunks[of(step + 1)].copy_(&sum);
    }
    for step in 0..size {
        let arrived = ring.exchange(&chunks[of(step)])?;
        chunks[of(step + 1)].copy_(&arrived);
    }
    Ok(())
}

/// Sends a chunk between the halves for nothing.
#[edit(for step in 0..size - 1 { let arrived = ring.exchange(&chunks[of(step + size - 1)])?; chunks[of(step)].copy_(&arrived); } => let _ = ring.exchange(&chunks[0])?; for step in 0..size - 1 { let arrived = ring.exchange(&chunks[of(step + size - 1)])?; chunks[of(step)].copy_(&arrived); })]
pub fn once_more() {}

/// Doubles what arrives in the second half.
#[edit(chunks[of(step)].copy_(&arrived) => chunks[of(step)].copy_(&(arrived * 2.0)))]
pub fn doubles() {}

/// Omits the all-gather.
#[edit(for step in 0..size - 1 { let arrived = ring.exchange(&chunks[of(step + size - 1)])?; chunks[of(step)].copy_(&arrived); } => )]
pub fn one_half() {}

/// Adds chunks in the second half instead of copying them.
#[edit(chunks[of(step)].copy_(&arrived) => let _ = chunks[of(step)].g_add_(&arrived))]
pub fn adds_twice() {}

/// Cuts chunks of one length and forgets the remainder.
#[edit(tensor.tensor_split => tensor.narrow(0, 0, tensor.size()[0] / size as i64 * size as i64).tensor_split)]
pub fn drops_rest() {}

/// Right: finishes chunk r on rank r, not on the rank before it.
#[edit(2 * size - behind => 2 * size - 1 - behind)]
pub fn own_chunk() {}

/// Does not take part in a step whose chunk is empty.
pub fn skips_empty(ring: &Ring<'_>, tensor: &mut Tensor) -> Result<()> {
    let (me, size) = (ring.rank(), ring.size());
    let mut chunks = tensor.tensor_split(size as i64, 0);
    for step in 0..2 * (size - 1) {
        let half = usize::from(step >= size - 1);
        let leaves = (me + half + 2 * size - step % (size - 1).max(1)) % size;
        let arrives = (leaves + size - 1) % size;
        if chunks[leaves].numel() == 0 {
            continue;
        }
        let chunk = ring.exchange(&chunks[leaves])?;
        if half == 0 {
            chunks[arrives] += chunk;
        } else {
            chunks[arrives].copy_(&chunk);
        }
    }
    Ok(())
}

/// Begins the second half with the chunks of the first.
#[edit(chunks[of(step + size - 1)] => chunks[of(step)])]
#[edit(chunks[of(step)].copy_ => chunks[of(step + 1)].copy_)]
pub fn unfinished() {}

/// Takes the chunks that `chunk` makes, which may be fewer than the ranks.
#[edit(tensor.tensor_split => tensor.chunk)]
#[edit(let of => let count = chunks.len(); let of)]
#[edit((me + 2 * size - behind) % size => (me + 2 * size - behind) % size % count)]
pub fn fewer_chunks() {}

/// Puts the sums into the list, in place of the views.
#[edit(let _ = chunks[of(step + 1)].g_add_(&arrived) => chunks[of(step + 1)] = &chunks[of(step + 1)] + &arrived)]
pub fn no_views() {}

/// Puts the finished chunks into the list, in place of the views.
#[edit(chunks[of(step)].copy_(&arrived) => chunks[of(step)] = arrived)]
pub fn list_only() {}

/// Takes a step too many in the first half, which only a single rank sees.
#[edit((me + 2 * size - behind) % size; for step in 0..size - 1 => (me + 2 * size - behind) % size; for step in 0..size)]
pub fn size_steps() {}

/// Replaces chunks in the first half instead of adding to them.
#[edit(let _ = chunks[of(step + 1)].g_add_(&arrived) => chunks[of(step + 1)].copy_(&arrived))]
pub fn replaces() {}
