//! How busy the machine is.

use std::sync::OnceLock;
use std::time::Duration;

use lockstep_process::proc::Schedule;

/// Time on a core after which the answer is taken: several of the scheduler's slices.
const PROBE: Duration = Duration::from_millis(40);

/// What waits for a deadline to pass stands still, and a watchdog must not end it.
const LONGEST: Duration = Duration::from_secs(30);

/// `duration`, made longer by as much as this process waits for its turn on a core, up to 30 s: for a deadline that is meant to pass,
/// or that libtorch asks for. The first call measures, and computes for 40 ms to do so.
pub fn scaled(duration: Duration) -> Duration {
    static FACTOR: OnceLock<f64> = OnceLock::new();
    lengthened(duration, *FACTOR.get_or_init(factor))
}

fn lengthened(duration: Duration, factor: f64) -> Duration {
    duration.mul_f64(factor).min(LONGEST).max(duration)
}

/// Time since the probe began, on a core and waiting for one, over the time on a core. 1 where the kernel does not keep these numbers.
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
    fn never_makes_less_of_it() {
        assert!(factor() >= 1.0);
        assert!(scaled(Duration::from_secs(1)) >= Duration::from_secs(1));
    }

    #[test]
    fn makes_no_more_of_it_than_a_watchdog_allows() {
        let seconds = Duration::from_secs;
        assert_eq!(lengthened(seconds(8), 2.0), seconds(16));
        assert_eq!(lengthened(seconds(8), 9.0), seconds(30));
        assert_eq!(lengthened(seconds(40), 2.0), seconds(40));
    }
}
