//! A running cluster: which of its machines live, and commands on them. `lockstep cluster exec` and `status`.

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::net::Ipv4Addr;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{fmt, fs};

use anyhow::Context;
use clap::Args;
use serde::Serialize;

use super::folder::Folder;
use super::machine::{ClusterProcess, PROC};
use super::{ClusterName, ClusterSpec, Machine, Node, network, slurm};
use crate::exit::{Code, Refused};
use crate::report::{Screen, count, whole_words};

/// The file that names the process which holds the cluster.
pub(super) const HOLDER: &str = "holder.json";
/// The file that says what the cluster is made of.
pub(super) const SPEC: &str = "cluster.json";

/// A cluster whose holder lives.
pub(super) struct Cluster {
    pub(super) folder: Folder,
    pub(super) spec: ClusterSpec,
    /// The first process of the head node. All others of the cluster end with it.
    pub(super) holder: ClusterProcess,
}

/// What can be seen of a node from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum NodeState {
    Up,
    /// The node's processes are stopped; the kernel still answers for it.
    Paused,
    /// The node's processes have ended.
    Lost,
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NodeState::Up => "up",
            NodeState::Paused => "paused",
            NodeState::Lost => "lost",
        })
    }
}

impl Cluster {
    /// The running cluster of this name.
    pub(super) fn open(name: &ClusterName) -> anyhow::Result<Self> {
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
                "the cluster `{name}` is incomplete: wait for `lockstep cluster up`, or remove it by `lockstep cluster down`"
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
    pub(super) fn init_of(&self, node: Node) -> Option<ClusterProcess> {
        let init: ClusterProcess = self.folder.load(&node_file(node)).ok()?;
        init.state(&self.proc()).map(|_| init)
    }

    pub(super) fn state(&self, node: Node) -> NodeState {
        match self.init_of(node).and_then(|init| init.state(&self.proc())) {
            None => NodeState::Lost,
            Some('T') => NodeState::Paused,
            Some(_) => NodeState::Up,
        }
    }

    /// The nodes whose processes live.
    pub(super) fn living(&self) -> impl Iterator<Item = Node> {
        self.spec.nodes().filter(|node| self.init_of(*node).is_some())
    }

    pub(super) fn check(&self, machine: Machine) -> anyhow::Result<()> {
        match machine {
            Machine::Node(node) if node.0 > self.spec.nodes => {
                Err(Refused(format!("there is no {node}: the nodes are n1 to n{}", self.spec.nodes)).into())
            }
            _ => Ok(()),
        }
    }

    /// The root folder of a machine, seen from here.
    pub(super) fn root(&self, machine: Machine) -> anyhow::Result<PathBuf> {
        let Machine::Node(node) = machine else { return Ok(format!("{PROC}/{}/root", self.holder.pid).into()) };
        Ok(self.proc().join(self.living_init(node)?.pid.to_string()).join("root"))
    }

    /// A command that runs `program` on the machine. Its words and its environment are added as to any other.
    pub(super) fn command(&self, machine: Machine, program: impl AsRef<OsStr>) -> anyhow::Result<Command> {
        Ok(self.prepared(self.entry(machine, None)?, program))
    }

    /// As [`Self::command`], for a user's command: in a folder that the machine has ([`Cluster::root`]), and asked to end when this process does.
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
        command.args(&entry[1..]).arg(program).env("PATH", super::search_path());
        // This command may run in a job of another Slurm, whose variables do not apply here.
        let of_slurm = std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("SLURM_"));
        of_slurm.for_each(|(name, _)| _ = command.env_remove(name));
        if self.spec.slurm {
            command.env("SLURM_CONF", self.folder.file("slurm.conf"));
        }
        command
    }

    fn living_init(&self, node: Node) -> anyhow::Result<ClusterProcess> {
        self.check(Machine::Node(node))?;
        let lost = || Refused(format!("{node} is lost: `lockstep cluster fault boot {node}` starts it again"));
        Ok(self.init_of(node).ok_or_else(lost)?)
    }

    /// Runs a program on the machine to its end. Returns what it printed.
    pub(super) fn run(&self, machine: Machine, words: &[&str]) -> anyhow::Result<String> {
        self.feed(machine, words, "")
    }

    /// As [`Self::run`], with text on the program's standard input.
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

// ---- `lockstep cluster exec`

