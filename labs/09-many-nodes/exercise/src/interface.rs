//! Task 3: the network interface.
//!
//! Gloo and NCCL need an interface on each node (`GLOO_SOCKET_IFNAME`, `NCCL_SOCKET_IFNAME`) through which it reaches all others.
//! A node has several: `lo` leads to itself, a dead one has no carrier, the bridge of a container runtime has the same address on
//! every node, and one is for administration and slow. Names differ between nodes, too.

use anyhow::{Context, Result};

use crate::network::Interface;

/// Chooses one interface of each node (`nodes[n]` has those of node n): all are switched on and have a carrier, none is a loopback,
/// they are in one network and have different addresses. Of several such networks, the fastest: its slowest interface counts.
/// Returns their names, by node.
///
/// # Errors
/// When no network connects all nodes.
pub fn interface(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    // `one.network()` is the network of an interface. For each network of the first node: which interface has each node in it?
    todo!("choose one interface of each node")
}
