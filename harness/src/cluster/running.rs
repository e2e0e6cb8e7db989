//! A cluster that runs: which of its machines live, and commands on them.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use super::folder::Folder;
use super::means;
use super::process::{PROC, Process};
use super::spec::{Machine, Name, Node, Spec};
use crate::exit::Refused;

/// The file that names the process which holds the cluster.
pub(super) const HOLDER: &str = "holder.json";
/// The file that says what the cluster is made of.
pub(super) const SPEC: &str = "cluster.json";

/// A cluster whose holder lives.
pub(super) struct Cluster {
    pub(super) folder: Folder,
    pub(super) spec: Spec,
    /// The first process of the head node. All others of the cluster end with it.
    pub(super) holder: Process,
}

/// What can be seen of a node from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    Up,
    /// Its processes are stopped; the kernel still answers for it.
    Paused,
    /// Its processes have ended.
    Lost,
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            State::Up => "up",
            State::Paused => "paused",
            State::Lost => "lost",
        })
    }
}

impl Cluster {
    /// The running cluster of this name.
    ///
    /// # Errors
    /// [`Refused`], if there is none, with what to do.
    pub(super) fn open(name: &Name) -> anyhow::Result<Self> {
        let folder = Folder::of(name);
        if !folder.exists() {
            let message = format!(
                "there is no cluster `{name}` ({} does not exist): lockstep cluster up",
                folder.path().display()
            );
            return Err(Refused(message).into());
        }
        let (Ok(spec), Ok(holder)) = (folder.load(SPEC), folder.load(HOLDER)) else {
            let message = format!(
                "the cluster `{name}` is only half there: wait for `lockstep cluster up`, or remove it by `lockstep cluster down`"
            );
            return Err(Refused(message).into());
        };
        let cluster = Cluster { folder, spec, holder };
        if !cluster.lives() {
            let message = format!(
                "the cluster `{name}` has ended: its process {} is gone; `lockstep cluster down` removes its files",
                cluster.holder.pid
            );
            return Err(Refused(message).into());
        }
        Ok(cluster)
    }

    pub(super) fn lives(&self) -> bool {
        self.holder.state(Path::new(PROC)).is_some()
    }

    /// `/proc` as the head node has it, with the processes of all nodes.
    pub(super) fn proc(&self) -> PathBuf {
        Path::new(PROC).join(self.holder.pid.to_string()).join("root").join("proc")
    }

    /// The first process of a node, by its number on the head node; `None` while the node is lost.
    pub(super) fn init_of(&self, node: Node) -> Option<Process> {
        let init: Process = self.folder.load(&node_file(node)).ok()?;
        init.state(&self.proc()).map(|_| init)
    }

    pub(super) fn state(&self, node: Node) -> State {
        match self.init_of(node).and_then(|init| init.state(&self.proc())) {
            None => State::Lost,
            Some('T') => State::Paused,
            Some(_) => State::Up,
        }
    }

    /// The nodes whose processes live.
    pub(super) fn living(&self) -> impl Iterator<Item = Node> {
        self.spec.nodes().filter(|node| self.init_of(*node).is_some())
    }

    /// # Errors
    /// [`Refused`], if the cluster has no such machine.
    pub(super) fn check(&self, machine: Machine) -> anyhow::Result<()> {
        match machine {
            Machine::Node(node) if node.0 > self.spec.nodes => {
                Err(Refused(format!("there is no {node}: the nodes are n1 to n{}", self.spec.nodes)).into())
            }
            _ => Ok(()),
        }
    }

    /// The root folder of a machine, seen from here.
    ///
    /// # Errors
    /// [`Refused`], if the node is lost or unknown.
    pub(super) fn root(&self, machine: Machine) -> anyhow::Result<PathBuf> {
        let Machine::Node(node) = machine else { return Ok(format!("{PROC}/{}/root", self.holder.pid).into()) };
        Ok(self.proc().join(self.living_init(node)?.pid.to_string()).join("root"))
    }

    /// A command that runs `program` on the machine. Its words and its environment are added as to any other.
    ///
    /// # Errors
    /// [`Refused`], if the node is lost or unknown.
    pub(super) fn command(&self, machine: Machine, program: impl AsRef<OsStr>) -> anyhow::Result<Command> {
        Ok(self.prepared(self.entry(machine, None)?, program))
    }

