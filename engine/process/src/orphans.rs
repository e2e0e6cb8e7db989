//! Signals to workers, and orphans: processes that workers left behind.
//!
//! The agent is a child subreaper (prctl(2)): every process that a worker started, however often it forked and began
//! new sessions, becomes a child of the agent when its parents have died. So orphans are found among the agent's
//! children, and killing one generation reveals the next.
//!
//! Not every unknown child descends from a worker. A program that becomes the agent by `exec` passes its children on,
//! and their orphans come to the agent, too; so does every orphan of a container in which the agent is process 1. Only
//! a process in a worker's session, or with the agent's [id](AgentId), is an orphan of this agent. The others
//! are left alone, and reaped when they have ended.
//!
//! The id identifies the processes of an agent even after the agent itself has ended.
//!
//! A worker gets the id in two places before its program starts, and its descendants inherit both:
//! - a variable in its environment, [`AGENT`];
//! - its soft limit on file locks (`RLIMIT_LOCKS`), set to the agent's id. Linux has ignored this limit since 2.4.25
//!   (getrlimit(2)) but still passes it on over fork and exec, so that daemons that cleared their environment have it,
//!   too.
//!
//! # Signals to workers
//! Snapshot requests, requests to end and kills, and the grace of what a shell left behind. A worker may be a program that only waits for another one: a shell, or timeout(1). Then a signal is meant for what runs under it,
//! however deep. If a program handles the signal, the processes below it do not get it: the program may need them, such as data loaders, to
//! save a checkpoint first.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

use rustix::process::{
    Pid, Resource, Rlimit, Signal, getpid, getrlimit, kill_process_group, pidfd_send_signal, setrlimit,
};

use crate::Exit;
use crate::proc::{self, Stat, Status, children_of, executable};
use crate::process::{self, reap};
use crate::workers::{Worker, Workers, send};

/// A process that a worker left behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Orphan {
    pub pid: u32,
    /// The name of its program as the kernel stores it (15 bytes).
    pub name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub killed: Vec<Orphan>,
    /// Orphans that were still alive at the deadline: they hang in the kernel, as on a broken file system.
    pub left: Vec<Orphan>,
}

/// Which orphans to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SweepScope<'a> {
    /// No worker is alive: every orphan.
    All,
    /// Some workers are alive: only orphans in these sessions.
    Sessions(&'a [i32]),
}

impl Orphan {
    pub(super) fn of(stat: &Stat) -> Self {
        Orphan { pid: stat.pid as u32, name: stat.name.clone() }
    }
}

impl Swept {
    /// Adds orphans that are not known yet to the killed ones.
    pub(super) fn add(&mut self, found: Vec<Orphan>) {
        let known = |orphan: &Orphan| self.killed.contains(orphan) || self.left.contains(orphan);
        let new: Vec<Orphan> = found.into_iter().filter(|orphan| !known(orphan)).collect();
        self.killed.extend(new);
    }

    /// Records that these are still alive.
    pub(super) fn abandon(&mut self, left: Vec<Orphan>) {
        self.killed.retain(|orphan| !left.contains(orphan));
        self.left = left;
    }
}

/// The agent's children that existed before its first worker, by process id and start time.
#[derive(Debug, Default)]
pub(super) struct EarlierChildren(BTreeSet<(i32, u64)>);

impl EarlierChildren {
    /// The children that exist now; most agents have none.
    pub(super) fn here() -> Self {
        if !proc::has_children() {
            return EarlierChildren::default();
        }
        let children = proc::children().into_iter().filter_map(Stat::of);
        EarlierChildren(children.map(|child| (child.pid, child.start)).collect())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn has(&self, child: &Stat) -> bool {
        self.0.contains(&(child.pid, child.start))
    }
}

/// What identifies a child as an orphan of a worker.
pub(super) struct OrphanCriteria<'a> {
    /// The agent's own session, which no descendant of a worker can join; see [`own_session`].
    pub(super) own_session: i32,
    /// Workers that are not reaped yet, each of which leads a session; sorted.
    pub(super) workers: &'a [i32],
    pub(super) reaper: i32,
    pub(super) earlier: &'a EarlierChildren,
    /// Returns true if a process has the agent's id.
    pub(super) has_id: &'a dyn Fn(i32) -> bool,
}

