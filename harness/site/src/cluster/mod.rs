//! `lockstep cluster`: a cluster on this machine. Each node is a set of Linux namespaces: it has its own address, host name, process ids,
//! `/dev/shm` and `/tmp`, and a port on a bridge that nobody outside can reach. Where Slurm is installed, its daemons run ([`slurm`]).
//!
//! - [`lifecycle`] makes and ends a cluster, [`running`] runs commands on a node and shows the status, [`fault`] breaks it, the [`network`] too.
//! - One process holds it all: the first process of the head node ([`machine`]). When it ends, the kernel ends everything else.
//! - Nothing runs in between. What a command needs to know is in the cluster's folder ([`folder`]) or asked of the kernel.

mod fault;
mod folder;
mod lifecycle;
mod machine;
mod network;
mod running;
mod slurm;

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::str::FromStr;

use clap::{Args, Subcommand};
use lockstep_process::find_program;
use rustix::process::getuid;
use serde::{Deserialize, Serialize};

use crate::exit::{Code, Refused};

pub use machine::{INIT, Init};

/// Why there is no cluster with Slurm on this machine, in words; `None` if there can be one.
pub fn why_no_slurm() -> Option<String> {
    match needs_user_namespace() {
        Ok(user_namespace) => slurm_obstacle(user_namespace),
        Err(refused) => Some(refused.to_string()),
    }
}

/// Make a cluster on this machine, with Slurm where it is installed, and break it on purpose
#[derive(Args)]
pub struct ClusterOptions {
    /// The cluster's name, for several next to each other
    #[arg(long, global = true, value_name = "NAME", default_value = "main")]
    name: ClusterName,
    #[command(subcommand)]
    command: ClusterCommand,
}

#[derive(Subcommand)]
enum ClusterCommand {
    Up(lifecycle::Up),
    Exec(running::Exec),
    Status(running::Status),
    Fault(fault::Fault),
    Down(lifecycle::Down),
}

impl ClusterOptions {
    pub fn exec(self) -> anyhow::Result<Code> {
        let ClusterOptions { name, command } = self;
        match command {
            ClusterCommand::Up(options) => options.exec(name),
            ClusterCommand::Exec(options) => options.exec(&name),
            ClusterCommand::Status(options) => options.exec(&name),
            ClusterCommand::Fault(options) => options.exec(&name),
            ClusterCommand::Down(options) => options.exec(&name),
        }
    }
}

// ---- what a cluster is made of

/// The head node's host name: it runs Slurm's controller, and jobs are submitted from there.
const HEAD: &str = "ctl";
/// Letters in a cluster's name: a socket's path, at most 107 bytes (unix(7)), contains it.
const LONGEST_NAME: usize = 24;

/// What the user asked for. Kept in the cluster's folder, since nodes that boot later need it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClusterSpec {
    /// How many nodes there are besides the head node.
    pub(super) nodes: u8,
    /// GPUs of each node, as Slurm sees them.
    pub(super) gpus: u8,
    /// Processors of each node, as Slurm sees them.
    pub(super) cpus: u16,
    /// Slurm's daemons run.
    pub(super) slurm: bool,
    /// The cluster is in a user namespace: the user who made it is not root.
    pub(super) user_namespace: bool,
    /// Folders that all nodes see although they are below what each has for itself, such as `/tmp`.
    pub(super) shared: Vec<PathBuf>,
}

impl ClusterSpec {
    /// All nodes, without the head node.
    pub(super) fn nodes(&self) -> impl Iterator<Item = Node> + use<> {
        (1..=self.nodes).map(Node)
    }

    /// All machines, the head node first.
    pub(super) fn machines(&self) -> impl Iterator<Item = Machine> + use<> {
        [Machine::Head].into_iter().chain(self.nodes().map(Machine::Node))
    }
}

/// A cluster's name: a lowercase letter, then lowercase letters, digits and hyphens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ClusterName(String);

impl FromStr for ClusterName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let fits = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == b'-';
        let begins = text.bytes().next().is_some_and(|first| first.is_ascii_lowercase());
        if begins && text.len() <= LONGEST_NAME && text.bytes().all(fits) {
            return Ok(ClusterName(text.to_owned()));
        }
        Err(format!("a name has up to {LONGEST_NAME} lowercase letters, digits and hyphens, and begins with a letter"))
    }
}

