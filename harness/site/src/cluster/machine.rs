//! The first process of a machine, and processes identified by more than their number.

use std::fs::{self, File};
use std::io::{self, BufRead, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use lockstep_contract::foreign;
use lockstep_process::Signals;
use lockstep_process::proc::Stat;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::mount::{MountFlags, mount, mount_bind, mount_bind_recursive, mount_move};
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions, pidfd_open, pidfd_send_signal, wait};
use rustix::system::sethostname;
use serde::{Deserialize, Serialize};
use signal_hook::consts::SIGCHLD;
use signal_hook::low_level::pipe;

use super::folder::Folder;
use super::running::SPEC;
use super::{ClusterSpec, Machine};
use crate::exit::{Code, Interrupted};

/// The subcommand's name.
pub const INIT: &str = "cluster-init";
/// The line on stdout that says that the machine is ready; the process id follows it.
pub(super) const READY: &str = "ready ";
/// The line on the head node's stdin after which it no longer depends on who started it.
pub(super) const COMPLETE: &str = "complete\n";
/// The folders of which each node has its own: its disk, and its memory.
pub(super) const LOCAL: [&str; 2] = [TMP, SHM];
const TMP: &str = "/tmp";
const SHM: &str = "/dev/shm";

/// The arguments of a machine's first process
#[derive(Args)]
pub struct Init {
    /// The cluster's.
    folder: PathBuf,
    #[arg(value_parser = str::parse::<Machine>)]
    machine: Machine,
}

impl Init {
    /// Does not return while the machine lives.
    pub fn exec(self) -> anyhow::Result<Code> {
        // As long as this `/proc` is that of the outer machine, its own number there can be read in it.
        let pid = fs::read_link("/proc/self").context("cannot read /proc/self")?;
        let folder = Folder::at(&self.folder);
        let spec: ClusterSpec = folder.load(SPEC)?;
        self.set_up(&folder, &spec).with_context(|| format!("cannot make {} a machine of its own", self.machine))?;
        let children = UnixStream::pair().and_then(|(read, write)| pipe::register(SIGCHLD, write).map(|_| read));
        let children = children.context("cannot listen to SIGCHLD")?;
        if self.machine == Machine::Head {
            let watch = thread::Builder::new().spawn(end_unless_complete);
            watch.context("cannot start a thread")?;
        }
        writeln!(io::stdout(), "{READY}{}", pid.display()).context("no process waits for this machine")?;
        release_output()?;
        reap(children)
    }

    fn set_up(&self, folder: &Folder, spec: &ClusterSpec) -> anyhow::Result<()> {
        sethostname(self.machine.to_string().as_bytes()).context("cannot set the host name")?;
        attach("proc", "/proc", "")?;
        if let Err(error) = attach("sysfs", "/sys", "") {
            // A container may forbid it; then programs see its interfaces in /sys, and the right ones everywhere else.
            let _ = writeln!(io::stderr(), "{error:#}");
        }
        let Machine::Node(node) = self.machine else {
            let hosts = folder.file("hosts");
            return mount_bind(&hosts, "/etc/hosts").context("cannot replace /etc/hosts for the cluster");
        };
        let own = |kind: &str| folder.file("local").join(format!("{node}{kind}"));
        let (memory, disk) = (own(".shm"), own(""));
        make(&memory)?;
        attach("tmpfs", &memory, "mode=1777")?;
        put(&memory, SHM, &spec.shared)?;
        make(&disk)?;
        fs::set_permissions(&disk, fs::Permissions::from_mode(0o1777))?;
        mount_bind(&disk, &disk).with_context(|| format!("cannot mount {}", foreign::path(&disk)))?;
        put(&disk, TMP, &spec.shared)
    }
}

fn attach(kind: &str, target: impl AsRef<Path>, options: &str) -> anyhow::Result<()> {
    let (target, options) = (target.as_ref(), std::ffi::CString::new(options)?);
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount(kind, target, kind, flags, options.as_c_str())
        .with_context(|| format!("cannot mount a {kind} on {}", foreign::path(target)))
}

fn make(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", foreign::path(folder)))
}

