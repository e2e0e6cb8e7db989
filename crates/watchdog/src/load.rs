//! How busy the machine is.

use std::sync::OnceLock;
use std::time::Duration;

use lockstep_process::proc::Schedule;

/// CPU time after which the measurement ends: several of the scheduler's time slices.
const PROBE: Duration = Duration::from_millis(40);

/// A process that sleeps until a deadline uses no CPU, and a watchdog must not end it for that.
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
    use super::*;

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
