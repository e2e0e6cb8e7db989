//! The workers of one agent: started, watched, asked to end, killed, and swept after.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, pidfd_send_signal, waitid};
use tokio::signal::unix::{Signal as Children, SignalKind, signal};

use super::mark::MARKER;
use super::spec::{Sink, Spec, Stdin};
use super::stray::{self, Kin, Strangers, Swept, Whose};
use super::warden::Warden;
use super::{Exit, tied, watch};

/// By this the watch tells of the warden; no process has this id.
const WARDEN: u64 = 0;
/// After a kill in [`Drop`], how long a worker may take to end. One that is held in the kernel is given up.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// The workers of one agent, in one tokio runtime on the process's **main thread**: the kernel ties their lives to the
/// thread that starts them. Dropping it kills them all.
///
/// A worker that has died stays unreaped until the next [`sweep`](Self::sweep), so that its process id, its group's and
/// its session's are no others' until all of it is gone.
pub struct Workers {
    watch: watch::Watch,
    children: Children,
    workers: BTreeMap<i32, Worker>,
    warden: Warden,
    strangers: Strangers,
    own_session: i32,
    open_files: Option<u64>,
}

struct Worker {
    index: usize,
    pidfd: OwnedFd,
    started: UnixStream,
    dead: bool,
}

/// A worker's end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Died {
    /// By which it was started.
    pub index: usize,
    /// Its process id.
    pub pid: u32,
    /// How it ended.
    pub exit: Exit,
    /// When the agent learned of it, for durations.
    pub at: Instant,
    /// The same, for people.
    pub wall: SystemTime,
}

impl Workers {
    /// Makes this process the one that orphans come to, and starts its warden. This executable must pass
    /// [`TIED`](super::TIED) and [`WARDEN`](super::WARDEN) on to [`super::helper`]. From now on all children of this process
    /// that end are reaped here: nobody else in it may wait for one.
    ///
    /// # Errors
    /// The system's own.
    ///
    /// # Panics
    /// Outside a tokio runtime.
    pub fn new() -> io::Result<Self> {
        let strangers = Strangers::here();
        stray::adopt_orphans()?;
        let children = signal(SignalKind::child())?;
        let watch = watch::Watch::new()?;
        let warden = Warden::start()?;
        watch.add(warden.pidfd(), WARDEN)?;
        let own_session = stray::own_session();
        let workers = BTreeMap::new();
        let workers = Workers { watch, children, workers, warden, strangers, own_session, open_files: None };
        if !workers.strangers.is_empty() {
            workers.reap_dead();
        }
        Ok(workers)
    }

    /// From now on workers start with this soft limit of open files instead of the agent's own.
    pub fn limit_open_files(&mut self, soft: Option<u64>) {
        self.open_files = soft;
    }

    /// From now on the warden removes this folder if the agent is killed.
    pub fn entrust(&mut self, folder: &Path) {
        self.warden.entrust(folder);
    }

    /// The warden no longer cares for this folder.
    pub fn release(&mut self, folder: &Path) {
        self.warden.release(folder);
    }

