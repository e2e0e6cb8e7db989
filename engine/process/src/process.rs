//! Child processes: one that is held by a descriptor ([`Process`]), the deaths of many in the kernel's order ([`Deaths`]), and kills of
//! processes that no handle in this process owns.
//!
//! A signal by descriptor never reaches another process that gets the same id later. Such descriptors (pidfd_open(2)) become readable when
//! their process has ended. [`Deaths`] gathers them in an epoll instance, whose list of ready descriptors is first in, first out (epoll(7),
//! fs/eventpoll.c). A runtime can wait for that instance; the runtime's own readiness list does not help, since it wakes tasks in no
//! particular order.
//!
//! [`Group`]: a program and all processes that it starts, ended as a whole.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};
use std::time::{Duration, Instant};
use std::{io, thread};

use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, getpid, kill_process, kill_process_group, pidfd_open,
    pidfd_send_signal, set_child_subreaper, waitid, waitpgid, waitpid,
};

use crate::{Exit, Signals, proc};

/// Read from a child's start until its descriptor is open, written to reap: an agent reaps every child of its process that has ended.
static STARTING: RwLock<()> = RwLock::new(());

/// How long a process may exist after SIGKILL. One that sleeps in the kernel (a dead network file system, a GPU driver) handles no
/// signal, perhaps forever; then it is abandoned.
pub const KILL_LIMIT: Duration = Duration::from_secs(10);

/// A child of this process. Dropping it neither ends nor reaps it.
#[derive(Debug)]
pub struct Process {
    /// The child, with its pipes.
    pub child: Child,
    handle: Handle,
}

/// A child of this process, without its pipes.
#[derive(Debug)]
pub(super) struct Handle {
    pid: Pid,
    pidfd: OwnedFd,
}

impl Process {
    /// Starts `command`. If no descriptor can be opened for the process, it is killed immediately.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        let _starting = STARTING.read().unwrap_or_else(PoisonError::into_inner);
        let mut child = command.spawn()?;
        match Handle::open(Pid::from_child(&child)) {
            Ok(handle) => Ok(Process { child, handle }),
            Err(error) => {
                child.kill()?;
                child.wait()?;
                Err(error)
            }
        }
    }

    pub fn pid(&self) -> Pid {
        self.handle.pid
    }

    /// Sends a signal. It is not an error if the process has ended meanwhile.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        self.handle.signal(signal)
    }

    /// How it ended, if it has; it is not reaped.
    ///
    /// # Errors
    /// The system's error: other code has reaped it.
    pub fn ended(&self) -> io::Result<Option<Exit>> {
        self.handle.ended()
    }

    /// Waits for its end, or until the deadline. Does not reap it.
    pub fn wait_until(&self, deadline: Instant) {
        self.handle.wait_until(deadline);
    }

    /// Waits for its end, or kills it at the deadline; reaps it.
    ///
    /// # Errors
    /// The system's error: other code has reaped it.
    pub fn wait_or_kill(&mut self, deadline: Instant) -> io::Result<ExitStatus> {
        self.wait_until(deadline);
        // A signal to a process that has ended has no effect.
        let _ = self.signal(Signal::KILL);
        self.child.wait()
    }
}

impl AsFd for Process {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl Handle {
    /// Holds a child of this process that nothing has reaped.
    pub(super) fn open(pid: Pid) -> io::Result<Self> {
        Ok(Handle { pid, pidfd: open(pid)? })
    }

    /// Holds the child that `start` starts. If no descriptor can be opened for the child, it is killed immediately.
    pub(super) fn of_new(start: impl FnOnce() -> io::Result<Pid>) -> io::Result<Self> {
        let _starting = STARTING.read().unwrap_or_else(PoisonError::into_inner);
        let pid = start()?;
        Self::open(pid).inspect_err(|_| {
            let _ = kill_process(pid, Signal::KILL);
            let _ = retry_on_intr(|| waitpid(Some(pid), WaitOptions::empty()));
        })
    }

    pub(super) fn pid(&self) -> Pid {
        self.pid
    }

