//! A program and all processes that it starts, as one group that is ended as a whole.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process_group, set_child_subreaper, waitpgid};

use super::{Process, Signals};

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

    const LIMIT: Duration = Duration::from_secs(60);

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::piped());
        command
    }

    #[test]
    fn reports_how_the_program_ended() {
        let group = Group::start(&mut shell("exit 7")).unwrap();
        match group.finish(Instant::now() + LIMIT, &Signals::default()).unwrap() {
            Outcome::Ended(status) => assert_eq!(status.code(), Some(7)),
            other => panic!("{other:?}"),
        }
    }

    /// When the output reads to its end, every process that held its other end is gone.
    #[test]
    fn ends_children_that_the_program_left_behind() {
        let mut group = Group::start(&mut shell("sleep 1000 & exit 0")).unwrap();
        let mut output = group.leader.child.stdout.take().unwrap();
        assert!(matches!(group.finish(Instant::now() + LIMIT, &Signals::default()).unwrap(), Outcome::Ended(_)));
        assert_eq!(output.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn ends_the_whole_group_at_the_deadline() {
        let mut group = Group::start(&mut shell("sleep 1000 & sleep 1000")).unwrap();
        let mut output = group.leader.child.stdout.take().unwrap();
        assert!(matches!(group.finish(Instant::now(), &Signals::default()).unwrap(), Outcome::TimedOut));
        assert_eq!(output.read(&mut [0]).unwrap(), 0);
    }

    #[test]
    fn ends_the_whole_group_when_dropped() {
        let mut group = Group::start(&mut shell("sleep 1000 & sleep 1000")).unwrap();
        let mut output = group.leader.child.stdout.take().unwrap();
        drop(group);
        assert_eq!(output.read(&mut [0]).unwrap(), 0);
    }
}