    /// The same for a user's command: in a folder that the machine has ([`Cluster::root`]), and asked to end when this process does.
    ///
    /// # Errors
    /// As [`Cluster::command`].
    pub(super) fn session(
        &self,
        machine: Machine,
        folder: &Path,
        program: impl AsRef<OsStr>,
    ) -> anyhow::Result<Command> {
        Ok(self.prepared(self.entry(machine, Some(folder))?, program))
    }

    /// The words that lead onto a machine: all nodes are within the head node.
    fn entry(&self, machine: Machine, folder: Option<&Path>) -> anyhow::Result<Vec<OsString>> {
        self.check(machine)?;
        let (holder, tied) = (self.holder.pid, folder.is_some());
        // The head node's user namespace, if it has one, is that of all nodes.
        let head = |folder| enter(holder, self.spec.user_namespace, folder, tied);
        let Machine::Node(node) = machine else { return Ok(head(folder)) };
        let init = self.living_init(node)?.pid;
        Ok([head(None), enter(init, false, folder, tied)].concat())
    }

    fn prepared(&self, entry: Vec<OsString>, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(&entry[0]);
        command.args(&entry[1..]).arg(program).env("PATH", means::path());
        // A job of another Slurm that this command may be part of means nothing here.
        let of_slurm = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SLURM_"));
        of_slurm.for_each(|(name, _)| _ = command.env_remove(name));
        if self.spec.slurm {
            command.env("SLURM_CONF", self.folder.file("slurm.conf"));
        }
        command
    }

    fn living_init(&self, node: Node) -> anyhow::Result<Process> {
        self.check(Machine::Node(node))?;
        let lost = || Refused(format!("{node} is lost: `lockstep cluster fault boot {node}` starts it again"));
        Ok(self.init_of(node).ok_or_else(lost)?)
    }

    /// Runs a program on the machine to its end. Returns what it printed.
    ///
    /// # Errors
    /// When it fails, with its own words; as [`Cluster::command`].
    pub(super) fn run(&self, machine: Machine, words: &[&str]) -> anyhow::Result<String> {
        self.feed(machine, words, "")
    }

    /// The same, with text on its standard input.
    ///
    /// # Errors
    /// As [`Cluster::run`].
    pub(super) fn feed(&self, machine: Machine, words: &[&str], input: &str) -> anyhow::Result<String> {
        let mut command = self.command(machine, words[0])?;
        let message = || format!("cannot run `{}` on {machine}", words.join(" "));
        command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().with_context(message)?;
        if let Some(mut stdin) = child.stdin.take() {
            let _ = stdin.write_all(input.as_bytes()); // why it did not read is in its own words
        }
        let output = child.wait_with_output().with_context(message)?;
        let error = String::from_utf8_lossy(&output.stderr);
        anyhow::ensure!(
            output.status.success(),
            "`{}` failed on {machine} ({}): {}",
            words.join(" "),
            output.status,
            error.trim()
        );
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The file that names the first process of a node.
pub(super) fn node_file(node: Node) -> String {
    format!("nodes/{node}.json")
}

/// An absolute path below another root.
pub(super) fn joined(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// The words before a program that put it into the namespaces of a process: in `folder` if one is given; `tied`, if it is to get a
/// SIGTERM when the process that waits for it ends.
fn enter(pid: i32, user_namespace: bool, folder: Option<&Path>, tied: bool) -> Vec<OsString> {
    let pid = pid.to_string();
    let mut words = vec!["nsenter", "--target", &pid, "--mount", "--uts", "--ipc", "--net", "--pid"];
    // Its user is root in it already, and may not change users there.
    words.extend(if user_namespace { &["--user", "--preserve-credentials"][..] } else { &[] });
    // It is looked for before the namespaces are entered.
    let root = Path::new(PROC).join(&pid).join("root");
    let folder = folder.map(|folder| [OsStr::new("--wd="), joined(&root, folder).as_os_str()].into_iter().collect());
    let tie: &[&str] = if tied { &["setpriv", "--pdeathsig", "TERM", "--"] } else { &[] };
    let words = words.into_iter().map(OsString::from).chain(folder).chain(["--".into()]);
    words.chain(tie.iter().map(OsString::from)).collect()
}
