//! Healthy nodes for tests, and a way to make each fault.

use std::net::IpAddr;

use super::facts::{
    Adapter, AdapterPort, Card, Cpu, Folder, GpuPath, Interface, Job, Knock, Libtorch, Limits, Link, Lock, Memory,
    Missing, Names, Node, Outcome, Ports, Program, Resolved, Silent, Space, User, View,
};
use super::rules::{GIB, MIB};

/// The fault of a check, made in a healthy job of three nodes.
pub(super) type FaultCase = (&'static str, fn(&mut Job));

pub(super) fn interface(name: &str, address: &str) -> Interface {
    let addresses = vec![address.parse().unwrap()];
    Interface { name: name.into(), up: true, running: true, loopback: name == "lo", addresses }
}

fn space(path: &str, kind: &str) -> Space {
    Space { path: path.into(), total: 100 * GIB, free: 50 * GIB, inodes: Some(1000), kind: kind.into() }
}

fn at(address: &str) -> Resolved {
    Resolved::Addresses(vec![address.parse().unwrap()])
}

fn address(number: usize) -> String {
    format!("10.88.0.{number}")
}

/// A node with Ethernet and nothing else.
pub(super) fn node(name: &str, number: usize) -> Node {
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
        interfaces: vec![interface("lo", "127.0.0.1"), interface("eth0", &own)],
        names: Names {
            own: Some(at(&own)),
            localhost: Some(at("127.0.0.1")),
            reverse: [(own.parse().unwrap(), name.to_owned())].into(),
            ..Names::default()
        },
        libtorch: Some(Libtorch {
            folder: "/shared/.libtorch".into(),
            version: Some("2.11.0+cu130".into()),
            found: "scripts/setup.sh".into(),
        }),
        ports: Ports { free: 40_000, known: vec![29_400, 29_500], taken: vec![] },
        ..Node::default()
    }
}

/// A healthy job.
pub(super) fn job(size: usize) -> Job {
    let mut nodes: Vec<Node> = (1..=size).map(|number| node(&format!("n{number}"), number)).collect();
    let mut links = Vec::new();
    for from in 1..=size {
        for to in (1..=size).filter(|to| *to != from) {
            nodes[from - 1].names.peers.insert(format!("n{to}"), at(&address(to)));
            links.extend([40_000, 29_400, 29_500].map(|port| link(from, to, port)));
        }
    }
    let view = |number: &usize| View {
        node: format!("n{number}"),
        sees_head: true,
        wrote: true,
        seen_by_head: true,
        lock: Lock::Honoured,
        torn: None,
    };
    let views = (2..=size).collect::<Vec<_>>().iter().map(view).collect();
    Job { title: "Slurm job 17.0".into(), launched: false, size, nodes, silent: vec![], links, views }
}

fn link(from: usize, to: usize, port: u16) -> Link {
    let users = if port == 40_000 { vec![User::Name, User::Gloo] } else { vec![User::Name] };
    Link {
        from: format!("n{from}"),
        to: format!("n{to}"),
        address: address(to).parse().unwrap(),
        port,
        known: port != 40_000,
        users,
        outcome: Outcome::Answered { by: format!("n{to}"), ahead: 0, uncertain: 100 },
    }
}

/// The links of n2 to n3 at a port, or at all.
fn links(job: &mut Job, port: Option<u16>) -> impl Iterator<Item = &mut Link> {
    let is = move |link: &&mut Link| link.from == "n2" && link.to == "n3" && port.is_none_or(|port| link.port == port);
    job.links.iter_mut().filter(is)
}

fn set(job: &mut Job, name: &str, value: &str) {
    job.nodes[1].variables.insert(name.into(), value.into());
}

fn set_all(job: &mut Job, name: &str, value: &str) {
    job.nodes.iter_mut().for_each(|node| _ = node.variables.insert(name.into(), value.into()));
}

fn silent(job: &mut Job, missing: Missing, outcome: Outcome) {
    let knock = Some(Knock { to: "10.88.0.3".into(), outcome });
    job.silent.push(Silent { name: "n3".into(), missing, waited: 30, knock });
}

