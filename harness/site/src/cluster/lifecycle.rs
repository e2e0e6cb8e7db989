//! `lockstep cluster up` and `down`: starts the head node, which holds the cluster, and the nodes, and ends them all.

use std::fs::File;
use std::io::{Read, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use lockstep_contract::foreign;
use lockstep_process::{Signals, check_room};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::folder::{Folder, tail};
use super::machine::{COMPLETE, ClusterProcess, INIT, LOCAL, PROC, READY, check};
use super::running::{self, Cluster, HOLDER, SPEC, node_file};
use super::{ClusterName, ClusterSpec, Machine, NAMESPACES, Node, USER_NAMESPACE, network, slurm};
use crate::checkout::checkout_around;
use crate::exit::{Code, Refused};
use crate::report::Screen;

/// Processes and threads of the head node, with the programs that set the machines up. A node has two, without Slurm and the user's.
const HEAD_TASKS: usize = 6;

/// Start a cluster
#[derive(Args)]
pub(super) struct Up {
    /// Nodes, besides the head node `ctl`
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=32))]
    nodes: u8,
    /// GPUs that Slurm gives out on each node; they compute nothing
    #[arg(long, value_name = "COUNT", default_value_t = 2, value_parser = clap::value_parser!(u8).range(0..=16))]
    gpus: u8,
    /// Processors that Slurm gives out on each node
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=512))]
    cpus: u16,
    /// Leave Slurm out
    #[arg(long)]
    no_slurm: bool,
    /// A folder below /tmp or /dev/shm that all nodes can see, as they can see every folder elsewhere, the current one, the home, and
    /// those of this program and its checkout
    #[arg(long = "share", value_name = "FOLDER")]
    shared: Vec<PathBuf>,
}

impl Up {
    pub(super) fn exec(self, name: ClusterName) -> anyhow::Result<Code> {
        let screen = Screen::new(false);
        let folder = Folder::of(&name);
        refuse_second(&name, &folder)?;
        let shared = self.shared(&folder)?;
        let user_namespace = super::needs_user_namespace()?;
        let without = if self.no_slurm { None } else { super::slurm_obstacle(user_namespace) };
        let slurm = !self.no_slurm && without.is_none();
        if slurm {
            slurm::can_name(&folder)?;
        }
        check_room(HEAD_TASKS + 2 * usize::from(self.nodes))?;
        let spec = ClusterSpec { nodes: self.nodes, gpus: self.gpus, cpus: self.cpus, slurm, user_namespace, shared };
        let signals = Signals::listen().context("cannot listen to signals")?;
        if folder.exists() {
            let _lock = folder.lock()?;
            take_down(&folder)?; // left by a cluster whose holder was killed
        }
        folder.make()?;
        let _lock = folder.lock()?;
        let cluster = match make(folder.clone(), spec, &signals) {
            Ok(cluster) => cluster,
            Err(error) => {
                // A signal from the terminal also ends the programs that were running.
                let error = check(&signals).err().map_or(error, Into::into);
                take_down(&folder).with_context(|| format!("after the cluster had failed to start ({error:#})"))?;
                return Err(error.context(format!("the cluster `{name}` did not start; nothing is left of it")));
            }
        };
        show(&screen, &name, &cluster.spec, without);
        Ok(Code::Success)
    }

    /// The folders that all nodes need, but that a node's own /tmp and /dev/shm would hide.
    fn shared(&self, folder: &Folder) -> anyhow::Result<Vec<PathBuf>> {
        let mut shared: Vec<PathBuf> = self.shared.iter().map(|path| named(path)).collect::<Result<_, _>>()?;
        let program = std::env::current_exe().context("cannot find the file of this program")?;
        shared.extend(of_program(&program)?);
        shared.push(std::env::current_dir().context("cannot find the current folder")?);
        shared.push(folder.path().to_owned());
        shared.extend(std::env::home_dir().and_then(|home| home.canonicalize().ok()));
        shared.retain(|path| is_hidden(path));
        Ok(outermost(shared))
    }
}

/// A folder of `--share`.
fn named(path: &Path) -> Result<PathBuf, Refused> {
    let refused = |why: String| Refused(format!("--share {}: {why}", foreign::path(path)));
    let found = path.canonicalize().map_err(|error| refused(error.to_string()))?;
    if !found.is_dir() {
        return Err(refused("not a folder".into()));
    }
    if is_local(&found) { Err(refused("it is each node's own: name a folder in it".into())) } else { Ok(found) }
}

/// The folder of this program, and its checkout, with the libtorch that its labs load.
fn of_program(file: &Path) -> Result<Vec<PathBuf>, Refused> {
    let folders: Vec<&Path> = file.parent().into_iter().chain(checkout_around(file)).collect();
    match folders.iter().find(|folder| is_local(folder)) {
        None => Ok(folders.into_iter().map(Path::to_owned).collect()),
        Some(local) => Err(Refused(format!(
            "each node has a {} of its own, without {}: move the program, with the checkout around it, to a folder in there or elsewhere",
            foreign::path(local),
            foreign::path(file)
        ))),
    }
}

