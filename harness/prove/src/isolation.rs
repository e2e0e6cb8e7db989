//! Networks and file systems of a run's own, made of namespaces: cut, throttled, filled and restored from outside.
//!
//! They need Linux's user namespaces, or root, and the programs `unshare`, `nsenter`, `ip`, `tc` and `mount`. If these
//! do not work, [`Network::make`] and [`Disk::check`] say why, and the scenario is skipped. Everything is gone when the
//! processes in it have ended.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_process::KillOnDrop;

use crate::launch::{Prefix, dying_with_this};

/// The bridge's network, which exists only inside namespaces.
const NET: &str = "10.77.0";
/// A node's end of its virtual cable.
pub(crate) const LINK: &str = "eth0";
/// Time limit for filling the disk.
const FILL: Duration = Duration::from_secs(10);
/// How long a file may be written in a folder that is remounted, and how often to look.
const BUSY: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(10);
/// Size of a run's own file system, in KiB: enough for a few snapshots of the labs.
const DISK_KIB: u32 = 32 * 1024;

/// A bridge with a node on each port, in namespaces without a route to the outside.
pub(crate) struct Network {
    bridge: Holder,
    nodes: Vec<Holder>,
}

/// A process that only keeps its namespaces alive. Killed when dropped.
struct Holder(KillOnDrop);

impl Network {
    /// Makes a network for this many nodes.
    pub(crate) fn make(nodes: usize) -> Result<Self, String> {
        let bridge = Holder::start(&["--user", "--map-root-user", "--net"], &Prefix::new())?;
        bridge.sh("ip link set lo up && ip link add bridge0 type bridge && ip link set bridge0 up")?;
        let mut network = Network { bridge, nodes: Vec::new() };
        for node in 0..nodes {
            // In the bridge's user namespace, so that its root may move an end of the cable there.
            let enter = network.bridge.enter(&["-U"]);
            let holder = Holder::start(&["--net"], &enter)?;
            let (port, pid, address) = (port(node), holder.0.0.id(), address(node));
            network.bridge.sh(&format!(
                "ip link add {port} type veth peer name end{node} && ip link set {port} master bridge0 up && \
                 ip link set end{node} netns {pid}"
            ))?;
            holder.sh(&format!(
                "ip link set lo up && ip link set end{node} name {LINK} && ip addr add {address}/24 dev {LINK} && ip link set {LINK} up"
            ))?;
            network.nodes.push(holder);
        }
        Ok(network)
    }

    /// The addresses of the nodes.
    pub(crate) fn addresses(&self) -> Vec<String> {
        (0..self.nodes.len()).map(address).collect()
    }

    /// The processes that keep the network alive.
    pub(crate) fn holders(&self) -> Vec<i32> {
        self.nodes.iter().chain([&self.bridge]).map(|holder| holder.0.0.id() as i32).collect()
    }

    /// The prefix that runs a command on a node.
    pub(crate) fn prefix(&self, node: usize) -> Prefix {
        self.nodes[node].enter(&["-U", "-n"])
    }

    pub(crate) fn cut(&self, node: usize) -> Result<(), String> {
        self.bridge.sh(&format!("ip link set {} down", port(node)))
    }

    pub(crate) fn restore(&self, node: usize) -> Result<(), String> {
        self.bridge.sh(&format!("ip link set {} up", port(node)))
    }

    /// Throttles both directions, so that it does not matter which side sends.
    pub(crate) fn throttle(&self, node: usize, kbit: u64) -> Result<(), String> {
        let shape = |device: &str| format!("tc qdisc add dev {device} root tbf rate {kbit}kbit burst 16kb latency 1s");
        self.bridge.sh(&shape(&port(node)))?;
        self.nodes[node].sh(&shape(LINK))
    }

    pub(crate) fn unthrottle(&self, node: usize) -> Result<(), String> {
        let plain = |device: &str| format!("tc qdisc del dev {device} root");
        self.bridge.sh(&plain(&port(node)))?;
        self.nodes[node].sh(&plain(LINK))
    }
}

fn port(node: usize) -> String {
    format!("port{node}")
}

fn address(node: usize) -> String {
    format!("{NET}.{}", node + 1)
}

impl Holder {
    /// Starts `unshare FLAGS` after `prefix`; returns once the namespaces exist.
    fn start(flags: &[&str], prefix: &Prefix) -> Result<Self, String> {
        let mut words: Vec<OsString> = prefix.clone();
        words.push("unshare".into());
        words.extend(flags.iter().map(OsString::from));
        words.extend(dying_with_this(&words, OsStr::new("sh")));
        words.extend(["-c".into(), "echo; exec sleep infinity".into()]);
        let mut command = command_of(&words);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut holder = Holder(KillOnDrop(command.spawn().map_err(|error| format!("cannot start unshare: {error}"))?));
        match holder.is_ready() {
            Ok(()) => Ok(holder),
            Err(message) => Err(format!("namespaces cannot be made ({})", message.trim())),
        }
    }

