//! Signals to workers: which processes get them, snapshot requests, requests to end, kills, and the grace of what a shell left behind.
//!
//! A worker may be a program that only waits for another one: a shell, or timeout(1). Then a signal is meant for what runs under it,
//! however deep. If a program handles the signal, the processes below it do not get it: the program may need them, such as data loaders, to
//! save a checkpoint first.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, Signal, pidfd_send_signal};

use crate::Exit;
use crate::orphans::{self, Orphan, SweepScope};
use crate::proc::{self, Stat, Status, children_of, executable};
use crate::process;
use crate::workers::{Worker, Workers, send};

/// Signals that ask a program to end: HUP, INT, QUIT, USR1, USR2, TERM (signal(7)).
const REQUESTS: [i32; 6] = [1, 2, 3, 10, 12, 15];

/// What a shell or timeout(1) left behind.
#[derive(Debug)]
pub struct Left {
    pub orphan: Orphan,
    /// It handles the signal by which it was asked to end. Others may read its output.
    pub handles: bool,
    /// Readable when it has ended.
    pub pidfd: OwnedFd,
}

impl Workers {
    /// Sends a signal to every worker's process group, including what a dead worker left in it.
    pub fn signal(&mut self, signal: Signal) {
        for (pid, worker) in &self.workers {
            send(*pid, worker, signal);
        }
    }

    /// The living workers, by index, that have a handler for this signal or are a shell or timeout(1) that waits for a program with
    /// one. A program that has just been started has no handler yet.
    pub fn that_handle(&self, signal: Signal) -> Vec<usize> {
        let living = self.workers.iter().filter(|(_, worker)| !worker.dead);
        let found = living.filter(|(pid, _)| !that_handle(**pid, signal).is_empty());
        found.map(|(_, worker)| worker.index).collect()
    }

    /// The living workers, by index, that are at their end: the kernel has taken their memory and handlers, and their end may not have been
    /// reported yet.
    pub fn that_end(&self) -> Vec<usize> {
        let living = self.workers.iter().filter(|(_, worker)| !worker.dead);
        let ends = living.filter(|(pid, _)| Status::of(**pid).is_none_or(|status| status.is_ending()));
        ends.map(|(_, worker)| worker.index).collect()
    }

    /// Sends a signal to these workers themselves, not to the processes that they started. If a worker is a shell or timeout(1) that waits
    /// for programs that handle the signal, those programs get the signal instead.
    pub fn signal_themselves(&self, workers: &[usize], signal: Signal) -> io::Result<()> {
        let mut named = self.workers.iter().filter(|(_, worker)| !worker.dead && workers.contains(&worker.index));
        named.try_for_each(|(pid, worker)| {
            let programs = that_handle(*pid, signal);
            if programs.is_empty() {
                return worker.process.signal(signal);
            }
            programs.iter().for_each(|program| program.signal(signal));
            Ok(())
        })
    }

    /// Sends this signal, which asks for an end. A worker that handles it gets it alone: to save a checkpoint first, it may need the
    /// processes that it started, such as data loaders. The whole process group of other workers gets it. A shell gets it together with
    /// what runs under it, except below programs that handle it; so does timeout(1), but a program under it that handles the signal
    /// gets it in its place, so that it gets it only once. Stopped processes are continued, because they could not handle it otherwise.
    pub fn end(&mut self, signal: Signal) {
        let adopted = self.adopted();
        if !adopted.is_empty() {
            self.note_left();
        }
        for (pid, worker) in &mut self.workers {
            worker.wrapper |= !worker.dead && is_wrapper(*pid);
            if worker.wrapper || worker.left_programs() {
                let itself = (!worker.dead).then_some(*pid).into_iter();
                let here = adopted.iter().filter(|(session, _)| session == pid).map(|(_, pid)| *pid);
                let found = of_end(itself.chain(here), signal);
                found.iter().for_each(|receiver| receiver.signal(signal));
                self.asked.extend(found.iter().map(|receiver| (receiver.stat.pid, receiver.stat.start)));
            } else if !worker.dead && Status::of(*pid).is_some_and(|status| status.handles(signal.as_raw())) {
                let _ = worker.process.signal(signal);
            } else {
                send(*pid, worker, signal);
            }
        }
        self.signal(Signal::CONT);
    }

