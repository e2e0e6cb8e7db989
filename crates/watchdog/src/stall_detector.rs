//! The rule that detects a stall: no process has used a core for a while.

use std::time::{Duration, Instant};

/// Detects that processes have stopped making progress.
#[derive(Debug)]
pub struct StallDetector {
    threshold: Duration,
    negligible: Duration,
    since: Option<(Instant, Duration)>,
}

impl StallDetector {
    /// A stall lasts at least `threshold`. In that time, threads that only poll use less than `negligible` of CPU time.
    pub fn new(threshold: Duration, negligible: Duration) -> Self {
        StallDetector { threshold, negligible, since: None }
    }

    /// How long processes must be stalled.
    pub fn threshold(&self) -> Duration {
        self.threshold
    }

    /// Returns true if the processes have been stalled until `now`. `used` is their CPU time so far; `None` means that
    /// one of them is known to be awake. Call it often.
    pub fn is_stalled(&mut self, used: Option<Duration>, now: Instant) -> bool {
        match (self.since, used) {
            // Less than before: a process has ended, which is progress, too.
            (Some((since, begun)), Some(used)) if (begun..=begun + self.negligible).contains(&used) => {
                now - since >= self.threshold
            }
            (_, used) => {
                self.since = used.map(|used| (now, used));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_progress_ends_a_stall() {
        let begin = Instant::now();
        let mut still = StallDetector::new(Duration::from_secs(5), Duration::from_millis(100));
        let mut look = |used: Option<u64>, seconds| {
            still.is_stalled(used.map(Duration::from_millis), begin + Duration::from_secs(seconds))
        };
        assert!(!look(Some(50), 0) && !look(Some(60), 4));
        assert!(look(Some(150), 5), "little was used in 5 s");
        assert!(!look(None, 6), "a process is awake");
        assert!(!look(Some(60), 7) && !look(Some(900), 12), "a process has run");
        assert!(!look(Some(900), 16) && look(Some(900), 17));
        assert!(!look(Some(400), 18), "a process has ended");
        assert!(!look(Some(400), 22) && look(Some(400), 23));
    }
}
