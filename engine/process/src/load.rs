//! Who uses the machine: the threads of processes, how long they waited for a core, and how busy the machine is (proc_pid_stat(5)).

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use crate::proc::{self, Schedule, Stat};

/// Threads of a process: whether one of them is awake, and their CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadActivity {
    /// True if a thread runs, is ready to run, is stopped, or waits for a disk.
    pub awake: bool,
    /// CPU time so far, in user and kernel mode.
    pub used: Duration,
    /// How often they were given a core; 0 if the kernel does not keep this number.
    pub turns: u64,
}

/// Reads the threads of a process; `None` if it has ended.
pub fn threads(pid: u32) -> Option<ThreadActivity> {
    threads_except(pid, &[])
}

/// Like `threads`, without the threads of these names; also `None` if there are no others.
pub fn threads_except(pid: u32, names: &[&str]) -> Option<ThreadActivity> {
    let pid = i32::try_from(pid).ok()?;
    let mut stats = proc::threads(pid);
    stats.retain(|thread| !names.contains(&thread.name.as_str()));
    let counts = |id: &i32| stats.iter().any(|thread| thread.pid == *id);
    let turns = Schedule::of_threads(pid).iter().filter(|(id, _)| counts(id)).map(|(_, schedule)| schedule.turns).sum();
    let awake = stats.iter().any(|thread| thread.state != 'S');
    (!stats.is_empty()).then(|| ThreadActivity { awake, used: stats.iter().map(|thread| thread.used).sum(), turns })
}

/// All descendants of these processes that have not ended.
pub fn descendants(ancestors: &[u32]) -> Vec<u32> {
    let parents = proc::parents();
    let below = ancestors.iter().flat_map(|ancestor| proc::descendants(*ancestor as i32, &parents));
    below.filter(|pid| Stat::of(*pid).is_some_and(|stat| !stat.is_dead())).map(|pid| pid as u32).collect()
}

/// This process and all of its descendants.
pub(super) fn family() -> BTreeMap<i32, Stat> {
    let this = std::process::id() as i32;
    let mut all: BTreeMap<i32, Stat> = proc::pids().filter_map(|pid| Some((pid, Stat::of(pid)?))).collect();
    let below = proc::descendants(this, &all.values().map(|stat| (stat.pid, stat.parent)).collect());
    all.retain(|pid, _| *pid == this || below.contains(pid));
    all
}

/// The time that processes were ready to run but waited for a core. A deadline in seconds should not count it.
#[derive(Debug, Default)]
pub struct RunQueue {
    threads: BTreeMap<(u32, i32), Duration>,
}

impl RunQueue {
    /// The longest time that a thread of these processes has waited so far, never more than the elapsed time. For a
    /// thread that has ended, the last call that saw it counts. Zero if the kernel does not keep these numbers.
    pub fn lost(&mut self, pids: &[u32]) -> Duration {
        pids.iter().for_each(|pid| self.look(*pid));
        let of = |pid: &u32| {
            self.threads.iter().filter(|((of, _), _)| of == pid).map(|(_, lost)| *lost).max().unwrap_or_default()
        };
        pids.iter().map(of).max().unwrap_or_default()
    }

    fn look(&mut self, pid: u32) {
        let threads = Schedule::of_threads(pid as i32);
        self.threads.extend(threads.into_iter().map(|(thread, of)| ((pid, thread), of.waiting)));
    }
}

/// CPU time after which the measurement ends: several of the scheduler's time slices.
const PROBE: Duration = Duration::from_millis(40);

/// A process that sleeps until a deadline uses no CPU time: the sleep must be short enough that no watchdog ends the
/// process.
const LONGEST: Duration = Duration::from_secs(30);

/// Returns `duration` multiplied by this process's slowdown from waiting for a core, at most 30 s. For deadlines that
/// are meant to expire, or that libtorch requires. The first call measures the slowdown, which takes 40 ms of CPU time.
pub fn scaled(duration: Duration) -> Duration {
    static FACTOR: OnceLock<f64> = OnceLock::new();
    lengthened(duration, *FACTOR.get_or_init(factor))
}

fn lengthened(duration: Duration, factor: f64) -> Duration {
    duration.mul_f64(factor).min(LONGEST).max(duration)
}

/// The time that this thread ran or waited for a core, divided by the time that it ran. 1 if the kernel does not keep
/// these numbers.
fn factor() -> f64 {
    let begun = Schedule::of_this_thread();
    let wall = std::time::Instant::now();
    loop {
        let now = Schedule::of_this_thread();
        let (on, waiting) = (now.running - begun.running, now.waiting.saturating_sub(begun.waiting));
        if on >= PROBE {
            return (on + waiting).as_secs_f64() / on.as_secs_f64();
        }
        if on.is_zero() && wall.elapsed() > PROBE {
            return 1.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use crate::KillOnDrop;
    use crate::proc::Status;

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
        // Until it executes `sleep`, the child has this program's name.
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

    /// Two loops share one core: each gets half of it and waits for the other half.
    #[test]
    fn counts_the_time_while_another_process_has_the_core() {
        let one_core = "while :; do :; done";
        let looping = || {
            let mut shell = Command::new("taskset");
            shell.args(["-c", &first_core(), "sh", "-c", one_core]);
            KillOnDrop(shell.spawn().unwrap())
        };
        let pair = [looping(), looping()];
        let pids = [pair[0].0.id(), pair[1].0.id()];
        let (mut queue, enough) = (RunQueue::default(), Duration::from_millis(100));
        crate::watchdog::until(|| queue.lost(&pids) >= enough).unwrap();
        assert!(threads(pids[0]).unwrap().awake);
    }

    /// The first core that this process may use.
    fn first_core() -> String {
        let status = Status::of_this_process().unwrap();
        status.field("Cpus_allowed_list").unwrap().split([',', '-']).next().unwrap().to_owned()
    }

    #[test]
    fn never_shortens_a_duration() {
        assert!(factor() >= 1.0);
        assert!(scaled(Duration::from_secs(1)) >= Duration::from_secs(1));
    }

    #[test]
    fn never_exceeds_what_a_watchdog_allows() {
        let seconds = Duration::from_secs;
        assert_eq!(lengthened(seconds(8), 2.0), seconds(16));
        assert_eq!(lengthened(seconds(8), 9.0), seconds(30));
        assert_eq!(lengthened(seconds(40), 2.0), seconds(40));
    }
}
