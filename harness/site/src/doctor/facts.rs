//! What doctor knows of a job and its nodes: plain data, which [`gather`](super::gather) collects, [`exchange`](super::exchange)
//! exchanges, and [`rules`](super::rules) judge. Facts that cannot be read are left out.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use lockstep_launch::config::GpuVendor;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Node {
    /// What the job calls it; the host name, if the job has no names.
    pub(super) name: String,
    /// As `uname -n` prints it.
    pub(super) host: String,
    /// As `uname -m` prints it.
    pub(super) architecture: String,
    pub(super) program: Program,
    pub(super) cpu: Cpu,
    pub(super) memory: Memory,
    pub(super) limits: Limits,
    /// `/dev/shm`.
    pub(super) shm: Option<Space>,
    /// The folder for temporary files.
    pub(super) temporary: Option<Space>,
    /// The folder for snapshots.
    pub(super) folder: Folder,
    pub(super) interfaces: Vec<Interface>,
    pub(super) names: Names,
    /// The variables that training reads, by name.
    pub(super) variables: BTreeMap<String, String>,
    pub(super) gpus: Gpus,
    pub(super) fabric: Fabric,
    pub(super) libtorch: Option<Libtorch>,
    /// What kind of container this process is in.
    pub(super) container: Option<String>,
    /// The container runtimes in `PATH`.
    pub(super) runtimes: Vec<String>,
    /// The ports that doctor opened to be reached at.
    pub(super) ports: Ports,
    /// What could not be looked at, each with the reason.
    pub(super) unseen: Vec<String>,
}

/// The `lockstep` that gathered the facts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Program {
    pub(super) version: String,
    pub(super) path: PathBuf,
    /// CRC-32 of its file.
    pub(super) checksum: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Cpu {
    /// Processors that are online.
    pub(super) online: usize,
    /// Processors on which this process may run.
    pub(super) allowed: usize,
    /// The CPU quota of the control group, in processors.
    pub(super) quota: Option<f64>,
}

/// In bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Memory {
    pub(super) total: Option<u64>,
    pub(super) available: Option<u64>,
    /// The lowest limit of this process's control groups.
    pub(super) limit: Option<u64>,
}

/// Limits of this process (getrlimit(2)); `None`: unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Limits {
    /// The hard limit: programs raise the soft one.
    pub(super) open_files: Option<u64>,
    pub(super) processes: Option<u64>,
    /// The lowest `pids.max` of this process's control groups.
    #[serde(default)]
    pub(super) group_processes: Option<u64>,
    /// In bytes.
    pub(super) locked_memory: Option<u64>,
    /// In bytes.
    pub(super) address_space: Option<u64>,
    /// In bytes.
    pub(super) core: Option<u64>,
    /// `/proc/sys/kernel/core_pattern`.
    pub(super) core_pattern: String,
}

/// Room in a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Space {
    pub(super) path: PathBuf,
    /// In bytes.
    pub(super) total: u64,
    /// In bytes, for a user without privileges.
    pub(super) free: u64,
    /// Free inodes; `None` where the file system does not count them.
    pub(super) inodes: Option<u64>,
    /// The file system's type, such as `nfs4`.
    pub(super) kind: String,
}

/// The folder for snapshots, as one node has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    /// `None` if it does not exist.
    pub(super) space: Option<Space>,
    /// The file system has not answered.
    pub(super) hangs: bool,
    /// Why a file could not be written in the folder.
    pub(super) unwritable: Option<String>,
}

/// A network interface, as getifaddrs(3) lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Interface {
    pub(super) name: String,
    /// It is switched on.
    pub(super) up: bool,
    /// It has a carrier: a cable is plugged in.
    pub(super) running: bool,
    pub(super) loopback: bool,
    /// Without link-local ones of IPv6.
    pub(super) addresses: Vec<IpAddr>,
}

/// What getaddrinfo(3) returned for a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Resolved {
    Addresses(Vec<IpAddr>),
    Failed(String),
}