/// The second address of n3, which a library takes.
fn second(job: &mut Job, user: User) {
    job.nodes[2].interfaces.push(interface("eth1", "10.99.0.3"));
    let dead = Link {
        address: "10.99.0.3".parse().unwrap(),
        users: vec![user],
        outcome: Outcome::TimedOut(6),
        ..link(2, 3, 40_000)
    };
    job.links.push(dead);
}

fn gpus(job: &mut Job, tiers: &[&str]) {
    for node in &mut job.nodes {
        node.gpus.present = 2;
        node.gpus.visible = 2;
        node.gpus.driver = Some("580.65.06".into());
        node.gpus.cards = vec![Card { name: "H100".into(), memory: 81_559, divided: false }; 2];
        let path = |(at, tier): (usize, &&str)| GpuPath { between: (0, at + 1), tier: (*tier).into() };
        node.gpus.paths = tiers.iter().enumerate().map(path).collect();
    }
}

fn adapters(job: &mut Job, link_layer: &str) {
    for node in &mut job.nodes {
        let port = AdapterPort { number: 1, state: "ACTIVE".into(), link_layer: link_layer.into(), gids: vec![0, 3] };
        node.fabric.adapters = vec![Adapter { name: "mlx5_0".into(), ports: vec![port] }];
        node.limits.locked_memory = None;
    }
}

fn efa(job: &mut Job) {
    adapters(job, "Unspecified");
    job.nodes.iter_mut().for_each(|node| node.fabric.efa = true);
}

