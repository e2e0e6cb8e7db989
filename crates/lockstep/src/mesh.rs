//! Ranks as a grid with named dimensions and a process group along each line of the grid ([`DeviceMesh`]), and ranks by node ([`nodes`]).
//!
//! Ranks on a node share a name and an agent. Two agents on one machine count as two nodes, as they do for the launcher.
//! Leaves out slices of a mesh in several dimensions.

use std::fmt;
use std::net::{IpAddr, UdpSocket};
use std::rc::Rc;

use c10d::{GroupOptions, ProcessGroup, Rank};
use rustix::system::uname;
use serde::{Deserialize, Serialize};

use crate::LaunchEnv;
use crate::object_collectives::{ObjectError, all_gather_object};

/// A grid of ranks; `torch.distributed.device_mesh.init_device_mesh`.
///
/// ```no_run
/// # fn run(group: &c10d::ProcessGroup) -> anyhow::Result<()> {
/// use lockstep::DeviceMesh;
///
/// // Four ranks: 0 and 1 share a model, 2 and 3 another copy of it.
/// let mesh = DeviceMesh::new(group, &[("data", 2), ("tensor", 2)], group.options())?;
/// let gradients = mesh.group("data")?; // 0 with 2, 1 with 3
/// let activations = mesh.group("tensor")?; // 0 with 1, 2 with 3
/// # drop((gradients, activations)); Ok(()) }
/// ```
///
/// Ranks are counted with the last dimension fastest: keep the dimension that communicates most last, so that its ranks are
/// neighbours on one machine.
#[derive(Debug)]
pub struct DeviceMesh {
    dimensions: Vec<Dimension>,
}

#[derive(Debug)]
struct Dimension {
    name: String,
    /// This rank's line along the dimension.
    group: Rc<ProcessGroup>,
}

/// An impossible mesh, or a dimension that it does not have.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeshError {
    /// The number of places in the grid is not the number of ranks in the group.
    #[error("a mesh of {shape} has {places} places for {ranks} ranks")]
    Size {
        /// The grid, as `data 2 × tensor 2`.
        shape: String,
        places: usize,
        ranks: usize,
    },
    /// Two dimensions have the same name.
    #[error("a mesh has two dimensions named {0:?}")]
    Twice(String),
    /// No dimension has this name.
    #[error("the mesh has no dimension {name:?}; it has {known}")]
    NoSuchDimension { name: String, known: String },
    /// A line's group could not be made.
    #[error("failed to make the group of ranks along the dimension {name:?}")]
    Group {
        name: String,
        /// The group's failure.
        #[source]
        source: c10d::Error,
    },
}

impl DeviceMesh {
    /// Lays the ranks of `world`, the job's group, out as a grid and makes a group for each line. Every rank of the job calls it
    /// with the same dimensions.
    ///
    /// Errors: the dimensions do not multiply to the number of ranks, or two have the same name; this is detected before anything is sent.
    pub fn new(world: &ProcessGroup, dimensions: &[(&str, usize)], options: &GroupOptions) -> Result<Self, MeshError> {
        check(world, dimensions)?;
        let along = |at: usize| {
            let name = dimensions[at].0.to_owned();
            let group = line_of(world, &lines(dimensions, at), options);
            group
                .map(|group| Dimension { name: name.clone(), group: Rc::new(group) })
                .map_err(|source| MeshError::Group { name, source })
        };
        Ok(DeviceMesh { dimensions: (0..dimensions.len()).map(along).collect::<Result<_, _>>()? })
    }

    /// The group of the ranks that differ from this one in the dimension `name` alone.
    pub fn group(&self, name: &str) -> Result<&Rc<ProcessGroup>, MeshError> {
        let found = self.dimensions.iter().find(|dimension| dimension.name == name);
        found.map(|dimension| &dimension.group).ok_or_else(|| {
            let known: Vec<_> = self.dimensions.iter().map(|dimension| dimension.name.as_str()).collect();
            MeshError::NoSuchDimension { name: name.to_owned(), known: known.join(", ") }
        })
    }

    /// This rank's place in each dimension, in order.
    pub fn coordinate(&self) -> Vec<usize> {
        self.dimensions.iter().map(|dimension| dimension.group.rank().get()).collect()
    }

    /// The dimensions with their sizes, in order.
    pub fn shape(&self) -> Vec<(&str, usize)> {
        self.dimensions.iter().map(|dimension| (dimension.name.as_str(), dimension.group.size().get())).collect()
    }
}

/// Divides the job into groups of `size` neighbours, as the ranks of one node, and returns this rank's;
/// `torch.distributed.new_subgroups`. Every rank of the job calls it.
pub fn new_subgroups(world: &ProcessGroup, size: usize, options: &GroupOptions) -> Result<ProcessGroup, MeshError> {
    let dimensions = [("subgroup", world.size().get().checked_div(size).unwrap_or(0)), ("member", size)];
    check(world, &dimensions)?;
    let group = line_of(world, &lines(&dimensions, 1), options);
    group.map_err(|source| MeshError::Group { name: "member".to_owned(), source })
}

/// Returns an error unless the grid has a place for each rank, and each dimension a name of its own.
fn check(world: &ProcessGroup, dimensions: &[(&str, usize)]) -> Result<(), MeshError> {
    let ranks = world.size().get();
    let places = dimensions.iter().try_fold(1_usize, |places, (_, size)| places.checked_mul(*size)).unwrap_or(0);
    if places != ranks {
        let shape: Vec<_> = dimensions.iter().map(|(name, size)| format!("{name} {size}")).collect();
        return Err(MeshError::Size { shape: shape.join(" × "), places, ranks });
    }
    let named_before = |at: usize| dimensions[..at].iter().any(|(name, _)| *name == dimensions[at].0);
    let twice = (0..dimensions.len()).find(|&at| named_before(at));
    twice.map_or(Ok(()), |at| Err(MeshError::Twice(dimensions[at].0.to_owned())))
}

/// The ranks of each line along dimension `at`, the last dimension fastest.
fn lines(dimensions: &[(&str, usize)], at: usize) -> Vec<Vec<Rank>> {
    let product = |dimensions: &[(&str, usize)]| dimensions.iter().map(|(_, size)| size).product::<usize>();
    let (size, stride) = (dimensions[at].1, product(&dimensions[at + 1..]));
    let starts =
        (0..product(&dimensions[..at])).flat_map(|block| (0..stride).map(move |inner| block * size * stride + inner));
    starts.map(|start| (0..size).map(|step| Rank::new(start + step * stride)).collect()).collect()
}

/// Makes a group for each line, on all ranks in the same order, and returns the one with this rank.
fn line_of(world: &ProcessGroup, lines: &[Vec<Rank>], options: &GroupOptions) -> c10d::Result<ProcessGroup> {
    let mut own = None;
    for line in lines {
        own = world.new_group(line, options)?.or(own);
    }
    Ok(own.expect("every rank is on one line"))
}

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