    /// Asks the processes that dead workers left behind to end, if any of them handles this signal: such programs have something to do
    /// first. Returns those that are still alive; none if no program handles the signal. Covers only workers that were shells or
    /// timeout(1), or that ended by a signal as those do. No process gets the signal twice.
    pub fn end_left(&mut self, signal: Signal) -> Vec<Left> {
        let of_programs = self.workers.iter().filter(|(_, worker)| worker.left_programs());
        let sessions: Vec<i32> = of_programs.map(|(pid, _)| *pid).collect();
        if sessions.is_empty() || self.with_criteria(|criteria| criteria.covers_all_children()) {
            return vec![];
        }
        let orphans = self.with_criteria(|criteria| orphans::present(criteria, SweepScope::Sessions(&sessions)));
        let found: Vec<Receiver> = orphans.iter().flat_map(|orphan| below(orphan.pid, signal)).collect();
        if !found.iter().any(|receiver| receiver.kind == ReceiverKind::Program) {
            return vec![];
        }
        for receiver in found.iter().filter(|receiver| receiver.kind != ReceiverKind::Other) {
            if self.asked.insert((receiver.stat.pid, receiver.stat.start)) {
                receiver.signal(signal);
            }
        }
        let left = |found: Receiver| {
            let (orphan, handles) = (Orphan::of(&found.stat), found.kind == ReceiverKind::Program);
            Left { orphan, handles, pidfd: found.into_pidfd() }
        };
        found.into_iter().map(left).collect()
    }

    /// Kills every worker's process group. The caller decides when. [`Self::next`] still reports the deaths.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
    }

    /// Remembers what dead workers have left behind, for the next sweep: it may end by the signal that it is about to get.
    fn note_left(&mut self) {
        let dead: Vec<i32> = self.workers.iter().filter(|(_, worker)| worker.dead).map(|(pid, _)| *pid).collect();
        let left = self.with_criteria(|criteria| orphans::present(criteria, SweepScope::Sessions(&dead)));
        self.left.extend(orphans::going_on(&left));
    }

    /// The children of this process that were not started by it, by session.
    fn adopted(&self) -> BTreeSet<(i32, i32)> {
        let others = proc::children().into_iter().filter(|pid| !self.workers.contains_key(pid));
        others.filter_map(Stat::of).map(|stat| (stat.session, stat.pid)).collect()
    }
}

impl Worker {
    /// Returns true if it has ended and the programs that it waited for may still be alive. Asks the system, since its death
    /// may not have been reported yet.
    fn left_programs(&self) -> bool {
        match self.process.ended() {
            Ok(Some(Exit::Signal(signal))) if REQUESTS.contains(&signal) => true,
            Ok(Some(_)) => self.wrapper,
            Ok(None) => false,
            Err(_) => self.dead && self.wrapper,
        }
    }
}

/// The file names of shells. A shell that waits for a program does not pass its signals on.
const SHELLS: [&str; 6] = ["sh", "bash", "dash", "ksh", "zsh", "busybox"];
/// The program that forwards a signal twice: to its child and to its group (`cleanup` in coreutils' timeout.c).
const TIMEOUT: &str = "timeout";

/// A process that gets a signal.
#[derive(Debug)]
struct Receiver {
    stat: Stat,
    kind: ReceiverKind,
    pidfd: OwnedFd,
}

/// How a process treats a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReceiverKind {
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

    fn signal(&self, signal: Signal) {
        // It may have ended meanwhile.
        let _ = pidfd_send_signal(&self.pidfd, signal);
    }

    /// Readable when the process has ended.
    fn into_pidfd(self) -> OwnedFd {
        self.pidfd
    }
}

/// The receivers, among these processes and their descendants, of a signal that asks for an end. Shells come before the programs that they
/// wait for, so that they do not start another command. If programs handle the signal, their siblings, such as the reader of their output,
/// do not get it.
fn of_end(roots: impl Iterator<Item = i32>, signal: Signal) -> Vec<Receiver> {
    let mut found: Vec<Receiver> = roots.flat_map(|pid| below(pid, signal)).collect();
    if found.iter().any(|receiver| receiver.kind == ReceiverKind::Program) {
        found.retain(|receiver| receiver.kind != ReceiverKind::Other);
    }
    found
}

/// This process and its descendants, except those below programs that handle the signal.
fn below(pid: i32, signal: Signal) -> Vec<Receiver> {
    let mut found = Vec::new();
    visit(pid, signal, &mut found);
    found
}

/// The programs that handle a signal, among this process and its descendants. A shell with a trap for it is one.
fn that_handle(pid: i32, signal: Signal) -> Vec<Receiver> {
    if handles(pid, signal) && !is_timeout(pid) {
        return Receiver::open(pid, ReceiverKind::Program).into_iter().collect();
    }
    if !is_shell(pid) && !is_timeout(pid) {
        return vec![];
    }
    children_of(pid).into_iter().flat_map(|child| that_handle(child, signal)).collect()
}

/// Returns true if this process is a shell or timeout(1).
fn is_wrapper(pid: i32) -> bool {
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
