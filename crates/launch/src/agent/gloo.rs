//! The network interface of the workers' Gloo, where Gloo's own choice would be loopback.
//!
//! Gloo listens on the first address of the host name that belongs to this machine, otherwise on loopback (`createDefaultDevice` of
//! torch/csrc/distributed/c10d/ProcessGroupGloo.cpp). Debian's `/etc/hosts` gives the host name 127.0.1.1, so that ranks of other
//! nodes connect to themselves. The agent knows the interface through which it reached the rendezvous, and sets
//! `GLOO_SOCKET_IFNAME` to that. NCCL leaves loopback out by itself.

use std::net::IpAddr;

use getifaddrs::getifaddrs;
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::endpoint::{NAMED, is_local};
use crate::config::Config;

/// Gloo's variable for the interface.
pub(super) const INTERFACE: &str = "GLOO_SOCKET_IFNAME";

/// The interface that the workers get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct GlooInterface {
    pub(super) name: String,
    /// Why, in one line for the user.
    pub(super) notice: String,
}

impl GlooInterface {
    /// The interface with the address `reached`, through which this node reached the rendezvous; `None` if Gloo needs no help, or if
    /// the user has chosen.
    pub(super) async fn choose(config: &Config, reached: IpAddr, hostname: &str) -> Option<Self> {
        let is_chosen = std::env::var_os(INTERFACE).is_some_and(|name| !name.is_empty());
        if is_chosen || config.nodes.max == 1 || reached.is_loopback() {
            return None;
        }
        // A name service that does not answer makes Gloo wait, too, and may answer it later.
        let named = match timeout(NAMED, lookup_host((hostname, 0))).await.ok()? {
            Ok(found) => found.map(|address| address.ip()).collect(),
            Err(_) => Vec::new(),
        };
        let why = falls_back(hostname, &named, is_local)?;
        let name = name_of(reached)?;
        let notice = format!(
            "setting {INTERFACE}={name} for the workers, since {why}, and Gloo would listen on loopback, where no other node reaches it; \
             set the variable yourself for another interface"
        );
        Some(GlooInterface { name, notice })
    }
}

/// Why Gloo would listen on loopback, if the host name has these addresses in this order.
fn falls_back(hostname: &str, named: &[IpAddr], is_local: impl Fn(IpAddr) -> bool) -> Option<String> {
    let Some(first) = named.first() else { return Some(format!("the host name {hostname} has no address")) };
    match named.iter().find(|address| is_local(**address)) {
        Some(own) if own.is_loopback() => Some(format!("the host name {hostname} leads to {own}")),
        Some(_) => None,
        None => Some(format!("the host name {hostname} leads to {first}, which is not an address of this machine")),
    }
}

/// The interface that has this address.
fn name_of(address: IpAddr) -> Option<String> {
    getifaddrs().ok()?.find(|entry| entry.address.ip_addr() == Some(address)).map(|entry| entry.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gloo_needs_help_where_the_host_name_leads_to_loopback_or_nowhere() {
        let why = |named: &[&str]| {
            let named: Vec<IpAddr> = named.iter().map(|address| address.parse().unwrap()).collect();
            let own = |address: IpAddr| address.is_loopback() || address.to_string().starts_with("10.");
            falls_back("n1", &named, own)
        };
        assert_eq!(why(&["127.0.1.1"]).unwrap(), "the host name n1 leads to 127.0.1.1");
        assert_eq!(why(&["::1", "10.0.0.1"]).unwrap(), "the host name n1 leads to ::1");
        assert_eq!(why(&[]).unwrap(), "the host name n1 has no address");
        assert!(why(&["192.168.7.9"]).unwrap().ends_with("192.168.7.9, which is not an address of this machine"));
        assert_eq!(why(&["10.0.0.1", "127.0.1.1"]), None);
        assert_eq!(why(&["192.168.7.9", "10.0.0.1"]), None, "it takes the first that it can listen on");
    }

    #[test]
    fn finds_the_interface_of_an_address() {
        assert_eq!(name_of(IpAddr::from([127, 0, 0, 1])).as_deref(), Some("lo"));
        assert_eq!(name_of(IpAddr::from([192, 0, 2, 1])), None);
    }
}
