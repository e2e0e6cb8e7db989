//! Which interfaces Gloo and NCCL will take on a node. The rules are the libraries' own.
//!
//! - Gloo (`ProcessGroupGloo.cpp` of PyTorch): the interfaces that `GLOO_SOCKET_IFNAME` names, with commas between them; otherwise the
//!   address that the host name resolves to, if it belongs to this machine; otherwise loopback.
//! - NCCL (`ncclFindInterfaces` in `socket.cc`): all that match `NCCL_SOCKET_IFNAME` (beginnings of names, `=` for whole names, `^` for
//!   all but these); otherwise those that begin with `ib`; otherwise all but `docker` and `lo`; otherwise `docker`; otherwise `lo`.

use std::net::IpAddr;

use super::facts::{Interface, Node, Resolved};

/// An interface that a library will take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) interface: String,
    pub(super) address: IpAddr,
}

/// What Gloo will take.
pub(super) fn gloo(node: &Node) -> Vec<Choice> {
    if let Some(names) = node.variable("GLOO_SOCKET_IFNAME") {
        return names.split(',').filter_map(|name| choice(find(node, name)?)).collect();
    }
    let Some(Resolved::Addresses(addresses)) = &node.names.own else { return loopback(node) };
    let own = addresses.iter().find_map(|address| {
        let interface = node.interfaces.iter().find(|interface| interface.addresses.contains(address))?;
        Some(Choice { interface: interface.name.clone(), address: *address })
    });
    // Every address of 127.0.0.0/8 is this machine's.
    own.map_or_else(|| loopback(node), |own| vec![own])
}

/// What NCCL will take.
pub(super) fn nccl(node: &Node) -> Vec<Choice> {
    if let Some(wanted) = node.variable("NCCL_SOCKET_IFNAME") {
        return node
            .interfaces
            .iter()
            .filter(|interface| matches(wanted, &interface.name))
            .filter_map(choice)
            .collect();
    }
    let usable = || node.interfaces.iter().filter(|interface| interface.up && interface.running);
    ["ib", "^docker,lo", "docker", "lo"]
        .iter()
        .map(|rule| usable().filter(|interface| matches(rule, &interface.name)).filter_map(choice).collect())
        .find(|found: &Vec<Choice>| !found.is_empty())
        .unwrap_or_default()
}

/// The names that a variable asks for and that must exist: none of those that it excludes.
pub(super) fn asked(variable: &str) -> Vec<&str> {
    if variable.starts_with('^') {
        return Vec::new();
    }
    variable.trim_start_matches('=').split(',').map(str::trim).filter(|name| !name.is_empty()).collect()
}

/// The interface of this name.
pub(super) fn find<'a>(node: &'a Node, name: &str) -> Option<&'a Interface> {
    node.interfaces.iter().find(|interface| interface.name == name)
}

/// NCCL's rule for one interface.
pub(super) fn matches(rule: &str, name: &str) -> bool {
    let (excludes, rest) = rule.strip_prefix('^').map_or((false, rule), |rest| (true, rest));
    let (whole, list) = rest.strip_prefix('=').map_or((false, rest), |list| (true, list));
    let hit = list.split(',').filter(|part| !part.is_empty());
    let hit = hit.into_iter().any(|part| if whole { part == name } else { name.starts_with(part) });
    hit != excludes
}

/// IPv4 comes first, as in both libraries.
fn choice(interface: &Interface) -> Option<Choice> {
    let address = interface.addresses.iter().min_by_key(|address| address.is_ipv6())?;
    Some(Choice { interface: interface.name.clone(), address: *address })
}

fn loopback(node: &Node) -> Vec<Choice> {
    node.interfaces.iter().filter(|interface| interface.loopback).filter_map(choice).collect()
}

#[cfg(test)]
mod tests {
    use super::super::check::testing::{interface, node};
    use super::*;

    fn names(choices: &[Choice]) -> Vec<&str> {
        choices.iter().map(|choice| choice.interface.as_str()).collect()
    }

    fn with(name: &str, value: &str) -> Node {
        let mut node = node("n1", 1);
        node.interfaces.push(interface("eth1", "10.99.0.1"));
        node.interfaces.push(interface("docker0", "172.17.0.1"));
        if !name.is_empty() {
            node.variables.insert(name.into(), value.into());
        }
        node
    }

    #[test]
    fn gloo_takes_the_address_of_the_host_name_or_what_the_variable_names() {
        assert_eq!(names(&gloo(&with("", ""))), ["eth0"]);
        assert_eq!(names(&gloo(&with("GLOO_SOCKET_IFNAME", "eth1,eth0"))), ["eth1", "eth0"]);
        assert!(gloo(&with("GLOO_SOCKET_IFNAME", "eth")).is_empty(), "a name is a whole one");
        let mut foreign = with("", "");
        foreign.names.own = Some(Resolved::Addresses(vec![IpAddr::from([127, 0, 1, 1])]));
        assert_eq!(names(&gloo(&foreign)), ["lo"]);
    }

    #[test]
    fn nccl_takes_all_that_match() {
        assert_eq!(names(&nccl(&with("", ""))), ["eth0", "eth1"]);
        assert_eq!(names(&nccl(&with("NCCL_SOCKET_IFNAME", "eth"))), ["eth0", "eth1"]);
        assert_eq!(names(&nccl(&with("NCCL_SOCKET_IFNAME", "=eth1"))), ["eth1"]);
        assert_eq!(names(&nccl(&with("NCCL_SOCKET_IFNAME", "^eth,lo"))), ["docker0"]);
        assert!(nccl(&with("NCCL_SOCKET_IFNAME", "=eth")).is_empty());
        let mut infiniband = with("", "");
        infiniband.interfaces.push(interface("ib0", "10.1.0.1"));
        assert_eq!(names(&nccl(&infiniband)), ["ib0"]);
    }

    #[test]
    fn names_that_are_excluded_need_not_exist() {
        assert_eq!(asked("=eth0,eth1"), ["eth0", "eth1"]);
        assert!(asked("^docker0").is_empty());
    }
}
