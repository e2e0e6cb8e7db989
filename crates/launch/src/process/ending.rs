//! When a round's workers are asked to end, and when they are made to.
//!
//! Pure: time arrives as an argument. A first request asks; when the grace period is over, or a second request hastens
//! it, they are killed. torchrun does the same with a fixed grace period of 30 s (`PContext.close`, multiprocessing/api.py).

use std::time::{Duration, Instant};

/// torchrun's grace period between the first signal and SIGKILL.
pub const GRACE: Duration = Duration::from_secs(30);

/// An end that is under way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ending {
    kill_at: Instant,
    hastened: bool,
    killed: bool,
}

/// What is to be done now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing before this time.
    Wait(Instant),
    /// They had their time: SIGKILL.
    Kill(Why),
    /// They were killed; only their deaths are awaited.
    Killed,
}

/// Why workers are killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// The grace period is over.
    GraceOver,
    /// A second request came.
    Hastened,
}

impl Ending {
    /// The workers were asked to end at `now` and get this long.
    pub fn begin(now: Instant, grace: Duration) -> Self {
        // A time too long for the clock is as good as a year.
        let kill_at = now.checked_add(grace).unwrap_or(now + Duration::from_secs(365 * 24 * 3600));
        Ending { kill_at, hastened: false, killed: false }
    }

    /// A second request came: no more waiting.
    pub fn hasten(&mut self) {
        self.hastened = true;
    }

    /// What is due at `now`. [`Step::Kill`] is told once.
    pub fn due(&mut self, now: Instant) -> Step {
        let why = if self.hastened { Why::Hastened } else { Why::GraceOver };
        if self.killed {
            Step::Killed
        } else if self.hastened || now >= self.kill_at {
            self.killed = true;
            Step::Kill(why)
        } else {
            Step::Wait(self.kill_at)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kills_once_when_the_grace_period_is_over() {
        let now = Instant::now();
        let mut ending = Ending::begin(now, GRACE);
        let last = now + GRACE;
        assert_eq!(ending.due(now), Step::Wait(last));
        assert_eq!(ending.due(last - Duration::from_nanos(1)), Step::Wait(last));
        assert_eq!(ending.due(last), Step::Kill(Why::GraceOver));
        assert_eq!(ending.due(last), Step::Killed);
    }

    #[test]
    fn a_second_request_kills_at_once() {
        let now = Instant::now();
        let mut ending = Ending::begin(now, Duration::MAX);
        assert!(matches!(ending.due(now), Step::Wait(_)));
        ending.hasten();
        assert_eq!(ending.due(now), Step::Kill(Why::Hastened));
    }

    #[test]
    fn no_grace_kills_at_once() {
        let now = Instant::now();
        assert_eq!(Ending::begin(now, Duration::ZERO).due(now), Step::Kill(Why::GraceOver));
    }
}
