//! The rule: nobody has used a core for a while.

use std::time::{Duration, Instant};

/// Since when processes have stood still.
#[derive(Debug)]
pub struct Stillness {
    lasting: Duration,
    nothing: Duration,
    since: Option<(Instant, Duration)>,
}

impl Stillness {
    /// For processes of which no sign of life is expected after `lasting`. Threads that look around now and then use less than
    /// `nothing` of a core in that time.
    pub fn new(lasting: Duration, nothing: Duration) -> Self {
        Stillness { lasting, nothing, since: None }
    }

    /// How long processes must have stood still.
    pub fn lasting(&self) -> Duration {
        self.lasting
    }

    /// Whether they have stood still until `now`. `used` is their time on a core so far, and `None` is a sign of life. To be
    /// asked often.
    pub fn lasts(&mut self, used: Option<Duration>, now: Instant) -> bool {
        match (self.since, used) {
            // Less than before: somebody has ended, which is a sign of life, too.
            (Some((since, begun)), Some(used)) if (begun..=begun + self.nothing).contains(&used) => {
                now - since >= self.lasting
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
    fn is_over_with_any_sign_of_life() {
        let begin = Instant::now();
        let mut still = Stillness::new(Duration::from_secs(5), Duration::from_millis(100));
        let mut look = |used: Option<u64>, seconds| {
            still.lasts(used.map(Duration::from_millis), begin + Duration::from_secs(seconds))
        };
        assert!(!look(Some(50), 0) && !look(Some(60), 4));
        assert!(look(Some(150), 5), "5 s, in which little was used");
        assert!(!look(None, 6), "one is awake");
        assert!(!look(Some(60), 7) && !look(Some(900), 12), "one has run");
        assert!(!look(Some(900), 16) && look(Some(900), 17));
        assert!(!look(Some(400), 18), "one has ended");
        assert!(!look(Some(400), 22) && look(Some(400), 23));
    }
}
