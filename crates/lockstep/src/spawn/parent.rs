//! The parent's side of a call: opens the store, starts the workers, signals them, and waits for them in the order of their deaths.
//!
//! The kernel queues the processes as they die, so the first of two that die almost together is known. (One thread per process would
//! only see the order in which the threads wake.) [`state_machine`](super::state_machine) decides what a death means.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::io::{Seek, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lockstep_contract::events::{AgentEvent, AgentSink};
use lockstep_contract::recording;
use lockstep_process::{Deaths, Exit, Process, Signal};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::system::uname;
use serde::Serialize;

use super::error::Stage;
use super::state_machine::{Action, Ending, Event, StateMachine};
use super::worker::{Call, Handshake};
use super::{Hosted, Spawn, SpawnError};
use crate::env::{ERROR_FILE, HANDSHAKE};
use crate::{Rank, WorldSize, error_file};

/// Starts the workers of `call` and waits for them.
pub(super) fn run<H, A>(spawn: Spawn<H>, call: &Call, args: &A) -> Result<(), SpawnError>
where
    H: FnOnce() -> anyhow::Result<Hosted>,
    A: Serialize,
{
    let world = WorldSize::new(spawn.nprocs).ok_or(SpawnError::NoProcesses)?;
    let json = serde_json::to_vec(args).map_err(SpawnError::Args)?;
    let args = args_file(&json).map_err(SpawnError::Watch)?;
    // No worker reads them before all are watched: workers that are not could die in an order that nobody sees.
    args.lock().map_err(SpawnError::Watch)?;
    // The store stays open until the last worker has ended: it is dropped at the end of this function.
    let hosted = (spawn.host)().map_err(SpawnError::Host)?;
    let mut processes = ProcessSet::new().map_err(SpawnError::Watch)?;
    let events = recorded_events();
    for rank in world.ranks() {
        let start = start(&mut processes, rank, world, call, &hosted, &args);
        let pid = start.map_err(|source| SpawnError::Start { rank, nprocs: spawn.nprocs, source })?;
        let rank = rank.get();
        events.emit(&AgentEvent::Started { attempt: 0, rank, local_rank: rank, pid });
    }
    args.unlock().map_err(SpawnError::Watch)?;
    let state_machine = StateMachine::new(world, spawn.grace, spawn.timeout, Instant::now());
    let done = supervise(&mut processes, state_machine, &events);
    events.emit(&AgentEvent::Finished { code: i32::from(done.is_err()) });
    done
}

/// Where the starts and ends of workers are recorded: next to the ranks' own recordings, if there are any.
fn recorded_events() -> AgentSink {
    let node = format!("{}-{}", uname().nodename().to_string_lossy(), std::process::id());
    // The ranks warn if nothing can be written there.
    recording::folder().and_then(|folder| AgentSink::open(&folder, &node).ok()).unwrap_or_default()
}

/// Carries out what `state_machine` decides until it is finished. This thread does nothing else: a worker dies with the
/// *thread* that started it.
fn supervise(
    processes: &mut ProcessSet,
    mut state_machine: StateMachine,
    events: &AgentSink,
) -> Result<(), SpawnError> {
    let mut stopped = false;
    loop {
        let deaths = processes.wait(state_machine.deadline()).map_err(SpawnError::Watch)?;
        for (rank, pid, Ending { status, .. }) in &deaths {
            if let Ok(exit) = status {
                let (rank, code) = (rank.get(), exit.torch_code());
                events.emit(&AgentEvent::Ended { attempt: 0, rank, local_rank: rank, pid: *pid, code, stopped });
            }
        }
        let deaths: Vec<_> = deaths.into_iter().map(|(rank, _, ending)| (rank, ending)).collect();
        let event = if deaths.is_empty() { Event::DeadlinePassed } else { Event::Died(deaths) };
        match state_machine.handle(event, Instant::now()) {
            Action::Wait => {}
            Action::Signal(signal, ranks) => {
                stopped = true;
                processes.signal(ranks, signal).map_err(SpawnError::Watch)?;
            }
            Action::Finish => {
                processes.abandon();
                return state_machine.verdict();
            }
        }
    }
}

fn start(
    processes: &mut ProcessSet,
    rank: Rank,
    world: WorldSize,
    call: &Call,
    hosted: &Hosted,
    args: &File,
) -> io::Result<u32> {
    let reports = Reports::new()?;
    let handshake = Handshake {
        parent: rustix::process::getpid().as_raw_nonzero().get(),
        call: call.ordinal,
        at: call.at.clone(),
        earlier: call.earlier.clone(),
        args: inherited_path(args),
        progress: reports.progress_path(),
    };
    let mut command = same_program()?;
    command.env(HANDSHAKE, serde_json::to_string(&handshake)?).env(ERROR_FILE, reports.error_path());
    set_place(&mut command, rank, world, hosted);
    processes.start(rank, &mut command, reports, args)
}

