//! Ends processes that are nobody's direct care any more, and reaps them.

use std::os::fd::OwnedFd;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitOptions, pidfd_send_signal, waitpid};

use super::{proc, process};

/// Between two looks. Parents hand their children on while they die, so that one look can miss some.
const PAUSE: Duration = Duration::from_millis(10);
/// This number of looks in a row must find nothing.
const CALM: u32 = 3;

/// A child that is killed and reaped when this is dropped: for tests, which may fail while it runs.
#[derive(Debug)]
pub struct KillOnDrop(pub Child);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Kills what `find` finds until it finds nothing any more, or the deadline passes. What the kernel holds until then is given up.
pub fn kill_until_gone(deadline: Instant, mut find: impl FnMut() -> Vec<i32>) {
    let mut calm = 0;
    while calm < CALM && Instant::now() < deadline {
        let found = find();
        calm = if found.is_empty() { calm + 1 } else { 0 };
        kill_those(&found, &mut find);
        thread::sleep(PAUSE);
    }
}

/// From its opening on, a descriptor means one process; a second look shows that it is the right one.
fn kill_those(found: &[i32], find: &mut impl FnMut() -> Vec<i32>) {
    let open = |pid: &i32| Some((*pid, process::open(Pid::from_raw(*pid)?).ok()?));
    let opened: Vec<(i32, OwnedFd)> = found.iter().filter_map(open).collect();
    let still = if opened.is_empty() { Vec::new() } else { find() };
    for (_, pidfd) in opened.iter().filter(|(pid, _)| still.contains(pid)) {
        // It may have ended in between.
        let _ = pidfd_send_signal(pidfd, Signal::KILL);
    }
}

/// Reaps the children of this process that have ended, except those that someone else waits for.
pub fn reap_orphans(except: &[i32]) {
    let others = proc::children().into_iter().filter(|pid| !except.contains(pid));
    others.filter_map(proc::Stat::of).filter(proc::Stat::is_dead).for_each(|child| reap(child.pid));
}

/// Reaps a child if it has ended.
pub(super) fn reap(pid: i32) {
    let Some(pid) = Pid::from_raw(pid) else { return };
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
