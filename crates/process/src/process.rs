//! One child process, held by a descriptor, so that a signal never reaches another process that gets the same id later.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::{Child, Command, ExitStatus};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitOptions, kill_process, pidfd_open, pidfd_send_signal, waitid,
    waitpid,
};

use super::Exit;

/// Read from a child's start until its descriptor is open, written to reap: an agent reaps every child of its process that has ended.
static STARTING: RwLock<()> = RwLock::new(());

/// A child of this process. Dropping it neither ends nor reaps it.
#[derive(Debug)]
pub struct Process {
    /// The child, with its pipes.
    pub child: Child,
    handle: Handle,
}

/// A child of this process without its pipes, whoever has started it.
#[derive(Debug)]
pub(super) struct Handle {
    pid: Pid,
    pidfd: OwnedFd,
}

impl Process {
    /// Starts `command`. If no descriptor can be opened for the process, it is killed immediately.
    ///
    /// # Errors
    /// The system's error.
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

    /// Its process id.
    pub fn pid(&self) -> Pid {
        self.handle.pid
    }

    /// Sends a signal. It is not an error if the process has ended meanwhile.
    ///
    /// # Errors
    /// The system's error.
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

    /// Waits for its end, or until the deadline. It is not reaped.
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

    /// Holds a child that `start` starts. If no descriptor can be opened for it, it is killed immediately.
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
pub(super) fn none_starting() -> RwLockWriteGuard<'static, ()> {
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

#[cfg(test)]
mod tests {
    use std::process::Stdio;
    use std::time::Duration;

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
}
