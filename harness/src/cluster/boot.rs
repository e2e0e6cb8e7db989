//! Starts machines: the head node, which holds the cluster, and a node, at first or again after it was lost.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::Context;
use lockstep_contract::foreign;
use lockstep_process::Signals;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::folder::Folder;
use super::init::{INIT, READY};
use super::log::tail;
use super::means::{self, NAMESPACES, USER_NAMESPACE};
use super::process::{PROC, Process};
use super::running::{Cluster, HOLDER, node_file};
use super::spec::{Machine, Node, Spec};
use super::{network, slurm};

/// How long a machine's first process may take to be ready: it mounts a few file systems.
const START: Duration = Duration::from_secs(60);

/// Starts the head node. The pipe is its stdin: unless it is said to be complete there, it ends as soon as the pipe is closed.
///
/// # Errors
/// When it does not start, with its last words.
pub(super) fn start_head(folder: Folder, spec: Spec) -> anyhow::Result<(Cluster, ChildStdin)> {
    let mut command = Command::new("setsid");
    command.current_dir("/").env("PATH", means::path()).stdin(Stdio::piped());
    let user_namespace = spec.user_namespace;
    let (pid, stdin) = start(command, user_namespace, &folder, Machine::Head)?;
    let holder = Process::find(Path::new(PROC), pid).context("the head node has ended at once")?;
    folder.save(HOLDER, &holder)?;
    Ok((Cluster { folder, spec, holder }, stdin.context("the head node has no stdin")?))
}

/// Starts a node, plugs it in, and starts Slurm's daemon on it.
///
/// # Errors
/// When a step fails, with its last words.
pub(super) fn boot(cluster: &Cluster, node: Node, signals: &Signals) -> anyhow::Result<()> {
    let mut command = cluster.command(Machine::Head, "setsid")?;
    command.current_dir("/").stdin(Stdio::null());
    let (pid, _) = start(command, false, &cluster.folder, Machine::Node(node))?;
    let init = Process::find(&cluster.proc(), pid).with_context(|| format!("{node} has ended at once"))?;
    cluster.folder.save(&node_file(node), &init)?;
    network::plug_in(cluster, node, init.pid)?;
    if cluster.spec.slurm { slurm::start_node(cluster, node, signals) } else { Ok(()) }
}

/// Starts a machine's first process behind `setsid`. Returns its number, as the `/proc` around the machine shows it.
fn start(
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
    let ready = first_line(stdout, Instant::now() + START);
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
        anyhow::ensure!(readable > 0, "it was not ready within {} s", START.as_secs());
        let mut byte = [0];
        anyhow::ensure!(pipe.read(&mut byte)? == 1, "its first process has ended");
        line.extend(byte);
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}
