//! The worker processes as the parent holds them: start, signal, wait in the order in which they die.
//!
//! The kernel queues the processes as they die, so of two that die together the first is known (a thread per
//! process would learn it in the order in which threads wake). Decisions are `machine`'s.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};
use std::time::{Duration, Instant};

use lockstep_process::{Deaths, Process, Signal};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};

use super::error::Stage;
use super::machine::{Ending, Status};
use crate::Rank;
use crate::error_file;

/// How long a set that is given up waits for its killed processes.
const REAP: Duration = Duration::from_secs(5);

/// Processes that have not been reaped yet. Dropping it kills them.
pub(super) struct ProcessSet {
    deaths: Deaths,
    members: BTreeMap<usize, Member>,
}

/// The two files through which a worker reports; without a name on any disk, so nothing can be left behind.
pub(super) struct Reports {
    /// Takes torchrun's error JSON.
    error: File,
    /// Takes a byte at each [`Stage`].
    progress: File,
}

struct Member {
    process: Process,
    reports: Reports,
}

impl ProcessSet {
    pub(super) fn new() -> io::Result<Self> {
        Ok(ProcessSet { deaths: Deaths::new()?, members: BTreeMap::new() })
    }

    /// Starts `command` as `rank`; it inherits `reports` and `args` under the same descriptor numbers.
    pub(super) fn start(
        &mut self,
        rank: Rank,
        command: &mut Command,
        reports: Reports,
        args: &impl AsFd,
    ) -> io::Result<()> {
        let inherited = [reports.error.as_fd(), reports.progress.as_fd(), args.as_fd()];
        let process = inheriting(&inherited, || Process::start(command))?;
        let watched = self.deaths.add(&process, rank.get() as u64);
        // Also one that cannot be watched is killed when this is dropped.
        self.members.insert(rank.get(), Member { process, reports });
        watched
    }

    /// Those that died since the last call, in the order of their deaths; none if `until` passes first.
    pub(super) fn wait(&mut self, until: Option<Instant>) -> io::Result<Vec<(Rank, Ending)>> {
        self.deaths.wait(until)?.into_iter().map(|rank| self.reap(rank as usize)).collect()
    }

    /// Sends `signal` to `ranks`. One that has died meanwhile is no error: its death is waiting to be read.
    pub(super) fn signal(&self, ranks: impl IntoIterator<Item = Rank>, signal: Signal) -> io::Result<()> {
        for rank in ranks {
            self.members.get(&rank.get()).map_or(Ok(()), |member| member.process.signal(signal))?;
        }
        Ok(())
    }

    /// Stops caring for processes that even SIGKILL did not end.
    pub(super) fn abandon(&mut self) {
        self.members.clear();
    }

    fn reap(&mut self, rank: usize) -> io::Result<(Rank, Ending)> {
        let gone = || io::Error::other(format!("an event for process {rank}, which was reaped before"));
        let mut member = self.members.remove(&rank).ok_or_else(gone)?;
        let status = match member.process.child.wait() {
            Ok(status) => status_of(status),
            Err(error) => Status::Lost(format!("its exit status was taken by someone else: {error}")),
        };
        Ok((Rank::new(rank), member.reports.read(status)))
    }
}

impl Drop for ProcessSet {
    fn drop(&mut self) {
        self.members.values().for_each(|member| drop(member.process.signal(Signal::KILL)));
        let until = Instant::now() + REAP;
        for member in self.members.values_mut() {
            member.process.wait_until(until);
            // One that the kernel holds is given up.
            let _ = member.process.child.try_wait();
        }
    }
}

impl Reports {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Reports { error: memory_file("lockstep-error")?, progress: memory_file("lockstep-progress")? })
    }

    pub(super) fn error_path(&self) -> PathBuf {
        inherited_path(&self.error)
    }

    pub(super) fn progress_path(&self) -> PathBuf {
        inherited_path(&self.progress)
    }

    fn read(mut self, status: Status) -> Ending {
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

/// An empty file in memory, which no other program started from here inherits.
pub(super) fn memory_file(name: &str) -> io::Result<File> {
    Ok(File::from(memfd_create(name, MemfdFlags::CLOEXEC)?))
}

/// The path under which a process that inherited `file` opens it, with a position of its own.
pub(super) fn inherited_path(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Lets a process that `start` starts keep `files`.
///
/// A program that another thread starts at this moment keeps them too; it does not know of them and closes them at
/// its end.
fn inheriting<T>(files: &[impl AsFd], start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let mark = |flags| files.iter().try_for_each(|file| fcntl_setfd(file, flags));
    mark(FdFlags::empty())?;
    let started = start();
    // A failure here must not lose the process that was started; a file kept too widely is harmless.
    let _ = mark(FdFlags::CLOEXEC);
    started
}

fn status_of(status: ExitStatus) -> Status {
    match (status.code(), status.signal()) {
        (Some(code), _) => Status::Code(code),
        (None, Some(signal)) => Status::Signal(signal),
        (None, None) => Status::Lost(format!("the kernel gave the status {status}")),
    }
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
    fn learns_of_deaths_in_the_order_in_which_they_happened() {
        for order in [[2, 0, 3, 1], [3, 2, 1, 0], [1, 3, 0, 2]] {
            let mut set = waiting(4);
            for rank in order {
                end(&mut set, rank, 0);
                await_death(&set, rank);
            }
            let deaths = set.wait(soon()).unwrap();
            assert_eq!(deaths.iter().map(|(rank, _)| rank.get()).collect::<Vec<_>>(), order);
        }
    }

    #[test]
    fn distinguishes_exit_codes_from_signals() {
        let mut set = waiting(2);
        end(&mut set, 0, 7);
        await_death(&set, 0);
        set.signal([Rank::new(1)], Signal::KILL).unwrap();
        await_death(&set, 1);
        let statuses: Vec<_> = set.wait(soon()).unwrap().into_iter().map(|(_, ending)| ending.status).collect();
        assert_eq!(statuses, [Status::Code(7), Status::Signal(9)]);
    }

    #[test]
    fn returns_nothing_when_the_deadline_passes_first() {
        let mut set = waiting(1);
        assert!(set.wait(Some(Instant::now())).unwrap().is_empty());
    }

    #[test]
    fn signals_a_process_that_has_died_without_an_error() {
        let mut set = waiting(1);
        end(&mut set, 0, 0);
        await_death(&set, 0);
        set.signal([Rank::ZERO], Signal::TERM).unwrap();
        assert_eq!(set.wait(soon()).unwrap()[0].1.status, Status::Code(0));
    }

    #[test]
    fn kills_and_reaps_what_it_holds_when_dropped() {
        let set = waiting(3);
        let pids: Vec<_> = set.members.values().map(|member| member.process.pid()).collect();
        drop(set);
        for pid in pids {
            assert!(rustix::process::test_kill_process(pid).is_err(), "{pid:?} lives");
        }
    }
}
