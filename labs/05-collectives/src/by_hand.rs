//! Two all-reduces written by hand: around a ring, and by recursive doubling.
//!
//! The ring's source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel
//! Distrib. Comput. 69 (2009). With p ranks, each sends 2(p − 1) messages of 1/p of the tensor: less than twice the tensor's size,
//! whatever the number of ranks.
//!
//! The doubling's source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication Operations in MPICH",
//! Int. J. High Perform. Comput. Appl. 19 (2005). In round k, each rank exchanges its whole tensor with the rank 2^k away. With p
//! ranks, there are log2(p) rounds: few but long messages.

use anyhow::{Context, Result, ensure};
use c10d::{ProcessGroup, ReduceOp, Work};
use lockstep::Rank;
use tch::Tensor;

use crate::Lab;
use crate::pictures::Held;

/// The tag of all messages.
pub(crate) const TAG: u16 = 0;

// ANCHOR: exchange
/// Sends `outgoing` and receives into `incoming`, which it returns. It starts both messages before it waits for either: if all
/// ranks began with a blocking send, none would reach its receive.
///
/// If two ranks send to each other, the lower one starts with its send. Gloo accepts any order, but NCCL executes the messages
/// between two GPUs in the order in which they were started.
pub(crate) fn exchange(
    group: &ProcessGroup,
    outgoing: &Tensor,
    to: Rank,
    incoming: Tensor,
    from: Rank,
) -> Result<Tensor> {
    let (sending, receiving) = if group.rank() < to {
        let sending = Message::send(group, outgoing, to)?;
        (sending, Message::receive(group, incoming, from)?)
    } else {
        let receiving = Message::receive(group, incoming, from)?;
        (Message::send(group, outgoing, to)?, receiving)
    };
    let incoming = receiving.wait()?;
    sending.wait().map(drop)?;
    Ok(incoming)
}
// ANCHOR_END: exchange

/// A message in progress. A message without elements is not sent, since both sides know its length.
enum Message {
    Empty(Tensor),
    UnderWay(Work<Tensor>),
}

impl Message {
    fn send(group: &ProcessGroup, tensor: &Tensor, to: Rank) -> Result<Self> {
        let tensor = tensor.shallow_clone();
        Ok(if tensor.numel() == 0 { Message::Empty(tensor) } else { Message::UnderWay(group.isend(tensor, to, TAG)?) })
    }

    fn receive(group: &ProcessGroup, tensor: Tensor, from: Rank) -> Result<Self> {
        Ok(if tensor.numel() == 0 {
            Message::Empty(tensor)
        } else {
            Message::UnderWay(group.irecv(tensor, from, TAG)?)
        })
    }

    fn wait(self) -> Result<Tensor> {
        match self {
            Message::Empty(tensor) => Ok(tensor),
            Message::UnderWay(work) => Ok(work.wait()?),
        }
    }
}

// ANCHOR: combine
/// Combines `other` into `held`, element by element, by sum, product and so on.
///
/// # Errors
/// For [`ReduceOp::Avg`]: the mean of two means is not the mean of all values.
pub(crate) fn combine(held: &mut Tensor, other: &Tensor, op: ReduceOp) -> Result<()> {
    match op {
        ReduceOp::Sum => _ = held.g_add_(other),
        ReduceOp::Product => _ = held.g_mul_(other),
        ReduceOp::Min => held.copy_(&held.minimum(other)),
        ReduceOp::Max => held.copy_(&held.maximum(other)),
        ReduceOp::BitAnd => _ = held.bitwise_and_tensor_(other),
        ReduceOp::BitOr => _ = held.bitwise_or_tensor_(other),
        ReduceOp::BitXor => _ = held.bitwise_xor_tensor_(other),
        ReduceOp::Avg => refuse_avg(op)?,
    }
    Ok(())
}
// ANCHOR_END: combine

/// Rejects averages: the mean of two means is not the mean of all values.
pub(crate) fn refuse_avg(op: ReduceOp) -> Result<()> {
    ensure!(op != ReduceOp::Avg, "cannot reduce with Avg step by step: reduce with Sum, and divide by the world size");
    Ok(())
}

/// Shows what every rank holds after each of the two phases.
pub(crate) fn ring(lab: &mut Lab<'_>) -> Result<()> {
    let tensor = lab.start(lab.world());
    let mut stages = vec![("before", Held::tensor(&tensor)?)];
    let mut chunks = chunks(&tensor, lab.world())?;
    reduce_scatter(lab.group, &mut chunks, ReduceOp::Sum)?;
    stages.push(("after the reduce-scatter", Held::tensor(&tensor)?));
    all_gather(lab.group, &mut chunks)?;
    stages.push(("after the all-gather", Held::tensor(&tensor)?));
    lab.show("ring", "all_reduce by hand, around a ring", &stages)
}

// ANCHOR: ring
/// Reduces around the ring, in place, on all ranks. Any length; `tensor` must be contiguous.
pub(crate) fn ring_all_reduce(group: &ProcessGroup, tensor: &mut Tensor, op: ReduceOp) -> Result<()> {
    refuse_avg(op)?;
    let mut chunks = chunks(tensor, group.size().get())?;
    reduce_scatter(group, &mut chunks, op)?;
    all_gather(group, &mut chunks)
}

/// Divides the tensor into one chunk per rank; the first chunks may be longer by one element. Chunks are views: a write to a chunk
/// is a write to the tensor.
fn chunks(tensor: &Tensor, size: usize) -> Result<Vec<Tensor>> {
    let flat = tensor.f_view([-1]).context("cannot cut a tensor that is not contiguous into chunks")?;
    Ok(flat.tensor_split(size as i64, 0))
}
// ANCHOR_END: ring

