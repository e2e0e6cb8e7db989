//! Workers that sleep in the kernel, where no signal reaches them: one that sleeps for longer than
//! `TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT` ends the job. If the variable is not set, nothing is checked.
//!
//! As in torch (`_check_uninterruptible_state_timeout` of elastic/agent/server/local_elastic_agent.py), the main thread counts. Unlike
//! in torch, a single sleep has to exceed the limit: many short ones, as for a disk, do not count.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use lockstep_process::proc::Status;

/// The shortest time between two looks.
const OFTEN: Duration = Duration::from_millis(50);

/// The local rank and the process id.
type Worker = (usize, u32);

/// Since when each worker has slept in the kernel.
#[derive(Debug)]
pub(super) struct KernelSleep {
    /// How long a sleep may last.
    limit: Option<Duration>,
    every: Duration,
    next: Option<Instant>,
    sleeps: BTreeMap<Worker, Sleep>,
}

#[derive(Debug)]
struct Sleep {
    /// How often the thread had slept before, for any reason: a different number means a different sleep.
    number: u64,
    since: Instant,
}

impl KernelSleep {
    /// Looks at intervals of `every`, the launcher's `--monitor-interval`.
    pub(super) fn new(limit: Option<Duration>, every: Duration) -> Self {
        KernelSleep { limit, every: every.max(OFTEN), next: None, sleeps: BTreeMap::new() }
    }

    /// When to look; `None` for never.
    pub(super) fn due(&mut self, now: Instant) -> Option<Instant> {
        self.limit?;
        Some(*self.next.get_or_insert(now))
    }

    /// Looks at these workers. Returns one that has slept for too long, and how long.
    pub(super) fn look_at(&mut self, workers: impl Iterator<Item = Worker>) -> Option<(Worker, Duration)> {
        let asleep = workers.filter_map(|worker| Some((worker, sleep_of(worker.1)?))).collect();
        self.look(Instant::now(), &asleep)
    }

    /// Notes the workers that sleep now, with the number of the sleep. Returns one that has slept for too long, and how long.
    fn look(&mut self, now: Instant, asleep: &BTreeMap<Worker, u64>) -> Option<(Worker, Duration)> {
        self.next = Some(now + self.every);
        self.sleeps.retain(|worker, sleep| asleep.get(worker) == Some(&sleep.number));
        for (worker, number) in asleep {
            self.sleeps.entry(*worker).or_insert(Sleep { number: *number, since: now });
        }
        let lasted = |sleep: &Sleep| now.saturating_duration_since(sleep.since);
        let limit = self.limit?;
        let longest = self.sleeps.iter().max_by_key(|(_, sleep)| lasted(sleep))?;
        Some((*longest.0, lasted(longest.1))).filter(|(_, lasted)| *lasted >= limit)
    }
}

/// The number of the sleep in the kernel in which the main thread of this process is.
fn sleep_of(pid: u32) -> Option<u64> {
    let status = Status::of(i32::try_from(pid).ok()?)?;
    status
        .number("voluntary_ctxt_switches")
        .filter(|_| status.field("State").is_some_and(|state| state.starts_with('D')))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn one_sleep_that_lasts_ends_the_job_and_many_short_ones_do_not() {
        let mut sleep = KernelSleep::new(Some(seconds(5)), seconds(1));
        let start = Instant::now();
        assert_eq!(sleep.due(start), Some(start));
        let mut look = |after, asleep: &[(usize, u64)]| {
            let asleep = asleep.iter().map(|(worker, number)| ((*worker, 100), *number)).collect();
            sleep.look(start + seconds(after), &asleep)
        };
        assert_eq!(look(0, &[(1, 40)]), None);
        assert_eq!(look(4, &[(0, 7), (1, 41)]), None, "another sleep of worker 1");
        assert_eq!(look(8, &[(1, 41)]), None, "worker 0 runs");
        assert_eq!(look(9, &[(0, 7), (1, 41)]), Some(((1, 100), seconds(5))));
        assert_eq!(sleep.due(start), Some(start + seconds(10)));
    }

    #[test]
    fn nobody_looks_without_a_limit() {
        let mut sleep = KernelSleep::new(None, Duration::ZERO);
        assert_eq!(sleep.due(Instant::now()), None);
        assert_eq!(sleep.look(Instant::now(), &BTreeMap::from([((0, 100), 1)])), None);
        assert_eq!(sleep_of(std::process::id()), None, "this thread runs, or sleeps outside the kernel");
    }
}
