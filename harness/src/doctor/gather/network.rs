//! Interfaces, and names of hosts and addresses, as programs see them: getifaddrs(3), getaddrinfo(3), and getent(1) for the way back.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use getifaddrs::{InterfaceFlags, getifaddrs};
use tokio::net::lookup_host;
use tokio::time::timeout;

use super::super::facts::{Interface, Resolved};
use super::read::output;

/// All interfaces in the kernel's order.
///
/// # Errors
/// The system's.
pub(super) fn interfaces() -> std::io::Result<Vec<Interface>> {
    let mut found: Vec<Interface> = Vec::new();
    for entry in getifaddrs()? {
        let at = found.iter().position(|known| known.name == entry.name).unwrap_or_else(|| {
            let has = |flag| entry.flags.contains(flag);
            found.push(Interface {
                name: entry.name.clone(),
                up: has(InterfaceFlags::UP),
                running: has(InterfaceFlags::RUNNING),
                loopback: has(InterfaceFlags::LOOPBACK),
                addresses: Vec::new(),
            });
            found.len() - 1
        });
        found[at].addresses.extend(entry.address.ip_addr().filter(is_of_use));
    }
    Ok(found)
}

/// Addresses of IPv6 that hold only on the link are of no use to a job.
fn is_of_use(address: &IpAddr) -> bool {
    !matches!(address, IpAddr::V6(six) if six.is_unicast_link_local())
}

/// The addresses of a name, IPv4 first.
pub(in super::super) async fn resolve(name: &str, patience: Duration) -> Resolved {
    match timeout(patience, lookup_host((name, 0))).await {
        Err(_) => Resolved::Failed(format!("no answer within {} s", patience.as_secs())),
        Ok(Err(error)) => Resolved::Failed(error.to_string()),
        Ok(Ok(found)) => {
            let mut addresses: Vec<IpAddr> = found.map(|address| address.ip()).collect();
            addresses.sort_by_key(IpAddr::is_ipv6);
            addresses.dedup();
            Resolved::Addresses(addresses)
        }
    }
}

/// The names of this machine's addresses of IPv4. Addresses without a name are left out.
///
/// # Errors
/// A message where nothing can be asked.
pub(super) async fn reverse(interfaces: &[Interface], patience: Duration) -> Result<BTreeMap<IpAddr, String>, String> {
    let outer = interfaces.iter().filter(|interface| interface.up && !interface.loopback);
    let addresses = outer.flat_map(|interface| &interface.addresses).filter(|address| address.is_ipv4());
    let mut names = BTreeMap::new();
    for address in addresses {
        match output("getent", &["hosts", &address.to_string()], patience).await {
            Ok(text) => names.extend(text.split_whitespace().nth(1).map(|name| (*address, name.to_owned()))),
            // getent(1): 2 if it was not found.
            Err(why) if why.contains("exit status: 2") => {}
            Err(why) => return Err(why),
        }
    }
    Ok(names)
}
