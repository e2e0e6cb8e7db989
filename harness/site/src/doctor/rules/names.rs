//! Rules on names of hosts and of their addresses, and which interfaces Gloo and NCCL take on a node, by the libraries' own rules:
//!
//! - Gloo (`ProcessGroupGloo.cpp` of PyTorch): the interfaces that `GLOO_SOCKET_IFNAME` names, separated by commas; otherwise the
//!   address that the host name resolves to, if it belongs to this machine; otherwise loopback.
//! - NCCL (`ncclFindInterfaces` in `socket.cc`): all that match `NCCL_SOCKET_IFNAME` (beginnings of names, `=` for whole names, `^` for
//!   all but these); otherwise those that begin with `ib`; otherwise all but `docker` and `lo`; otherwise `docker`; otherwise `lo`.

use std::net::IpAddr;

use lockstep_contract::rules::Level::{Error, Warning};
use lockstep_contract::rules::Rule;

use super::{NodeFinding, Nodes, RULE, each, found};
use crate::doctor::examples;
use crate::doctor::facts::{Interface, JobFacts, Node, Resolved};

pub(super) const NAMES: &[Rule<Nodes>] = &[
    Rule {
        name: "host-name-is-loopback",
        level: Error,
        why: "Gloo listens on the address of the host name: on loopback no other node reaches it",
        source: "getaddrinfo(3) of the host name, in a job of several nodes",
        wrong: |job| job.nodes[1].names.own = Some(examples::at([127, 0, 1, 1])),
        find: |job| {
            each(job, |node| {
                let addresses = own(node).filter(|_| job.has_several())?;
                addresses.iter().all(IpAddr::is_loopback).then(|| {
                    [
                        format!("the host name {} leads to loopback", node.host),
                        format!("{} is {}", node.host, list(addresses)),
                        format!(
                            "sed -i 's/^127[.].*\\b{0}\\b/{1} {0}/' /etc/hosts, or export GLOO_SOCKET_IFNAME={2}",
                            node.host,
                            outer(node),
                            interface(node)
                        ),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "host-name-unknown",
        level: Error,
        why: "Gloo falls back to loopback, with the warning `Unable to resolve hostname to a (local) address`",
        source: "getaddrinfo(3) of the host name, in a job of several nodes",
        wrong: |job| job.nodes[1].names.own = Some(Resolved::Failed("unknown".into())),
        find: |job| {
            each(job, |node| {
                let why = match node.names.own.as_ref().filter(|_| job.has_several())? {
                    Resolved::Failed(why) => why.clone(),
                    Resolved::Addresses(none) if none.is_empty() => "it has no address".to_owned(),
                    Resolved::Addresses(_) => return None,
                };
                Some([
                    format!("the host name {} does not resolve", node.host),
                    why,
                    format!(
                        "echo '{} {}' >>/etc/hosts, or export GLOO_SOCKET_IFNAME={}",
                        outer(node),
                        node.host,
                        interface(node)
                    ),
                ])
            })
        },
        ..RULE
    },
    Rule {
        name: "host-name-is-foreign",
        level: Error,
        why: "the host name leads to an address that this machine does not have: Gloo cannot listen there and takes loopback",
        source: "getaddrinfo(3) of the host name, and getifaddrs(3)",
        wrong: |job| job.nodes[1].names.own = Some(examples::at([10, 88, 0, 3])),
        find: |job| {
            each(job, |node| {
                let addresses = own(node)?;
                let foreign = !addresses.is_empty()
                    && addresses.iter().all(|address| !address.is_loopback() && !node.has(*address));
                foreign.then(|| {
                    let owner = addresses.iter().find_map(|address| job.owner(*address));
                    let owner = owner.map_or("no interface of this machine has it".to_owned(), |owner| {
                        format!("that is {}", owner.name)
                    });
                    [
                        format!("the host name {} leads to another machine", node.host),
                        format!("{} is {}, and {owner}", node.host, list(addresses)),
                        format!("put the right address in /etc/hosts or DNS: {} {}", outer(node), node.host),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "peer-unknown",
        level: Error,
        why: "a node that cannot resolve the name of another cannot reach it",
        source: "getaddrinfo(3) of every node's name on every other node",
        wrong: |job| {
            job.nodes[1].names.peers.insert("n3".into(), Resolved::Failed("unknown".into()));
        },
        find: |job| {
            peers(job, |_, peer, resolved| match resolved {
                Resolved::Failed(why) => Some([
                    format!("the name of {} does not resolve", peer.name),
                    why.clone(),
                    format!(
                        "`getent hosts {}`; add it to DNS, or: echo '{} {}' >>/etc/hosts",
                        peer.name,
                        outer(peer),
                        peer.name
                    ),
                ]),
                Resolved::Addresses(_) => None,
            })
        },
        ..RULE
    },
    Rule {
        name: "peer-is-another",
        level: Error,
        why: "the name of a node leads to another machine there, so ranks connect to the wrong one",
        source: "getaddrinfo(3) of every node's name on every other node, and getifaddrs(3) on that node",
        wrong: |job| _ = job.nodes[1].names.peers.insert("n3".into(), examples::at([10, 88, 0, 1])),
        find: |job| {
            peers(job, |node, peer, resolved| {
                let Resolved::Addresses(addresses) = resolved else { return None };
                let wrong = !addresses.is_empty()
                    && addresses.iter().all(|address| address.is_loopback() || !peer.has(*address));
                wrong.then(|| {
                    let owner =
                        addresses.iter().find_map(|address| job.owner(*address)).map(|owner| owner.name.clone());
                    let owner = if addresses[0].is_loopback() { Some(format!("{} itself", node.name)) } else { owner };
                    [
                        format!(
                            "the name of {} leads to {}",
                            peer.name,
                            owner.unwrap_or_else(|| "no node of this job".to_owned())
                        ),
                        format!("{} is {}; {} has {}", peer.name, list(addresses), peer.name, outer(peer)),
                        format!(
                            "`getent hosts {}`, then correct /etc/hosts or DNS: {} {}",
                            peer.name,
                            outer(peer),
                            peer.name
                        ),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "address-has-other-name",
        level: Warning,
        why: "programs that look up the name of a peer, such as ssh and MPI, mistake the node for another",
        source: "`getent hosts ADDRESS`, from an address to a name",
        wrong: |job| {
            job.nodes[1].names.reverse = [(IpAddr::from([10, 88, 0, 2]), "n3".to_owned())].into();
        },
        find: |job| {
            each(job, |node| {
                let other = |name: &str| job.nodes.iter().find(|other| other.name == short(name) || other.host == name);
                let wrong = node.names.reverse.iter().find_map(|(address, name)| {
                    let other = other(name).filter(|other| other.name != node.name && !other.has(*address))?;
                    Some((address, name, other))
                });
                wrong.map(|(address, name, other)| {
                    [
                        format!("the address of {} has the name of {}", node.name, other.name),
                        format!("`getent hosts {address}` prints {name}"),
                        format!("correct /etc/hosts or DNS: {address} {}", node.host),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "localhost-is-wrong",
        level: Error,
        why: "`--standalone`, and every program that meets others on its own machine, uses the name localhost",
        source: "getaddrinfo(3) of localhost",
        wrong: |job| job.nodes[1].names.localhost = Some(examples::at([10, 88, 0, 2])),
        find: |job| {
            each(job, |node| {
                let evidence = match node.names.localhost.as_ref()? {
                    Resolved::Failed(why) => why.clone(),
                    Resolved::Addresses(found) if found.iter().any(IpAddr::is_loopback) => return None,
                    Resolved::Addresses(found) => format!("localhost is {}", list(found)),
                };
                Some([
                    "the name localhost does not lead to loopback".to_owned(),
                    evidence,
                    "echo '127.0.0.1 localhost' >>/etc/hosts".to_owned(),
                ])
            })
        },
        ..RULE
    },
];

/// What is wrong with a node's resolution of another's name.
fn peers(job: &JobFacts, wrong: impl Fn(&Node, &Node, &Resolved) -> Option<[String; 3]>) -> Vec<NodeFinding> {
    let mut all = Vec::new();
    for node in &job.nodes {
        for (name, resolved) in &node.names.peers {
            let peer = job.nodes.iter().find(|peer| peer.name == *name);
            all.extend(peer.and_then(|peer| wrong(node, peer, resolved)).map(|texts| found(&node.name, texts)));
        }
    }
    all
}

/// The addresses of the host name.
fn own(node: &Node) -> Option<&[IpAddr]> {
    match node.names.own.as_ref()? {
        Resolved::Addresses(addresses) if !addresses.is_empty() => Some(addresses),
        _ => None,
    }
}

/// The first part of a name.
fn short(name: &str) -> &str {
    name.split('.').next().unwrap_or(name)
}

fn list(addresses: &[IpAddr]) -> String {
    addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(", ")
}

/// An address at which others reach a node, for a hint.
fn outer(node: &Node) -> String {
    usable(node)
        .and_then(|interface| interface.addresses.first())
        .map_or_else(|| "ADDRESS".to_owned(), IpAddr::to_string)
}

fn interface(node: &Node) -> &str {
    usable(node).map_or("INTERFACE", |interface| interface.name.as_str())
}

fn usable(node: &Node) -> Option<&Interface> {
    node.interfaces
        .iter()
        .find(|interface| interface.up && interface.running && !interface.loopback && !interface.addresses.is_empty())
}

// ---- the interfaces that Gloo and NCCL take

/// An interface that a library will take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::doctor) struct ChosenInterface {
    pub(in crate::doctor) interface: String,
    pub(in crate::doctor) address: IpAddr,
}

/// What Gloo will take.
pub(in crate::doctor) fn gloo(node: &Node) -> Vec<ChosenInterface> {
    if let Some(names) = node.variable("GLOO_SOCKET_IFNAME") {
        return names.split(',').filter_map(|name| choice(find(node, name)?)).collect();
    }
    let Some(Resolved::Addresses(addresses)) = &node.names.own else { return loopback(node) };
    let own = addresses.iter().find_map(|address| {
        let interface = node.interfaces.iter().find(|interface| interface.addresses.contains(address))?;
        Some(ChosenInterface { interface: interface.name.clone(), address: *address })
    });
    // Every address of 127.0.0.0/8 is this machine's.
    own.map_or_else(|| loopback(node), |own| vec![own])
}

/// What NCCL will take.
pub(in crate::doctor) fn nccl(node: &Node) -> Vec<ChosenInterface> {
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
        .find(|found: &Vec<ChosenInterface>| !found.is_empty())
        .unwrap_or_default()
}

/// The names that a variable asks for and that must exist: none of those that it excludes.
pub(super) fn asked(variable: &str) -> Vec<&str> {
    if variable.starts_with('^') {
        return Vec::new();
    }
    variable.trim_start_matches('=').split(',').map(str::trim).filter(|name| !name.is_empty()).collect()
}

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
fn choice(interface: &Interface) -> Option<ChosenInterface> {
    let address = interface.addresses.iter().min_by_key(|address| address.is_ipv6())?;
    Some(ChosenInterface { interface: interface.name.clone(), address: *address })
}

fn loopback(node: &Node) -> Vec<ChosenInterface> {
    node.interfaces.iter().filter(|interface| interface.loopback).filter_map(choice).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::examples::{interface, node};

    fn names(choices: &[ChosenInterface]) -> Vec<&str> {
        choices.iter().map(|choice| choice.interface.as_str()).collect()
    }

    fn with(name: &str, value: &str) -> Node {
        let mut node = node("n1", 1);
        node.interfaces.push(interface("eth1", [10, 99, 0, 1]));
        node.interfaces.push(interface("docker0", [172, 17, 0, 1]));
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
        infiniband.interfaces.push(interface("ib0", [10, 1, 0, 1]));
        assert_eq!(names(&nccl(&infiniband)), ["ib0"]);
    }

    #[test]
    fn names_that_are_excluded_need_not_exist() {
        assert_eq!(asked("=eth0,eth1"), ["eth0", "eth1"]);
        assert!(asked("^docker0").is_empty());
    }
}