/// Returns true if each node has its own folder of this name.
fn is_local(path: &Path) -> bool {
    LOCAL.iter().any(|local| path == Path::new(local))
}

fn is_hidden(path: &Path) -> bool {
    LOCAL.iter().any(|local| path.starts_with(local)) && !is_local(path)
}

/// Leaves out folders that are in another one.
fn outermost(mut folders: Vec<PathBuf>) -> Vec<PathBuf> {
    folders.sort();
    folders.dedup_by(|inner, outer| inner.starts_with(outer));
    folders
}

fn refuse_second(name: &ClusterName, folder: &Folder) -> Result<(), Refused> {
    match Cluster::open(name) {
        Ok(cluster) => Err(Refused(format!(
            "the cluster `{name}` is up with {} nodes ({}): lockstep cluster down, or choose another --name",
            cluster.spec.nodes,
            foreign::path(folder.path())
        ))),
        Err(_) => Ok(()),
    }
}

/// Makes the whole cluster. Whatever it has started ends when the pipe to the head node is closed, also when this fails.
fn make(folder: Folder, spec: ClusterSpec, signals: &Signals) -> anyhow::Result<Cluster> {
    folder.save(SPEC, &spec)?;
    folder.write("hosts", &hosts(&spec))?;
    if spec.slurm {
        slurm::configure(&folder, &spec)?;
    }
    let (cluster, stdin) = start_head(folder, spec)?;
    network::make_bridge(&cluster)?;
    if cluster.spec.slurm {
        slurm::start_controller(&cluster, signals)?;
    }
    let nodes: Vec<_> = cluster.spec.nodes().collect();
    for node in &nodes {
        check(signals)?;
        boot(&cluster, *node, signals)?;
    }
    if cluster.spec.slurm {
        slurm::wait(&cluster, &nodes, signals)?;
    }
    complete(stdin)?;
    Ok(cluster)
}

fn complete(mut head: ChildStdin) -> anyhow::Result<()> {
    head.write_all(COMPLETE.as_bytes()).context("the head node has ended")
}

/// The cluster's /etc/hosts: hosts(5).
fn hosts(spec: &ClusterSpec) -> String {
    let line = |(address, name): (Ipv4Addr, String)| format!("{address} {name}\n");
    let machines = spec.machines().map(|machine: Machine| (machine.address(), machine.to_string()));
    [(Ipv4Addr::LOCALHOST, "localhost".to_owned())].into_iter().chain(machines).map(line).collect()
}

/// What the cluster has, what it lacks, and the next commands.
fn show(screen: &Screen, name: &ClusterName, spec: &ClusterSpec, without_slurm: Option<String>) {
    screen.line(running::title(name, spec));
    if let Some(why) = without_slurm {
        screen.line(format!("Slurm is left out, since {why}; everything but srun, sbatch and sinfo works"));
    }
    if spec.user_namespace {
        screen.line("without root you are the only user on all machines");
    }
    let flag = if name.to_string() == "main" { String::new() } else { format!(" --name {name}") };
    let (machine, srun) =
        if spec.slurm { ("ctl", format!("srun --nodes={} ", spec.nodes)) } else { ("n1", String::new()) };
    screen.line(format!("try:  lockstep cluster{flag} exec {machine} -- {srun}hostname"));
    screen.line(format!("end:  lockstep cluster{flag} down"));
}

// ---- `lockstep cluster down`

/// How long the kernel may take to end all processes of a cluster.
const LONGEST_END: Duration = Duration::from_secs(60);

/// End a cluster; nothing is left of it
#[derive(Args)]
pub(super) struct Down {}

impl Down {
    pub(super) fn exec(self, name: &ClusterName) -> anyhow::Result<Code> {
        let folder = Folder::of(name);
        if !folder.exists() {
            let message = format!("there is no cluster `{name}`: {} does not exist", folder.path().display());
            return Err(Refused(message).into());
        }
        let _lock = folder.lock()?;
        take_down(&folder)?;
        Screen::new(false).line(format!("the cluster `{name}` is gone"));
        Ok(Code::Success)
    }
}

/// Ends everything that the cluster's holder holds, then removes the folder.
///
/// Errors: when it does not end: then the files stay. The system's own.
pub(super) fn take_down(folder: &Folder) -> anyhow::Result<()> {
    if let Ok(holder) = folder.load::<ClusterProcess>(HOLDER) {
        // `unshare`, which waits for it.
        let parent = holder.state(Path::new(PROC)).and_then(|_| ClusterProcess::find(Path::new(PROC), holder.parent));
        let deadline = Instant::now() + LONGEST_END;
        let held = holder.kill(deadline)?;
        let waited = parent.map_or(Ok(true), |parent| parent.wait(deadline))?;
        for (ended, process) in [(held, Some(holder)), (waited, parent)] {
            anyhow::ensure!(
                ended,
                "process {} of the cluster has not ended within {} s; its files stay in {}",
                process.map_or(0, |process| process.pid),
                LONGEST_END.as_secs(),
                foreign::path(folder.path())
            );
        }
    }
    folder.remove()
}

// ---- starting machines