/// Name resolution on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Names {
    /// What this node's host name resolves to.
    pub(super) own: Option<Resolved>,
    pub(super) localhost: Option<Resolved>,
    /// Of `MASTER_ADDR`, if it is set.
    pub(super) master: Option<Resolved>,
    /// What the other nodes' names resolve to, by name.
    pub(super) peers: BTreeMap<String, Resolved>,
    /// The first name that each of this node's own addresses leads to.
    pub(super) reverse: BTreeMap<IpAddr, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gpus {
    /// GPUs of this machine, or container.
    pub(super) present: usize,
    /// GPUs that `CUDA_VISIBLE_DEVICES`, or AMD's variables, leave visible.
    pub(super) visible: usize,
    #[serde(default)]
    pub(super) vendor: GpuVendor,
    /// As `nvidia-smi`, `rocm-smi` or `amd-smi` prints it.
    pub(super) driver: Option<String>,
    pub(super) cards: Vec<Card>,
    /// How they are joined, as `nvidia-smi topo -m` or AMD's programs print it: one entry for each pair.
    pub(super) paths: Vec<GpuPath>,
    /// Why the vendor's program failed.
    pub(super) trouble: Option<String>,
    /// Why `/dev/kfd`, which HIP opens to use AMD's GPUs, cannot be opened.
    #[serde(default)]
    pub(super) closed: Option<String>,
    /// The version of ROCm, as its folder has it.
    #[serde(default)]
    pub(super) runtime: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Card {
    pub(super) name: String,
    /// In MiB.
    pub(super) memory: u64,
    /// It is divided into several (MIG).
    pub(super) divided: bool,
}

/// The way between two GPUs: `NV18`, `PIX`, `PXB`, `PHB`, `NODE` or `SYS`; of AMD's `XGMI` or `PCIE`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GpuPath {
    pub(super) between: (usize, usize),
    pub(super) tier: String,
}

/// Networks for collectives, other than Ethernet with TCP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Fabric {
    pub(super) adapters: Vec<Adapter>,
    /// Amazon's EFA.
    pub(super) efa: bool,
    /// HPE's Slingshot.
    pub(super) cxi: bool,
    /// NCCL's and RCCL's network plugins that were found.
    pub(super) plugins: Vec<PathBuf>,
}

/// An adapter of `/sys/class/infiniband`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Adapter {
    pub(super) name: String,
    pub(super) ports: Vec<AdapterPort>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct AdapterPort {
    pub(super) number: u32,
    /// Such as `ACTIVE`.
    pub(super) state: String,
    /// `InfiniBand`, or `Ethernet` for RoCE.
    pub(super) link_layer: String,
    /// The indices of its GIDs that are not zero.
    pub(super) gids: Vec<u32>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Libtorch {
    pub(super) folder: PathBuf,
    /// `None` if none of its files contains the version.
    pub(super) version: Option<String>,
    /// How it was found.
    pub(super) found: String,
    /// A folder of `LD_LIBRARY_PATH` with another libtorch.
    #[serde(default)]
    pub(super) other: Option<PathBuf>,
}

/// TCP ports that doctor listens on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Ports {
    /// A free one, such as the libraries take.
    pub(super) free: u16,
    /// The well-known ones that could be opened.
    pub(super) known: Vec<u16>,
    /// The well-known ones that another program holds.
    pub(super) taken: Vec<u16>,
}

impl Node {
    /// Returns true if an interface of the node has this address.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.interfaces.iter().any(|interface| interface.addresses.contains(&address))
    }

    pub(super) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// NCCL is, or is meant to be, used here.
    pub(super) fn uses_nccl(&self) -> bool {
        self.gpus.present > 0 || self.variables.keys().any(|name| name.starts_with("NCCL_"))
    }

    /// Processors that a program can use at the same time.
    pub(super) fn processors(&self) -> usize {
        let paid = self.cpu.quota.map_or(usize::MAX, |quota| quota.ceil() as usize);
        self.cpu.allowed.min(paid).max(1)
    }
}

