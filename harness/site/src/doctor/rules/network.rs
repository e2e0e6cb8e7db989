//! Rules on interfaces, and on connections between nodes.

use std::collections::BTreeMap;

use lockstep_contract::rules::Level::{Error, Warning};
use lockstep_contract::rules::{Finding, Rule};

use super::names::{self, ChosenInterface};
use super::{NodeFinding, Nodes, RULE, each, found};
use crate::doctor::examples;
use crate::doctor::facts::{Interface, JobFacts, Link, Names, Node, Outcome, User};
use crate::report::count;

pub(super) const NETWORK: &[Rule<Nodes>] = &[
    Rule {
        name: "pair-cut",
        level: Error,
        why: "ranks on these nodes cannot exchange a single message; collectives hang until their timeout",
        source: "TCP connections between all pairs of nodes, in both directions: none between these two was answered",
        wrong: |job| examples::links(job, None).for_each(|link| link.outcome = Outcome::TimedOut(6)),
        find: |job| {
            let cut = cut(job);
            // A pair that is cut in both directions is reported once.
            let once = cut.iter().filter(|((from, to), _)| from < to || !cut.contains_key(&(to, from)));
            let found = once.map(|((from, to), link)| {
                let both = cut.contains_key(&(to, from));
                let what = match both {
                    true => format!("{from} and {to} cannot reach each other, at any port"),
                    false => format!("{from} cannot reach {to}, at any port"),
                };
                let fix = format!(
                    "`ip route get ADDRESS` on both, firewalls on the way (`nft list ruleset`, `iptables -S`): tell the administrator \
                     about {from} and {to}"
                );
                Finding { place: vec![(*from).to_owned(), (*to).to_owned()], what, evidence: evidence(link), fix }
            });
            found.collect()
        },
        ..RULE
    },
    Rule {
        name: "port-blocked",
        level: Error,
        why: "a launcher, or a store, at this port is never reached: nodes wait until a timeout",
        source: "TCP connections between all pairs of nodes: other ports of the same node answered, this one was silent",
        wrong: |job| examples::links(job, Some(29_500)).for_each(|link| link.outcome = Outcome::TimedOut(6)),
        find: |job| {
            ports(job, |outcome| matches!(outcome, Outcome::TimedOut(_) | Outcome::Failed(_)), "gets no answer from")
        },
        ..RULE
    },
    Rule {
        name: "port-rejected",
        level: Error,
        why: "connections are refused although doctor listens: a firewall answers for the node",
        source: "TCP connections between all pairs of nodes, to ports that doctor had opened",
        wrong: |job| examples::links(job, Some(40_000)).for_each(|link| link.outcome = Outcome::Refused),
        find: |job| ports(job, |outcome| *outcome == Outcome::Refused, "is refused at"),
        ..RULE
    },
    Rule {
        name: "wrong-node-answers",
        level: Error,
        why: "two machines have the same address, or a proxy answers: connections reach the wrong node",
        source: "the name in the answer to a TCP probe",
        wrong: |job| {
            examples::links(job, None)
                .for_each(|link| link.outcome = Outcome::Answered { by: "x".into(), ahead: 0, uncertain: 1 });
        },
        find: |job| {
            // Another check finds a name that leads to another node.
            let right = |link: &&Link| job.owner(link.address).is_none_or(|node| node.name == link.to);
            let wrong = job.links.iter().filter(right).filter_map(|link| match &link.outcome {
                Outcome::Answered { by, .. } if *by != link.to => Some((link, by.clone())),
                Outcome::OtherProgram => Some((link, "another program".to_owned())),
                _ => None,
            });
            let wrong = wrong.map(|(link, by)| {
                found(
                    &link.from,
                    [
                        format!("at {}, the address of {}, {by} answers", link.address, link.to),
                        evidence(link),
                        format!(
                            "ip neighbour flush to {}, then `arping {}`: two answers are two machines with one address",
                            link.address, link.address
                        ),
                    ],
                )
            });
            wrong.collect()
        },
        ..RULE
    },
    Rule {
        name: "gloo-unreachable",
        level: Error,
        why: "Gloo listens on an address that other nodes cannot reach: `init_process_group` hangs, or ends with a timeout",
        source: "TCP connections to the address that Gloo will take, while others of the node answer",
        wrong: |job| examples::second(job, User::Gloo),
        find: |job| library(job, User::Gloo, "Gloo", "GLOO_SOCKET_IFNAME"),
        ..RULE
    },
    Rule {
        name: "nccl-unreachable",
        level: Error,
        why: "NCCL takes an interface that other nodes cannot reach: the first collective hangs",
        source: "TCP connections to the addresses that NCCL will take, while others of the node answer",
        wrong: |job| examples::second(job, User::Nccl),
        find: |job| library(job, User::Nccl, "NCCL", "NCCL_SOCKET_IFNAME"),
        ..RULE
    },
    Rule {
        name: "loopback-down",
        level: Error,
        why: "loopback is down: ranks, tests and exercises, and `--standalone`, connect to 127.0.0.1 and time out",
        source: "getifaddrs(3): no interface that is up has the address 127.0.0.1",
        wrong: |job| job.nodes[1].interfaces.iter_mut().filter(|one| one.loopback).for_each(|one| one.up = false),
        find: |job| {
            each(job, |node| {
                let loopback = std::net::IpAddr::from([127, 0, 0, 1]);
                let is_up = node.interfaces.iter().any(|one| one.up && one.addresses.contains(&loopback));
                let are_known = !node.unseen.iter().any(|gap| gap.starts_with("network interfaces"));
                (!is_up && are_known).then(|| {
                    [
                        "there is no loopback interface with the address 127.0.0.1".to_owned(),
                        "getifaddrs(3)".to_owned(),
                        "as root: ip link set lo up, ip addr add 127.0.0.1/8 dev lo".to_owned(),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "interface-missing",
        level: Error,
        why: "Gloo and NCCL refuse to start when a variable names an interface that does not exist",
        source: "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, and getifaddrs(3)",
        wrong: |job| examples::set(job, "GLOO_SOCKET_IFNAME", "eth7"),
        find: |job| {
            named(job, |node, name, interfaces| {
                interfaces.is_empty().then(|| {
                    let there: Vec<&str> = node.interfaces.iter().map(|interface| interface.name.as_str()).collect();
                    (
                        format!("names {name}, but there is no such interface"),
                        format!("the interfaces are {}", there.join(", ")),
                    )
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "interface-down",
        level: Error,
        why: "the interface that a variable names is switched off, so nothing is sent over it",
        source: "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, and getifaddrs(3)",
        wrong: |job| {
            job.nodes[1].interfaces.push(Interface { up: false, ..examples::interface("eth1", [10, 99, 0, 2]) });
            examples::set(job, "NCCL_SOCKET_IFNAME", "eth1");
        },
        find: |job| named(job, |_, _, interfaces| all(interfaces, |interface| !interface.up, "is switched off")),
        ..RULE
    },
    Rule {
        name: "interface-without-address",
        level: Error,
        why: "the interface that a variable names has no address, so no program can listen on it",
        source: "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, and getifaddrs(3)",
        wrong: |job| {
            job.nodes[1]
                .interfaces
                .push(Interface { addresses: vec![], ..examples::interface("eth1", [10, 99, 0, 2]) });
            examples::set(job, "GLOO_SOCKET_IFNAME", "eth1");
        },
        find: |job| {
            named(job, |_, _, interfaces| {
                all(interfaces, |interface| interface.up && interface.addresses.is_empty(), "has no address")
            })
        },
        ..RULE
    },
    Rule {
        name: "interface-is-loopback",
        level: Error,
        why: "the variable names loopback, which other nodes cannot reach",
        source: "GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME, in a job of several nodes",
        wrong: |job| examples::set(job, "GLOO_SOCKET_IFNAME", "lo"),
        find: |job| {
            if job.has_several() {
                named(job, |_, _, interfaces| all(interfaces, |interface| interface.loopback, "is loopback"))
            } else {
                Vec::new()
            }
        },
        ..RULE
    },
    Rule {
        name: "interface-unplugged",
        level: Warning,
        why: "an interface with an address has no carrier: a library may take it, and hang",
        source: "getifaddrs(3): the flag RUNNING",
        wrong: |job| {
            job.nodes[1].interfaces.push(Interface { running: false, ..examples::interface("eth1", [10, 99, 0, 2]) });
        },
        find: |job| {
            each(job, |node| {
                let dead: Vec<&Interface> =
                    node.interfaces.iter().filter(|interface| is_unplugged(interface)).collect();
                let name = &dead.first()?.name;
                let names: Vec<&str> = dead.iter().map(|interface| interface.name.as_str()).collect();
                Some([
                    format!(
                        "{} {} an address and no carrier",
                        names.join(", "),
                        if dead.len() == 1 { "has" } else { "have" }
                    ),
                    "IFF_UP without IFF_RUNNING".to_owned(),
                    format!("plug it in, or take it out of use: ip link set {name} down"),
                ])
            })
        },
        ..RULE
    },
    Rule {
        name: "no-address",
        level: Error,
        why: "without an address other than loopback a node cannot be part of a job of several",
        source: "getifaddrs(3)",
        wrong: |job| {
            job.nodes[1] = Node {
                interfaces: vec![examples::interface("lo", [127, 0, 0, 1])],
                names: Names::default(),
                ..examples::node("n2", 2)
            };
            job.links.clear();
            job.nodes.iter_mut().for_each(|node| _ = node.names.peers.remove("n2"));
        },
        find: |job| {
            each(job, |node| {
                let usable =
                    |interface: &Interface| interface.up && !interface.loopback && !interface.addresses.is_empty();
                let lacks = job.has_several() && !node.interfaces.iter().any(usable);
                lacks.then(|| {
                    [
                        "no interface but loopback is up and has an address".to_owned(),
                        describe(node),
                        "ip link set INTERFACE up; ip address add ADDRESS/24 dev INTERFACE".to_owned(),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "port-taken",
        level: Warning,
        why: "a launcher that listens on this port ends with `address already in use`",
        source: "an attempt to listen on the well-known ports (29400, and MASTER_PORT or 29500) and those of --port",
        wrong: |job| job.nodes[1].ports.taken = vec![29_500],
        find: |job| {
            each(job, |node| {
                let port = node.ports.taken.first().filter(|_| !job.launched)?;
                let ports: Vec<String> = node.ports.taken.iter().map(u16::to_string).collect();
                Some([
                    format!("another program listens on port {}", ports.join(" and ")),
                    "bind(2): address already in use".to_owned(),
                    format!(
                        "`ss -ltnp 'sport = :{port}'` names it; or give the job another port: --master-port, --rdzv-endpoint=HOST:PORT"
                    ),
                ])
            })
        },
        ..RULE
    },
];

/// Bridges of container runtimes and of virtual machines, which have no carrier while nothing runs.
const BRIDGES: [&str; 6] = ["docker", "br-", "virbr", "lxc", "podman", "cni"];

fn is_unplugged(interface: &Interface) -> bool {
    let is_bridge = BRIDGES.iter().any(|begin| interface.name.starts_with(begin));
    interface.up && !interface.running && !interface.addresses.is_empty() && !is_bridge
}

fn describe(node: &Node) -> String {
    let shown = node.interfaces.iter().map(|interface| {
        let state = if interface.up { "up" } else { "down" };
        format!("{} {state}, {}", interface.name, count(interface.addresses.len(), "address"))
    });
    shown.collect::<Vec<_>>().join("; ")
}

// ---- connections

fn answers(link: &Link) -> bool {
    matches!(link.outcome, Outcome::Answered { .. } | Outcome::OtherProgram)
}

/// Pairs in one direction whose connections were neither answered nor refused by a kernel, each with its first connection.
fn cut(job: &JobFacts) -> BTreeMap<(&str, &str), &Link> {
    let mut pairs: BTreeMap<(&str, &str), (&Link, bool)> = BTreeMap::new();
    for link in &job.links {
        let dead = !answers(link) && link.outcome != Outcome::Refused;
        pairs.entry((&link.from, &link.to)).or_insert((link, true)).1 &= dead;
    }
    pairs.into_iter().filter(|(_, (_, dead))| *dead).map(|(pair, (link, _))| (pair, link)).collect()
}

fn evidence(link: &Link) -> String {
    format!("{} → {}:{}: {}", link.from, link.address, link.port, link.outcome)
}

/// Ports at the address of a node's name that fail while the node can be reached.
fn ports(job: &JobFacts, fails: impl Fn(&Outcome) -> bool, how: &str) -> Vec<NodeFinding> {
    let by_name = job.links.iter().filter(|link| link.users.contains(&User::Name) && fails(&link.outcome));
    // Another check finds a name that leads to another node.
    let right = by_name.filter(|link| job.owner(link.address).is_some_and(|node| node.name == link.to));
    let cut = cut(job);
    let blocked = right.filter(|link| !cut.contains_key(&(&*link.from, &*link.to)));
    let blocked = blocked.map(|link| {
        let port = if link.known { format!("port {}", link.port) } else { format!("ports such as {}", link.port) };
        let fix = if link.known {
            format!("on {}: `nft list ruleset` or `iptables -S` shows the rule; allow the port for the cluster's network, or choose another", link.to)
        } else {
            format!("on {}: allow all TCP ports between nodes, since Gloo and NCCL listen on free ones (`sysctl \
                net.ipv4.ip_local_port_range`)", link.to)
        };
        Finding { place: vec![link.from.clone(), link.to.clone()], what: format!("{} {how} {port} of \
            {}", link.from, link.to), evidence: evidence(link), fix }
    });
    blocked.collect()
}

/// Addresses of a library that fail while the node's name leads to it.
fn library(job: &JobFacts, user: User, library: &str, variable: &str) -> Vec<NodeFinding> {
    let of_library = job.links.iter().filter(|link| link.users.contains(&user) && !link.users.contains(&User::Name));
    let cut = cut(job);
    let dead = of_library.filter(|link| {
        let answered = matches!(&link.outcome, Outcome::Answered { by, .. } if *by == link.to);
        !answered && !cut.contains_key(&(&*link.from, &*link.to))
    });
    let dead = dead.filter_map(|link| {
        let node = job.nodes.iter().find(|node| node.name == link.to)?;
        let interface = node.interfaces.iter().find(|interface| interface.addresses.contains(&link.address))?;
        let good = job.links.iter().find(|other| other.to == link.to && answers(other));
        let better = good.and_then(|good| node.interfaces.iter().find(|other| other.addresses.contains(&good.address)));
        let better = better.map_or("INTERFACE", |interface| interface.name.as_str());
        Some(Finding {
            place: vec![link.to.clone()],
            what: format!(
                "{library} takes {} ({}) on {}, and {} cannot reach it",
                interface.name, link.address, link.to, link.from
            ),
            evidence: evidence(link),
            fix: format!("export {variable}={better}"),
        })
    });
    dead.collect()
}

// ---- interfaces that variables name

/// What is wrong with an interface that a variable names, and how it is known: for each name that a library is given.
fn named(job: &JobFacts, wrong: impl Fn(&Node, &str, &[&Interface]) -> Option<(String, String)>) -> Vec<NodeFinding> {
    let mut all = Vec::new();
    for node in &job.nodes {
        for (variable, library) in [("GLOO_SOCKET_IFNAME", User::Gloo), ("NCCL_SOCKET_IFNAME", User::Nccl)] {
            let Some(value) = node.variable(variable) else { continue };
            for name in names::asked(value) {
                let matches = |interface: &&Interface| match library {
                    User::Nccl if !value.starts_with('=') => interface.name.starts_with(name),
                    _ => interface.name == name,
                };
                let interfaces: Vec<&Interface> = node.interfaces.iter().filter(matches).collect();
                if let Some((what, evidence)) = wrong(node, name, &interfaces) {
                    let fix = format!("export {variable}={}", usable(node).map_or("INTERFACE", |choice| choice));
                    all.push(found(&node.name, [format!("{variable}={value} {what}"), evidence, fix]));
                }
            }
        }
    }
    all
}

/// Returns true if there are interfaces and all are like this.
fn all(interfaces: &[&Interface], is: impl Fn(&Interface) -> bool, what: &str) -> Option<(String, String)> {
    let bad = !interfaces.is_empty() && interfaces.iter().all(|interface| is(interface));
    let names = || interfaces.iter().map(|interface| interface.name.as_str()).collect::<Vec<_>>().join(", ");
    bad.then(|| (format!("names an interface that {what}"), format!("getifaddrs(3) on {}", names())))
}

/// An interface to use: the one with the host name's address, or the first with an address.
fn usable(node: &Node) -> Option<&str> {
    let mut plain = node.clone();
    plain.variables.remove("GLOO_SOCKET_IFNAME");
    let of_name = names::gloo(&plain).into_iter().find(|choice: &ChosenInterface| !choice.address.is_loopback());
    let by_name = of_name.and_then(|found| node.interfaces.iter().find(|interface| interface.name == found.interface));
    let first = || {
        node.interfaces.iter().find(|interface| interface.up && !interface.loopback && !interface.addresses.is_empty())
    };
    by_name.or_else(first).map(|interface| interface.name.as_str())
}