/// torchrun's variables, for one node and no agent.
fn set_place(command: &mut Command, rank: Rank, world: WorldSize, hosted: &Hosted) {
    for name in ["RANK", "LOCAL_RANK"] {
        command.env(name, rank.to_string());
    }
    for name in ["WORLD_SIZE", "LOCAL_WORLD_SIZE"] {
        command.env(name, world.to_string());
    }
    command.env("MASTER_ADDR", &hosted.addr).env("MASTER_PORT", hosted.port.to_string());
    command.env("TORCHELASTIC_USE_AGENT_STORE", "True").env("TORCHELASTIC_RESTART_COUNT", "0");
    if world.get() > 1 && std::env::var_os("OMP_NUM_THREADS").is_none() {
        command.env("OMP_NUM_THREADS", "1");
    }
}

/// This program with this process's arguments. Its stdin is empty, because several processes cannot share one.
fn same_program() -> io::Result<Command> {
    let mut command = Command::new(executable()?);
    let mut args = std::env::args_os();
    if let Some(name) = args.next() {
        command.arg0(name);
    }
    command.args(args).stdin(Stdio::null());
    Ok(command)
}

/// The running executable, by the kernel's link to it if its file was replaced meanwhile, as by a rebuild.
fn executable() -> io::Result<PathBuf> {
    let path = std::env::current_exe()?;
    Ok(if path.exists() { path } else { "/proc/self/exe".into() })
}

fn args_file(json: &[u8]) -> io::Result<File> {
    let mut file = memory_file("lockstep-args")?;
    file.write_all(json)?;
    Ok(file)
}

/// How long a dropped set waits for its killed processes.
const REAP: Duration = Duration::from_secs(5);

/// Processes that have not been reaped yet. Dropping it kills them.
struct ProcessSet {
    deaths: Deaths,
    members: BTreeMap<usize, Member>,
}

/// The two files through which a worker reports. They have no name on any disk, so they cannot be left behind.
struct Reports {
    /// Receives torchrun's error JSON.
    error: File,
    /// Receives a byte at each [`Stage`].
    progress: File,
}

struct Member {
    process: Process,
    reports: Reports,
}

impl ProcessSet {
    fn new() -> io::Result<Self> {
        Ok(ProcessSet { deaths: Deaths::new()?, members: BTreeMap::new() })
    }

    /// Starts `command` as `rank`; it inherits `reports` and `args` under the same descriptor numbers. Returns its process id.
    fn start(&mut self, rank: Rank, command: &mut Command, reports: Reports, args: &impl AsFd) -> io::Result<u32> {
        let inherited = [reports.error.as_fd(), reports.progress.as_fd(), args.as_fd()];
        let process = inheriting(&inherited, || Process::start(command))?;
        let (watched, pid) = (self.deaths.add(&process, rank.get() as u64), process.child.id());
        // If it cannot be watched, it is killed when this is dropped.
        self.members.insert(rank.get(), Member { process, reports });
        watched.map(|()| pid)
    }

    /// The processes that died since the last call, in the order of their deaths; empty if `until` passes first.
    fn wait(&mut self, until: Option<Instant>) -> io::Result<Vec<(Rank, u32, Ending)>> {
        self.deaths.wait(until)?.into_iter().map(|rank| self.reap(rank as usize)).collect()
    }

    /// Sends `signal` to `ranks`. It is not an error if one has died meanwhile: its death is reported by the next wait.
    fn signal(&self, ranks: impl IntoIterator<Item = Rank>, signal: Signal) -> io::Result<()> {
        for rank in ranks {
            self.members.get(&rank.get()).map_or(Ok(()), |member| member.process.signal(signal))?;
        }
        Ok(())
    }

    /// Drops processes that even SIGKILL did not end, without waiting.
    fn abandon(&mut self) {
        self.members.clear();
    }

    fn reap(&mut self, rank: usize) -> io::Result<(Rank, u32, Ending)> {
        let gone = || io::Error::other(format!("an event for process {rank}, which was reaped before"));
        let mut member = self.members.remove(&rank).ok_or_else(gone)?;
        let status = member.process.child.wait().map(Exit::from);
        let status = status.map_err(|error| format!("other code has read its exit status: {error}"));
        Ok((Rank::new(rank), member.process.child.id(), member.reports.read(status)))
    }
}

impl Drop for ProcessSet {
    fn drop(&mut self) {
        self.members.values().for_each(|member| drop(member.process.signal(Signal::KILL)));
        let until = Instant::now() + REAP;
        for member in self.members.values_mut() {
            member.process.wait_until(until);
            // A process that hangs in the kernel is abandoned.
            let _ = member.process.child.try_wait();
        }
    }
}