// ANCHOR: phases
/// Chunk c starts on rank c and goes around once; each rank adds its own chunk on the way. At the end, rank r has the sum of chunk
/// r + 1.
fn reduce_scatter(group: &ProcessGroup, chunks: &mut [Tensor], op: ReduceOp) -> Result<()> {
    let ring = Ring::of(group);
    for step in 0..ring.size - 1 {
        let (leaves, comes) = (ring.chunk(0, step), ring.chunk(0, step + 1));
        let buffer = chunks[comes].empty_like();
        let arrived = exchange(group, &chunks[leaves], ring.next(), buffer, ring.previous())?;
        combine(&mut chunks[comes], &arrived, op)?;
    }
    Ok(())
}

/// The finished chunks go around once more and are copied.
fn all_gather(group: &ProcessGroup, chunks: &mut [Tensor]) -> Result<()> {
    let ring = Ring::of(group);
    for step in 0..ring.size - 1 {
        let (leaves, comes) = (ring.chunk(1, step), ring.chunk(0, step));
        let place = chunks[comes].shallow_clone();
        chunks[comes] = exchange(group, &chunks[leaves], ring.next(), place, ring.previous())?;
    }
    Ok(())
}
// ANCHOR_END: phases

struct Ring {
    rank: usize,
    size: usize,
}

impl Ring {
    fn of(group: &ProcessGroup) -> Self {
        Ring { rank: group.rank().get(), size: group.size().get() }
    }

    fn next(&self) -> Rank {
        Rank::new(self.chunk(1, 0))
    }

    fn previous(&self) -> Rank {
        Rank::new(self.chunk(0, 1))
    }

    /// The number of the chunk at this distance ahead of or behind this rank's own; `behind` is at most the ring's size.
    fn chunk(&self, ahead: usize, behind: usize) -> usize {
        (self.rank + ahead + self.size - behind) % self.size
    }
}

/// Shows what every rank holds before and after.
pub(crate) fn doubling(lab: &mut Lab<'_>) -> Result<()> {
    let mut tensor = lab.start(4);
    let before = Held::tensor(&tensor)?;
    doubling_all_reduce(lab.group, &mut tensor, ReduceOp::Sum)?;
    let words = "all_reduce by hand, in rounds of pairs";
    lab.show("doubling", words, &[("before", before), ("after", Held::tensor(&tensor)?)])
}

// ANCHOR: doubling
/// Reduces in rounds of pairs, in place, on all ranks. Any length; `tensor` must be contiguous.
///
/// Pairs need a power of two. The ranks beyond the largest power send their tensor to a rank of the core and wait for the result.
pub(crate) fn doubling_all_reduce(group: &ProcessGroup, tensor: &mut Tensor, op: ReduceOp) -> Result<()> {
    let (rank, size) = (group.rank().get(), group.size().get());
    refuse_avg(op)?; // before any rank waits for a result
    if tensor.numel() == 0 {
        return Ok(()); // the same on all ranks
    }
    let core = core(size);
    if rank >= core {
        group.send(tensor, Rank::new(rank - core), TAG)?;
        return Ok(group.recv(tensor, Rank::new(rank - core), TAG)?);
    }
    let guest = Some(rank + core).filter(|&guest| guest < size).map(Rank::new);
    if let Some(guest) = guest {
        let mut brought = tensor.empty_like();
        group.recv(&mut brought, guest, TAG)?;
        combine(tensor, &brought, op)?;
    }
    within_core(group, tensor, core, op)?;
    guest.map_or(Ok(()), |guest| Ok(group.send(tensor, guest, TAG)?))
}

fn within_core(group: &ProcessGroup, tensor: &mut Tensor, core: usize, op: ReduceOp) -> Result<()> {
    let mut distance = 1;
    while distance < core {
        let partner = Rank::new(group.rank().get() ^ distance);
        let theirs = exchange(group, tensor, partner, tensor.empty_like(), partner)?;
        combine(tensor, &theirs, op)?;
        distance *= 2;
    }
    Ok(())
}

/// The largest power of two that is at most `size`.
pub(crate) fn core(size: usize) -> usize {
    1 << size.ilog2()
}
// ANCHOR_END: doubling

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::assert_reduces_like_a_sum_on_one_rank;

    #[test]
    fn the_ring_reduces_any_length_on_any_number_of_ranks() {
        assert_reduces_like_a_sum_on_one_rank(ring_all_reduce);
    }

    #[test]
    fn cuts_any_length_into_a_chunk_for_each_rank() {
        let lengths = |n: i64, size| -> Vec<usize> {
            let tensor = Tensor::zeros([n], tch::kind::INT64_CPU);
            chunks(&tensor, size).unwrap().iter().map(Tensor::numel).collect()
        };
        assert_eq!(lengths(10, 4), [3, 3, 2, 2]);
        assert_eq!(lengths(2, 4), [1, 1, 0, 0]);
        assert_eq!(lengths(0, 2), [0, 0]);
    }

    #[test]
    fn refuses_a_tensor_that_is_not_contiguous() {
        let columns = Tensor::zeros([2, 3], tch::kind::INT64_CPU).tr();
        let message = format!("{:#}", chunks(&columns, 2).unwrap_err());
        assert!(message.starts_with("cannot cut a tensor that is not contiguous into chunks"), "{message}");
    }

    #[test]
    fn doubling_reduces_any_length_on_any_number_of_ranks() {
        assert_reduces_like_a_sum_on_one_rank(doubling_all_reduce);
    }

    #[test]
    fn the_core_is_the_greatest_power_of_two() {
        assert_eq!([1, 2, 3, 4, 7, 8, 9].map(core), [1, 2, 2, 4, 4, 8, 8]);
    }
}
