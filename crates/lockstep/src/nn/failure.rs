//! Failures inside a layer: tch's `forward_t` returns a tensor and no error, but a layer that communicates can fail.
//!
//! Inside [`caught`] a failure silently unwinds to that call, which returns it as an error; elsewhere it is a panic with the
//! error's text. All other panics pass through unchanged.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use c10d::{Error, Result};

thread_local! {
    /// True if a caller on this thread's stack catches failures.
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body`, a forward pass whose layers may fail with [`raise`].
///
/// # Errors
/// The failure of the first layer that fails.
pub fn caught<T>(body: impl FnOnce() -> T) -> Result<T> {
    let before = CATCHING.replace(true);
    // After a failed forward pass, only the model may be in an inconsistent state, and nothing uses it.
    let outcome = catch_unwind(AssertUnwindSafe(|| keeping_grad_mode(body)));
    CATCHING.set(before);
    outcome.map_err(|panic| *panic.downcast::<Error>().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// Runs `body` and then restores this thread's gradient mode, even if `body` unwinds, which `tch::no_grad` does not do.
fn keeping_grad_mode<T>(body: impl FnOnce() -> T) -> T {
    let recording = c10d::grad_enabled();
    // The guard turns recording off, and restores the previous mode when it is dropped.
    let _mode = tch::no_grad_guard();
    if recording { tch::with_grad(body) } else { body() }
}

/// Ends a layer's forward pass with `error`, which [`caught`] returns; for layers whose `forward` has no error of its own.
///
/// # Panics
/// Panics with the error's text where nobody catches it.
pub fn raise(error: Error) -> ! {
    if CATCHING.get() {
        // Not a panic, so that the hook that prints panics and records them for a launcher does not run.
        resume_unwind(Box::new(error))
    }
    panic!("{error}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure() -> Error {
        c10d::bucket_assignment(&[], &[]).unwrap_err()
    }

    #[test]
    fn a_failure_is_an_error_where_it_is_caught() {
        assert_eq!(caught(|| 3).unwrap(), 3);
        let error = caught(|| raise(failure())).unwrap_err();
        assert_eq!(error.to_string(), failure().to_string());
    }

    #[test]
    fn an_uncaught_failure_is_a_panic_with_its_text() {
        let _caught_before = caught(|| ());
        let panic = catch_unwind(|| raise(failure())).unwrap_err();
        assert_eq!(*panic.downcast::<String>().unwrap(), failure().to_string());
    }

    #[test]
    fn gradients_are_recorded_again_after_a_failure_inside_no_grad() {
        for outer in [true, false] {
            let _mode = tch::no_grad_guard();
            let run = || {
                caught(|| tch::no_grad(|| raise(failure()))).unwrap_err();
                assert_eq!(c10d::grad_enabled(), outer);
                caught(|| assert_eq!(c10d::grad_enabled(), outer)).unwrap();
            };
            if outer { tch::with_grad(run) } else { run() }
        }
    }

    #[test]
    fn other_panics_pass_through() {
        let panic = catch_unwind(|| caught(|| panic!("a bug"))).unwrap_err();
        assert_eq!(*panic.downcast::<&str>().unwrap(), "a bug");
    }
}