    /// Starts a worker; its end will be told as `index`'s. Returns its process id at once: whether the program could be
    /// started is told by its end ([`Exit::NotStarted`]). [`super::find_program`] finds most reasons beforehand.
    ///
    /// # Errors
    /// When no process can be started at all.
    pub fn start(&mut self, index: usize, spec: Spec) -> io::Result<u32> {
        let (mut command, started) = with_stdin(spec.stdin, &spec.program, self.open_files)?;
        command.args(&spec.args);
        if let Some(folder) = &spec.folder {
            command.current_dir(folder);
        }
        for (name, value) in &spec.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        command.env(MARKER, self.marker(&spec.env));
        command.stdout(to_stdio(spec.stdout)).stderr(to_stdio(spec.stderr));
        let mut child = command.spawn()?;
        let pid = Pid::from_child(&child);
        let watched = watch::open(pid).and_then(|pidfd| {
            self.watch.add(&pidfd, pid.as_raw_pid() as u64)?;
            Ok(pidfd)
        });
        match watched {
            Ok(pidfd) => {
                self.warden.worker_began(pid);
                self.workers.insert(pid.as_raw_pid(), Worker { index, pidfd, started, dead: false });
                Ok(child.id())
            }
            Err(error) => {
                // Without a watch over it, it must not live.
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    /// The agents that a process belongs to: this one, inside the one under which the agent itself runs.
    fn marker(&self, env: &[(OsString, Option<OsString>)]) -> OsString {
        let given = env.iter().rev().find(|(name, _)| name == MARKER).and_then(|(_, value)| value.clone());
        self.warden.id().joined(given.or_else(|| std::env::var_os(MARKER)))
    }

    /// The next death, in the kernel's order. Cancelling loses none. While none is alive it waits for ever.
    ///
    /// # Errors
    /// The system's own; a warden that cannot be replaced is one.
    pub async fn next(&mut self) -> io::Result<Died> {
        loop {
            let name = tokio::select! {
                // Deaths come first: the other event only cleans up.
                biased;
                name = self.watch.next() => name?,
                _ = self.children.recv() => {
                    self.reap_dead();
                    continue;
                }
            };
            if name == WARDEN {
                self.warden.replace()?;
                self.watch.add(self.warden.pidfd(), WARDEN)?;
            } else if let Some(died) = self.died(name as i32)? {
                return Ok(died);
            }
        }
    }

    fn died(&mut self, pid: i32) -> io::Result<Option<Died>> {
        let Some(worker) = self.workers.get_mut(&pid) else { return Ok(None) };
        worker.dead = true;
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::PidFd(worker.pidfd.as_fd()), look)?;
        let exit = match (tied::reason(&worker.started), status) {
            (Some(reason), _) => Exit::NotStarted(reason),
            (None, Some(status)) => Exit::of(&status),
            (None, None) => Exit::NotStarted("the system knows no such child any more".into()),
        };
        Ok(Some(Died { index: worker.index, pid: pid as u32, exit, at: Instant::now(), wall: SystemTime::now() }))
    }

    /// Those whose end has not been told yet, by index.
    pub fn alive(&self) -> Vec<usize> {
        let mut alive: Vec<usize> = self.living().map(|worker| worker.index).collect();
        alive.sort_unstable();
        alive
    }

    /// Those of them that have ended already, by index.
    pub fn ended(&self) -> Vec<usize> {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        let ended = |worker: &&Worker| matches!(waitid(WaitId::PidFd(worker.pidfd.as_fd()), look), Ok(Some(_)));
        self.living().filter(ended).map(|worker| worker.index).collect()
    }

    fn living(&self) -> impl Iterator<Item = &Worker> {
        self.workers.values().filter(|worker| !worker.dead)
    }

    /// Passes a signal on as it is, to every worker's process group, also what a dead one left in it.
    pub fn signal(&mut self, signal: Signal) {
        for (pid, worker) in &self.workers {
            send(*pid, worker, signal);
        }
    }

    /// Asks every worker's process group to end by this signal. Stopped ones go on, or they could not hear it.
    pub fn end(&mut self, signal: Signal) {
        self.signal(signal);
        self.signal(Signal::CONT);
    }

    /// Kills every worker's process group. The deaths are still told by [`Self::next`].
    pub fn kill(&mut self) {
        self.signal(Signal::KILL);
    }

    /// Ends everything that dead workers left behind, and reaps them. While some worker lives, only what is left of the
    /// dead ones' sessions is ended, since the rest may be the living one's; after the last death, everything is.
    pub async fn sweep(&mut self, limit: Duration) -> Swept {
        let dead: Vec<i32> = self.workers.iter().filter(|(_, worker)| worker.dead).map(|(pid, _)| *pid).collect();
        let whose = if dead.len() == self.workers.len() { Whose::Anyone } else { Whose::Sessions(&dead) };
        let (id, workers) = (self.warden.id(), self.workers.keys().copied().collect::<Vec<_>>());
        let marked = |pid| id.marks(pid);
        let kin = self.kin(&workers, &marked);
        let mut swept = Swept::default();
        // What dead workers left behind are children of the agent by now. Most leave nothing.
        if !kin.is_all() {
            // Looked for before the kill: those that it ends at once would not be found any more.
            let there = stray::living(&kin, whose);
            for pid in &dead {
                send(*pid, &self.workers[pid], Signal::KILL);
            }
            let deadline = tokio::time::Instant::now() + limit;
            swept = stray::sweep(&kin, whose, deadline).await.with(there);
            stray::reap_dead(&kin);
        }
        for pid in dead {
            stray::reap(pid);
            self.workers.remove(&pid);
            self.warden.worker_gone(pid);
        }
        swept
    }

    fn kin<'a>(&'a self, workers: &'a [i32], marked: &'a dyn Fn(i32) -> bool) -> Kin<'a> {
        let Workers { own_session, ref warden, ref strangers, .. } = *self;
        Kin { own_session, workers, warden: warden.pid(), strangers, marked }
    }

    fn reap_dead(&self) {
        let workers: Vec<i32> = self.workers.keys().copied().collect();
        stray::reap_dead(&self.kin(&workers, &|_| false));
    }

    /// Sends the warden home. Before, all workers should have died and been swept: what lives is killed.
    pub fn close(mut self) {
        self.kill_and_reap();
        self.warden.dismiss();
    }

    fn kill_and_reap(&mut self) {
        self.kill();
        let until = Instant::now() + LAST_WAIT;
        for (pid, worker) in std::mem::take(&mut self.workers) {
            watch::await_end(&worker.pidfd, until);
            stray::reap(pid);
        }
    }
}

impl Drop for Workers {
    /// The warden hears no goodbye and so ends what is left.
    fn drop(&mut self) {
        self.kill_and_reap();
    }
}

fn send(pid: i32, worker: &Worker, signal: Signal) {
    let Some(group) = Pid::from_raw(pid) else { return };
    // Unreaped, it keeps its id and its group's. It may not have begun its group yet; then it is alone.
    if kill_process_group(group, signal).is_err() && !worker.dead {
        let _ = pidfd_send_signal(&worker.pidfd, signal);
    }
}

fn with_stdin(stdin: Stdin, program: &OsStr, open_files: Option<u64>) -> io::Result<(Command, UnixStream)> {
    let null = File::open("/dev/null")?;
    let own = io::stdin();
    let own: BorrowedFd<'_> = own.as_fd();
    match stdin {
        // A standard input that the agent was started without reads as nothing.
        Stdin::Inherit => {
            tied::in_session(program, own, open_files).or_else(|_| tied::in_session(program, null.as_fd(), open_files))
        }
        Stdin::Null => tied::in_session(program, null.as_fd(), open_files),
    }
}

fn to_stdio(sink: Sink) -> Stdio {
    match sink {
        Sink::Inherit => Stdio::inherit(),
        Sink::Null => Stdio::null(),
        Sink::Fd(fd) => fd.into(),
    }
}