pub(super) const FAULTS: &[FaultCase] = &[
    ("node-silent", |job| silent(job, Missing::Facts, Outcome::TimedOut(6))),
    ("node-stopped", |job| silent(job, Missing::Results, Outcome::Refused)),
    ("head-unreachable", |job| silent(job, Missing::Head, Outcome::Failed("no route to host".into()))),
    ("host-name-twice", |job| job.nodes[2].host = "n2".into()),
    ("program-differs", |job| job.nodes[2].program.checksum = Some("00000000".into())),
    ("architecture-differs", |job| job.nodes[2].architecture = "aarch64".into()),
    ("clock-differs", |job| {
        for link in job.links.iter_mut().filter(|link| link.to == "n3") {
            link.outcome = Outcome::Answered { by: "n3".into(), ahead: -3_200_000, uncertain: 400 };
        }
    }),
    ("pair-cut", |job| links(job, None).for_each(|link| link.outcome = Outcome::TimedOut(6))),
    ("port-blocked", |job| links(job, Some(29_500)).for_each(|link| link.outcome = Outcome::TimedOut(6))),
    ("port-rejected", |job| links(job, Some(40_000)).for_each(|link| link.outcome = Outcome::Refused)),
    ("wrong-node-answers", |job| {
        links(job, None).for_each(|link| link.outcome = Outcome::Answered { by: "x".into(), ahead: 0, uncertain: 1 });
    }),
    ("gloo-unreachable", |job| second(job, User::Gloo)),
    ("nccl-unreachable", |job| second(job, User::Nccl)),
    ("interface-missing", |job| set(job, "GLOO_SOCKET_IFNAME", "eth7")),
    ("interface-down", |job| {
        job.nodes[1].interfaces.push(Interface { up: false, ..interface("eth1", "10.99.0.2") });
        set(job, "NCCL_SOCKET_IFNAME", "eth1");
    }),
    ("interface-without-address", |job| {
        job.nodes[1].interfaces.push(Interface { addresses: vec![], ..interface("eth1", "10.99.0.2") });
        set(job, "GLOO_SOCKET_IFNAME", "eth1");
    }),
    ("interface-is-loopback", |job| set(job, "GLOO_SOCKET_IFNAME", "lo")),
    ("interface-unplugged", |job| {
        job.nodes[1].interfaces.push(Interface { running: false, ..interface("eth1", "10.99.0.2") });
    }),
    ("no-address", |job| {
        job.nodes[1] =
            Node { interfaces: vec![interface("lo", "127.0.0.1")], names: Names::default(), ..node("n2", 2) };
        job.links.clear();
        job.nodes.iter_mut().for_each(|node| _ = node.names.peers.remove("n2"));
    }),
    ("port-taken", |job| job.nodes[1].ports.taken = vec![29_500]),
    ("host-name-is-loopback", |job| job.nodes[1].names.own = Some(at("127.0.1.1"))),
    ("host-name-unknown", |job| job.nodes[1].names.own = Some(Resolved::Failed("unknown".into()))),
    ("host-name-is-foreign", |job| job.nodes[1].names.own = Some(at("10.88.0.3"))),
    ("peer-unknown", |job| {
        job.nodes[1].names.peers.insert("n3".into(), Resolved::Failed("unknown".into()));
    }),
    ("peer-is-another", |job| _ = job.nodes[1].names.peers.insert("n3".into(), at("10.88.0.1"))),
    ("address-has-other-name", |job| {
        job.nodes[1].names.reverse = [(IpAddr::from([10, 88, 0, 2]), "n3".to_owned())].into();
    }),
    ("localhost-is-wrong", |job| job.nodes[1].names.localhost = Some(at("10.88.0.2"))),
    ("master-is-loopback", |job| {
        set_all(job, "MASTER_ADDR", "localhost");
        job.nodes.iter_mut().for_each(|node| node.names.master = Some(at("127.0.0.1")));
    }),
    ("master-unknown", |job| {
        set_all(job, "MASTER_ADDR", "n9");
        job.nodes[1].names.master = Some(Resolved::Failed("unknown".into()));
    }),
    ("master-differs", |job| set(job, "MASTER_PORT", "29501")),
    ("master-port-invalid", |job| set_all(job, "MASTER_PORT", "x")),
    ("rank-left-over", |job| set(job, "RANK", "0")),
    ("variables-differ", |job| set(job, "NCCL_DEBUG", "INFO")),
    ("omp-threads-invalid", |job| set(job, "OMP_NUM_THREADS", "all")),
    ("omp-threads-exceed", |job| set(job, "OMP_NUM_THREADS", "64")),
    ("cuda-launch-blocking", |job| set(job, "CUDA_LAUNCH_BLOCKING", "1")),
    ("nccl-hangs-unnoticed", |job| set(job, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")),
    ("proxy-incomplete", |job| {
        set_all(job, "http_proxy", "http://proxy:3128");
        job.nodes.iter_mut().for_each(|node| node.runtimes = vec!["apptainer".into()]);
    }),
    ("folder-hangs", |job| {
        job.nodes[1].folder.space = None;
        job.nodes[1].folder.hangs = true;
    }),
    ("folder-absent", |job| job.nodes[1].folder.space = None),
    ("folder-full", |job| job.nodes[1].folder.space.iter_mut().for_each(|space| space.free = 0)),
    ("folder-unwritable", |job| job.nodes[1].folder.unwritable = Some("read-only file system".into())),
    ("folder-in-memory", |job| job.nodes[1].folder.space.iter_mut().for_each(|space| space.kind = "tmpfs".into())),
    ("folder-not-shared", |job| job.views[0].sees_head = false),
    ("lock-ignored", |job| job.views[0].lock = Lock::Ignored),
    ("lock-unsupported", |job| job.views[0].lock = Lock::Failed("no locks available".into())),
    ("rename-not-atomic", |job| job.views[0].torn = Some("10 of 4096 bytes".into())),
    ("temporary-full", |job| job.nodes[1].temporary.iter_mut().for_each(|space| space.inodes = Some(0))),
    ("shm-small", |job| job.nodes[1].shm.iter_mut().for_each(|shm| shm.total = 64 * MIB)),
    ("shm-full", |job| job.nodes[1].shm.iter_mut().for_each(|shm| shm.free = MIB)),
    ("open-files-low", |job| job.nodes[1].limits.open_files = Some(64)),
    ("processes-low", |job| job.nodes[1].limits.processes = Some(100)),
    ("address-space-limited", |job| job.nodes[1].limits.address_space = Some(8 * GIB)),
    ("core-dumps-in-folder", |job| job.nodes[1].limits.core_pattern = "core".into()),
    ("memory-short", |job| job.nodes[1].memory.available = Some(100 * MIB)),
    ("memory-limited", |job| job.nodes[1].memory.limit = Some(GIB)),
    ("processors-few", |job| job.nodes[1].cpu.allowed = 1),
    ("processors-paid-for", |job| job.nodes[1].cpu.quota = Some(1.5)),
    ("libtorch-missing", |job| job.nodes[1].libtorch = None),
    ("libtorch-nowhere", |job| job.nodes.iter_mut().for_each(|node| node.libtorch = None)),
    ("libtorch-differs", |job| {
        job.nodes[1].libtorch.iter_mut().for_each(|found| found.version = Some("2.10.0".into()))
    }),
    ("libtorch-unsuitable", |job| {
        let all = job.nodes.iter_mut().filter_map(|node| node.libtorch.as_mut());
        all.for_each(|found| found.version = Some("2.10.0".into()));
    }),
    ("container-differs", |job| job.nodes[1].container = Some("apptainer".into())),
    ("container-runtime-missing", |job| job.nodes[1].runtimes = vec!["apptainer".into()]),
    ("gpu-driver-fails", |job| {
        gpus(job, &["NV18"]);
        job.nodes[1].gpus.trouble = Some("nvidia-smi has not ended within 6 s".into());
    }),
    ("gpu-absent", |job| set(job, "CUDA_VISIBLE_DEVICES", "0,1")),
    ("gpu-hidden", |job| {
        gpus(job, &["NV18"]);
        job.nodes[1].gpus.visible = 0;
    }),
    ("gpu-driver-old", |job| {
        gpus(job, &["NV18"]);
        job.nodes.iter_mut().for_each(|node| node.gpus.driver = Some("550.54.15".into()));
    }),
    ("gpu-driver-differs", |job| {
        gpus(job, &["NV18"]);
        job.nodes[1].gpus.driver = Some("590.1".into());
    }),
    ("gpu-differs", |job| {
        gpus(job, &["NV18"]);
        job.nodes[1].gpus.cards.truncate(1);
    }),
    ("gpu-divided", |job| {
        gpus(job, &["NV18"]);
        job.nodes[1].gpus.cards[0].divided = true;
    }),
    ("nvlink-partial", |job| gpus(job, &["NV12", "SYS"])),
    ("gpu-paths-slow", |job| gpus(job, &["PIX", "SYS"])),
    ("gpu-topology-differs", |job| {
        gpus(job, &["NV18", "NV18"]);
        job.nodes[1].gpus.paths[0].tier = "NV17".into();
    }),
    ("ib-disabled", |job| {
        adapters(job, "InfiniBand");
        set_all(job, "NCCL_IB_DISABLE", "1");
    }),
    ("ib-adapter-unknown", |job| {
        adapters(job, "InfiniBand");
        set_all(job, "NCCL_IB_HCA", "mlx5_0,mlx4_1:1");
    }),
    ("ib-gid-index-empty", |job| {
        adapters(job, "Ethernet");
        set_all(job, "NCCL_IB_GID_INDEX", "1");
    }),
    ("ib-gid-index-unset", |job| {
        adapters(job, "Ethernet");
        set_all(job, "NCCL_DEBUG", "INFO");
    }),
    ("ib-port-down", |job| {
        adapters(job, "InfiniBand");
        job.nodes[1].fabric.adapters[0].ports[0].state = "DOWN".into();
    }),
    ("locked-memory-low", |job| {
        adapters(job, "InfiniBand");
        job.nodes[1].limits.locked_memory = Some(65_536);
    }),
    ("p2p-disabled", |job| {
        gpus(job, &["NV18"]);
        set_all(job, "NCCL_P2P_DISABLE", "1");
    }),
    ("shm-disabled", |job| {
        gpus(job, &["NV18"]);
        set_all(job, "NCCL_SHM_DISABLE", "1");
    }),
    ("fi-provider-slow", |job| {
        efa(job);
        set_all(job, "FI_PROVIDER", "tcp");
    }),
    ("fi-provider-absent", |job| set_all(job, "FI_PROVIDER", "efa")),
    ("ofi-plugin-missing", |job| {
        efa(job);
        gpus(job, &["NV18"]);
    }),
    ("net-plugin-unknown", |job| set_all(job, "NCCL_NET_PLUGIN", "ofi")),
];