/// How long a machine's first process may take to be ready: it mounts a few file systems.
const MACHINE_START: Duration = Duration::from_secs(60);

/// Starts the head node. The pipe is its stdin: until a line there says that the cluster is complete, closing the pipe ends it.
pub(super) fn start_head(folder: Folder, spec: ClusterSpec) -> anyhow::Result<(Cluster, ChildStdin)> {
    let mut command = Command::new("setsid");
    command.current_dir("/").env("PATH", super::search_path()).stdin(Stdio::piped());
    let user_namespace = spec.user_namespace;
    let (pid, stdin) = start_machine(command, user_namespace, &folder, Machine::Head)?;
    let holder = ClusterProcess::find(Path::new(PROC), pid).context("the head node has ended at once")?;
    folder.save(HOLDER, &holder)?;
    Ok((Cluster { folder, spec, holder }, stdin.context("the head node has no stdin")?))
}

/// Starts a node, plugs it in, and starts Slurm's daemon on it.
pub(super) fn boot(cluster: &Cluster, node: Node, signals: &Signals) -> anyhow::Result<()> {
    let mut command = cluster.command(Machine::Head, "setsid")?;
    command.current_dir("/").stdin(Stdio::null());
    let (pid, _) = start_machine(command, false, &cluster.folder, Machine::Node(node))?;
    let init = ClusterProcess::find(&cluster.proc(), pid).with_context(|| format!("{node} has ended at once"))?;
    cluster.folder.save(&node_file(node), &init)?;
    network::plug_in(cluster, node, init.pid)?;
    if cluster.spec.slurm { slurm::start_node(cluster, node, signals) } else { Ok(()) }
}

/// Starts a machine's first process behind `setsid`. Returns its number, as the `/proc` around the machine shows it.
fn start_machine(
    mut command: Command,
    user_namespace: bool,
    folder: &Folder,
    machine: Machine,
) -> anyhow::Result<(i32, Option<ChildStdin>)> {
    let log = folder.log(&format!("{machine}.log"));
    let file = File::create(&log).with_context(|| format!("cannot make {}", foreign::path(&log)))?;
    command.args(["--fork", "unshare"]).args(if user_namespace { &USER_NAMESPACE[..] } else { &[] }).args(NAMESPACES);
    command.arg(std::env::current_exe().context("cannot find the file of this program")?);
    command.arg(INIT).arg(folder.path()).arg(machine.to_string());
    let mut setsid = command.stdout(Stdio::piped()).stderr(file).spawn().context("cannot start setsid")?;
    let (stdin, stdout) = (setsid.stdin.take(), setsid.stdout.take().context("setsid has no stdout")?);
    let ready = first_line(stdout, Instant::now() + MACHINE_START);
    setsid.wait().context("cannot wait for setsid")?;
    let message = || format!("{machine} did not start{}", tail(&log));
    let line = ready.with_context(message)?;
    let pid = line.strip_prefix(READY).and_then(|pid| pid.trim().parse().ok()).with_context(message)?;
    Ok((pid, stdin))
}

/// What is written up to the first line's end.
fn first_line(mut pipe: ChildStdout, deadline: Instant) -> anyhow::Result<String> {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
        let readable = poll(&mut [PollFd::new(&pipe, PollFlags::IN)], left.as_ref())?;
        anyhow::ensure!(readable > 0, "it was not ready within {} s", MACHINE_START.as_secs());
        let mut byte = [0];
        anyhow::ensure!(pipe.read(&mut byte)? == 1, "its first process has ended");
        line.extend(byte);
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_machine_knows_all_others_by_name() {
        let spec = ClusterSpec { nodes: 2, gpus: 0, cpus: 1, slurm: false, user_namespace: false, shared: vec![] };
        assert_eq!(hosts(&spec), "127.0.0.1 localhost\n10.88.0.254 ctl\n10.88.0.1 n1\n10.88.0.2 n2\n");
    }

    #[test]
    fn shares_only_what_a_node_would_not_see() {
        assert!(["/tmp/a", "/dev/shm/a/b"].iter().all(|path| is_hidden(Path::new(path))));
        assert!(["/tmp", "/dev/shm", "/home/a", "/tmpfile", "/"].iter().all(|path| !is_hidden(Path::new(path))));
    }

    #[test]
    fn refuses_a_program_that_would_take_all_of_tmp_with_it() {
        assert_eq!(of_program(Path::new("/tmp/a/lockstep")).unwrap(), [Path::new("/tmp/a")]);
        let refused = of_program(Path::new("/tmp/lockstep")).unwrap_err().to_string();
        assert!(refused.starts_with("each node has a /tmp of its own, without /tmp/lockstep: move"), "{refused}");
    }

    #[test]
    fn shares_a_folder_within_a_shared_one_once() {
        let folders = ["/tmp/a/b", "/tmp/ab", "/tmp/a", "/tmp/a-b", "/tmp/a", "/tmp/a/b/c"].map(PathBuf::from);
        assert_eq!(outermost(folders.into()), ["/tmp/a", "/tmp/a-b", "/tmp/ab"].map(PathBuf::from));
    }
}
