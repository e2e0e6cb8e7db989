//! All-reduce by recursive doubling: in round k, each rank exchanges its whole tensor with the rank 2^k away.
//!
//! Source: R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of Collective Communication Operations in MPICH", Int. J. High
//! Perform. Comput. Appl. 19 (2005). With p ranks, there are log2(p) rounds, each with the whole tensor: few but long messages.

use anyhow::Result;
use c10d::{ProcessGroup, ReduceOp};
use lockstep::Rank;
use tch::Tensor;

use crate::exchange::{TAG, combine, exchange, refuse_avg};
use crate::lab::Lab;
use crate::pictures::Held;

/// Shows what every rank holds before and after.
pub(crate) fn lesson(lab: &mut Lab<'_>) -> Result<()> {
    let mut tensor = lab.start(4);
    let before = Held::tensor(&tensor)?;
    all_reduce(lab.group, &mut tensor, ReduceOp::Sum)?;
    let words = "all_reduce by hand, in rounds of pairs";
    lab.show("doubling", words, &[("before", before), ("after", Held::tensor(&tensor)?)])
}

// ANCHOR: all_reduce
/// Reduces over all ranks, in place, on all. Any length; `tensor` must be contiguous.
///
/// Pairs need a power of two. The ranks beyond the largest power send their tensor to a rank of the core and wait for the result.
pub(crate) fn all_reduce(group: &ProcessGroup, tensor: &mut Tensor, op: ReduceOp) -> Result<()> {
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
// ANCHOR_END: all_reduce

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::assert_reduces_like_a_sum_on_one_rank;

    #[test]
    fn reduces_any_length_on_any_number_of_ranks() {
        assert_reduces_like_a_sum_on_one_rank(all_reduce);
    }

    #[test]
    fn the_core_is_the_greatest_power_of_two() {
        assert_eq!([1, 2, 3, 4, 7, 8, 9].map(core), [1, 2, 2, 4, 4, 8, 8]);
    }
}