    /// Waits for its only line, which it prints in its namespaces. If it ends without, the error is its stderr.
    fn is_ready(&mut self) -> Result<(), String> {
        let (stdout, stderr) = (self.0.0.stdout.take(), self.0.0.stderr.take());
        let mut line = [0];
        if stdout.is_some_and(|mut stdout| stdout.read(&mut line).is_ok_and(|read| read == 1)) {
            return Ok(());
        }
        let mut message = String::new();
        let _ = stderr.map(|mut stderr| stderr.read_to_string(&mut message));
        Err(message)
    }

    /// The prefix that runs a command in these namespaces.
    fn enter(&self, namespaces: &[&str]) -> Prefix {
        let pid = self.0.0.id().to_string();
        let words = ["nsenter", "-t", &pid, "--preserve-credentials"];
        words.iter().chain(namespaces).map(OsString::from).collect()
    }

    /// Runs a line of shell in the namespaces.
    fn sh(&self, script: &str) -> Result<(), String> {
        let mut words = self.enter(&["-U", "-n"]);
        words.extend(["sh", "-c", script].map(OsString::from));
        run(&words)
    }
}

/// A small file system for the snapshots, which only the run sees.
pub(crate) struct Disk {
    folder: PathBuf,
}

impl Disk {
    pub(crate) fn new(folder: PathBuf) -> Self {
        Disk { folder }
    }

    /// Checks that such a file system can be made here.
    pub(crate) fn check(&self) -> Result<(), String> {
        let mut words = self.prefix();
        words.push("true".into());
        run(&words).map_err(|message| format!("no file system of its own can be mounted ({message})"))
    }

    /// The prefix that runs a command with this file system.
    pub(crate) fn prefix(&self) -> Prefix {
        let script = format!("mount -t tmpfs -o size={DISK_KIB}k tmpfs \"$0\" && exec \"$@\"");
        let words = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", &script];
        words.into_iter().map(OsString::from).chain([self.folder.clone().into()]).collect()
    }

    /// Writes until there is no space left, in the file system as process `pid` of the run sees it.
    pub(crate) fn fill(&self, pid: i32) -> Result<(), String> {
        let failed = |error: std::io::Error| format!("cannot fill the disk: {error}");
        let mut filler = fs::File::create(self.filler(pid)).map_err(failed)?;
        let block = vec![0_u8; 64 * 1024];
        let deadline = Instant::now() + FILL;
        while Instant::now() < deadline {
            match std::io::Write::write(&mut filler, &block) {
                Ok(written) if written > 0 => {}
                Err(error) if error.kind() != std::io::ErrorKind::StorageFull => return Err(failed(error)),
                _ => return Ok(()),
            }
        }
        Err("cannot fill the disk: it takes too long".into())
    }

    pub(crate) fn free(&self, pid: i32) -> Result<(), String> {
        fs::remove_file(self.filler(pid)).map_err(|error| format!("cannot free the disk: {error}"))
    }

    pub(crate) fn remount(&self, pid: i32, mode: &str) -> Result<(), String> {
        let pid = pid.to_string();
        let mut words: Vec<OsString> =
            ["nsenter", "-t", &pid, "--preserve-credentials", "-U", "-m", "mount", "-o"].map(OsString::from).into();
        words.extend([format!("remount,{mode}").into(), self.folder.clone().into()]);
        let begun = Instant::now();
        loop {
            match run(&words) {
                // A snapshot is still being written.
                Err(why) if why.contains("busy") && begun.elapsed() < BUSY => thread::sleep(LOOK),
                done => return done,
            }
        }
    }

    /// The path of the filler file, through the process's own view of the file system.
    fn filler(&self, pid: i32) -> PathBuf {
        let inside = self.folder.strip_prefix("/").unwrap_or(&self.folder);
        Path::new(&format!("/proc/{pid}/root")).join(inside).join("filler")
    }
}

fn run(words: &[OsString]) -> Result<(), String> {
    let mut command = command_of(words);
    let output = command.stdin(Stdio::null()).output();
    let name = words[0].to_string_lossy();
    let output = output.map_err(|error| format!("cannot start {name}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// `words` is never empty: every caller begins with a program.
fn command_of(words: &[OsString]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}
