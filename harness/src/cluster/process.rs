//! A process that is known by more than its number, which the system gives away again.

use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use lockstep_process::Signals;
use lockstep_process::proc::Stat;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

use crate::exit::Interrupted;

/// Where this process sees others.
pub(super) const PROC: &str = "/proc";
/// How often to look for signals while waiting for something else.
const LOOK: Duration = Duration::from_millis(50);

/// A process, as one particular `/proc` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Process {
    pub(super) pid: i32,
    /// Who started it.
    pub(super) parent: i32,
    /// Clock ticks from the system's boot until it was started (proc(5)).
    started: u64,
}

impl Process {
    /// The process of this number.
    pub(super) fn find(proc: &Path, pid: i32) -> Option<Self> {
        let stat = Stat::seen_in(proc, pid)?;
        Some(Process { pid, parent: stat.parent, started: stat.start })
    }

    /// The letter of its state (proc(5)); `None` when it has ended.
    pub(super) fn state(self, proc: &Path) -> Option<char> {
        let stat = Stat::seen_in(proc, self.pid)?;
        (stat.start == self.started && stat.state != 'Z').then_some(stat.state)
    }

    /// Kills it, if it is there, and waits until it has ended. Of the first process of a process-id namespace, that is when all others
    /// in there have ended, too. Returns false if it has not ended at the deadline.
    ///
    /// # Errors
    /// The system's own.
    pub(super) fn kill(self, deadline: Instant) -> std::io::Result<bool> {
        self.signal_and_wait(Some(Signal::KILL), deadline)
    }

    /// Waits until it has ended. Returns false if it has not at the deadline.
    ///
    /// # Errors
    /// The system's own.
    pub(super) fn wait(self, deadline: Instant) -> std::io::Result<bool> {
        self.signal_and_wait(None, deadline)
    }

    fn signal_and_wait(self, signal: Option<Signal>, deadline: Instant) -> std::io::Result<bool> {
        let Some(pid) = Pid::from_raw(self.pid) else { return Ok(true) };
        let pidfd = match pidfd_open(pid, PidfdFlags::empty()) {
            Err(Errno::SRCH) => return Ok(true),
            opened => opened?,
        };
        // From here on the descriptor is this process's, whatever becomes of its number.
        if self.state(Path::new(PROC)).is_none() {
            return Ok(true);
        }
        if let Some(signal) = signal {
            pidfd_send_signal(&pidfd, signal)?;
        }
        let left = Timespec::try_from(deadline.saturating_duration_since(Instant::now())).ok();
        Ok(retry_on_intr(|| poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], left.as_ref()))? > 0)
    }
}

/// Waits for a child's end; `None` at the deadline. It is not killed: what it has started may be meant to stay.
///
/// # Errors
/// When a signal asks this process to end; the system's own.
pub(super) fn wait_for(child: &mut Child, deadline: Instant, signals: &Signals) -> anyhow::Result<Option<ExitStatus>> {
    let pidfd = pidfd_open(Pid::from_child(child), PidfdFlags::empty())?;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        check(signals)?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(None);
        }
        match poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Timespec::try_from(left.min(LOOK)).ok().as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// # Errors
/// When a signal has arrived that asks this process to end.
pub(super) fn check(signals: &Signals) -> Result<(), Interrupted> {
    signals.arrived().map_or(Ok(()), |signal| Err(Interrupted { signal }))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn kills_the_process_that_it_knows_and_no_later_one_of_its_number() {
        let proc = Path::new(PROC);
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let known = Process::find(proc, child.id() as i32).unwrap();
        assert_eq!(known.parent, std::process::id() as i32);
        let deadline = Instant::now() + Duration::from_secs(60);
        let later = Process { started: known.started + 1, ..known };
        assert!(later.kill(deadline).unwrap() && child.try_wait().unwrap().is_none());
        assert!(!known.wait(Instant::now()).unwrap());
        assert!(known.kill(deadline).unwrap());
        assert_eq!(known.state(proc), None);
        child.wait().unwrap();
        assert!(known.kill(deadline).unwrap());
    }
}
