//! A healthy job of nodes with Ethernet and nothing else, and what its faults are made with: the examples of the rules, and of tests.

use lockstep_launch::config::GpuVendor;

use super::facts::{
    Adapter, AdapterPort, Card, ConnectionAttempt, Cpu, Folder, GpuPath, Interface, JobFacts, Libtorch, Limits, Link,
    Memory, Missing, Names, Node, Outcome, Ports, Program, Resolved, Silent, Space, User,
};
#[cfg(test)]
use super::facts::{Lock, View};
use super::rules::{GIB, MIB};

pub(super) fn interface(name: &str, address: [u8; 4]) -> Interface {
    let addresses = vec![address.into()];
    Interface { name: name.into(), up: true, running: true, loopback: name == "lo", addresses }
}

fn space(path: &str, kind: &str) -> Space {
    Space { path: path.into(), total: 100 * GIB, free: 50 * GIB, inodes: Some(1000), kind: kind.into() }
}

pub(super) fn at(address: [u8; 4]) -> Resolved {
    Resolved::Addresses(vec![address.into()])
}

fn address(number: u8) -> [u8; 4] {
    [10, 88, 0, number]
}

/// A node with Ethernet and nothing else.
pub(super) fn node(name: &str, number: u8) -> Node {
    let own = address(number);
    Node {
        name: name.into(),
        host: name.into(),
        architecture: "x86_64".into(),
        program: Program { version: "0.1.0".into(), path: "/lockstep".into(), checksum: Some("cbf43926".into()) },
        cpu: Cpu { online: 8, allowed: 8, quota: None },
        memory: Memory { total: Some(64 * GIB), available: Some(60 * GIB), limit: None },
        limits: Limits {
            open_files: Some(1 << 20),
            processes: Some(100_000),
            locked_memory: Some(8 * MIB),
            core_pattern: "|/usr/bin/coredump".into(),
            ..Limits::default()
        },
        shm: Some(space("/dev/shm", "tmpfs")),
        temporary: Some(space("/tmp", "ext4")),
        folder: Folder { path: "/shared".into(), space: Some(space("/shared", "nfs4")), ..Folder::default() },
        interfaces: vec![interface("lo", [127, 0, 0, 1]), interface("eth0", own)],
        names: Names {
            own: Some(at(own)),
            localhost: Some(at([127, 0, 0, 1])),
            reverse: [(own.into(), name.to_owned())].into(),
            ..Names::default()
        },
        libtorch: Some(Libtorch {
            folder: "/shared/.libtorch".into(),
            version: Some("2.11.0+cu130".into()),
            found: "scripts/setup.sh".into(),
            other: None,
        }),
        ports: Ports { free: 40_000, known: vec![29_400, 29_500], taken: vec![] },
        ..Node::default()
    }
}

/// A healthy job.
#[cfg(test)]
pub(super) fn job(size: u8) -> JobFacts {
    let mut nodes: Vec<Node> = (1..=size).map(|number| node(&format!("n{number}"), number)).collect();
    let mut links = Vec::new();
    for from in 1..=size {
        for to in (1..=size).filter(|to| *to != from) {
            nodes[usize::from(from) - 1].names.peers.insert(format!("n{to}"), at(address(to)));
            links.extend([40_000, 29_400, 29_500].map(|port| link(from, to, port)));
        }
    }
    let view = |number: u8| View {
        node: format!("n{number}"),
        sees_head: true,
        wrote: true,
        seen_by_head: true,
        lock: Lock::Honoured,
        torn: None,
    };
    let views = (2..=size).map(view).collect();
    let size = usize::from(size);
    JobFacts { title: "Slurm job 17.0".into(), launched: false, size, nodes, silent: vec![], links, views }
}

pub(super) fn link(from: u8, to: u8, port: u16) -> Link {
    let users = if port == 40_000 { vec![User::Name, User::Gloo] } else { vec![User::Name] };
    Link {
        from: format!("n{from}"),
        to: format!("n{to}"),
        address: address(to).into(),
        port,
        known: port != 40_000,
        users,
        outcome: Outcome::Answered { by: format!("n{to}"), ahead: 0, uncertain: 100 },
    }
}

/// The links from n2 to n3, at one port or all.
pub(super) fn links(job: &mut JobFacts, port: Option<u16>) -> impl Iterator<Item = &mut Link> {
    let is = move |link: &&mut Link| link.from == "n2" && link.to == "n3" && port.is_none_or(|port| link.port == port);
    job.links.iter_mut().filter(is)
}

pub(super) fn set(job: &mut JobFacts, name: &str, value: &str) {
    job.nodes[1].variables.insert(name.into(), value.into());
}

pub(super) fn set_all(job: &mut JobFacts, name: &str, value: &str) {
    job.nodes.iter_mut().for_each(|node| _ = node.variables.insert(name.into(), value.into()));
}

pub(super) fn silent(job: &mut JobFacts, missing: Missing, outcome: Outcome) {
    let attempt = Some(ConnectionAttempt { to: "10.88.0.3".into(), outcome });
    job.silent.push(Silent { name: "n3".into(), missing, waited: 30, attempt });
}

/// The second address of n3, which a library takes.
pub(super) fn second(job: &mut JobFacts, user: User) {
    job.nodes[2].interfaces.push(interface("eth1", [10, 99, 0, 3]));
    let dead =
        Link { address: [10, 99, 0, 3].into(), users: vec![user], outcome: Outcome::TimedOut(6), ..link(2, 3, 40_000) };
    job.links.push(dead);
}

pub(super) fn gpus(job: &mut JobFacts, tiers: &[&str]) {
    for node in &mut job.nodes {
        node.gpus.present = 2;
        node.gpus.visible = 2;
        node.gpus.driver = Some("580.65.06".into());
        node.gpus.cards = vec![Card { name: "H100".into(), memory: 81_559, divided: false }; 2];
        let path = |(at, tier): (usize, &&str)| GpuPath { between: (0, at + 1), tier: (*tier).into() };
        node.gpus.paths = tiers.iter().enumerate().map(path).collect();
    }
}

/// Two of AMD's GPUs on each node.
pub(super) fn amd_gpus(job: &mut JobFacts, tiers: &[&str]) {
    gpus(job, tiers);
    for node in &mut job.nodes {
        node.gpus.vendor = GpuVendor::Amd;
        node.gpus.driver = Some("6.7.0".into());
        node.gpus.runtime = Some("6.2.4".into());
        node.gpus.cards.iter_mut().for_each(|card| card.name = "AMD Instinct MI250X".into());
        node.libtorch.iter_mut().for_each(|found| found.version = Some("2.11.0+rocm6.4".into()));
    }
}

pub(super) fn adapters(job: &mut JobFacts, link_layer: &str) {
    for node in &mut job.nodes {
        let port = AdapterPort { number: 1, state: "ACTIVE".into(), link_layer: link_layer.into(), gids: vec![0, 3] };
        node.fabric.adapters = vec![Adapter { name: "mlx5_0".into(), ports: vec![port] }];
        node.limits.locked_memory = None;
    }
}

pub(super) fn efa(job: &mut JobFacts) {
    adapters(job, "Unspecified");
    job.nodes.iter_mut().for_each(|node| node.fabric.efa = true);
}
