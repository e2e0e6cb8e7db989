//! Task 8: one order of additions, for any number of ranks. Spot the bug.
//!
//! Each rank has the gradients of its virtual ranks, `ranks.part`, and all ranks need the sum over all virtual ranks, with the same bits on any
//! number of ranks. So there is one order of additions, a binary tree over the virtual ranks: the sum of a node is the sum of its first half
//! plus that of its second half. With six virtual ranks this is (0 + (1 + 2)) + (3 + (4 + 5)).
//!
//! A rank adds up what lies within its part before it sends anything, and sends the sums of the largest nodes there: each node
//! whose parent does not lie within the part.

use anyhow::{Context, Result};
use tch::Tensor;

use crate::ranks::{Ranks, Sums, halves};

/// Returns the sum over all virtual ranks, in the order of the tree, on every rank. `gradients` has one of the range `v..v + 1` for each virtual
/// rank v of this rank.
pub fn tree_sum(ranks: &Ranks<'_>, gradients: Sums) -> Result<Tensor> {
    // All ranks end with equal sums, but on another number of ranks the last bits are others.
    let own = ranks.part.clone().map(|v| gradients[&(v..v + 1)].shallow_clone());
    let own = own.reduce(|sum, next| sum + next).context("each rank has a virtual rank")?;
    // `halves(&node)` has the two halves of a node, `ranks.tree()` all nodes that have halves, each after these.
    let mut all = ranks.exchange([(ranks.part.clone(), own)])?;
    all.sort_by_key(|(part, _)| part.start);
    all.into_iter().map(|(_, sum)| sum).reduce(|sum, next| sum + next).context("each rank has sent a sum")
}
