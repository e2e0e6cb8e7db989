//! The workers of one agent: starts, watches, signals, kills and sweeps them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsString;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::SigId;
use signal_hook::consts::SIGCHLD;
use signal_hook::low_level::{pipe, unregister};

use crate::orphans::{self, AGENT, EarlierChildren, Orphan, OrphanCriteria, SweepScope, Swept, going_on, present};
use crate::proc::{self, Stat, Status};
use crate::process::{self, Handle, reap};
use crate::program::{Spec, Variable};
use crate::reaper::Reaper;
use crate::receivers::{Left, REQUESTS, Receiver, ReceiverKind, below, is_wrapper, of_end, that_handle};
use crate::start::{Start, StartReport};
use crate::template::Template;
use crate::{Deaths, Exit};

/// The names under which [`Deaths`] reports the reaper and SIGCHLD; no process has these ids.
const REAPER: u64 = 0;
const CHILDREN: u64 = u64::MAX;
/// How long a worker may take to end after a kill in [`Drop`]. One that hangs in the kernel is abandoned.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// The workers of one agent, on the process's **main thread**, because the kernel kills them when the thread that
/// started them ends. Dropping it kills all of them. Its descriptor is readable when [`next`](Self::next) may return
/// something.
///
/// A worker that has died is not reaped until the next [`sweep`](Self::sweep), so that the ids of its process, group
/// and session are not reused while a process of the worker is left.
pub struct Workers {
    deaths: Deaths,
    reported: VecDeque<u64>,
    children: Children,
    workers: BTreeMap<i32, Worker>,
    reaper: Reaper,
    earlier: EarlierChildren,
    own_session: i32,
    open_files: Option<u64>,
    /// What dead workers had left behind when the others were asked to end.
    left: Vec<Orphan>,
    /// The processes below shells that were asked to end, by process id and start time.
    asked: BTreeSet<(i32, u64)>,
}

/// SIGCHLD, which arrives also for orphans that end on their own.
struct Children {
    signal: SigId,
    pipe: UnixStream,
}

struct Worker {
    index: usize,
    process: Handle,
    started: StartReport,
    dead: bool,
    /// It was a shell or timeout(1) when it was asked to end.
    wrapper: bool,
}

/// A worker's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Died {
    /// The index with which it was started.
    pub index: usize,
    pub pid: u32,
    /// How it ended.
    pub exit: Exit,
    /// When the agent learned of the death, for durations.
    pub at: Instant,
    /// The same moment as the time of day.
    pub wall: SystemTime,
}

impl Workers {
    /// Makes this process the subreaper of its orphans and starts its reaper, a process of this executable: its `main` must begin with
    /// [`internal_main`](super::internal_main). From now on, all children of this process that end are reaped here: no other code in it may
    /// wait for one.
    pub fn new() -> io::Result<Self> {
        let earlier = EarlierChildren::here();
        orphans::adopt_orphans()?;
        let children = Children::listen()?;
        let deaths = Deaths::new()?;
        deaths.add_descriptor(&children.pipe, CHILDREN)?;
        let reaper = Reaper::start()?;
        deaths.add(reaper.process(), REAPER)?;
        let own_session = orphans::own_session();
        let workers = Workers {
            deaths,
            reported: VecDeque::new(),
            children,
            workers: BTreeMap::new(),
            reaper,
            earlier,
            own_session,
            open_files: None,
            left: Vec::new(),
            asked: BTreeSet::new(),
        };
        if !workers.earlier.is_empty() {
            workers.reap_dead();
        }
        Ok(workers)
    }

    /// Sets the soft limit on open files for workers that start from now on, instead of the agent's own.
    pub fn limit_open_files(&mut self, soft: Option<u64>) {
        self.open_files = soft;
    }

    /// Makes the reaper remove this folder if the agent is killed.
    pub fn register_cleanup(&mut self, folder: &Path) {
        self.reaper.register_cleanup(folder);
    }

    /// The reaper no longer removes this folder.
    pub fn unregister_cleanup(&mut self, folder: &Path) {
        self.reaper.unregister_cleanup(folder);
    }

    /// Starts a worker; its end will be reported with `index`. Returns its process id immediately: whether the program
    /// could be started is known only at its end ([`Exit::NotStarted`]). [`super::find_program`] finds most reasons
    /// beforehand.
    ///
    /// # Errors
    /// No process can be started at all.
    pub fn start(&mut self, index: usize, spec: Spec) -> io::Result<u32> {
        let marker = self.marker(&spec.env);
        let (process, started) = Start::prepare(spec, self.reaper.id(), marker, self.open_files)?.fork()?;
        self.watch(index, process, started)
    }

