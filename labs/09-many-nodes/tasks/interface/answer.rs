//! Task 3: the network interface.
//!
//! Gloo and NCCL need an interface on each node (`GLOO_SOCKET_IFNAME`, `NCCL_SOCKET_IFNAME`) through which it reaches all others.
//! A node has several: `lo` leads to itself, a dead one has no carrier, the bridge of a container runtime has the same address on
//! every node, and one is for administration and slow. Names differ between nodes, too.

use std::net::Ipv4Addr;

use anyhow::{Context, Result};
use serde::Deserialize;

/// An interface of a node, as `ip address` shows it.
#[derive(Clone, Debug, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// True if it was switched on (`UP`). One that was not may still be listed with the carrier that it had.
    pub up: bool,
    /// True if its other end answers (`LOWER_UP`): a cable that is pulled, or a port that is off, has no carrier.
    pub carrier: bool,
    /// True for `lo`, which leads to this node only, whatever its addresses are.
    pub loopback: bool,
    /// Its address; `None` if it has none.
    pub address: Option<Ipv4Addr>,
    /// The number of leading bits of the address that name its network.
    pub prefix: u8,
    /// Megabits per second.
    pub speed: u32,
}

impl Interface {
    /// The network that it is in: the leading bits of its address.
    pub fn network(&self) -> Option<(u32, u8)> {
        let bits = u32::from(self.address?);
        Some((bits & u32::MAX.checked_shl(32 - u32::from(self.prefix)).unwrap_or(0), self.prefix))
    }
}

/// Chooses one interface of each node (`nodes[n]` has those of node n). All are switched on and have a carrier, and none is a loopback.
/// They are in one network (their `network()` is equal, the prefix included) and have different addresses. Of several such networks, it
/// takes the fastest, where the slowest interface counts. Returns their names, by node.
///
/// # Errors
/// When no network connects all nodes.
pub fn interface(nodes: &[Vec<Interface>]) -> Result<Vec<String>> {
    // <answer>
    //~ // `one.network()` is the network of an interface. For each network of the first node: which interface has each node in it?
    //~ todo!("choose one interface of each node")
    let works = |one: &&Interface| one.up && one.carrier && !one.loopback && one.address.is_some();
    let within = |network| {
        let one = |node: &Vec<Interface>| node.iter().filter(works).find(|one| one.network() == Some(network)).cloned();
        nodes.iter().map(one).collect::<Option<Vec<Interface>>>()
    };
    let differ = |chosen: &Vec<Interface>| {
        let mut addresses: Vec<_> = chosen.iter().map(|one| one.address).collect();
        addresses.sort();
        addresses.dedup();
        addresses.len() == nodes.len()
    };
    let first = nodes.first().context("no node")?;
    let networks = first.iter().filter(works).filter_map(Interface::network);
    let chosen = networks.filter_map(within).filter(differ);
    let fastest = chosen.max_by_key(|chosen| chosen.iter().map(|one| one.speed).min());
    let fastest = fastest.context("no network connects all nodes")?;
    Ok(fastest.into_iter().map(|one| one.name).collect())
    // </answer>
}
