//! How an answer spends its time. It shows other ranks that this one's answer sleeps: an answer must not pass because it guessed how long
//! the others need, so while it sleeps, the ranks for which it waits take longer. And it measures how long an answer took on a busy machine.

use std::fs::{self, File};
use std::path::Path;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use lockstep_contract::background::SLEEP_WATCH;
use lockstep_process::proc::{Schedule, is_in_sleep};
use rustix::thread::gettid;

/// How often the watch reads the state of the answer's thread.
const INTERVAL: Duration = Duration::from_millis(50);
/// An answer that is in the same sleep this many times in a row does not poll.
const LONG_SLEEP: usize = 4;

/// Calls an answer. Meanwhile there is a file at `mark` while the answer is in one long sleep.
pub fn mark_sleep<T>(mark: &Path, answer: impl FnOnce() -> T) -> T {
    let thread = gettid().as_raw_nonzero().get();
    let (answering, over) = channel::<()>();
    let watch = move || {
        let (mut turns, mut asleep) = (None, 0);
        while over.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
            let now = Schedule::of_thread(thread).turns;
            let sleeps_on = turns.replace(now) == Some(now) && is_in_sleep(thread);
            if !sleeps_on && asleep >= LONG_SLEEP {
                drop(fs::remove_file(mark));
            }
            asleep = if sleeps_on { asleep + 1 } else { 0 };
            if asleep == LONG_SLEEP {
                drop(File::create(mark));
            }
        }
        drop(fs::remove_file(mark));
    };
    thread::scope(|scope| {
        // Without the watch there is no mark, and the others go on after their own time.
        drop(thread::Builder::new().name(SLEEP_WATCH.into()).spawn_scoped(scope, watch));
        let answered = answer();
        drop(answering);
        answered
    })
}

/// How long an answer took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Took {
    /// By the clock: a busy machine makes it longer, never shorter.
    pub clock: Duration,
    /// Less the time in which its thread was ready and no core was free.
    pub own: Duration,
}

/// Calls an answer, and measures how long it took.
pub fn timed<T>(answer: impl FnOnce() -> T) -> (T, Took) {
    let (begun, before) = (Instant::now(), Schedule::of_this_thread().waiting);
    let answered = answer();
    let clock = begun.elapsed();
    let waited = Schedule::of_this_thread().waiting.saturating_sub(before);
    (answered, Took { clock, own: clock.saturating_sub(waited) })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn an_answers_own_time_has_its_sleep() {
        let (answer, took) = timed(|| {
            thread::sleep(Duration::from_millis(60));
            7
        });
        assert_eq!(answer, 7);
        assert!(
            took.clock >= Duration::from_millis(60) && took.own <= took.clock && took.own >= Duration::from_millis(40),
            "{took:?}"
        );
    }

    /// Runs an answer, which can see whether its mark was there. Returns whether it ever was, and whether it still is.
    fn marked(answer: impl FnOnce(&AtomicBool)) -> (bool, bool) {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("sleeps");
        let (over, seen) = (AtomicBool::new(false), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    seen.fetch_or(mark.exists(), Ordering::Relaxed);
                    thread::sleep(Duration::from_millis(1));
                }
            });
            mark_sleep(&mark, || answer(&seen));
            over.store(true, Ordering::Relaxed);
        });
        (seen.into_inner(), mark.exists())
    }

    #[test]
    fn an_answer_that_sleeps_is_marked_until_it_goes_on() {
        // On a busy machine the watch may not look often enough during one sleep.
        let sleeps = |seen: &AtomicBool| {
            for _ in 0..60 {
                if !seen.load(Ordering::Relaxed) {
                    thread::sleep(Duration::from_secs(1));
                }
            }
        };
        assert_eq!(marked(sleeps), (true, false));
    }

    #[test]
    fn a_wait_for_somebody_is_not_marked() {
        let waits = |_: &AtomicBool| {
            let (_alive, never) = channel::<()>();
            let _ = never.recv_timeout(Duration::from_secs(1));
        };
        assert_eq!(marked(waits), (false, false));
    }

    #[test]
    fn the_watch_is_a_thread_of_the_background() {
        let names = || lockstep_process::proc::threads(std::process::id() as i32).into_iter().map(|thread| thread.name);
        let is_watched = |_: &AtomicBool| {
            while !names().any(|name| name == SLEEP_WATCH) {
                thread::yield_now(); // a thread gives itself its name
            }
        };
        assert_eq!(marked(is_watched), (false, false));
        assert!(lockstep_contract::background::THREADS.contains(&SLEEP_WATCH));
    }

    #[test]
    fn the_mark_goes_with_an_answer_that_panics() {
        let folder = tempfile::tempdir().unwrap();
        let mark = folder.path().join("sleeps");
        let panics = || mark_sleep(&mark, || panic!("the answer"));
        assert!(std::panic::catch_unwind(panics).is_err());
        assert!(!mark.exists());
    }
}
