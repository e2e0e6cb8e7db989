//! Detects a hang: all ranks sleep, or the deadline has passed.
//!
//! A rank that waits for a message sleeps. A rank that computes, or waits for a core to compute on, does not. So a deadlock is
//! detected long before the deadline, and a slow machine is not mistaken for a deadlock.
//!
//! On a busy machine, ranks that wait for one another in turns wait for a core in turns, too: each of many threads a little, and the
//! store, which is in this process, as well. So the deadline also counts the turns of this process, which come as late as theirs.

use std::time::{Duration, Instant};

use lockstep_watchdog::{Awake, Queue, StallDetector, threads};

/// Ranks that have slept this long are stalled.
const STILL: Duration = Duration::from_secs(5);
/// More CPU time than the background threads of sleeping ranks use in that time.
const NOTHING: Duration = Duration::from_millis(100);
/// What a turn of this process counts at most. On an idle machine it takes about half of it.
const TURN: Duration = Duration::from_millis(10);
/// Part of the diagnosis of a hang in which a rank does not wait.
pub const COMPUTES: &str = "a rank still computes";

/// A point in time, and how long the ranks had waited for a core until then.
#[derive(Clone, Copy, Debug)]
pub(super) struct Moment {
    at: Instant,
    lost: Duration,
}

/// Watches the ranks of one call.
#[derive(Debug)]
pub(super) struct HangDetector {
    begun: Moment,
    still: StallDetector,
    queue: Queue,
    /// The time of all turns so far, and the last one.
    turns: (Duration, Instant),
}

impl HangDetector {
    pub(super) fn new(begun: Instant) -> Self {
        HangDetector {
            begun: Moment { at: begun, lost: Duration::ZERO },
            still: StallDetector::new(STILL, NOTHING),
            queue: Queue::default(),
            turns: (Duration::ZERO, begun),
        }
    }

    /// Counts a turn of this process. Must be called in each.
    pub(super) fn turn(&mut self, now: Instant) {
        let (sum, last) = self.turns;
        self.turns = (sum + (now - last).min(TURN), now);
    }

    /// Returns why these processes hang, if they do. Must be called often.
    pub(super) fn hang(&mut self, deadline: Duration, pids: &[u32], now: Instant) -> Option<String> {
        if self.still.is_stalled(asleep(pids.iter().map(|pid| threads(*pid))), now) {
            return Some(format!("no rank has done anything for {} s", STILL.as_secs()));
        }
        let now = self.moment(pids, now);
        let over = now.is_later(deadline, self.begun) && self.turns.0 >= deadline;
        let computes = || pids.iter().filter_map(|pid| threads(*pid)).any(|rank| rank.used >= deadline / 2);
        over.then(|| match computes() {
            true => format!("not finished after {} s, and {COMPUTES}", deadline.as_secs()),
            false => format!("not finished after {} s", deadline.as_secs()),
        })
    }

    /// The current moment for these processes.
    pub(super) fn moment(&mut self, pids: &[u32], at: Instant) -> Moment {
        Moment { at, lost: self.queue.lost(pids) }
    }
}

impl Moment {
    /// Returns true if the ranks have had this much time since `then`, without the time that they waited for a core.
    pub(super) fn is_later(self, time: Duration, then: Moment) -> bool {
        self.at - then.at >= time + self.lost.saturating_sub(then.lost)
    }
}

/// The total CPU time of processes that are all asleep. `None` if one is awake or gone.
fn asleep(processes: impl Iterator<Item = Option<Awake>>) -> Option<Duration> {
    let all: Option<Vec<Awake>> = processes.collect();
    let all = all.filter(|all| !all.is_empty() && all.iter().all(|process| !process.awake))?;
    Some(all.iter().map(|process| process.used).sum())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn treats_a_process_that_is_awake_or_gone_as_active() {
        let process = |awake, used| Some(Awake { awake, used: Duration::from_secs(used) });
        assert_eq!(asleep([process(false, 1), process(false, 2)].into_iter()), Some(Duration::from_secs(3)));
        assert_eq!(asleep([process(false, 1), process(true, 2)].into_iter()), None);
        assert_eq!(asleep([process(false, 1), None].into_iter()), None);
        assert_eq!(asleep([].into_iter()), None);
    }

    #[test]
    fn does_not_count_time_spent_waiting_for_a_core() {
        let (begun, seconds) = (Instant::now(), Duration::from_secs);
        let moment = |at, lost| Moment { at: begun + seconds(at), lost: seconds(lost) };
        assert!(moment(25, 1).is_later(seconds(20), moment(0, 0)));
        assert!(!moment(25, 6).is_later(seconds(20), moment(0, 0)), "the ranks had 19 of 25 s");
        assert!(moment(26, 6).is_later(seconds(20), moment(0, 0)));
        assert!(
            moment(26, 6).is_later(seconds(1), moment(20, 1)) && !moment(26, 6).is_later(seconds(2), moment(20, 1))
        );
    }

    #[test]
    fn reports_a_hang_at_the_deadline() {
        let begun = Instant::now();
        let mut detector = HangDetector::new(begun);
        let this = [std::process::id()];
        assert_eq!(detector.hang(Duration::from_secs(20), &this, begun), None);
        let late = begun + Duration::from_secs(3600);
        detector.turn(late);
        assert_eq!(detector.hang(Duration::from_secs(20), &this, late), None, "one turn, however long it took");
        for turn in 1..=2000 {
            detector.turn(late + TURN * turn);
        }
        let why = detector.hang(Duration::from_secs(20), &this, late + TURN * 2000);
        assert_eq!(why.as_deref(), Some("not finished after 20 s"));
        let why = detector.hang(Duration::ZERO, &this, late + TURN * 2000);
        assert_eq!(why.as_deref(), Some("not finished after 0 s, and a rank still computes"));
    }
}