impl OrphanCriteria<'_> {
    /// The orphans among the agent's children.
    fn orphans<'a>(&'a self, children: &'a [Stat], scope: SweepScope<'a>) -> impl Iterator<Item = &'a Stat> {
        children.iter().filter(move |child| {
            let wanted = match scope {
                SweepScope::All => true,
                SweepScope::Sessions(sessions) => sessions.contains(&child.session),
            };
            wanted && self.is_orphan(child)
        })
    }

    fn is_orphan(&self, child: &Stat) -> bool {
        let excluded = self.is_known(child.pid) || self.earlier.has(child) || child.session == self.own_session;
        !excluded && (self.is_worker(child.session) || (self.has_id)(child.pid))
    }

    fn is_known(&self, pid: i32) -> bool {
        pid == self.reaper || self.is_worker(pid)
    }

    fn is_worker(&self, pid: i32) -> bool {
        self.workers.binary_search(&pid).is_ok()
    }

    /// Returns true if the agent's only children are workers and the reaper.
    pub(super) fn covers_all_children(&self) -> bool {
        proc::children().into_iter().all(|pid| self.is_known(pid))
    }

    /// The agent's children except workers and the reaper.
    fn others(&self) -> Vec<Stat> {
        proc::children().into_iter().filter(|pid| !self.is_known(*pid)).filter_map(Stat::of).collect()
    }
}

/// The orphans that exist now and are direct children of the agent, including dead ones.
pub(super) fn present(criteria: &OrphanCriteria<'_>, scope: SweepScope<'_>) -> Vec<Stat> {
    criteria.orphans(&criteria.others(), scope).cloned().collect()
}

/// Describes the orphans that are alive.
pub(super) fn living(orphans: &[Stat]) -> Vec<Orphan> {
    orphans.iter().filter(|stat| !stat.is_dead()).map(Orphan::of).collect()
}

/// Describes those that would have lived on: a signal to a worker's group, which reaches them too, has not ended them.
pub(super) fn going_on(orphans: &[Stat]) -> Vec<Orphan> {
    let goes_on = |stat: &&Stat| !stat.is_dead() && Status::of(stat.pid).is_some_and(|status| !status.is_ending());
    orphans.iter().filter(goes_on).map(Orphan::of).collect()
}

/// Reaps all children that have ended, orphans or not, except workers and the reaper.
pub(super) fn reap_dead(criteria: &OrphanCriteria<'_>) {
    criteria.others().iter().filter(|child| child.is_dead()).for_each(|child| reap(child.pid));
}

/// The agent's own session; 0 if the session's leader is outside the agent's process id namespace, as in a container.
pub(super) fn own_session() -> i32 {
    let own = getpid().as_raw_pid();
    Stat::of(own).map_or(own, |stat| stat.session)
}

/// Kills a child and its process group. The child is not reaped yet, so neither id can refer to anything else.
pub(super) fn kill(child: &Stat) -> Option<OwnedFd> {
    let pidfd = process::open(Pid::from_raw(child.pid)?).ok()?;
    if let Some(group) = Pid::from_raw(child.group) {
        // The group is in the child's session, which is not the agent's.
        let _ = kill_process_group(group, Signal::KILL);
    }
    let _ = pidfd_send_signal(&pidfd, Signal::KILL);
    Some(pidfd)
}

/// Makes this process the parent of all its orphaned descendants.
pub(super) fn adopt_orphans() -> io::Result<()> {
    Ok(rustix::process::set_child_subreaper(Some(getpid()))?)
}

/// The variable in every worker's environment that lists the agents it belongs to: their ids, from the outermost to the
/// innermost, joined by colons.
pub const AGENT: &str = "LOCKSTEP_AGENT";

/// An id of an agent, unique on this machine: a random number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AgentId(u64);

impl AgentId {
    pub(super) fn random() -> io::Result<Self> {
        let mut bytes = [0; 8];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        // Far from all limits that people set, and not "unlimited".
        Ok(AgentId((u64::from_ne_bytes(bytes) >> 1) | 1 << 62))
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        (text.len() == 16).then(|| u64::from_str_radix(text, 16).ok().map(AgentId)).flatten()
    }

    /// The value of [`AGENT`] for a process of this agent, which itself runs under the agents `outer`.
    pub(super) fn joined(self, outer: Option<OsString>) -> OsString {
        match outer {
            Some(mut ids) if !ids.is_empty() => {
                ids.push(format!(":{self}"));
                ids
            }
            _ => self.to_string().into(),
        }
    }

    /// Returns true if a value of [`AGENT`] names this agent.
    fn is_in(self, value: &OsStr) -> bool {
        value.as_bytes().split(|byte| *byte == b':').any(|part| part == self.to_string().as_bytes())
    }

    /// The soft limit on file locks that carries the id.
    pub(super) fn lock_limit(self) -> u64 {
        self.0
    }

    /// Returns true if a process has the id in one of the two places.
    pub(super) fn is_of(self, pid: i32) -> bool {
        proc::lock_limit(pid) == Some(self.0) || proc::variable(pid, AGENT).is_some_and(|value| self.is_in(&value))
    }
}

