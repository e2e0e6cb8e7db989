//! The processes that a signal to a worker is meant for.
//!
//! A worker may be a program that only waits for another one: a shell, or timeout(1). Then a signal is meant for what runs under it,
//! however deep. Below a program that handles the signal nobody gets it: to save a checkpoint first, the program may need the processes
//! that it started, such as data loaders.

use std::os::fd::OwnedFd;

use rustix::process::{Pid, Signal, pidfd_send_signal};

use super::proc::{Stat, Status, children_of, executable};
use super::process;

/// Shells, by the names of their files. A shell's handler does not reach the program for which it waits.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ksh", "zsh", "busybox"];
/// It sends a signal on twice, to its child and to its group (`cleanup` of coreutils' timeout.c).
const TIMEOUT: &str = "timeout";

/// A process that gets a signal.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) stat: Stat,
    pub(super) is: Is,
    pidfd: OwnedFd,
}

/// What a process is to a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Is {
    /// It waits for another program: a shell, or timeout(1).
    Wrapper,
    /// It handles the signal.
    Program,
    Other,
}

impl Receiver {
    fn open(pid: i32, is: Is) -> Option<Self> {
        // The descriptor is opened first, so that both are of one process, or the process has ended.
        let pidfd = process::open(Pid::from_raw(pid)?).ok()?;
        let stat = Stat::of(pid).filter(|stat| !stat.is_dead())?;
        Some(Receiver { stat, is, pidfd })
    }

    pub(super) fn signal(&self, signal: Signal) {
        // It may have ended meanwhile.
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }

    /// Readable when the process has ended.
    pub(super) fn into_pidfd(self) -> OwnedFd {
        self.pidfd
    }
}

/// Those under these processes, themselves included, that get a signal that asks for an end: shells before what they wait for, so that
/// they do not start another command. If programs handle the signal, those next to them do not get it, such as the reader of their output.
pub(super) fn of_end(roots: impl Iterator<Item = i32>, signal: Signal) -> Vec<Receiver> {
    let mut found: Vec<Receiver> = roots.flat_map(|pid| below(pid, signal)).collect();
    if found.iter().any(|receiver| receiver.is == Is::Program) {
        found.retain(|receiver| receiver.is != Is::Other);
    }
    found
}

/// This process and what is under it, except below programs that handle the signal.
pub(super) fn below(pid: i32, signal: Signal) -> Vec<Receiver> {
    let mut found = Vec::new();
    visit(pid, signal, &mut found);
    found
}

/// The programs under this process, itself included, that handle a signal. A shell with a trap for it is one.
pub(super) fn that_handle(pid: i32, signal: Signal) -> Vec<Receiver> {
    if handles(pid, signal) && !is_timeout(pid) {
        return Receiver::open(pid, Is::Program).into_iter().collect();
    }
    if !is_shell(pid) && !is_timeout(pid) {
        return vec![];
    }
    children_of(pid).into_iter().flat_map(|child| that_handle(child, signal)).collect()
}

/// Returns true if this process is a shell or timeout(1).
pub(super) fn is_wrapper(pid: i32) -> bool {
    is_shell(pid) || is_timeout(pid)
}

fn visit(pid: i32, signal: Signal, found: &mut Vec<Receiver>) {
    if is_wrapper(pid) {
        let begin = found.len();
        found.extend(Receiver::open(pid, Is::Wrapper));
        children_of(pid).into_iter().for_each(|child| visit(child, signal, found));
        if is_timeout(pid) && found.len() > begin {
            // Either passes the signal on to what is below, which then gets it from there, or does not get it.
            let reaches_program = found[begin..].iter().any(|receiver| receiver.is == Is::Program);
            if reaches_program { drop(found.remove(begin)) } else { found.truncate(begin + 1) }
        }
    } else if handles(pid, signal) {
        found.extend(Receiver::open(pid, Is::Program));
    } else {
        found.extend(Receiver::open(pid, Is::Other));
        group_below(pid, found);
    }
}

/// Adds what a program without a handler has started and not made a group of its own.
fn group_below(pid: i32, found: &mut Vec<Receiver>) {
    let group = Stat::of(pid).map(|stat| stat.group);
    for child in children_of(pid) {
        if let Some(receiver) = Receiver::open(child, Is::Other).filter(|child| Some(child.stat.group) == group) {
            found.push(receiver);
            group_below(child, found);
        }
    }
}

fn handles(pid: i32, signal: Signal) -> bool {
    Status::of(pid).is_some_and(|status| status.handles(signal.as_raw()))
}

fn is_shell(pid: i32) -> bool {
    executable(pid).is_some_and(|name| SHELLS.contains(&&*name))
}

fn is_timeout(pid: i32) -> bool {
    executable(pid).is_some_and(|name| name == TIMEOUT)
}
