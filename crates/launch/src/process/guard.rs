//! The hidden subcommand `warden`: waits for the agent's end, and after one without a goodbye ends what workers left.
//!
//! Killed are the processes that carry the agent's mark ([`super::mark`]) and those in a worker's session; then the folders
//! that the agent had entrusted are removed. What had set its limit on locks itself, cleared its environment and begun a
//! session of its own cannot be told from a stranger any more, and lives on, as it does under a living agent
//! ([`super::stray`]).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::process::{Pid, Signal, getpid, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::mark::AgentId;
use super::proc::{self, Stat};
use super::warden::Word;
use super::watch;

/// How long it tries to end what is left. What is held in the kernel longer than that is given up.
const LIMIT: Duration = Duration::from_secs(10);
/// Between two looks. Parents hand their children on while they die, so that one look can miss some.
const PAUSE: Duration = Duration::from_millis(10);
/// So many looks in a row must find nothing.
const CALM: u32 = 3;

/// What the agent has told.
#[derive(Debug, Default, PartialEq, Eq)]
struct Told {
    sessions: BTreeMap<i32, u64>,
    folders: BTreeSet<PathBuf>,
    goodbye: bool,
}

/// Listens on the standard input until the agent's end.
///
/// # Errors
/// The system's own.
pub(super) fn run(args: &[OsString]) -> anyhow::Result<()> {
    let id = args
        .first()
        .and_then(|id| AgentId::parse(id.to_str()?))
        .context("the warden is not for people: use `lockstep run`")?;
    let socket: OwnedFd = io::stdin().as_fd().try_clone_to_owned()?;
    settle()?;
    let told = listen(BufReader::new(fs::File::from(socket)));
    if !told.goodbye {
        end_all(id, &told.sessions);
        for folder in &told.folders {
            // Nobody is there to be told that it cannot be removed.
            let _ = fs::remove_dir_all(folder);
        }
    }
    Ok(())
}

/// Steps out of the way of what ends the agent: its terminal, its folder, its signals.
fn settle() -> anyhow::Result<()> {
    rustix::process::setsid().context("cannot begin a session")?;
    // Not the agent's name: `pkill lockstep` must leave somebody to clean up.
    rustix::thread::set_name(c"job-warden")?;
    std::env::set_current_dir("/")?;
    for signal in [SIGTERM, SIGINT, SIGHUP] {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    Ok(())
}

fn listen(mut words: impl BufRead) -> Told {
    let mut told = Told::default();
    let mut bytes = Vec::new();
    // An error is an end, too.
    while matches!(words.read_until(0, &mut bytes), Ok(count) if count > 0) {
        if bytes.pop() == Some(0)
            && let Some(word) = Word::parse(&bytes)
        {
            told.hear(word);
        }
        bytes.clear();
    }
    told
}

impl Told {
    fn hear(&mut self, word: Word) {
        match word {
            Word::Began(pid, start) => drop(self.sessions.insert(pid, start)),
            Word::Gone(pid) => drop(self.sessions.remove(&pid)),
            Word::Entrust(folder) => drop(self.folders.insert(folder)),
            Word::Release(folder) => drop(self.folders.remove(&folder)),
            Word::Goodbye => self.goodbye = true,
        }
    }
}

fn end_all(id: AgentId, sessions: &BTreeMap<i32, u64>) {
    let until = Instant::now() + LIMIT;
    let mut calm = 0;
    while calm < CALM && Instant::now() < until {
        let found = proc::everyone().filter(|pid| kill_if_left(*pid, id, sessions)).count();
        calm = if found == 0 { calm + 1 } else { 0 };
        thread::sleep(PAUSE);
    }
}

/// Kills the process if it was the agent's; whether there was one.
fn kill_if_left(pid: i32, id: AgentId, sessions: &BTreeMap<i32, u64>) -> bool {
    if !is_left(pid, id, sessions) {
        return false;
    }
    // From the opening on, the descriptor means one process; a second look tells that it is the right one.
    let Some(pidfd) = Pid::from_raw(pid).and_then(|pid| watch::open(pid).ok()) else { return false };
    is_left(pid, id, sessions) && pidfd_send_signal(&pidfd, Signal::KILL).is_ok()
}

fn is_left(pid: i32, id: AgentId, sessions: &BTreeMap<i32, u64>) -> bool {
    let Some(stat) = Stat::of(pid) else { return false };
    stat.pid != getpid().as_raw_pid() && !stat.is_dead() && (in_session(&stat, sessions) || id.marks(pid))
}

/// Whether it is in a worker's session. The session's number stays taken while a process is in it; one that took the
/// number later than the worker leads a session that began later, so the leader, if it lives, must be the worker.
fn in_session(stat: &Stat, sessions: &BTreeMap<i32, u64>) -> bool {
    let Some(start) = sessions.get(&stat.session) else { return false };
    let leader = Stat::of(stat.session);
    stat.start >= *start && leader.is_none_or(|leader| leader.start == *start)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_what_it_was_told_last() {
        let words = [
            Word::Began(7, 100),
            Word::Began(8, 101),
            Word::Gone(7),
            Word::Entrust("/tmp/a".into()),
            Word::Entrust("/tmp/b".into()),
            Word::Release("/tmp/a".into()),
        ];
        let bytes: Vec<u8> = words.iter().flat_map(Word::to_bytes).collect();
        let expected = Told { sessions: [(8, 101)].into(), folders: [PathBuf::from("/tmp/b")].into(), goodbye: false };
        assert_eq!(listen(&bytes[..]), expected);
        assert!(listen(&[&bytes[..], b"goodbye\0"].concat()[..]).goodbye);
    }

    /// A folder whose name came in half must not be removed.
    #[test]
    fn a_word_that_was_cut_off_says_nothing() {
        for cut in [&b"entrust /home"[..], b"goodbye", b"\0", b"nonsense\0"] {
            assert_eq!(listen(cut), Told::default());
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