    /// Starts a worker as a copy of a [`Template`], which already has the program and its arguments; `spec` gives the rest. Its
    /// end will be reported like any other worker's.
    ///
    /// # Errors
    /// The template makes no copy: it has ended, or does not answer.
    pub fn start_copy(&mut self, index: usize, template: &Template, spec: Spec) -> io::Result<u32> {
        let Spec { mut env, folder, stdout, stderr, .. } = spec;
        let marker = self.marker(&env);
        env.push((AGENT.into(), Some(marker)));
        let (pid, started) = template.copy(&env, folder.as_deref(), [stdout, stderr])?;
        self.watch(index, Handle::open(pid)?, started)
    }

    fn watch(&mut self, index: usize, process: Handle, started: StartReport) -> io::Result<u32> {
        let pid = process.pid();
        if let Err(error) = self.deaths.add(&process, pid.as_raw_pid() as u64) {
            // A process that cannot be watched must not live.
            process.signal(Signal::KILL)?;
            process.wait_until(Instant::now() + LAST_WAIT);
            reap(pid.as_raw_pid());
            return Err(error);
        }
        self.reaper.worker_started(pid);
        started.watched();
        self.workers.insert(pid.as_raw_pid(), Worker { index, process, started, dead: false, wrapper: false });
        Ok(pid.as_raw_pid() as u32)
    }

    /// The ids of the agents that a worker belongs to: this agent, within the one under which it runs.
    fn marker(&self, env: &[Variable]) -> OsString {
        let given = env.iter().rev().find(|(name, _)| name == AGENT).and_then(|(_, value)| value.clone());
        self.reaper.id().joined(given.or_else(|| std::env::var_os(AGENT)))
    }

    /// The next death, in the kernel's order. Waits until the deadline, or without a limit if there is none; `None` if
    /// the deadline has passed.
    ///
    /// # Errors
    /// The system's error, or the reaper cannot be replaced.
    pub fn next(&mut self, deadline: Option<Instant>) -> io::Result<Option<Died>> {
        loop {
            while let Some(name) = self.reported.pop_front() {
                if let Some(died) = self.handle(name)? {
                    return Ok(Some(died));
                }
            }
            self.reported.extend(self.deaths.wait(deadline)?);
            if self.reported.is_empty() {
                return Ok(None);
            }
        }
    }

    fn handle(&mut self, name: u64) -> io::Result<Option<Died>> {
        match name {
            CHILDREN => {
                self.children.clear();
                self.reap_dead();
                Ok(None)
            }
            REAPER => {
                self.reaper.replace()?;
                self.deaths.add(self.reaper.process(), REAPER)?;
                Ok(None)
            }
            pid => self.died(pid as i32),
        }
    }

    fn died(&mut self, pid: i32) -> io::Result<Option<Died>> {
        let Some(worker) = self.workers.get_mut(&pid) else { return Ok(None) };
        worker.dead = true;
        let exit = match (worker.started.reason(), worker.process.ended()?) {
            (Some(reason), _) => Exit::NotStarted(reason),
            (None, Some(exit)) => exit,
            (None, None) => Exit::NotStarted("the system does not find this child".into()),
        };
        Ok(Some(Died { index: worker.index, pid: pid as u32, exit, at: Instant::now(), wall: SystemTime::now() }))
    }

    /// The workers whose end has not been reported yet, by index.
    pub fn alive(&self) -> Vec<usize> {
        let mut alive: Vec<usize> = self.living().map(|worker| worker.index).collect();
        alive.sort_unstable();
        alive
    }

    /// The workers that have ended although their end has not been reported yet, by index.
    pub fn ended(&self) -> Vec<usize> {
        let ended = |worker: &&Worker| matches!(worker.process.ended(), Ok(Some(_)));
        self.living().filter(ended).map(|worker| worker.index).collect()
    }

    fn living(&self) -> impl Iterator<Item = &Worker> {
        self.workers.values().filter(|worker| !worker.dead)
    }

    /// Ends and reaps everything that dead workers left behind, within this time. While some worker is alive, only what
    /// is left in the dead workers' sessions is ended, since the rest may belong to the living one; after the last
    /// death, everything is.
    pub fn sweep(&mut self, limit: Duration) -> Swept {
        let mut sweep = self.begin_sweep(limit);
        while let Some(dying) = self.kill_generation(&mut sweep) {
            dying.iter().for_each(|pidfd| process::wait_until(pidfd, sweep.deadline));
        }
        self.end_sweep(sweep)
    }