impl Reports {
    fn new() -> io::Result<Self> {
        Ok(Reports { error: memory_file("lockstep-error")?, progress: memory_file("lockstep-progress")? })
    }

    fn error_path(&self) -> PathBuf {
        inherited_path(&self.error)
    }

    fn progress_path(&self) -> PathBuf {
        inherited_path(&self.progress)
    }

    fn read(mut self, status: Result<Exit, String>) -> Ending {
        let stage = match self.progress.metadata().map_or(0, |data| data.len()) {
            0 => Stage::Started,
            1 => Stage::Reached,
            _ => Stage::Returned,
        };
        let bytes = self.error.rewind().and_then(|()| error_file::read_bounded(&self.error)).unwrap_or_default();
        match error_file::parse(&bytes) {
            Ok(record) => Ending { status, stage, record, note: None },
            Err(error) => Ending { status, stage, record: None, note: Some(error.to_string()) },
        }
    }
}

/// An empty file in memory. Programs that are started from here do not inherit it, unless [`inheriting`] is used.
fn memory_file(name: &str) -> io::Result<File> {
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
}

/// The path at which a process that inherited `file` opens it, with its own position.
fn inherited_path(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Makes the process that `start` starts inherit `files`.
///
/// A program that another thread starts at the same time inherits them, too. It does not know them, and they are closed
/// when it ends.
fn inheriting<T>(files: &[impl AsFd], start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let mark = |flags| files.iter().try_for_each(|file| fcntl_setfd(file, flags));
    mark(FdFlags::empty())?;
    let started = start();
    // A failure here must not lose the process that was started, and an inherited file is harmless.
    let _ = mark(FdFlags::CLOEXEC);
    started
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::Stdio;

    use super::*;

    /// Processes that wait for a line on stdin and exit with it as their code.
    fn waiting(count: usize) -> ProcessSet {
        let mut set = ProcessSet::new().unwrap();
        let args = memory_file("args").unwrap();
        for rank in 0..count {
            let mut command = Command::new("sh");
            command.args(["-c", "read code; exit $code"]).stdin(Stdio::piped());
            set.start(Rank::new(rank), &mut command, Reports::new().unwrap(), &args).unwrap();
        }
        set
    }

    fn end(set: &mut ProcessSet, rank: usize, code: i32) {
        let stdin = &mut set.members.get_mut(&rank).unwrap().process.child.stdin;
        writeln!(stdin.take().unwrap(), "{code}").unwrap();
    }

    fn await_death(set: &ProcessSet, rank: usize) {
        let process = &set.members[&rank].process;
        process.wait_until(Instant::now() + Duration::from_secs(60));
        assert!(process.ended().unwrap().is_some(), "process {rank} did not end");
    }

    fn soon() -> Option<Instant> {
        Some(Instant::now() + Duration::from_secs(60))
    }

    #[test]
    fn reports_deaths_in_the_order_in_which_they_happened() {
        for order in [[2, 0, 3, 1], [3, 2, 1, 0], [1, 3, 0, 2]] {
            let mut set = waiting(4);
            for rank in order {
                end(&mut set, rank, 0);
                await_death(&set, rank);
            }
            let deaths = set.wait(soon()).unwrap();
            assert_eq!(deaths.iter().map(|(rank, ..)| rank.get()).collect::<Vec<_>>(), order);
        }
    }

    #[test]
    fn distinguishes_exit_codes_from_signals() {
        let mut set = waiting(2);
        end(&mut set, 0, 7);
        await_death(&set, 0);
        set.signal([Rank::new(1)], Signal::KILL).unwrap();
        await_death(&set, 1);
        let statuses: Vec<_> = set.wait(soon()).unwrap().into_iter().map(|(.., ending)| ending.status).collect();
        assert_eq!(statuses, [Ok(Exit::Code(7)), Ok(Exit::Signal(9))]);
    }

    #[test]
    fn returns_no_deaths_if_the_deadline_passes_first() {
        let mut set = waiting(1);
        assert!(set.wait(Some(Instant::now())).unwrap().is_empty());
    }

    #[test]
    fn reports_no_error_for_a_signal_to_a_dead_process() {
        let mut set = waiting(1);
        end(&mut set, 0, 0);
        await_death(&set, 0);
        set.signal([Rank::ZERO], Signal::TERM).unwrap();
        assert_eq!(set.wait(soon()).unwrap()[0].2.status, Ok(Exit::Code(0)));
    }

    #[test]
    fn kills_and_reaps_its_processes_when_dropped() {
        let set = waiting(3);
        let pids: Vec<_> = set.members.values().map(|member| member.process.pid()).collect();
        drop(set);
        for pid in pids {
            assert!(rustix::process::test_kill_process(pid).is_err(), "{pid:?} lives");
        }
    }
}