/// Puts the mount `own` in the place of `local`, with the shared folders where they were.
fn put(own: &Path, local: &str, shared: &[PathBuf]) -> anyhow::Result<()> {
    let message = |what: &Path| format!("cannot mount {} on a {local} of the node's own", what.display());
    let within = |folder: &Path| folder.strip_prefix(local).ok().map(|rest| own.join(rest));
    // Shared folders are mounted first, while their paths still lead to them.
    for folder in shared {
        let Some(place) = within(folder) else { continue };
        make(&place)?;
        // Without the mounts in it, a user who is not root may not mount a folder.
        mount_bind_recursive(folder, &place).with_context(|| message(folder))?;
    }
    within(&std::env::temp_dir()).map_or(Ok(()), |temporary| make(&temporary))?;
    mount_move(own, local).with_context(|| message(own))
}

/// No half-made cluster is left: until it is complete, it ends with the command that makes it.
fn end_unless_complete() {
    let mut line = String::new();
    let _ = io::stdin().lock().read_line(&mut line);
    if line != COMPLETE {
        std::process::exit(1);
    }
}

/// From here on nobody reads this pipe. What goes to stderr is in the log.
fn release_output() -> anyhow::Result<()> {
    let null = File::options().write(true).open("/dev/null").context("cannot open /dev/null")?;
    rustix::stdio::dup2_stdout(&null).context("cannot release stdout")
}

/// Each byte stands for at least one child that has ended.
fn reap(mut children: UnixStream) -> anyhow::Result<Code> {
    loop {
        children.read(&mut [0; 64]).context("cannot wait for children")?;
        while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
    }
}

// ---- processes

/// Where this process sees others.
pub(super) const PROC: &str = "/proc";
/// How often to look for signals while waiting for something else.
const LOOK: Duration = Duration::from_millis(50);

/// A process, as a given `/proc` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ClusterProcess {
    pub(super) pid: i32,
    /// Who started it.
    pub(super) parent: i32,
    /// Clock ticks from the system's boot until it was started (proc(5)).
    started: u64,
}

impl ClusterProcess {
    /// The process of this number.
    pub(super) fn find(proc: &Path, pid: i32) -> Option<Self> {
        let stat = Stat::seen_in(proc, pid)?;
        Some(ClusterProcess { pid, parent: stat.parent, started: stat.start })
    }

    /// The letter of its state (proc(5)); `None` when it has ended.
    pub(super) fn state(self, proc: &Path) -> Option<char> {
        let stat = Stat::seen_in(proc, self.pid)?;
        (stat.start == self.started && stat.state != 'Z').then_some(stat.state)
    }

    /// Kills it, if it is there, and waits until it has ended. Of the first process of a process-id namespace, that is when all others
    /// in there have ended, too. Returns false if it has not ended at the deadline.
    pub(super) fn kill(self, deadline: Instant) -> std::io::Result<bool> {
        self.signal_and_wait(Some(Signal::KILL), deadline)
    }

    /// Waits until it has ended. Returns false if it has not at the deadline.
    pub(super) fn wait(self, deadline: Instant) -> std::io::Result<bool> {
        self.signal_and_wait(None, deadline)
    }

    fn signal_and_wait(self, signal: Option<Signal>, deadline: Instant) -> std::io::Result<bool> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(true) };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return Ok(true),
            opened => opened?,
        };
        // From here on the descriptor refers to this process, even if another one gets its number.
        if self.state(Path::new(PROC)).is_none() {
            return Ok(true);
        }
        if let Some(signal) = signal {
            pidfd_send_signal(&pidfd, signal)?;
        }
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
        Ok(retry_on_intr(|| poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], left.as_ref()))? > 0)
    }
}

/// Waits for a child's end; `None` at the deadline. It is not killed: what it has started may be meant to stay.
pub(super) fn wait_for(child: &mut Child, deadline: Instant, signals: &Signals) -> anyhow::Result<Option<ExitStatus>> {
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        check(signals)?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Timespec::try_from(left.min(LOOK)).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

pub(super) fn check(signals: &Signals) -> Result<(), Interrupted> {
    signals.arrived().map_or(Ok(()), |signal| Err(Interrupted { signal }))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn kills_the_process_that_it_knows_and_no_later_one_of_its_number() {
        let proc = Path::new(PROC);
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let known = ClusterProcess::find(proc, child.id() as i32).unwrap();
        assert_eq!(known.parent, std::process::id() as i32);
        let deadline = Instant::now() + Duration::from_secs(60);
        let later = ClusterProcess { started: known.started + 1, ..known };
        assert!(later.kill(deadline).unwrap() && child.try_wait().unwrap().is_none());
        assert!(!known.wait(Instant::now()).unwrap());
        assert!(known.kill(deadline).unwrap());
        assert_eq!(known.state(proc), None);
        child.wait().unwrap();
        assert!(known.kill(deadline).unwrap());
    }
}
