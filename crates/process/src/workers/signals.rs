//! Signals to workers: wishes, requests to end, kills, and the grace of what a shell left behind.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::OwnedFd;

use rustix::process::Signal;

use super::{Workers, send};
use crate::orphans::{self, Orphan, Whose};
use crate::proc::Status;
use crate::receivers::{self, Is, Receiver};
use crate::{Exit, proc};

/// Signals that ask a program to end: HUP, INT, QUIT, USR1, USR2, TERM (signal(7)).
const REQUESTS: [i32; 6] = [1, 2, 3, 10, 12, 15];

/// What a shell or timeout(1) left behind.
#[derive(Debug)]
pub struct Left {
    /// The process.
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

    /// The living workers that have a handler for this signal, or wait for programs that have one as a shell or timeout(1) does; by
    /// index. A program that has just been started has no handler yet.
    pub fn that_handle(&self, signal: Signal) -> Vec<usize> {
        let living = self.workers.iter().filter(|(_, worker)| !worker.dead);
        let found = living.filter(|(pid, _)| !receivers::that_handle(**pid, signal).is_empty());
        found.map(|(_, worker)| worker.index).collect()
    }

    /// Sends a signal to these workers themselves, not to the processes that they started. If a worker is a shell or timeout(1) that waits
    /// for programs that handle the signal, they get it in its place.
    ///
    /// # Errors
    /// The system's error.
    pub fn signal_themselves(&self, workers: &[usize], signal: Signal) -> io::Result<()> {
        let mut named = self.workers.iter().filter(|(_, worker)| !worker.dead && workers.contains(&worker.index));
        named.try_for_each(|(pid, worker)| {
            let programs = receivers::that_handle(*pid, signal);
            if programs.is_empty() {
                return worker.process.signal(signal);
            }
            programs.iter().for_each(|program| program.signal(signal));
            Ok(())
        })
    }

    /// Sends this signal, which asks for an end. A worker that handles it gets it alone: to save a checkpoint first, it may need the
    /// processes that it started, such as data loaders. The whole process group of other workers gets it. A shell gets it together with
    /// what runs under it, except below programs that handle it; so does timeout(1), in whose place such a program gets it, and once.
    /// Stopped processes are continued, because they could not handle it otherwise.
    pub fn end(&mut self, signal: Signal) {
        let adopted = self.adopted();
        for (pid, worker) in &mut self.workers {
            worker.wrapper |= !worker.dead && receivers::is_wrapper(*pid);
            if worker.wrapper || worker.left_programs() {
                let itself = (!worker.dead).then_some(*pid).into_iter();
                let here = adopted.iter().filter(|(session, _)| session == pid).map(|(_, pid)| *pid);
                let found = receivers::of_end(itself.chain(here), signal);
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

    /// Asks what dead workers left behind to end, if programs in it handle this signal: they have something to do first. Returns what still
    /// lives; nothing if no program handles it. Only of workers that were shells or timeout(1), or ended by a signal as those do. Nobody
    /// gets the signal twice.
    pub fn end_left(&mut self, signal: Signal) -> Vec<Left> {
        let of_programs = self.workers.iter().filter(|(_, worker)| worker.left_programs());
        let sessions: Vec<i32> = of_programs.map(|(pid, _)| *pid).collect();
        if sessions.is_empty() || self.with_kin(|kin| kin.is_all()) {
            return vec![];
        }
        let orphans = self.with_kin(|kin| orphans::present(kin, Whose::Sessions(&sessions)));
        let found: Vec<Receiver> = orphans.iter().flat_map(|orphan| receivers::below(orphan.pid, signal)).collect();
        if !found.iter().any(|receiver| receiver.is == Is::Program) {
            return vec![];
        }
        for receiver in found.iter().filter(|receiver| receiver.is != Is::Other) {
            if self.asked.insert((receiver.stat.pid, receiver.stat.start)) {
                receiver.signal(signal);
            }
        }
        let left = |found: Receiver| {
            let (orphan, handles) = (Orphan::of(&found.stat), found.is == Is::Program);
            Left { orphan, handles, pidfd: found.into_pidfd() }
        };
        found.into_iter().map(left).collect()
    }

    /// Kills every worker's process group. When that is due is the caller's decision. [`Self::next`] still reports the deaths.
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
    }

    /// The children of this process that were not started by it, by session.
    fn adopted(&self) -> BTreeSet<(i32, i32)> {
        let others = proc::children().into_iter().filter(|pid| !self.workers.contains_key(pid));
        others.filter_map(proc::Stat::of).map(|stat| (stat.session, stat.pid)).collect()
    }
}

impl super::Worker {
    /// It has ended, and what it waited for may live on. Asks the system, since its death may not have been reported yet.
    fn left_programs(&self) -> bool {
        match self.process.ended() {
            Ok(Some(Exit::Signal(signal))) if REQUESTS.contains(&signal) => true,
            Ok(Some(_)) => self.wrapper,
            Ok(None) => false,
            Err(_) => self.dead && self.wrapper,
        }
    }
}
