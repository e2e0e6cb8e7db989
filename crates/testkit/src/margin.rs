//! Checks the distance of a result from a test's limit, and prints it. Not here: the tests that use it, which their names show (CONTRIBUTING).

use std::env;
use std::fmt::Display;

use lockstep_contract::TEST_SEED;

/// The seed of a training test: the value of [`TEST_SEED`], or `usual` if it is not set.
pub fn seed(usual: u64) -> u64 {
    env::var(TEST_SEED)
        .map_or(usual, |seed| seed.parse().unwrap_or_else(|_| panic!("{TEST_SEED}={seed}: not a number")))
}

/// Panics unless `result` is more than `limit`. `what` names the result in a few words.
#[track_caller]
pub fn above(what: impl Display, result: f64, limit: f64) {
    report(&what, result, '>', limit);
    assert!(result > limit, "{what}: {result}, and more than {limit} was expected");
}

/// Panics unless `result` is less than `limit`. `what` names the result in a few words.
#[track_caller]
pub fn below(what: impl Display, result: f64, limit: f64) {
    report(&what, result, '<', limit);
    assert!(result < limit, "{what}: {result}, and less than {limit} was expected");
}

fn report(what: &dyn Display, result: f64, relation: char, limit: f64) {
    println!("margin: {what}: {result:e} {relation} {limit:e}");
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::*;

    #[test]
    fn rejects_results_beyond_their_limits_and_nan() {
        above("accuracy", 0.9, 0.8);
        below("distance", 0.1, 0.2);
        for check in [above, below] {
            assert!(catch_unwind(|| check("equal", 0.5, 0.5)).is_err());
            assert!(catch_unwind(|| check("not a number", f64::NAN, 0.5)).is_err());
        }
        assert!(catch_unwind(|| above("accuracy", 0.7, 0.8)).is_err());
        assert!(catch_unwind(|| below("distance", 0.3, 0.2)).is_err());
    }
}
