//! One machine.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// One machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in super::super) struct Node {
    /// What the job calls it; the host name, if the job has no names.
    pub(in super::super) name: String,
    /// As `uname -n` prints it.
    pub(in super::super) host: String,
    /// As `uname -m` prints it.
    pub(in super::super) architecture: String,
    pub(in super::super) program: Program,
    pub(in super::super) cpu: Cpu,
    pub(in super::super) memory: Memory,
    pub(in super::super) limits: Limits,
    /// `/dev/shm`.
    pub(in super::super) shm: Option<Space>,
    /// The folder for temporary files.
    pub(in super::super) temporary: Option<Space>,
    /// The folder for snapshots.
    pub(in super::super) folder: Folder,
    pub(in super::super) interfaces: Vec<Interface>,
    pub(in super::super) names: Names,
    /// The variables that training reads, by name.
    pub(in super::super) variables: BTreeMap<String, String>,
    pub(in super::super) gpus: Gpus,
    pub(in super::super) fabric: Fabric,
    pub(in super::super) libtorch: Option<Libtorch>,
    /// What kind of container this process is in.
    pub(in super::super) container: Option<String>,
    /// The container runtimes in `PATH`.
    pub(in super::super) runtimes: Vec<String>,
    /// The ports that doctor opened to be reached at.
    pub(in super::super) ports: Ports,
    /// What could not be looked at, each with the reason.
    pub(in super::super) unseen: Vec<String>,
}

/// The `lockstep` that gathered the facts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Program {
    pub(in super::super) version: String,
    pub(in super::super) path: PathBuf,
    /// CRC-32 of its file.
    pub(in super::super) checksum: Option<String>,
}

/// Processors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(in super::super) struct Cpu {
    /// Those that are online.
    pub(in super::super) online: usize,
    /// Those that this process may run on.
    pub(in super::super) allowed: usize,
    /// How many the control group pays for.
    pub(in super::super) quota: Option<f64>,
}

/// In bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Memory {
    pub(in super::super) total: Option<u64>,
    pub(in super::super) available: Option<u64>,
    /// The lowest limit of this process's control groups.
    pub(in super::super) limit: Option<u64>,
}

/// Limits of this process (getrlimit(2)); `None`: unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Limits {
    /// The hard limit: programs raise the soft one.
    pub(in super::super) open_files: Option<u64>,
    pub(in super::super) processes: Option<u64>,
    /// In bytes.
    pub(in super::super) locked_memory: Option<u64>,
    /// In bytes.
    pub(in super::super) address_space: Option<u64>,
    /// In bytes.
    pub(in super::super) core: Option<u64>,
    /// `/proc/sys/kernel/core_pattern`.
    pub(in super::super) core_pattern: String,
}

/// Room in a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Space {
    pub(in super::super) path: PathBuf,
    /// In bytes.
    pub(in super::super) total: u64,
    /// In bytes, for a user without privileges.
    pub(in super::super) free: u64,
    /// Free inodes; `None` where the file system does not count them.
    pub(in super::super) inodes: Option<u64>,
    /// The file system's type, such as `nfs4`.
    pub(in super::super) kind: String,
}

/// The folder for snapshots, as one node has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Folder {
    pub(in super::super) path: PathBuf,
    /// `None` if it does not exist.
    pub(in super::super) space: Option<Space>,
    /// The file system has not answered.
    pub(in super::super) hangs: bool,
    /// Why a file could not be written in it.
    pub(in super::super) unwritable: Option<String>,
}

/// A network interface, as getifaddrs(3) lists it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Interface {
    pub(in super::super) name: String,
    /// It is switched on.
    pub(in super::super) up: bool,
    /// It has a carrier: a cable is plugged in.
    pub(in super::super) running: bool,
    pub(in super::super) loopback: bool,
    /// Without those of IPv6 that hold on the link only.
    pub(in super::super) addresses: Vec<IpAddr>,
}

