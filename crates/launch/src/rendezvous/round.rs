//! A round that came about: this node's place in it, and its workers' ranks.
//!
//! Ranks are contiguous per node in the order of group ranks; role ranks count only nodes of the same role, as
//! `_assign_worker_ranks` of torch/distributed/elastic/agent/server/api.py does. A node is given its own place and the totals:
//! that is all that workers are told, and it does not grow with the number of nodes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::header::{Own, View};
use super::node::{Node, NodeId};
use super::state::Cause;

/// The agreement of a round, as one of its members sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Round {
    /// Counts the agreements from 0.
    pub number: u64,
    /// This node's place among the nodes (GROUP_RANK).
    pub group_rank: usize,
    /// This node, and the ranks of its workers.
    pub me: RoundMember,
    /// The node of group rank 0.
    pub first: Node,
    /// The number of nodes (GROUP_WORLD_SIZE).
    pub nodes: usize,
    /// Workers of all nodes (WORLD_SIZE).
    pub world_size: usize,
    /// Why this round was formed.
    pub cause: Cause,
    /// The numbers of all nodes where this node leads, else its own alone.
    pub ids: Vec<NodeId>,
}

/// One node of a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RoundMember {
    /// Who.
    pub node: Node,
    /// The rank of its first worker.
    pub first_rank: usize,
    /// The role rank of its first worker.
    pub first_role_rank: usize,
    /// Workers of all nodes with its role.
    pub role_world_size: usize,
}

/// A node's place in a round that runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Seat {
    /// GROUP_RANK.
    pub group_rank: usize,
    /// The rank of its first worker.
    pub first_rank: usize,
    /// The role rank of its first worker.
    pub first_role_rank: usize,
    /// Workers of all nodes with its role.
    pub role_world_size: usize,
}

/// The ranks of one worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RankSet {
    /// RANK.
    pub rank: usize,
    /// ROLE_RANK.
    pub role_rank: usize,
    /// ROLE_WORLD_SIZE.
    pub role_world_size: usize,
}

impl Round {
    /// The round that runs, as `me` sees it; `None` where `me` takes no part.
    pub(super) fn of(view: &View, me: &Node) -> Option<Round> {
        let Own::Member { seat: Some(seat), .. } = &view.own else { return None };
        let Seat { group_rank, first_rank, first_role_rank, role_world_size } = *seat;
        let header = &view.header;
        Some(Round {
            number: header.round,
            group_rank,
            me: RoundMember { node: me.clone(), first_rank, first_role_rank, role_world_size },
            first: header.named.first()?.clone(),
            nodes: header.members,
            world_size: header.workers,
            cause: header.cause.clone(),
            ids: vec![me.id],
        })
    }

    /// This node.
    #[must_use]
    pub fn me(&self) -> &RoundMember {
        &self.me
    }

    /// The ranks of this node's worker `local_rank`; `None` where it has no such worker.
    #[must_use]
    pub fn ranks_of(&self, local_rank: usize) -> Option<RankSet> {
        let me = &self.me;
        (local_rank < me.node.local_world_size).then(|| RankSet {
            rank: me.first_rank + local_rank,
            role_rank: me.first_role_rank + local_rank,
            role_world_size: me.role_world_size,
        })
    }
}

/// The places of `nodes`, which stand in the order of their group ranks.
pub(super) fn seats<'a>(nodes: impl Iterator<Item = &'a Node> + Clone) -> Vec<Seat> {
    let mut sizes: BTreeMap<&str, usize> = BTreeMap::new();
    nodes.clone().for_each(|node| *sizes.entry(&node.role).or_default() += node.local_world_size);
    let mut placed: BTreeMap<&str, usize> = BTreeMap::new();
    let mut first_rank = 0;
    let seat = |(group_rank, node): (usize, &'a Node)| {
        let before = placed.entry(&node.role).or_default();
        let role_world_size = sizes[node.role.as_str()]; // every role was counted above
        let seat = Seat { group_rank, first_rank, first_role_rank: *before, role_world_size };
        *before += node.local_world_size;
        first_rank += node.local_world_size;
        seat
    };
    nodes.enumerate().map(seat).collect()
}

#[cfg(test)]
mod tests {
    use super::super::node::tests::{job, node};
    use super::super::state::{Member, State};
    use super::*;

    fn round(me: NodeId, sizes: &[(usize, &str)]) -> Round {
        let mut state = State::empty(job(1, 9));
        for (at, (size, role)) in sizes.iter().enumerate() {
            let mut node = node(at as NodeId, "h");
            (node.local_world_size, node.role) = (*size, (*role).to_owned());
            state.members.push(Member { node, arrived: true, rank: Some(at) });
        }
        let state = state.complete();
        Round::of(&View::of(&state, me), state.node(me).unwrap()).unwrap()
    }

    #[test]
    fn gives_contiguous_ranks_to_nodes_with_different_numbers_of_workers() {
        let round = round(1, &[(2, "default"), (3, "default"), (1, "default")]);
        assert_eq!((round.world_size, round.group_rank, round.nodes), (6, 1, 3));
        let ranks: Vec<_> = (0..3).map(|local| round.ranks_of(local).unwrap().rank).collect();
        assert_eq!((ranks, round.ranks_of(3)), (vec![2, 3, 4], None));
        assert_eq!(round.first.id, 0);
    }

    #[test]
    fn counts_role_ranks_among_nodes_of_the_same_role() {
        // Checked against torch's `_assign_worker_ranks` with the same nodes.
        let sizes = [(2, "trainer"), (1, "reader"), (3, "trainer")];
        let last = round(2, &sizes);
        assert_eq!(last.ranks_of(1), Some(RankSet { rank: 4, role_rank: 3, role_world_size: 5 }));
        let reader = round(1, &sizes).me;
        assert_eq!((reader.first_rank, reader.first_role_rank, reader.role_world_size), (2, 0, 1));
    }
}
