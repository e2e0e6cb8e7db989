//! Which processes get a signal that is meant for a worker: a request for a snapshot or for the end, and what a shell left behind gets grace.
//!
//! A worker may be a program that only waits for another one: a shell, or timeout(1). Then a signal is meant for what runs under it, however
//! deep. If a program handles the signal, the processes below it do not get it: the program may need them, such as data loaders, to save a
//! checkpoint first.

use std::os::fd::OwnedFd;

use rustix::process::{Pid, Signal, pidfd_send_signal};

use crate::orphans::Orphan;
use crate::proc::{Stat, Status, children_of, executable};
use crate::process;

/// Signals that ask a program to end: HUP, INT, QUIT, USR1, USR2, TERM (signal(7)).
pub(super) const REQUESTS: [i32; 6] = [1, 2, 3, 10, 12, 15];

/// What a shell or timeout(1) left behind.
#[derive(Debug)]
pub struct Left {
    pub orphan: Orphan,
    /// It handles the signal by which it was asked to end. Others may read its output.
    pub handles: bool,
    /// Readable when it has ended.
    pub pidfd: OwnedFd,
}

/// The file names of shells. A shell that waits for a program does not pass its signals on.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ksh", "zsh", "busybox"];
/// The program that forwards a signal twice: to its child and to its group (`cleanup` in coreutils' timeout.c).
const TIMEOUT: &str = "timeout";

/// A process that gets a signal.
#[derive(Debug)]
pub(super) struct Receiver {
    pub(super) stat: Stat,
    pub(super) kind: ReceiverKind,
    pub(super) pidfd: OwnedFd,
}

/// How a process treats a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiverKind {
    /// It waits for another program: a shell, or timeout(1).
    Wrapper,
    /// It handles the signal.
    Program,
    Other,
}

impl Receiver {
    fn open(pid: i32, kind: ReceiverKind) -> Option<Self> {
        // The descriptor is opened first, so that both are of one process, or the process has ended.
        let pidfd = process::open(Pid::from_raw(pid)?).ok()?;
        let stat = Stat::of(pid).filter(|stat| !stat.is_dead())?;
        Some(Receiver { stat, kind, pidfd })
    }

    pub(super) fn signal(&self, signal: Signal) {
        // It may have ended meanwhile.
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }
}

/// The receivers, among these processes and their descendants, of a signal that asks for an end. Shells come before the programs that they
/// wait for, so that they do not start another command. If programs handle the signal, their siblings, such as the reader of their output,
/// do not get it.
pub(super) fn of_end(roots: impl Iterator<Item = i32>, signal: Signal) -> Vec<Receiver> {
    let mut found: Vec<Receiver> = roots.flat_map(|pid| below(pid, signal)).collect();
    if found.iter().any(|receiver| receiver.kind == ReceiverKind::Program) {
        found.retain(|receiver| receiver.kind != ReceiverKind::Other);
    }
    found
}

/// This process and its descendants, except those below programs that handle the signal.
pub(super) fn below(pid: i32, signal: Signal) -> Vec<Receiver> {
    let mut found = Vec::new();
    visit(pid, signal, &mut found);
    found
}

/// The programs that handle a signal, among this process and its descendants. A shell with a trap for it is one.
pub(super) fn that_handle(pid: i32, signal: Signal) -> Vec<Receiver> {
    if handles(pid, signal) && !is_timeout(pid) {
        return Receiver::open(pid, ReceiverKind::Program).into_iter().collect();
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
        found.extend(Receiver::open(pid, ReceiverKind::Wrapper));
        children_of(pid).into_iter().for_each(|child| visit(child, signal, found));
        if is_timeout(pid) && found.len() > begin {
            // Either passes the signal on to what is below, which then gets it from there, or does not get it.
            let reaches_program = found[begin..].iter().any(|receiver| receiver.kind == ReceiverKind::Program);
            if reaches_program { drop(found.remove(begin)) } else { found.truncate(begin + 1) }
        }
    } else if handles(pid, signal) {
        found.extend(Receiver::open(pid, ReceiverKind::Program));
    } else {
        found.extend(Receiver::open(pid, ReceiverKind::Other));
        group_below(pid, found);
    }
}

/// Adds the descendants of a program without a handler that are still in its process group.
fn group_below(pid: i32, found: &mut Vec<Receiver>) {
    let group = Stat::of(pid).map(|stat| stat.group);
    for child in children_of(pid) {
        if let Some(receiver) =
            Receiver::open(child, ReceiverKind::Other).filter(|child| Some(child.stat.group) == group)
        {
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
