//! The ranks of each node ([`nodes`]).
//!
//! Ranks on a node share a name and an agent. Two agents on one machine count as two nodes, as they do for the launcher.

use std::fmt;
use std::net::{IpAddr, UdpSocket};

use c10d::{ProcessGroup, Rank};
use rustix::system::uname;
use serde::{Deserialize, Serialize};

use crate::LaunchEnv;
use crate::object_collectives::{ObjectError, all_gather_object};

/// A node with its ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its name.
    pub host: String,
    /// The address from which it reaches the job's store; `None` if the store's name does not resolve there.
    pub address: Option<IpAddr>,
    /// Its ranks, in ascending order.
    pub ranks: Vec<Rank>,
}

/// What a rank reports about its node.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Member {
    group_rank: Option<usize>,
    host: String,
    address: Option<IpAddr>,
}

/// The nodes of the job, in the order of their first ranks. A collective.
///
/// # Errors
/// What another rank sent did not arrive.
pub fn nodes(env: &LaunchEnv, group: &ProcessGroup) -> Result<Vec<Node>, ObjectError> {
    let host = uname().nodename().to_string_lossy().into_owned();
    let member = Member { group_rank: env.group_rank, host, address: address(&env.master_addr, env.master_port) };
    Ok(by_node(all_gather_object(group, &member)?))
}

fn by_node(members: Vec<Member>) -> Vec<Node> {
    let mut nodes: Vec<(Option<usize>, Node)> = Vec::new();
    for (rank, Member { group_rank, host, address }) in members.into_iter().enumerate() {
        let known = nodes.iter_mut().find(|(group, node)| *group == group_rank && node.host == host);
        match known {
            Some((_, node)) => node.ranks.push(Rank::new(rank)),
            None => nodes.push((group_rank, Node { host, address, ranks: vec![Rank::new(rank)] })),
        }
    }
    nodes.into_iter().map(|(_, node)| node).collect()
}

/// The address of this machine on the way to another: connecting a UDP socket picks a route and sends nothing.
fn address(host: &str, port: u16) -> Option<IpAddr> {
    let socket = |any| UdpSocket::bind((any, 0)).and_then(|socket| socket.connect((host, port)).map(|()| socket));
    let socket = socket("0.0.0.0").or_else(|_| socket("::")).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

impl fmt::Display for Node {
    /// `n2 (10.88.0.2), ranks 1 2 3`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.host)?;
        if let Some(address) = self.address {
            write!(f, " ({address})")?;
        }
        write!(f, ", {}", if self.ranks.len() == 1 { "rank" } else { "ranks" })?;
        self.ranks.iter().try_for_each(|rank| write!(f, " {rank}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(members: &[(Option<usize>, &str)]) -> Vec<String> {
        let member = |(group_rank, host): &(Option<usize>, &str)| Member {
            group_rank: *group_rank,
            host: (*host).to_owned(),
            address: Some([10, 0, 0, 1].into()),
        };
        by_node(members.iter().map(member).collect()).iter().map(Node::to_string).collect()
    }

    #[test]
    fn lists_unequal_nodes_with_their_ranks() {
        let nodes = shown(&[(Some(0), "n1"), (Some(1), "n2"), (Some(1), "n2"), (Some(1), "n2")]);
        assert_eq!(nodes, ["n1 (10.0.0.1), rank 0", "n2 (10.0.0.1), ranks 1 2 3"]);
    }

    #[test]
    fn counts_two_agents_on_a_machine_as_two_nodes() {
        assert_eq!(shown(&[(Some(0), "laptop"), (Some(1), "laptop")]).len(), 2);
    }

    #[test]
    fn finds_the_ranks_of_a_node_that_are_not_next_to_each_other() {
        let nodes = shown(&[(None, "n1"), (None, "n2"), (None, "n1"), (None, "n2")]);
        assert_eq!(nodes, ["n1 (10.0.0.1), ranks 0 2", "n2 (10.0.0.1), ranks 1 3"]);
    }

    #[test]
    fn finds_its_own_address_on_the_way_to_the_store() {
        assert_eq!(address("127.0.0.1", 29400), Some([127, 0, 0, 1].into()));
        assert_eq!(address("no such host", 1), None);
    }
}