    /// Begins a [`sweep`](Self::sweep) for callers that must not block. It may be abandoned and begun again.
    pub fn begin_sweep(&mut self, limit: Duration) -> Sweep {
        let dead: Vec<i32> = self.workers.iter().filter(|(_, worker)| worker.dead).map(|(pid, _)| *pid).collect();
        let deadline = Instant::now() + limit;
        let mut sweep = Sweep {
            dead,
            deadline,
            swept: Swept::default(),
            over: self.with_criteria(|criteria| criteria.covers_all_children()),
        };
        sweep.swept.add(std::mem::take(&mut self.left));
        // What dead workers left behind are now children of the agent. Most leave nothing.
        if !sweep.over {
            // Recorded before the kill: orphans that end immediately would not be found afterwards.
            let there =
                self.with_criteria(|criteria| orphans::going_on(&orphans::present(criteria, self.scope(&sweep))));
            sweep.swept.add(there);
            sweep.dead.iter().for_each(|pid| send(*pid, &self.workers[pid], Signal::KILL));
        }
        sweep
    }

    /// Kills the next generation of orphans. Await their ends, until the sweep's deadline, before the next call. `None`
    /// if none are left or the deadline has passed.
    pub fn kill_generation(&mut self, sweep: &mut Sweep) -> Option<Vec<OwnedFd>> {
        if sweep.over {
            return None;
        }
        self.reap_dead();
        let found = self.with_criteria(|criteria| orphans::present(criteria, self.scope(sweep)));
        sweep.over = found.is_empty() || Instant::now() >= sweep.deadline;
        if sweep.over {
            sweep.swept.abandon(orphans::living(&found));
            return None;
        }
        sweep.swept.add(orphans::going_on(&found));
        Some(found.iter().filter_map(orphans::kill).collect())
    }

    /// Reaps the dead workers and returns what the sweep found.
    pub fn end_sweep(&mut self, sweep: Sweep) -> Swept {
        self.reap_dead();
        for pid in sweep.dead {
            reap(pid);
            self.workers.remove(&pid);
            self.reaper.worker_gone(pid);
        }
        if self.workers.is_empty() {
            self.asked.clear();
        }
        sweep.swept
    }

    fn scope<'a>(&self, sweep: &'a Sweep) -> SweepScope<'a> {
        if sweep.dead.len() == self.workers.len() { SweepScope::All } else { SweepScope::Sessions(&sweep.dead) }
    }

    fn with_criteria<T>(&self, look: impl FnOnce(&OrphanCriteria<'_>) -> T) -> T {
        let workers: Vec<i32> = self.workers.keys().copied().collect();
        let (id, reaper) = (self.reaper.id(), self.reaper.pid());
        let Workers { own_session, ref earlier, .. } = *self;
        look(&OrphanCriteria { own_session, workers: &workers, reaper, earlier, has_id: &|pid| id.is_of(pid) })
    }

    fn reap_dead(&self) {
        self.with_criteria(orphans::reap_dead);
    }

    /// Sends the reaper a goodbye. All workers should have died and been swept before; any that is alive is killed.
    pub fn close(mut self) {
        self.kill_and_reap();
        self.reaper.dismiss();
    }

    fn kill_and_reap(&mut self) {
        self.kill();
        let until = Instant::now() + LAST_WAIT;
        for (pid, worker) in std::mem::take(&mut self.workers) {
            worker.process.wait_until(until);
            reap(pid);
        }
    }
}

// ---- signals to workers

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

impl AsFd for Workers {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.deaths.as_fd()
    }
}

impl Drop for Workers {
    /// The reaper gets no goodbye, so it ends what is left.
    fn drop(&mut self) {
        self.kill_and_reap();
    }
}

/// A sweep in progress: see [`Workers::begin_sweep`].
#[derive(Debug)]
pub struct Sweep {
    dead: Vec<i32>,
    deadline: Instant,
    swept: Swept,
    over: bool,
}

impl Sweep {
    /// How long to wait for processes that were killed.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }
}

impl Children {
    fn listen() -> io::Result<Self> {
        let (pipe, write) = UnixStream::pair()?;
        pipe.set_nonblocking(true)?;
        Ok(Children { signal: pipe::register(SIGCHLD, write)?, pipe })
    }

    fn clear(&mut self) {
        // Nonblocking: the copy ends when nothing is left.
        let _ = io::copy(&mut Read::by_ref(&mut self.pipe), &mut io::sink());
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        unregister(self.signal);
    }
}

fn send(pid: i32, worker: &Worker, signal: Signal) {
    let Some(group) = Pid::from_raw(pid) else { return };
    // The ids of a worker and of its group stay in use until it is reaped. Before it has created its group, the signal goes
    // to it alone.
    if kill_process_group(group, signal).is_err() && !worker.dead {
        let _ = worker.process.signal(signal);
    }
}
