//! The reaper: a small process that outlives the agent briefly if the agent is killed.
//!
//! The kernel kills workers with the agent, but not the processes that workers have started. So the agent first starts
//! this process and holds a socket to it. If the socket closes without a goodbye, the reaper ends the rest
//! ([`run`]). If the reaper dies, the agent starts another and sends it every message again.
//!
//! The reaper kills the processes that have the agent's id (`AgentId`) and those in a worker's session, then removes
//! the folders that the agent has registered. A process that set its own limit on locks, cleared its environment and
//! began a session of its own cannot be distinguished from other processes. It survives, as it does under a living agent
//! ([`super::orphans`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsString};
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, getpid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use super::Process;
use super::orphans::AgentId;
use super::proc::{self, Stat};
use super::process::kill_until_gone;
use super::start::{self, DIES_WITH_PARENT, NOT_STARTED};

/// The subcommand by which this executable becomes the reaper.
const REAPER: &str = "reaper";
/// What the reaper is called in lists of processes. Not the agent's name: it must survive `pkill lockstep`.
const NAME: &str = "job-reaper";

/// A reaper that dies within this time has failed to start.
const FAILED: Duration = Duration::from_secs(1);
/// The number of consecutive failures after which the agent gives up.
const TRIES: u32 = 5;
/// How long a reaper may take to end after a goodbye.
const GOODBYE: Duration = Duration::from_secs(2);

/// A message from the agent to its reaper. Each is text that ends with a zero byte, which no path contains.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Message {
    /// The worker with this process id leads a session; it was started at this time (see [`Stat::start`]).
    WorkerStarted(i32, u64),
    /// All processes of that worker's session are gone.
    WorkerGone(i32),
    /// Remove this folder if the agent is killed.
    RegisterCleanup(PathBuf),
    /// Do not remove this folder.
    UnregisterCleanup(PathBuf),
    /// The agent ends normally.
    Goodbye,
}

/// The reaper, as the agent sees it.
pub(super) struct Reaper {
    id: AgentId,
    process: Process,
    socket: UnixStream,
    sessions: BTreeMap<i32, u64>,
    folders: BTreeSet<PathBuf>,
    started: Instant,
    failures: u32,
}

impl Reaper {
    pub(super) fn start() -> io::Result<Self> {
        if is_reaper() {
            let message =
                "this process was started as a reaper: call `lockstep_process::internal_main` first in `main`";
            return Err(io::Error::other(message));
        }
        let id = AgentId::random()?;
        let (process, socket) = spawn(id, &[])?;
        let (sessions, folders) = (BTreeMap::new(), BTreeSet::new());
        Ok(Reaper { id, process, socket, sessions, folders, started: Instant::now(), failures: 0 })
    }

    pub(super) fn id(&self) -> AgentId {
        self.id
    }

    pub(super) fn pid(&self) -> i32 {
        self.process.pid().as_raw_pid()
    }

    pub(super) fn process(&self) -> &Process {
        &self.process
    }

    pub(super) fn register_cleanup(&mut self, folder: &Path) {
        // The reaper runs in another folder.
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        self.send(&Message::RegisterCleanup(folder.clone()));
        self.folders.insert(folder);
    }

    pub(super) fn unregister_cleanup(&mut self, folder: &Path) {
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        self.send(&Message::UnregisterCleanup(folder.clone()));
        self.folders.remove(&folder);
    }

    pub(super) fn worker_started(&mut self, pid: Pid) {
        let pid = pid.as_raw_pid();
        // A worker that is not reaped has an entry in `/proc`.
        let Some(stat) = Stat::of(pid) else { return };
        self.sessions.insert(pid, stat.start);
        self.send(&Message::WorkerStarted(pid, stat.start));
    }

    pub(super) fn worker_gone(&mut self, pid: i32) {
        self.sessions.remove(&pid);
        self.send(&Message::WorkerGone(pid));
    }

    /// Starts another reaper after one has died.
    pub(super) fn replace(&mut self) -> io::Result<()> {
        let status = self.process.child.wait()?;
        let now = Instant::now();
        self.failures = failures(self.failures, now - self.started);
        self.started = now;
        if self.failures >= TRIES {
            let message =
                format!("the agent's reaper ({NAME}) died {TRIES} times at its start, the last time with {status}");
            return Err(io::Error::other(message));
        }
        let sessions = self.sessions.iter().map(|(pid, start)| Message::WorkerStarted(*pid, *start));
        let messages: Vec<Message> =
            sessions.chain(self.folders.iter().cloned().map(Message::RegisterCleanup)).collect();
        (self.process, self.socket) = spawn(self.id, &messages)?;
        Ok(())
    }

    /// Sends a goodbye and waits until the reaper has ended.
    pub(super) fn dismiss(&mut self) {
        self.send(&Message::Goodbye);
        let _ = self.socket.shutdown(std::net::Shutdown::Both);
        let _ = self.process.wait_or_kill(Instant::now() + GOODBYE);
    }