/// Run a command on a machine of the cluster, in the current folder; ends with the command's exit code
#[derive(Args)]
pub(super) struct Exec {
    /// The head node `ctl`, or a node: `n1`, `n2`, …
    #[arg(value_name = "MACHINE", value_parser = str::parse::<Machine>)]
    machine: Machine,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", trailing_var_arg = true, allow_hyphen_values = true, required = true)]
    command: Vec<OsString>,
}

impl Exec {
    pub(super) fn exec(self, name: &ClusterName) -> anyhow::Result<Code> {
        let cluster = Cluster::open(name)?;
        let folder = std::env::current_dir().context("cannot find the current folder")?;
        if !is_same(&folder, &joined(&cluster.root(self.machine)?, &folder)) {
            let message = format!(
                "{} has no folder {}, since /tmp and /dev/shm are each node's own: go elsewhere, or share the folder (`up --share`)",
                self.machine,
                folder.display()
            );
            return Err(Refused(message).into());
        }
        let mut command = cluster.session(self.machine, &folder, &self.command[0])?;
        Err(command.args(&self.command[1..]).exec()).context("cannot run nsenter")
    }
}

/// Returns true if both paths lead to one folder, seen from here and from the machine.
fn is_same(here: &Path, there: &Path) -> bool {
    let id = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino())).ok();
    id(here).is_some() && id(here) == id(there)
}

// ---- `lockstep cluster status`

/// Show the machines, their addresses and faults, and what Slurm says of them
#[derive(Args)]
pub(super) struct Status {
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Row {
    name: String,
    address: Ipv4Addr,
    state: NodeState,
    /// In words; empty for a lost node.
    faults: Vec<String>,
    /// The state that Slurm gives a node, if it runs.
    slurm: Option<String>,
}

impl Status {
    pub(super) fn exec(self, name: &ClusterName) -> anyhow::Result<Code> {
        let cluster = Cluster::open(name)?;
        let rows = rows(&cluster)?;
        let screen = Screen::new(false);
        if self.json {
            let whole = serde_json::json!({
                "name": name.to_string(),
                "folder": cluster.folder.path(),
                "slurm": cluster.spec.slurm,
                "user_namespace": cluster.spec.user_namespace,
                "machines": rows,
            });
            screen.line(serde_json::to_string_pretty(&whole)?);
        } else {
            screen.line(title(name, &cluster.spec));
            screen.line(table(&screen, &rows));
        }
        Ok(Code::Success)
    }
}

/// The cluster in a line.
pub(super) fn title(name: &ClusterName, spec: &ClusterSpec) -> String {
    let slurm = if spec.slurm { "under Slurm" } else { "without Slurm" };
    format!("cluster `{name}`: {} and the head node {}, {slurm}", count(spec.nodes, "node"), Machine::Head)
}

fn rows(cluster: &Cluster) -> anyhow::Result<Vec<Row>> {
    let mut of_slurm = if cluster.spec.slurm { slurm::states(cluster) } else { Default::default() };
    // The head node is not one of Slurm's nodes.
    let silent = |machine| (cluster.spec.slurm && machine != Machine::Head).then(|| "no answer".to_owned());
    let row = |machine: Machine| {
        let state = match machine {
            Machine::Head => NodeState::Up,
            Machine::Node(node) => cluster.state(node),
        };
        let faults = if state == NodeState::Lost { vec![] } else { network::faults(cluster, machine)? };
        let name = machine.to_string();
        Ok(Row {
            slurm: of_slurm.remove(&name).or_else(|| silent(machine)),
            name,
            address: machine.address(),
            state,
            faults,
        })
    };
    cluster.spec.machines().map(row).collect()
}

/// A heading, and the lines below it.
type Column = (&'static str, fn(&Row) -> String);

fn table(screen: &Screen, rows: &[Row]) -> String {
    let columns: [Column; 5] = [
        ("machine", |row| row.name.clone()),
        ("address", |row| row.address.to_string()),
        ("state", |row| row.state.to_string()),
        ("faults", |row| row.faults.join(", ")),
        ("Slurm", |row| row.slurm.clone().unwrap_or_default()),
    ];
    let says_something = |(_, text): &&Column| rows.iter().any(|row| !text(row).is_empty());
    let columns: Vec<_> = columns.iter().filter(says_something).collect();
    let mut table = screen.style().table(&columns.iter().map(|(heading, _)| *heading).collect::<Vec<_>>());
    table.add_rows(rows.iter().map(|row| columns.iter().map(|(_, text)| text(row)).collect::<Vec<_>>()));
    whole_words(table, screen.style())
}