    pub(super) fn signal(&self, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(&self.pidfd, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) fn ended(&self) -> io::Result<Option<Exit>> {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        Ok(waitid(WaitId::PidFd(self.pidfd.as_fd()), look)?.as_ref().map(Exit::of))
    }

    pub(super) fn wait_until(&self, deadline: Instant) {
        wait_until(&self.pidfd, deadline);
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// While this is held, every child that was started has its descriptor.
fn none_starting() -> RwLockWriteGuard<'static, ()> {
    STARTING.write().unwrap_or_else(PoisonError::into_inner)
}

/// A descriptor for a child of this process, or for another process that the caller then checks again.
pub(super) fn open(pid: Pid) -> io::Result<OwnedFd> {
    Ok(pidfd_open(pid, PidfdFlags::empty())?)
}

/// Waits for the end of a process, or until the deadline.
pub(super) fn wait_until(pidfd: &impl AsFd, deadline: Instant) {
    loop {
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
        match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], left.as_ref()) {
            Err(Errno::INTR) => {}
            _ => return,
        }
    }
}

/// The number of deaths that one call reads from the kernel.
const AT_ONCE: usize = 64;

/// The set of watched processes. Its descriptor is readable while there is a death to report.
#[derive(Debug)]
pub struct Deaths {
    epoll: OwnedFd,
}

impl Deaths {
    pub fn new() -> io::Result<Self> {
        Ok(Deaths { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// Watches a process by its descriptor. Its death is reported once, as `name`.
    pub fn add(&self, pidfd: &impl AsFd, name: u64) -> io::Result<()> {
        self.register(pidfd, name, epoll::EventFlags::IN | epoll::EventFlags::ONESHOT)
    }

    /// Also watches this descriptor: reports `name` whenever it is readable.
    pub(super) fn add_descriptor(&self, fd: &impl AsFd, name: u64) -> io::Result<()> {
        self.register(fd, name, epoll::EventFlags::IN)
    }

    fn register(&self, fd: &impl AsFd, name: u64, flags: epoll::EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, epoll::EventData::new_u64(name), flags)?)
    }

    /// The names of all processes that have died since the last call, in the order of their deaths. Waits for the first
    /// until the deadline, or without a limit if there is none; empty if the deadline has passed.
    pub fn wait(&self, deadline: Option<Instant>) -> io::Result<Vec<u64>> {
        let mut names = self.take(deadline)?;
        let mut taken = names.len();
        while taken == AT_ONCE {
            let more = self.take(Some(Instant::now()))?;
            taken = more.len();
            names.extend(more);
        }
        Ok(names)
    }

    fn take(&self, deadline: Option<Instant>) -> io::Result<Vec<u64>> {
        let mut events: Vec<epoll::Event> = Vec::with_capacity(AT_ONCE);
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            // A time that the kernel's clock cannot hold means no limit.
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match epoll::wait(&self.epoll, spare_capacity(&mut events), left.as_ref()) {
                Ok(_) => return Ok(events.iter().map(|event| event.data.u64()).collect()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl AsFd for Deaths {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Pause between two searches. Parents pass their children on while they die, so one search can miss some.
const PAUSE: Duration = Duration::from_millis(10);
/// The number of consecutive searches that must find nothing.
const CALM: u32 = 3;

/// A child that is killed and reaped when this is dropped, for tests that may fail while it runs.
#[derive(Debug)]
pub struct KillOnDrop(pub Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Kills the processes that `find` returns until it returns none or the deadline passes. A process that still hangs in
/// the kernel then is abandoned.
pub fn kill_until_gone(deadline: Instant, mut find: impl FnMut() -> Vec<i32>) {
    let mut calm = 0;
    while calm < CALM && Instant::now() < deadline {
        let found = find();
        calm = if found.is_empty() { calm + 1 } else { 0 };
        kill_those(&found, &mut find);
        thread::sleep(PAUSE);
    }
}

/// A descriptor refers to one process from the moment it is opened; the second search confirms that it is the right
/// one.
fn kill_those(found: &[i32], find: &mut impl FnMut() -> Vec<i32>) {
    let open = |pid: &i32| Some((*pid, open(Pid::from_raw(*pid)?).ok()?));
    let opened: Vec<(i32, OwnedFd)> = found.iter().filter_map(open).collect();
    let still = if opened.is_empty() { Vec::new() } else { find() };
    for (_, pidfd) in opened.iter().filter(|(pid, _)| still.contains(pid)) {
        // The process may have ended meanwhile.
        let _ = pidfd_send_signal(pidfd, Signal::KILL);
    }
}

/// Reaps the children of this process that have ended, except those that other code waits for.
pub fn reap_orphans(except: &[i32]) {
    let others = proc::children().into_iter().filter(|pid| !except.contains(pid));
    others.filter_map(proc::Stat::of).filter(proc::Stat::is_dead).for_each(|child| reap(child.pid));
}

/// Reaps a child if it has ended.
pub(super) fn reap(pid: i32) {
    let Some(pid) = Pid::from_raw(pid) else { return };
    let _reaping = none_starting();
    while let Err(rustix::io::Errno::INTR) = waitpid(Some(pid), WaitOptions::NOHANG) {}
}

/// How long to wait for the members of a killed group. A member that hangs in the kernel, as on a broken file system,
/// is abandoned.
const REAP: Duration = Duration::from_secs(5);
/// Interval between checks for members that still exist: a group has no descriptor to wait on.
const LOOK: Duration = Duration::from_millis(2);

/// A running program with its children. Dropping it kills and reaps all of them.
pub struct Group {
    leader: Process,
    id: Pid,
    gone: bool,
}

#[derive(Debug)]
pub enum Outcome {
    Ended(ExitStatus),
    TimedOut,
    /// This process received this signal, which asks it to end.
    Signalled(i32),
}

impl Group {
    /// Starts `command` as the leader of a new group.
    pub fn start(command: &mut Command) -> io::Result<Self> {
        // Children that a killed leader leaves behind become children of this process, so that it can reap them.
        set_child_subreaper(Some(getpid()))?;
        let leader = Process::start(command.process_group(0))?;
        Ok(Group { id: leader.pid(), leader, gone: false })
    }

    /// The group's id, which is its leader's.
    pub fn id(&self) -> Pid {
        self.id
    }

    /// Waits for the program's end, the deadline or a signal, whichever comes first, and kills what is left of the
    /// group.
    pub fn finish(mut self, deadline: Instant, signals: &Signals) -> io::Result<Outcome> {
        let outcome = loop {
            let ended = self.wait(deadline, signals)?;
            if let Some(signal) = signals.arrived() {
                break Outcome::Signalled(signal);
            }
            if ended {
                // The leader is not reaped yet, so its id cannot name another group.
                self.kill();
                let status = self.leader.child.wait()?;
                self.reap();
                return Ok(Outcome::Ended(status));
            }
            if Instant::now() >= deadline {
                break Outcome::TimedOut;
            }
        };
        self.end();
        Ok(outcome)
    }

    /// Returns true if the program has ended. Also returns on a signal or at the deadline.
    fn wait(&self, deadline: Instant, signals: &Signals) -> io::Result<bool> {
        let left = deadline.saturating_duration_since(Instant::now());
        // A time that the kernel's clock cannot hold means no limit.
        let left = Timespec::try_from(left).ok();
        let mut fds: Vec<_> = [self.leader.as_fd()].into_iter().chain(signals.descriptors()).map(readable).collect();
        match poll(&mut fds, left.as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(!fds[0].revents().is_empty()),
            Err(error) => Err(error.into()),
        }
    }

    fn kill(&self) {
        // The call fails if no member is left, which is the usual case.
        let _ = kill_process_group(self.id, Signal::KILL);
    }

    /// Kills and reaps every member, including the leader.
    fn end(&mut self) {
        if !self.gone {
            self.kill();
            self.reap();
        }
    }

    fn reap(&mut self) {
        self.gone = true;
        let until = Instant::now() + REAP;
        loop {
            match waitpgid(self.id, WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) if Instant::now() < until => thread::sleep(LOOK),
                // No member is left, or one cannot be killed.
                Ok(None) | Err(_) => return,
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.end();
    }
}

fn readable(fd: BorrowedFd<'_>) -> PollFd<'_> {
    PollFd::from_borrowed_fd(fd, PollFlags::IN)
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::Stdio;

    use super::*;

    fn shell(script: &str) -> Process {
        Process::start(Command::new("sh").args(["-c", script]).stdin(Stdio::piped())).unwrap()
    }

    #[test]
    fn reports_how_a_process_ended_and_leaves_it_unreaped() {
        let mut process = shell("exit 3");
        process.wait_until(Instant::now() + Duration::from_secs(60));
        assert_eq!(process.ended().unwrap(), Some(Exit::Code(3)));
        process.signal(Signal::KILL).unwrap();
        assert_eq!(process.child.wait().unwrap().code(), Some(3));
        assert!(process.ended().is_err());
    }

    #[test]
    fn kills_a_process_at_the_deadline() {
        let mut process = shell("read line; exit 3");
        assert_eq!(process.ended().unwrap(), None);
        let status = process.wait_or_kill(Instant::now()).unwrap();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    }

    /// Kills the processes in this order, each after the previous one has died, while the set is not read; returns the
    /// reported order.
    fn order_reported(order: &[usize]) -> Vec<u64> {
        let deaths = Deaths::new().unwrap();
        let sleeper = |_| Process::start(Command::new("sleep").arg("1000").stdin(Stdio::null())).unwrap();
        let mut sleepers: Vec<Process> = order.iter().map(sleeper).collect();
        for (name, sleeper) in sleepers.iter().enumerate() {
            deaths.add(sleeper, name as u64).unwrap();
        }
        for &victim in order {
            sleepers[victim].child.kill().unwrap();
            sleepers[victim].child.wait().unwrap();
        }
        let reported = deaths.wait(None).unwrap();
        assert!(deaths.wait(Some(Instant::now())).unwrap().is_empty(), "each is reported once");
        reported
    }

    #[test]
    fn reports_deaths_in_their_order_even_if_it_is_read_later() {
        for order in [[0, 1, 2], [2, 1, 0], [1, 0, 2], [2, 0, 1], [1, 2, 0], [0, 2, 1]].repeat(5) {
            assert_eq!(order_reported(&order), order.map(|name| name as u64));
        }
    }

    #[test]
    fn reports_more_deaths_than_one_call_reads() {
        let order: Vec<usize> = (0..AT_ONCE + 6).rev().collect();
        let expected: Vec<u64> = order.iter().map(|name| *name as u64).collect();
        assert_eq!(order_reported(&order), expected);
    }

    #[test]
    fn kills_what_is_found_until_nothing_is() {
        let mut sleepers: Vec<Child> =
            (0..2).map(|_| Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap()).collect();
        let pids: Vec<i32> = sleepers.iter().map(|child| child.id() as i32).collect();
        let alive = |pid: &i32| proc::Stat::of(*pid).is_some_and(|stat| !stat.is_dead());
        kill_until_gone(Instant::now() + Duration::from_secs(60), || pids.iter().copied().filter(alive).collect());
        assert!(!pids.iter().any(alive));
        sleepers.iter_mut().for_each(|child| drop(child.wait()));
    }

    const LIMIT: Duration = Duration::from_secs(60);

    fn shell_command(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    #[test]
    fn reports_how_the_program_ended() {
        let group = Group::start(&mut shell_command("exit 7")).unwrap();
        match group.finish(Instant::now() + LIMIT, &Signals::default()).unwrap() {
            Outcome::Ended(status) => assert_eq!(status.code(), Some(7)),
            other => panic!("{other:?}"),
        }
    }

    /// When the output reads to its end, every process that held its other end is gone.
    #[test]
    fn ends_children_that_the_program_left_behind() {
        let mut group = Group::start(&mut shell_command("sleep 1000 & exit 0")).unwrap();
        let mut output = group.leader.child.stdout.take().unwrap();
        assert!(matches!(group.finish(Instant::now() + LIMIT, &Signals::default()).unwrap(), Outcome::Ended(_)));
        assert_eq!(output.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn ends_the_whole_group_at_the_deadline() {
        let mut group = Group::start(&mut shell_command("sleep 1000 & sleep 1000")).unwrap();
        let mut output = group.leader.child.stdout.take().unwrap();
        assert!(matches!(group.finish(Instant::now(), &Signals::default()).unwrap(), Outcome::TimedOut));
        assert_eq!(output.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn ends_the_whole_group_when_dropped() {
        let mut group = Group::start(&mut shell_command("sleep 1000 & sleep 1000")).unwrap();
        let mut output = group.leader.child.stdout.take().unwrap();
        drop(group);
        assert_eq!(output.read(&mut [0]).unwrap(), 0);
    }
}
