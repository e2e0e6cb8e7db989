//! Facts of a network interface, as `ip address` shows them. You do not change this file.

use std::net::Ipv4Addr;

use serde::Deserialize;

/// An interface of a node.
#[derive(Clone, Debug, Deserialize)]
pub struct Interface {
    /// Its name.
    pub name: String,
    /// True if it was switched on (`UP`).
    pub up: bool,
    /// True if its other end answers (`LOWER_UP`): a cable that is pulled, or a port that is off, has no carrier.
    pub carrier: bool,
    /// True for `lo`, which leads to this node only.
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