    fn send(&mut self, message: &Message) {
        let bytes = message.to_bytes();
        // A reaper that does not read (its socket is full: it is stopped) is killed, and then replaced.
        if !matches!((&self.socket).write(&bytes), Ok(written) if written == bytes.len()) {
            let _ = self.process.signal(Signal::KILL);
        }
    }
}

impl Message {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = match self {
            Message::WorkerStarted(pid, start) => format!("started {pid} {start}").into_bytes(),
            Message::WorkerGone(pid) => format!("gone {pid}").into_bytes(),
            Message::RegisterCleanup(folder) => [b"register ", folder.as_os_str().as_bytes()].concat(),
            Message::UnregisterCleanup(folder) => [b"unregister ", folder.as_os_str().as_bytes()].concat(),
            Message::Goodbye => b"goodbye".to_vec(),
        };
        bytes.push(0);
        bytes
    }

    /// Reads one message, without its final zero byte.
    fn parse(bytes: &[u8]) -> Option<Self> {
        let path = |bytes: &[u8]| PathBuf::from(OsString::from_vec(bytes.to_vec()));
        if let Some(folder) = bytes.strip_prefix(b"register ") {
            return Some(Message::RegisterCleanup(path(folder)));
        }
        if let Some(folder) = bytes.strip_prefix(b"unregister ") {
            return Some(Message::UnregisterCleanup(path(folder)));
        }
        let words: Vec<&str> = std::str::from_utf8(bytes).ok()?.split(' ').collect();
        match words[..] {
            ["started", pid, start] => Some(Message::WorkerStarted(pid.parse().ok()?, start.parse().ok()?)),
            ["gone", pid] => Some(Message::WorkerGone(pid.parse().ok()?)),
            ["goodbye"] => Some(Message::Goodbye),
            _ => None,
        }
    }
}

/// The number of consecutive failures after a reaper that lived for `lived`.
fn failures(before: u32, lived: Duration) -> u32 {
    if lived < FAILED { before + 1 } else { 0 }
}

/// Starts a reaper that reads these messages first: they are in the socket before it starts, so that it misses none.
fn spawn(id: AgentId, messages: &[Message]) -> io::Result<(Process, UnixStream)> {
    let (ours, theirs) = UnixStream::pair()?;
    ours.set_nonblocking(true)?;
    let bytes: Vec<u8> = messages.iter().flat_map(Message::to_bytes).collect();
    (&ours).write_all(&bytes)?;
    // The kernel's link still refers to this executable if the file has been replaced, for example by a rebuild.
    let mut command = Command::new("/proc/self/exe");
    command.arg0(NAME).arg(REAPER).arg(id.to_string()).stdin(OwnedFd::from(theirs));
    Ok((Process::start(command.stdout(Stdio::null()).stderr(Stdio::null()))?, ours))
}

/// Returns true if this process was started by [`spawn`].
fn is_reaper() -> bool {
    let args: Vec<OsString> = std::env::args_os().take(2).collect();
    args == [NAME, REAPER]
}

/// Runs an internal subcommand of this executable, if it was started for one: as the reaper, or by [`words_dying_with_parent`]. Returns the
/// exit code for `main`; `None` if this is an ordinary start. An executable that keeps [`Workers`] calls it before anything else, in
/// particular before it starts a thread.
///
/// [`words_dying_with_parent`]: crate::words_dying_with_parent
/// [`Workers`]: crate::Workers
pub fn internal_main() -> Option<ExitCode> {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let (name, args) = args.split_first()?;
    if name == DIES_WITH_PARENT {
        return Some(start::become_program(args));
    }
    if !is_reaper() {
        return None;
    }
    let done = run(args);
    Some(done.map_or_else(|_| ExitCode::from(NOT_STARTED), |()| ExitCode::SUCCESS))
}

/// Time limit for ending the processes that are left. Processes that hang in the kernel longer are abandoned.
const LIMIT: Duration = Duration::from_secs(10);

/// What the agent has registered.
#[derive(Debug, Default, PartialEq, Eq)]
struct Registered {
    sessions: BTreeMap<i32, u64>,
    folders: BTreeSet<PathBuf>,
    goodbye: bool,
}

/// Reads messages from the standard input until the agent's end.
fn run(args: &[OsString]) -> anyhow::Result<()> {
    let id = args.first().and_then(|id| AgentId::parse(id.to_str()?)).context("no id of an agent was given")?;
    let socket: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    settle()?;
    let registered = listen(BufReader::new(fs::File::from(socket)));
    if !registered.goodbye {
        let left = || proc::pids().filter(|pid| is_left(*pid, id, &registered.sessions)).collect();
        kill_until_gone(Instant::now() + LIMIT, left);
        for folder in &registered.folders {
            // No process is left that could report the error.
            let _ = fs::remove_dir_all(folder);
        }
    }
    Ok(())
}

