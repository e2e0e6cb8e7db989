//! Watches this process and all of its descendants during a wait.

use std::fmt;
use std::time::{Duration, Instant};

use lockstep_process::proc::{Schedule, Stat};

use crate::StallDetector;
use crate::proc::family;

/// No test sleeps for that long.
const STILL: Duration = Duration::from_secs(60);
/// More than the CPU time that polling threads use in `STILL`. A process that computes gets more, even if it shares a
/// core with twenty others.
const NOTHING: Duration = Duration::from_secs(2);
/// CPU time after which a wait is given up. The longest test uses a quarter of it.
const TOO_MUCH: Duration = Duration::from_secs(20 * 60);
/// The minimum interval between two looks at the processes.
const LOOK: Duration = Duration::from_millis(500);

/// Watches this process and all of its descendants from the beginning of a wait.
#[derive(Debug)]
pub struct Watchdog {
    still: StallDetector,
    begun: Instant,
    used_before: Duration,
    too_much: Duration,
    looked: Instant,
}

/// A wait that was given up.
pub struct InVain {
    why: String,
    waited: Duration,
    alive: Vec<String>,
}

impl Watchdog {
    /// Starts with a wait that begins now.
    pub fn new() -> Self {
        let now = Instant::now();
        Watchdog {
            still: StallDetector::new(STILL, NOTHING),
            begun: now,
            used_before: used(),
            too_much: TOO_MUCH,
            looked: now,
        }
    }

    /// Call it often, from the waiting thread: the CPU time of that thread does not count.
    ///
    /// # Errors
    /// [`InVain`] if no process has used a core for a minute, or if they have used 20 minutes of CPU time.
    pub fn look(&mut self) -> Result<(), InVain> {
        let now = Instant::now();
        if now - self.looked < LOOK {
            return Ok(());
        }
        self.looked = now;
        let used = used();
        if self.still.is_stalled(Some(used), now) {
            return Err(self.in_vain(format!("nothing has used a core for {} s", self.still.threshold().as_secs())));
        }
        if used.saturating_sub(self.used_before) > self.too_much {
            return Err(self.in_vain(format!("{} s on cores were not enough", self.too_much.as_secs())));
        }
        Ok(())
    }

    fn in_vain(&self, why: String) -> InVain {
        let describe = |(pid, stat): (i32, Stat)| {
            format!("{} ({pid}, state {}, {:.1} s on a core)", stat.name, stat.state, stat.used.as_secs_f64())
        };
        InVain { why, waited: self.begun.elapsed(), alive: family().into_iter().map(describe).collect() }
    }
}

impl Default for Watchdog {
    fn default() -> Self {
        Self::new()
    }
}

/// CPU time of this process and its descendants, without that of this thread.
fn used() -> Duration {
    let all: Duration = family().values().map(|stat| stat.used + stat.used_by_children).sum();
    all.saturating_sub(Schedule::of_this_thread().running)
}

impl fmt::Display for InVain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "waited for {:.0} s: {}; alive: {}", self.waited.as_secs_f64(), self.why, self.alive.join(", "))
    }
}

/// As displayed, because `unwrap` prints it in the message of a panic.
impl fmt::Debug for InVain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for InVain {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_a_wait_for_a_sleeping_process_and_names_it() {
        let mut sleeper = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        while Stat::of(sleeper.id() as i32).unwrap().state != 'S' {
            std::thread::yield_now();
        }
        let still = StallDetector::new(Duration::from_secs(1), NOTHING);
        let mut watchdog = Watchdog { still, ..Watchdog::new() };
        let why = loop {
            if let Err(why) = watchdog.look() {
                break why.to_string();
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        sleeper.kill().unwrap();
        sleeper.wait().unwrap();
        assert!(why.contains(&format!("sleep ({}, state S, 0.0 s on a core)", sleeper.id())), "{why}");
    }

    #[test]
    fn ends_a_wait_that_uses_too_much_cpu_time() {
        let now = Instant::now() - 2 * LOOK;
        let mut watchdog = Watchdog { looked: now, ..Watchdog::new() };
        watchdog.too_much = Duration::ZERO;
        let on_core = || Schedule::of_this_thread().running;
        std::thread::spawn(move || while on_core() < Duration::from_millis(50) {}).join().unwrap();
        assert!(watchdog.look().unwrap_err().to_string().contains("0 s on cores were not enough"));
    }

    #[test]
    fn names_the_processes_that_are_alive() {
        let text = Watchdog::new().in_vain("no reason".into()).to_string();
        assert!(text.contains(&format!("({}, state ", std::process::id())), "{text}");
        assert!(text.starts_with("waited for 0 s: no reason; alive: "), "{text}");
    }

    #[test]
    fn does_not_count_the_waiting_thread() {
        let (begun, before) = (Instant::now(), used());
        while begun.elapsed() < Duration::from_millis(300) {}
        // Other tests of this process may run at the same time; under nextest there are none. The process's time is counted in
        // ticks and this thread's in nanoseconds, so the difference can become smaller.
        assert!(used().saturating_sub(before) < Duration::from_millis(200) || std::env::var_os("NEXTEST").is_none());
    }
}