impl std::fmt::Display for AgentId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// Sets this process's limit on file locks to the id of the innermost agent in [`AGENT`].
pub(super) fn set_limit() {
    let marker = std::env::var(AGENT).unwrap_or_default();
    let Some(AgentId(id)) = marker.rsplit(':').next().and_then(AgentId::parse) else { return };
    let maximum = getrlimit(Resource::Locks).maximum;
    // If the hard limit is lower, which is unusual, only the variable identifies the process.
    let _ = setrlimit(Resource::Locks, Rlimit { current: Some(id), maximum });
}

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
    /// one. A program that has just been started has no handler yet, and until then the process has those of this one.
    pub fn that_handle(&self, signal: Signal) -> Vec<usize> {
        let living = self.workers.iter().filter(|(_, worker)| !worker.dead && !worker.started.is_pending());
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
        let orphans = self.with_criteria(|criteria| present(criteria, SweepScope::Sessions(&sessions)));
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
            Left { orphan, handles, pidfd: found.pidfd }
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
        let left = self.with_criteria(|criteria| present(criteria, SweepScope::Sessions(&dead)));
        self.left.extend(going_on(&left));
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn child(pid: i32, session: i32) -> Stat {
        Stat {
            pid,
            name: "x".into(),
            state: 'S',
            parent: 1,
            group: session,
            session,
            used: Duration::ZERO,
            used_by_children: Duration::ZERO,
            start: 5,
        }
    }

    #[test]
    fn counts_orphans_that_ended_before_the_sweep_once() {
        let orphan = |pid| Orphan::of(&child(pid, 300));
        let mut swept = Swept { killed: vec![orphan(1)], left: vec![orphan(2)] };
        swept.add(vec![orphan(1), orphan(2), orphan(3)]);
        assert_eq!(swept, Swept { killed: vec![orphan(1), orphan(3)], left: vec![orphan(2)] });
    }

    #[test]
    fn counts_orphans_that_stay_alive_as_left() {
        let orphan = |pid| Orphan::of(&child(pid, 300));
        let mut swept = Swept { killed: vec![orphan(1), orphan(2)], left: vec![] };
        swept.abandon(vec![orphan(2)]);
        assert_eq!(swept, Swept { killed: vec![orphan(1)], left: vec![orphan(2)] });
    }

    /// Process 200 is a worker, 300 the reaper, 400 a stranger, and everything from 500 has the id.
    fn found(children: &[Stat], scope: SweepScope<'_>) -> Vec<i32> {
        let earlier = EarlierChildren([(400, 5), (500, 4)].into());
        let criteria = OrphanCriteria {
            own_session: 100,
            workers: &[200],
            reaper: 300,
            earlier: &earlier,
            has_id: &|pid| pid >= 500,
        };
        criteria.orphans(children, scope).map(|stat| stat.pid).collect()
    }

    #[test]
    fn an_orphan_is_in_a_workers_session_or_has_the_id() {
        let children = [child(200, 200), child(201, 200), child(202, 202), child(203, 100), child(300, 300)];
        assert_eq!(found(&children, SweepScope::All), [201]);
        let children = [child(501, 501), child(502, 100), child(503, 200)];
        assert_eq!(found(&children, SweepScope::All), [501, 503]);
    }

    #[test]
    fn a_child_from_before_is_spared_and_a_later_process_with_its_pid_is_not() {
        let children = [child(400, 400), child(401, 400), child(500, 500)];
        assert_eq!(found(&children, SweepScope::All), [500]);
    }

    #[test]
    fn while_some_workers_are_alive_only_the_sessions_of_dead_ones_are_swept() {
        let children = [child(200, 200), child(201, 200), child(502, 502)];
        assert_eq!(found(&children, SweepScope::Sessions(&[200])), [201]);
    }

    #[test]
    fn a_marker_names_each_agent_from_the_outermost_in() {
        let [outer, inner] = [AgentId::random().unwrap(), AgentId::random().unwrap()];
        assert_ne!(outer, inner);
        assert_eq!(outer.joined(None), outer.joined(Some("".into())));
        let both = inner.joined(Some(outer.joined(None)));
        assert_eq!(both, OsString::from(format!("{outer}:{inner}")));
        assert!(outer.is_in(&both) && inner.is_in(&both));
        assert!(!outer.is_in(OsStr::new("")) && !outer.is_in(OsStr::new(&format!("x{outer}"))));
    }

    #[test]
    fn an_id_comes_back_from_its_text() {
        let id = AgentId::random().unwrap();
        assert_eq!(AgentId::parse(&id.to_string()), Some(id));
        assert_eq!(AgentId::parse("12"), None);
    }
}
