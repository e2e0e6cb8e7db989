//! Kills and reaps processes that no handle in this process owns.

use std::os::fd::OwnedFd;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, pidfd_send_signal, waitpid};

use super::{proc, process};

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
    let open = |pid: &i32| Some((*pid, process::open(Pid::from_raw(*pid)?).ok()?));
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
    let _reaping = process::none_starting();
    while let Err(rustix::io::Errno::INTR) = waitpid(Some(pid), WaitOptions::NOHANG) {}
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

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
}
