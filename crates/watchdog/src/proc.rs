//! What the kernel reports about processes: threads, CPU time, children (proc_pid_stat(5)).

use std::collections::BTreeMap;
use std::time::Duration;

use lockstep_process::proc::{self, Stat};

/// The threads of a process: whether one of them is awake, and their CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awake {
    /// True if a thread runs, is ready to run, is stopped, or waits for a disk.
    pub awake: bool,
    /// CPU time so far, in user and kernel mode.
    pub used: Duration,
}

/// Reads the threads of a process; `None` if it has ended.
pub fn threads(pid: u32) -> Option<Awake> {
    let stats = proc::threads(i32::try_from(pid).ok()?);
    let awake = stats.iter().any(|thread| thread.state != 'S');
    (!stats.is_empty()).then(|| Awake { awake, used: stats.iter().map(|thread| thread.used).sum() })
}

/// This process and all of its descendants.
pub(crate) fn family() -> BTreeMap<i32, Stat> {
    let this = std::process::id() as i32;
    let mut all: BTreeMap<i32, Stat> = proc::pids().filter_map(|pid| Some((pid, Stat::of(pid)?))).collect();
    let below = proc::descendants(this, &all.values().map(|stat| (stat.pid, stat.parent)).collect());
    all.retain(|pid, _| *pid == this || below.contains(pid));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sees_that_this_process_is_awake() {
        assert!(threads(std::process::id()).unwrap().awake);
        assert_eq!(threads(u32::MAX), None);
    }

    #[test]
    fn finds_grandchildren() {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "sleep 60 & echo; wait"]).stdout(std::process::Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let pid = child.id() as i32;
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let family = family();
        assert_eq!(family[&pid].name, "sh");
        let (grandchild, _) = family.iter().find(|(_, stat)| stat.parent == pid).unwrap();
        assert!(std::process::Command::new("kill").arg(grandchild.to_string()).status().unwrap().success());
        child.wait().unwrap();
    }
}
