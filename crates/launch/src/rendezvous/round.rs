//! A round that came about: who takes part, and every worker's ranks.
//!
//! Ranks are contiguous per node in the order of group ranks; role ranks count only nodes of the same role, as
//! `_assign_worker_ranks` of torch/distributed/elastic/agent/server/api.py does.

use super::node::{Node, NodeId};
use super::state::{Cause, State};

/// The agreement of a round: the same on all its members, but for `group_rank`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Round {
    /// Counts the agreements from 0.
    pub number: u64,
    /// This node's place among `members` (GROUP_RANK).
    pub group_rank: usize,
    /// In the order of group ranks; their number is GROUP_WORLD_SIZE.
    pub members: Vec<RoundMember>,
    /// Workers of all nodes (WORLD_SIZE).
    pub world_size: usize,
    /// Why this round was formed.
    pub cause: Cause,
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
    /// The round that `state` runs, as `me` sees it; `None` where `me` takes no part.
    pub(super) fn of(state: &State, me: NodeId) -> Option<Round> {
        let nodes: Vec<&Node> = state.members.iter().map(|member| &member.node).collect();
        let group_rank = nodes.iter().position(|node| node.id == me)?;
        let members = place(&nodes);
        let world_size = nodes.iter().map(|node| node.local_world_size).sum();
        Some(Round { number: state.round, group_rank, members, world_size, cause: state.cause.clone() })
    }

    /// This node.
    #[must_use]
    pub fn me(&self) -> &RoundMember {
        &self.members[self.group_rank] // `of` found it there
    }

    /// The ranks of this node's worker `local_rank`; `None` where it has no such worker.
    #[must_use]
    pub fn ranks_of(&self, local_rank: usize) -> Option<RankSet> {
        let me = self.me();
        (local_rank < me.node.local_world_size).then(|| RankSet {
            rank: me.first_rank + local_rank,
            role_rank: me.first_role_rank + local_rank,
            role_world_size: me.role_world_size,
        })
    }

    /// The node whose worker has the global `rank`.
    #[must_use]
    pub fn node_of(&self, rank: usize) -> Option<&RoundMember> {
        self.members.iter().find(|m| (m.first_rank..m.first_rank + m.node.local_world_size).contains(&rank))
    }
}

fn place(nodes: &[&Node]) -> Vec<RoundMember> {
    let workers = |part: &[&Node], role: Option<&str>| -> usize {
        part.iter().filter(|n| role.is_none_or(|role| n.role == role)).map(|n| n.local_world_size).sum()
    };
    let member = |(at, node): (usize, &&Node)| RoundMember {
        node: (*node).clone(),
        first_rank: workers(&nodes[..at], None),
        first_role_rank: workers(&nodes[..at], Some(&node.role)),
        role_world_size: workers(nodes, Some(&node.role)),
    };
    nodes.iter().enumerate().map(member).collect()
}

#[cfg(test)]
mod tests {
    use super::super::node::tests::{job, node};
    use super::super::state::Member;
    use super::*;

    fn round(me: NodeId, sizes: &[(usize, &str)]) -> Round {
        let mut state = State::empty(job(1, 9));
        for (at, (size, role)) in sizes.iter().enumerate() {
            let mut node = node(at as NodeId, "h");
            (node.local_world_size, node.role) = (*size, (*role).to_owned());
            state.members.push(Member { node, arrived: true, rank: Some(at) });
        }
        Round::of(&state, me).unwrap()
    }

    #[test]
    fn gives_contiguous_ranks_to_nodes_with_different_numbers_of_workers() {
        let round = round(1, &[(2, "default"), (3, "default"), (1, "default")]);
        assert_eq!((round.world_size, round.group_rank), (6, 1));
        let ranks: Vec<_> = (0..3).map(|local| round.ranks_of(local).unwrap().rank).collect();
        assert_eq!((ranks, round.ranks_of(3)), (vec![2, 3, 4], None));
        assert_eq!(round.node_of(5).unwrap().node.id, 2);
        assert!(round.node_of(6).is_none());
    }

    #[test]
    fn counts_role_ranks_among_nodes_of_the_same_role() {
        // Checked against torch's `_assign_worker_ranks` with the same nodes.
        let round = round(2, &[(2, "trainer"), (1, "reader"), (3, "trainer")]);
        assert_eq!(round.ranks_of(1), Some(RankSet { rank: 4, role_rank: 3, role_world_size: 5 }));
        let reader = &round.members[1];
        assert_eq!((reader.first_rank, reader.first_role_rank, reader.role_world_size), (2, 0, 1));
    }
}
