//! Detects a hang: all ranks sleep, or the deadline has passed.
//!
//! In a rank that waits for a message no thread runs, except for those of the [background]. In one that computes, that waits for a core
//! to compute on, or that looks for something again and again, one does; so it does in a process that a rank has started and waits for.
//! So a deadlock is detected long before the deadline, and a slow machine is not mistaken for a deadlock.
//!
//! On a busy machine, ranks that wait for one another in turns wait for a core in turns, too: each of many threads a little, and the
//! store, which is in this process, as well. So the deadline also counts the turns of this process, which come as late as theirs.

use std::time::{Duration, Instant};

use lockstep_contract::background;
use lockstep_process::watchdog::{RunQueue, StallDetector, ThreadActivity, descendants, threads, threads_except};

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

/// Notices that processes do nothing.
#[derive(Debug)]
struct Sleepers {
    still: StallDetector,
    turns: u64,
}

/// Watches the ranks of one call.
#[derive(Debug)]
pub(super) struct HangDetector {
    begun: Moment,
    ranks: Sleepers,
    /// The processes that ranks have started.
    below: Sleepers,
    queue: RunQueue,
    /// The time of all turns so far, and the last one.
    turns: (Duration, Instant),
}

impl HangDetector {
    pub(super) fn new(begun: Instant) -> Self {
        HangDetector {
            begun: Moment { at: begun, lost: Duration::ZERO },
            ranks: Sleepers::new(),
            below: Sleepers::new(),
            queue: RunQueue::default(),
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
        if self.ranks.are_stalled(pids, now) && self.is_stalled_below(pids, now) {
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

    /// Returns true if none of the processes that ranks have started does anything.
    fn is_stalled_below(&mut self, pids: &[u32], now: Instant) -> bool {
        let below = descendants(pids);
        below.is_empty() || self.below.are_stalled(&below, now)
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

impl Sleepers {
    fn new() -> Self {
        Sleepers { still: StallDetector::new(STILL, NOTHING), turns: 0 }
    }

    /// Returns true if no thread of these processes has run until `now` for [`STILL`], except in the background.
    fn are_stalled(&mut self, pids: &[u32], now: Instant) -> bool {
        self.have_stalled(pids.iter().map(|pid| threads_except(*pid, &background::THREADS)).collect(), now)
    }

    /// The same for what the processes are now; `None` if one is gone.
    fn have_stalled(&mut self, seen: Option<Vec<ThreadActivity>>, now: Instant) -> bool {
        let turns = seen.iter().flatten().map(|process| process.turns).sum();
        let ran = std::mem::replace(&mut self.turns, turns) != turns;
        let asleep = seen.filter(|all| !ran && !all.is_empty() && all.iter().all(|process| !process.awake));
        self.still.is_stalled(asleep.map(|all| all.iter().map(|process| process.used).sum()), now)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use rustix::process::{Pid, Signal, kill_process_group};

    use super::*;

    #[test]
    fn processes_stall_while_all_are_there_and_no_thread_of_theirs_runs() {
        let begun = Instant::now();
        let process = |awake, turns| ThreadActivity { awake, used: Duration::ZERO, turns };
        let stalls = |then: Option<Vec<ThreadActivity>>| {
            let mut sleepers = Sleepers::new();
            let mut look = |seen, seconds| sleepers.have_stalled(seen, begun + Duration::from_secs(seconds));
            let asleep = || Some(vec![process(false, 7), process(false, 8)]);
            assert!(!look(asleep(), 0) && !look(asleep(), 1) && look(asleep(), 6));
            look(then, 7)
        };
        assert!(stalls(Some(vec![process(false, 7), process(false, 8)])));
        assert!(!stalls(Some(vec![process(false, 7), process(true, 8)])), "one is awake");
        assert!(!stalls(Some(vec![process(false, 7), process(false, 9)])), "one has run in between");
        assert!(!stalls(Some(vec![])) && !stalls(None), "one is gone");
    }

    #[test]
    fn takes_what_a_rank_has_started_for_its_own_work() {
        let mut shell = Command::new("sh").args(["-c", "while :; do :; done & wait"]).process_group(0).spawn().unwrap();
        let rank = [shell.id()];
        let working = || descendants(&rank).iter().any(|pid| threads(*pid).is_some_and(|seen| seen.awake));
        while !working() {
            std::thread::yield_now();
        }
        let mut detector = HangDetector::new(Instant::now());
        let later = |seconds| Instant::now() + Duration::from_secs(seconds);
        assert!(!detector.is_stalled_below(&rank, later(0)) && !detector.is_stalled_below(&rank, later(6)));
        assert!(detector.is_stalled_below(&[], later(6)));
        kill_process_group(Pid::from_child(&shell), Signal::KILL).unwrap();
        shell.wait().unwrap();
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