// ---- a job: its nodes, those that do not answer, and what each saw of the others

/// A job, or one machine: what is checked.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct JobFacts {
    /// `this machine`, `Slurm job 17.0`.
    pub(super) title: String,
    /// A launcher started doctor, and holds the launcher's ports.
    pub(super) launched: bool,
    /// The number of its nodes.
    pub(super) size: usize,
    /// Nodes that answered, in the job's order.
    pub(super) nodes: Vec<Node>,
    /// Nodes that did not answer.
    pub(super) silent: Vec<Silent>,
    pub(super) links: Vec<Link>,
    /// What each node saw of the shared folder.
    pub(super) views: Vec<View>,
}

/// A node from which something is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Silent {
    pub(super) name: String,
    pub(super) missing: Missing,
    /// How long it was waited for, in seconds.
    pub(super) waited: u64,
    /// How a TCP connection to the node ended; `None` if it has no name to connect to.
    pub(super) attempt: Option<ConnectionAttempt>,
}

/// What is missing from a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Missing {
    /// It never came.
    Facts,
    /// It joined, but did not report what it can reach.
    Results,
    /// It is the node where all meet, and this node cannot reach it.
    Head,
}

/// A connection to a node that is silent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct ConnectionAttempt {
    pub(super) to: String,
    pub(super) outcome: Outcome,
}

/// A TCP connection from one node to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Link {
    pub(super) from: String,
    pub(super) to: String,
    pub(super) address: IpAddr,
    pub(super) port: u16,
    /// The port is a well-known one.
    pub(super) known: bool,
    /// What uses the address.
    pub(super) users: Vec<User>,
    pub(super) outcome: Outcome,
}

/// What uses an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum User {
    /// The node's name leads to it.
    Name,
    Gloo,
    Nccl,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Outcome {
    /// Doctor answered.
    Answered {
        /// The name of the node that did.
        by: String,
        /// The other node's clock minus this node's, in microseconds.
        ahead: i64,
        /// The offset may be wrong by this much, in microseconds.
        uncertain: i64,
    },
    /// Somebody accepted the connection, and it was not doctor.
    OtherProgram,
    Refused,
    /// After this many seconds.
    TimedOut(u64),
    /// The system's error.
    Failed(String),
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Answered { by, .. } => write!(f, "{by} answered"),
            Outcome::OtherProgram => f.write_str("another program answered"),
            Outcome::Refused => f.write_str("connection refused"),
            Outcome::TimedOut(seconds) => write!(f, "no answer within {seconds} s"),
            Outcome::Failed(error) => f.write_str(error),
        }
    }
}

/// What a node saw of the shared folder while the head node had a lock in it and replaced a file over and over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct View {
    pub(super) node: String,
    /// It saw the file of the head node.
    pub(super) sees_head: bool,
    /// The node could write a file of its own there.
    pub(super) wrote: bool,
    /// The head node saw that file; known only to the head node.
    pub(super) seen_by_head: bool,
    pub(super) lock: Lock,
    /// What it read while the file was replaced, if that was not a whole file.
    pub(super) torn: Option<String>,
}

/// The result of an attempt to take the head node's lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Lock {
    /// It was not tried, since the file cannot be opened for writing.
    Untried,
    /// It was refused, as it must be.
    Honoured,
    /// Both have it.
    Ignored,
    /// The file system has no locks.
    Failed(String),
}

impl JobFacts {
    /// There is more than one node.
    pub(super) fn has_several(&self) -> bool {
        self.size > 1
    }

    /// The node that has this address, other than by loopback.
    pub(super) fn owner(&self, address: IpAddr) -> Option<&Node> {
        self.nodes.iter().find(|node| !address.is_loopback() && node.has(address))
    }
}
