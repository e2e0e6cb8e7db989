//! All-reduce around a ring, in chunks: a reduce-scatter, then an all-gather.
//!
//! Source: P. Patarasuk and X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", J. Parallel Distrib.
//! Comput. 69 (2009). With p ranks, each sends 2(p − 1) messages of 1/p of the tensor: less than twice the tensor's size,
//! whatever the number of ranks.

use anyhow::{Context, Result};
use c10d::{ProcessGroup, ReduceOp};
use lockstep::Rank;
use tch::Tensor;

use crate::exchange::{combine, exchange, refuse_avg};
use crate::lab::Lab;
use crate::pictures::Held;

/// Shows what every rank holds after each of the two phases.
pub(crate) fn lesson(lab: &mut Lab<'_>) -> Result<()> {
    let tensor = lab.start(lab.world());
    let mut stages = vec![("before", Held::tensor(&tensor)?)];
    let mut chunks = chunks(&tensor, lab.world())?;
    reduce_scatter(lab.group, &mut chunks, ReduceOp::Sum)?;
    stages.push(("after the reduce-scatter", Held::tensor(&tensor)?));
    all_gather(lab.group, &mut chunks)?;
    stages.push(("after the all-gather", Held::tensor(&tensor)?));
    lab.show("ring", "all_reduce by hand, around a ring", &stages)
}

// ANCHOR: all_reduce
/// Reduces over all ranks, in place, on all. Any length; `tensor` must be contiguous.
pub(crate) fn all_reduce(group: &ProcessGroup, tensor: &mut Tensor, op: ReduceOp) -> Result<()> {
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
// ANCHOR_END: all_reduce

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

/// A rank in the ring.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::assert_reduces_like_a_sum_on_one_rank;

    #[test]
    fn reduces_any_length_on_any_number_of_ranks() {
        assert_reduces_like_a_sum_on_one_rank(all_reduce);
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
}
