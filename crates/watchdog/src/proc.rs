//! What the kernel reports about processes: threads, CPU time, children (proc_pid_stat(5)).

use std::collections::BTreeMap;
use std::time::Duration;

use lockstep_process::proc::{self, Schedule, Stat};

/// Threads of a process: whether one of them is awake, and their CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awake {
    /// True if a thread runs, is ready to run, is stopped, or waits for a disk.
    pub awake: bool,
    /// CPU time so far, in user and kernel mode.
    pub used: Duration,
    /// How often they were given a core; 0 if the kernel does not keep this number.
    pub turns: u64,
}

/// Reads the threads of a process; `None` if it has ended.
pub fn threads(pid: u32) -> Option<Awake> {
    threads_except(pid, &[])
}

/// The same without the threads of these names; `None` also if there are no others.
pub fn threads_except(pid: u32, names: &[&str]) -> Option<Awake> {
    let pid = i32::try_from(pid).ok()?;
    let mut stats = proc::threads(pid);
    stats.retain(|thread| !names.contains(&thread.name.as_str()));
    let counts = |id: &i32| stats.iter().any(|thread| thread.pid == *id);
    let turns = Schedule::of_threads(pid).iter().filter(|(id, _)| counts(id)).map(|(_, schedule)| schedule.turns).sum();
    let awake = stats.iter().any(|thread| thread.state != 'S');
    (!stats.is_empty()).then(|| Awake { awake, used: stats.iter().map(|thread| thread.used).sum(), turns })
}

/// All descendants of these processes that have not ended.
pub fn descendants(ancestors: &[u32]) -> Vec<u32> {
    let parents = proc::parents();
    let below = ancestors.iter().flat_map(|ancestor| proc::descendants(*ancestor as i32, &parents));
    below.filter(|pid| Stat::of(*pid).is_some_and(|stat| !stat.is_dead())).map(|pid| pid as u32).collect()
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
    fn leaves_out_threads_of_a_name() {
        let mut sleeper = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let pid = sleeper.id();
        // Until then it has this program's name.
        while Stat::of(pid as i32).unwrap().name != "sleep" {
            std::thread::yield_now();
        }
        assert_eq!(
            [threads_except(pid, &["wake"]).is_some(), threads_except(pid, &["wake", "sleep"]).is_some()],
            [true, false]
        );
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
    }

    #[test]
    fn finds_grandchildren() {
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", "sleep 60 & echo; wait"]).stdout(std::process::Stdio::piped());
        let mut child = shell.spawn().unwrap();
        let pid = child.id() as i32;
        std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0]).unwrap();
        let (family, below) = (family(), descendants(&[std::process::id()]));
        assert_eq!(family[&pid].name, "sh");
        let (grandchild, _) = family.iter().find(|(_, stat)| stat.parent == pid).unwrap();
        assert!(below.contains(&(pid as u32)) && below.contains(&(*grandchild as u32)));
        assert!(std::process::Command::new("kill").arg(grandchild.to_string()).status().unwrap().success());
        child.wait().unwrap();
    }
}
