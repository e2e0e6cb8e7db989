//! What the reaper does: waits for the agent's end. If the agent ends without a goodbye, it kills what
//! workers left.
//!
//! It kills the processes that have the agent's id ([`super::agent_id`]) and those in a worker's session, then removes
//! the folders that the agent has registered. A process that set its own limit on locks, cleared its environment and
//! began a session of its own cannot be distinguished from a stranger. It survives, as it does under a living agent
//! ([`super::orphans`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{CString, OsString};
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::getpid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use super::agent_id::AgentId;
use super::kill::kill_until_gone;
use super::proc::{self, Stat};
use super::reaper::{Message, NAME};

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
///
/// # Errors
/// The system's error.
pub(super) fn run(args: &[OsString]) -> anyhow::Result<()> {
    let id = args.first().and_then(|id| AgentId::parse(id.to_str()?)).context("no id of an agent was given")?;
    let socket: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    settle()?;
    let registered = listen(BufReader::new(fs::File::from(socket)));
    if !registered.goodbye {
        end_all(id, &registered.sessions);
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

fn end_all(id: AgentId, sessions: &BTreeMap<i32, u64>) {
    kill_until_gone(Instant::now() + LIMIT, || proc::pids().filter(|pid| is_left(*pid, id, sessions)).collect());
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
