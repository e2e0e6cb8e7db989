//! The worker processes as the parent holds them: start, signal, wait in the order in which they die.
//!
//! A process is signalled through its pidfd, so a reused process id is never hit. One epoll set holds all pidfds; the
//! kernel queues them as the processes die, so of two that die together the first is known (a thread per
//! process would learn it in the order in which threads wake). Decisions are `machine`'s.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Seek};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::error::Stage;
use super::machine::{Ending, Status};
use crate::Rank;
use crate::error_file;

/// How long a fleet that is given up waits for its killed processes.
const REAP: Duration = Duration::from_secs(5);

/// Processes that have not been reaped yet. Dropping it kills them.
pub(super) struct Fleet {
    epoll: OwnedFd,
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
    child: Child,
    pidfd: OwnedFd,
    reports: Reports,
}

impl Fleet {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Fleet { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, members: BTreeMap::new() })
    }

    /// Starts `command` as `rank`; it inherits `reports` and `args` under the same descriptor numbers.
    pub(super) fn start(
        &mut self,
        rank: Rank,
        command: &mut Command,
        reports: Reports,
        args: &impl AsFd,
    ) -> io::Result<()> {
        let mut child =
            inheriting(&[reports.error.as_fd(), reports.progress.as_fd(), args.as_fd()], || command.spawn())?;
        match self.watch(rank, &child) {
            Ok(pidfd) => {
                self.members.insert(rank.get(), Member { child, pidfd, reports });
                Ok(())
            }
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }

    /// Opens the pidfd of a child that was not reaped: its id cannot belong to another process.
    fn watch(&self, rank: Rank, child: &Child) -> io::Result<OwnedFd> {
        let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
        epoll::add(&self.epoll, &pidfd, epoll::EventData::new_u64(rank.get() as u64), epoll::EventFlags::IN)?;
        Ok(pidfd)
    }

    /// Those that died since the last call, in the order of their deaths; none if `until` passes first.
    pub(super) fn wait(&mut self, until: Option<Instant>) -> io::Result<Vec<(Rank, Ending)>> {
        let mut ready = Vec::with_capacity(self.members.len().max(1));
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            // A time too long for the kernel's clock is no limit.
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match epoll::wait(&self.epoll, spare_capacity(&mut ready), left.as_ref()) {
                Err(Errno::INTR) => continue,
                result => result?,
            };
            return ready.into_iter().map(|event: epoll::Event| self.reap(event.data.u64() as usize)).collect();
        }
    }

    /// Sends `signal` to `ranks`. One that has died meanwhile is no error: its death is waiting to be read.
    pub(super) fn signal(&self, ranks: impl IntoIterator<Item = Rank>, signal: Signal) -> io::Result<()> {
        for rank in ranks {
            let Some(member) = self.members.get(&rank.get()) else { continue };
            match pidfd_send_signal(&member.pidfd, signal) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
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
        epoll::delete(&self.epoll, &member.pidfd)?;
        let status = match member.child.wait() {
            Ok(status) => status_of(status),
            Err(error) => Status::Lost(format!("its exit status was taken by someone else: {error}")),
        };
        Ok((Rank::new(rank), member.reports.read(status)))
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        let ranks: Vec<_> = self.members.keys().copied().map(Rank::new).collect();
        let _ = self.signal(ranks, Signal::KILL);
        let until = Instant::now() + REAP;
        while !self.members.is_empty() && self.wait(Some(until)).is_ok_and(|deaths| !deaths.is_empty()) {}
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
    let set = |flags| files.iter().try_for_each(|file| fcntl_setfd(file, flags));
    set(FdFlags::empty())?;
    let started = start();
    // A failure here must not lose the process that was started; a file kept too widely is harmless.
    let _ = set(FdFlags::CLOEXEC);
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

    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    /// Processes that wait for a line on stdin and exit with it as their code.
    fn waiting(count: usize) -> Fleet {
        let mut fleet = Fleet::new().unwrap();
        let args = memory_file("args").unwrap();
        for rank in 0..count {
            let mut command = Command::new("sh");
            command.args(["-c", "read code; exit $code"]).stdin(Stdio::piped());
            fleet.start(Rank::new(rank), &mut command, Reports::new().unwrap(), &args).unwrap();
        }
        fleet
    }

    fn end(fleet: &mut Fleet, rank: usize, code: i32) {
        let stdin = &mut fleet.members.get_mut(&rank).unwrap().child.stdin;
        writeln!(stdin.take().unwrap(), "{code}").unwrap();
    }

    fn await_death(fleet: &Fleet, rank: usize) {
        let mut fds = [PollFd::new(&fleet.members[&rank].pidfd, PollFlags::IN)];
        let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
        assert_eq!(poll(&mut fds, Some(&limit)).unwrap(), 1, "process {rank} did not end");
    }

    fn soon() -> Option<Instant> {
        Some(Instant::now() + Duration::from_secs(60))
    }

    #[test]
    fn learns_of_deaths_in_the_order_in_which_they_happened() {
        for order in [[2, 0, 3, 1], [3, 2, 1, 0], [1, 3, 0, 2]] {
            let mut fleet = waiting(4);
            for rank in order {
                end(&mut fleet, rank, 0);
                await_death(&fleet, rank);
            }
            let deaths = fleet.wait(soon()).unwrap();
            assert_eq!(deaths.iter().map(|(rank, _)| rank.get()).collect::<Vec<_>>(), order);
        }
    }

    #[test]
    fn tells_exit_codes_from_signals() {
        let mut fleet = waiting(2);
        end(&mut fleet, 0, 7);
        await_death(&fleet, 0);
        fleet.signal([Rank::new(1)], Signal::KILL).unwrap();
        await_death(&fleet, 1);
        let statuses: Vec<_> = fleet.wait(soon()).unwrap().into_iter().map(|(_, ending)| ending.status).collect();
        assert_eq!(statuses, [Status::Code(7), Status::Signal(9)]);
    }

    #[test]
    fn returns_nothing_when_the_deadline_passes_first() {
        let mut fleet = waiting(1);
        assert!(fleet.wait(Some(Instant::now())).unwrap().is_empty());
    }

    #[test]
    fn signals_a_process_that_has_died_without_an_error() {
        let mut fleet = waiting(1);
        end(&mut fleet, 0, 0);
        await_death(&fleet, 0);
        fleet.signal([Rank::ZERO], Signal::TERM).unwrap();
        assert_eq!(fleet.wait(soon()).unwrap()[0].1.status, Status::Code(0));
    }

    #[test]
    fn kills_and_reaps_what_it_holds_when_dropped() {
        let fleet = waiting(3);
        let pids: Vec<_> = fleet.members.values().map(|member| Pid::from_child(&member.child)).collect();
        drop(fleet);
        for pid in pids {
            assert!(rustix::process::test_kill_process(pid).is_err(), "{pid:?} lives");
        }
    }
}