impl fmt::Display for ClusterName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A node by its number, from 1. It is called `n1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Node(pub(super) u8);

impl Node {
    /// The machine's port on the bridge, an interface of the head node.
    pub(super) fn port(self) -> String {
        format!("v{self}")
    }
}

impl FromStr for Node {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.strip_prefix('n').and_then(|digits| digits.parse().ok());
        let node = number.map(Node).filter(|node| node.0 > 0 && node.to_string() == text);
        node.ok_or_else(|| "nodes are called n1, n2, and so on".into())
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0)
    }
}

/// The head node or a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Machine {
    /// It is called `ctl`.
    Head,
    /// A node on which jobs run.
    Node(Node),
}

impl Machine {
    /// On the cluster's own network, 10.88.0.0/24. It exists inside namespaces only, so any number of clusters may use it.
    pub(super) fn address(self) -> Ipv4Addr {
        let last = match self {
            Machine::Head => 254,
            Machine::Node(node) => node.0,
        };
        Ipv4Addr::new(10, 88, 0, last)
    }
}

impl FromStr for Machine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == HEAD {
            return Ok(Machine::Head);
        }
        text.parse().map(Machine::Node).map_err(|error: String| format!("{error}; the head node is called {HEAD}"))
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Machine::Head => f.write_str(HEAD),
            Machine::Node(node) => node.fmt(f),
        }
    }
}

// ---- what a cluster requires of this machine: programs, and the right to make namespaces; how to get what is missing

/// Programs of a machine without which there is no cluster, with their packages in Debian and Ubuntu.
const NEEDED: [(&str, &str); 6] = [
    ("unshare", "util-linux"),
    ("nsenter", "util-linux"),
    ("setsid", "util-linux"),
    ("setpriv", "util-linux"),
    ("ip", "iproute2"),
    ("tc", "iproute2"),
];
/// Programs that Slurm needs, with their packages.
const SLURM: [(&str, &str); 6] = [
    ("slurmctld", "slurm-wlm"),
    ("slurmd", "slurm-wlm"),
    ("srun", "slurm-wlm"),
    ("sinfo", "slurm-wlm"),
    ("scontrol", "slurm-wlm"),
    ("munged", "munge"),
];
/// Folders of daemons, which a user's `PATH` may lack.
const SBIN: &str = "/usr/local/sbin:/usr/sbin:/sbin";

/// The namespaces of a machine, as `unshare` has them. With the process that asked for them, all in them ends.
pub(super) const NAMESPACES: [&str; 7] = ["--net", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"];
/// What goes before them where the user is not root.
pub(super) const USER_NAMESPACE: [&str; 2] = ["--user", "--map-root-user"];

/// `PATH`, with the folders of daemons at its end.
pub(super) fn search_path() -> OsString {
    let own = std::env::var_os("PATH").unwrap_or_default();
    if own.is_empty() { SBIN.into() } else { [&own, OsStr::new(":"), OsStr::new(SBIN)].into_iter().collect() }
}

/// The packages, each once, whose programs are missing.
fn missing(programs: &[(&str, &'static str)]) -> Vec<&'static str> {
    let absent = |name: &str| find_program(OsStr::new(name), Some(&search_path())).is_err();
    let mut packages: Vec<_> = programs.iter().filter(|(name, _)| absent(name)).map(|(_, package)| *package).collect();
    packages.dedup();
    packages
}

/// Why Slurm cannot run here, in words; `None` if it can.
pub(super) fn slurm_obstacle(user_namespace: bool) -> Option<String> {
    let packages = missing(&SLURM);
    if user_namespace {
        Some("its daemons must be started by root".to_owned())
    } else if packages.is_empty() {
        None
    } else {
        Some(format!("it is not installed ({})", install(&packages)))
    }
}

pub(super) fn packet_filter() -> Result<(), Refused> {
    match missing(&[("nft", "nftables")]).as_slice() {
        [] => Ok(()),
        _ => Err(Refused(format!("this fault needs the program nft: {}", install(&["nftables"])))),
    }
}

/// The command that installs packages.
pub(super) fn install(packages: &[&str]) -> String {
    format!("apt-get install --no-install-recommends {}", packages.join(" "))
}

/// Whether the cluster must be in a user namespace: root needs none, unless it is a container's.
pub(super) fn needs_user_namespace() -> Result<bool, Refused> {
    let packages = missing(&NEEDED);
    if !packages.is_empty() {
        return Err(Refused(format!("programs are missing: {}", install(&packages))));
    }
    let root = getuid().is_root();
    if root && allowed(&[]).is_ok() {
        return Ok(false);
    }
    let Err(why) = allowed(&USER_NAMESPACE) else { return Ok(true) };
    let hint = if root {
        "start the container with more rights (`--privileged`), or use a virtual machine"
    } else {
        "run it as root, or let users make namespaces: `sysctl -w kernel.unprivileged_userns_clone=1` (Debian), \
         `sysctl -w kernel.apparmor_restrict_unprivileged_userns=0` (Ubuntu), `sysctl -w user.max_user_namespaces=10000`"
    };
    Err(Refused(format!("this system does not let you make namespaces ({why}): {hint}")))
}

/// Tries all namespaces once, with what a machine mounts in them.
fn allowed(before: &[&str]) -> Result<(), String> {
    let mut command = Command::new("unshare");
    command.args(before).args(NAMESPACES).args(["--mount-proc", "ip", "link", "add", "br0", "type", "bridge"]);
    let output = command.env("PATH", search_path()).stdin(Stdio::null()).output().map_err(|error| error.to_string())?;
    let message = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if output.status.success() { Ok(()) } else { Err(message()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_names_that_are_safe_in_a_path() {
        assert!(["main", "a", "two-nodes-2"].iter().all(|name| name.parse::<ClusterName>().is_ok()));
        for name in ["", "..", "a/b", "-a", "A", "2", "a b", "abcdefghijklmnopqrstuvwxyz"] {
            assert!(name.parse::<ClusterName>().is_err(), "{name}");
        }
    }

    #[test]
    fn knows_machines_by_their_host_names() {
        for (name, address) in [("ctl", "10.88.0.254"), ("n1", "10.88.0.1"), ("n32", "10.88.0.32")] {
            let machine: Machine = name.parse().unwrap();
            assert_eq!((machine.to_string(), machine.address().to_string()), (name.to_owned(), address.to_owned()));
        }
        for name in ["", "n", "n0", "n01", "n+1", "2", "N1", "n300", "head"] {
            assert!(name.parse::<Machine>().unwrap_err().contains("ctl"), "{name}");
        }
    }

    #[test]
    fn names_each_missing_package_once() {
        let programs = [("no-such-program", "a"), ("neither-this", "a"), ("sh", "b"), ("nor-this", "c")];
        assert_eq!(missing(&programs), ["a", "c"]);
        assert_eq!(install(&["a", "c"]), "apt-get install --no-install-recommends a c");
    }
}