/// Detaches from what ends the agent: its terminal, its folder, its signals.
fn settle() -> anyhow::Result<()> {
    rustix::process::setsid().context("cannot begin a session")?;
    std::env::set_current_dir("/")?;
    for signal in [SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    // Last, so that a process of this name survives signals.
    Ok(rustix::thread::set_name(&CString::new(NAME)?)?)
}

fn listen(mut messages: impl BufRead) -> Registered {
    let mut registered = Registered::default();
    let mut bytes = Vec::new();
    // An error counts as the end, too.
    while matches!(messages.read_until(0, &mut bytes), Ok(count) if count > 0) {
        if bytes.pop() == Some(0)
            && let Some(message) = Message::parse(&bytes)
        {
            registered.take(message);
        }
        bytes.clear();
    }
    registered
}

impl Registered {
    fn take(&mut self, message: Message) {
        match message {
            Message::WorkerStarted(pid, start) => drop(self.sessions.insert(pid, start)),
            Message::WorkerGone(pid) => drop(self.sessions.remove(&pid)),
            Message::RegisterCleanup(folder) => drop(self.folders.insert(folder)),
            Message::UnregisterCleanup(folder) => drop(self.folders.remove(&folder)),
            Message::Goodbye => self.goodbye = true,
        }
    }
}

fn is_left(pid: i32, id: AgentId, sessions: &BTreeMap<i32, u64>) -> bool {
    let Some(stat) = Stat::of(pid) else { return false };
    stat.pid != getpid().as_raw_pid() && !stat.is_dead() && (in_session(&stat, sessions) || id.is_of(pid))
}

/// Returns true if the process is in a worker's session. A session's id stays in use while a process is in it. A
/// process that got the id after the worker leads a session that began later, so the leader, if alive, must be the
/// worker.
fn in_session(stat: &Stat, sessions: &BTreeMap<i32, u64>) -> bool {
    let Some(start) = sessions.get(&stat.session) else { return false };
    let leader = Stat::of(stat.session);
    stat.start >= *start && leader.is_none_or(|leader| leader.start == *start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_were_sent() {
        let odd = PathBuf::from(OsString::from_vec(b"/tmp/a b\n\xff gone 3".to_vec()));
        let messages = [
            Message::WorkerStarted(42, 987_654),
            Message::WorkerGone(42),
            Message::RegisterCleanup(odd.clone()),
            Message::UnregisterCleanup(odd),
            Message::Goodbye,
        ];
        for message in messages {
            let bytes = message.to_bytes();
            assert_eq!(bytes.iter().filter(|byte| **byte == 0).count(), 1);
            assert_eq!(Message::parse(bytes.strip_suffix(b"\0").unwrap()), Some(message));
        }
        for wrong in ["", "started", "started 1", "started x 2", "started 1 2 3", "gone", "goodbye 1", "\u{ff}"] {
            assert_eq!(Message::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn only_reapers_that_die_soon_after_their_start_count_as_failed() {
        assert_eq!(failures(0, Duration::ZERO), 1);
        assert_eq!(failures(3, Duration::from_millis(999)), 4);
        assert_eq!(failures(4, FAILED), 0);
    }

    #[test]
    fn remembers_what_was_registered_last() {
        let messages = [
            Message::WorkerStarted(7, 100),
            Message::WorkerStarted(8, 101),
            Message::WorkerGone(7),
            Message::RegisterCleanup("/tmp/a".into()),
            Message::RegisterCleanup("/tmp/b".into()),
            Message::UnregisterCleanup("/tmp/a".into()),
        ];
        let bytes: Vec<u8> = messages.iter().flat_map(Message::to_bytes).collect();
        let expected =
            Registered { sessions: [(8, 101)].into(), folders: [PathBuf::from("/tmp/b")].into(), goodbye: false };
        assert_eq!(listen(&bytes[..]), expected);
        assert!(listen(&[&bytes[..], b"goodbye\0"].concat()[..]).goodbye);
    }

    /// A folder whose name arrived only in part must not be removed.
    #[test]
    fn a_message_that_was_cut_off_is_ignored() {
        for cut in [&b"register /home"[..], b"goodbye", b"\0", b"nonsense\0"] {
            assert_eq!(listen(cut), Registered::default());
        }
    }

    #[test]
    fn only_a_session_that_the_worker_leads_is_the_workers() {
        let own = Stat::of(getpid().as_raw_pid()).unwrap();
        let leader = Stat::of(own.session);
        let started = leader.map_or(own.start, |leader| leader.start);
        assert!(in_session(&own, &[(own.session, started)].into()));
        assert!(!in_session(&own, &[(own.session, own.start + 1)].into()));
        assert!(!in_session(&own, &BTreeMap::new()));
    }
}
