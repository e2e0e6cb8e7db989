//! A round that runs: this node's place in it, and the ranks of its workers. A node gets its own place and the totals, which is all
//! that workers need and does not grow with the number of nodes.

use super::header::{Own, View};
use super::node::{Node, NodeId};
use super::ranks::RankAssignment;
use super::state::Cause;

/// A round from the view of one member.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Round {
    /// The number of the round, from 0.
    pub number: u64,
    /// This node's position among the nodes (GROUP_RANK).
    pub group_rank: usize,
    /// This node, and the ranks of its workers.
    pub me: RoundMember,
    /// The node of group rank 0.
    pub first: Node,
    /// The number of nodes (GROUP_WORLD_SIZE).
    pub nodes: usize,
    /// The number of workers of all nodes (WORLD_SIZE).
    pub world_size: usize,
    /// Why this round was formed.
    pub cause: Cause,
    /// The ids of all nodes if this node leads, otherwise only its own.
    pub ids: Vec<NodeId>,
}

/// One node of a round.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RoundMember {
    /// The node.
    pub node: Node,
    /// The rank of its first worker.
    pub first_rank: usize,
    /// The role rank of its first worker.
    pub first_role_rank: usize,
    /// The number of workers of all nodes with its role.
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
    /// The running round from the view of `me`; `None` if `me` is not a member.
    pub(super) fn of(view: &View, me: &Node) -> Option<Round> {
        let Own::Member { assignment: Some(assignment), .. } = &view.own else { return None };
        let RankAssignment { group_rank, first_rank, first_role_rank, role_world_size } = *assignment;
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

    /// The ranks of this node's worker `local_rank`; `None` if it does not exist.
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
