//! When ranks have had their time: they stand still, or the deadline has passed in which they could have run.
//!
//! A rank that waits for a message sleeps; one that computes, or would if a busy machine let it, does not. So a deadlock is known
//! long before the deadline, and a slow machine is not taken for one.

use std::time::{Duration, Instant};

use lockstep_watchdog::{Awake, Queue, StallDetector, threads};

/// After so long without a sign of life, none is expected.
const STILL: Duration = Duration::from_secs(5);
/// What the threads that answer for desync reports use in that time, and more.
const NOTHING: Duration = Duration::from_millis(100);

/// A moment, with the time that the ranks had lost by then in the queue for a core.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    at: Instant,
    lost: Duration,
}

/// What the grader has seen of the ranks of one call.
#[derive(Debug)]
pub(super) struct Patience {
    begun: Moment,
    still: StallDetector,
    queue: Queue,
}

impl Patience {
    pub(super) fn new(begun: Instant) -> Self {
        Patience {
            begun: Moment { at: begun, lost: Duration::ZERO },
            still: StallDetector::new(STILL, NOTHING),
            queue: Queue::default(),
        }
    }

    /// Why no more is to be expected of these processes. To be asked often.
    pub(super) fn ends(&mut self, deadline: Duration, pids: &[u32], now: Instant) -> Option<String> {
        if self.still.is_stalled(asleep(pids.iter().map(|pid| threads(*pid))), now) {
            return Some(format!("nobody has done anything for {} s", STILL.as_secs()));
        }
        let now = self.moment(pids, now);
        let over = now.is_later(deadline, self.begun);
        over.then(|| format!("not finished after {} s", deadline.as_secs()))
    }

    /// Now, for these processes.
    pub(super) fn moment(&mut self, pids: &[u32], at: Instant) -> Moment {
        Moment { at, lost: self.queue.lost(pids) }
    }
}

impl Moment {
    /// Whether this much time has passed since then in which the ranks could have run.
    pub(super) fn is_later(self, time: Duration, then: Moment) -> bool {
        self.at - then.at >= time + self.lost.saturating_sub(then.lost)
    }
}

/// The time on cores of processes that all sleep.
fn asleep(processes: impl Iterator<Item = Option<Awake>>) -> Option<Duration> {
    let all: Option<Vec<Awake>> = processes.collect();
    let all = all.filter(|all| !all.is_empty() && all.iter().all(|process| !process.awake))?;
    Some(all.iter().map(|process| process.used).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_one_that_is_awake_or_gone_for_a_sign_of_life() {
        let process = |awake, used| Some(Awake { awake, used: Duration::from_secs(used) });
        assert_eq!(asleep([process(false, 1), process(false, 2)].into_iter()), Some(Duration::from_secs(3)));
        assert_eq!(asleep([process(false, 1), process(true, 2)].into_iter()), None);
        assert_eq!(asleep([process(false, 1), None].into_iter()), None);
        assert_eq!(asleep([].into_iter()), None);
    }

    #[test]
    fn gives_ranks_the_time_that_others_had_the_core() {
        let (begun, seconds) = (Instant::now(), Duration::from_secs);
        let moment = |at, lost| Moment { at: begun + seconds(at), lost: seconds(lost) };
        assert!(moment(25, 1).is_later(seconds(20), moment(0, 0)));
        assert!(!moment(25, 6).is_later(seconds(20), moment(0, 0)), "19 of 25 s were theirs");
        assert!(moment(26, 6).is_later(seconds(20), moment(0, 0)));
        assert!(
            moment(26, 6).is_later(seconds(1), moment(20, 1)) && !moment(26, 6).is_later(seconds(2), moment(20, 1))
        );
    }

    #[test]
    fn ends_at_the_deadline() {
        let begun = Instant::now();
        let mut patience = Patience::new(begun);
        let this = [std::process::id()];
        assert_eq!(patience.ends(Duration::from_secs(20), &this, begun), None);
        let told = patience.ends(Duration::from_secs(20), &this, begun + Duration::from_secs(3600));
        assert_eq!(told.as_deref(), Some("not finished after 20 s"));
    }
}