/// What getaddrinfo(3) returned for a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) enum Resolved {
    Addresses(Vec<IpAddr>),
    Failed(String),
}

/// Name resolution on one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Names {
    /// Of this node's host name.
    pub(in super::super) own: Option<Resolved>,
    pub(in super::super) localhost: Option<Resolved>,
    /// Of `MASTER_ADDR`, if it is set.
    pub(in super::super) master: Option<Resolved>,
    /// Of the other nodes, by the job's names.
    pub(in super::super) peers: BTreeMap<String, Resolved>,
    /// The first name that each of this node's own addresses leads to.
    pub(in super::super) reverse: BTreeMap<IpAddr, String>,
}

/// NVIDIA GPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Gpus {
    /// Those of this machine, or container.
    pub(in super::super) present: usize,
    /// Those that `CUDA_VISIBLE_DEVICES` leaves visible.
    pub(in super::super) visible: usize,
    /// As `nvidia-smi` prints it.
    pub(in super::super) driver: Option<String>,
    pub(in super::super) cards: Vec<Card>,
    /// How they are joined, as `nvidia-smi topo -m` prints it: one entry for each pair.
    pub(in super::super) paths: Vec<GpuPath>,
    /// Why `nvidia-smi` could not be asked.
    pub(in super::super) trouble: Option<String>,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Card {
    pub(in super::super) name: String,
    /// In MiB.
    pub(in super::super) memory: u64,
    /// It is divided into several (MIG).
    pub(in super::super) divided: bool,
}

/// The way between two GPUs: `NV18`, `PIX`, `PXB`, `PHB`, `NODE` or `SYS`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct GpuPath {
    pub(in super::super) between: (usize, usize),
    pub(in super::super) tier: String,
}

/// Networks for collectives, other than Ethernet with TCP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Fabric {
    pub(in super::super) adapters: Vec<Adapter>,
    /// Amazon's EFA.
    pub(in super::super) efa: bool,
    /// HPE's Slingshot.
    pub(in super::super) cxi: bool,
    /// NCCL's network plugins that were found.
    pub(in super::super) plugins: Vec<PathBuf>,
}

/// An adapter of `/sys/class/infiniband`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Adapter {
    pub(in super::super) name: String,
    pub(in super::super) ports: Vec<AdapterPort>,
}

/// A port of an adapter.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct AdapterPort {
    pub(in super::super) number: u32,
    /// Such as `ACTIVE`.
    pub(in super::super) state: String,
    /// `InfiniBand`, or `Ethernet` for RoCE.
    pub(in super::super) link_layer: String,
    /// The indices of its GIDs that are not zero.
    pub(in super::super) gids: Vec<u32>,
}

/// An installed libtorch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Libtorch {
    pub(in super::super) folder: PathBuf,
    /// `None` if no file of it contains the version.
    pub(in super::super) version: Option<String>,
    /// How it was found.
    pub(in super::super) found: String,
}

/// TCP ports that doctor listens on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Ports {
    /// A free one, such as the libraries take.
    pub(in super::super) free: u16,
    /// The well-known ones that could be opened.
    pub(in super::super) known: Vec<u16>,
    /// The well-known ones that another program holds.
    pub(in super::super) taken: Vec<u16>,
}

impl Node {
    /// One of its interfaces has this address.
    pub(in super::super) fn has(&self, address: IpAddr) -> bool {
        self.interfaces.iter().any(|interface| interface.addresses.contains(&address))
    }

    pub(in super::super) fn variable(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// NCCL is, or is meant to be, used here.
    pub(in super::super) fn uses_nccl(&self) -> bool {
        self.gpus.present > 0 || self.variables.keys().any(|name| name.starts_with("NCCL_"))
    }

    /// Processors that a program can use at the same time.
    pub(in super::super) fn processors(&self) -> usize {
        let paid = self.cpu.quota.map_or(usize::MAX, |quota| quota.ceil() as usize);
        self.cpu.allowed.min(paid).max(1)
    }
}
