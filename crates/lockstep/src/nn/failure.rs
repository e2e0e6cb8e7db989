//! Failures inside a layer: tch's `forward_t` returns a tensor and no error, yet a layer that communicates can fail.
//!
//! Inside [`caught`] a failure unwinds, without a word, up to there and is an error again; elsewhere it is a panic with the
//! error's text. Leaves out every other panic, which goes on as it came.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use c10d::{Error, Result};

thread_local! {
    /// Whether a caller on this thread's stack waits for failures.
    static CATCHING: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body`, in which layers may fail with [`raise`].
pub(crate) fn caught<T>(body: impl FnOnce() -> T) -> Result<T> {
    let before = CATCHING.replace(true);
    // What the body leaves half done is the model, which nobody uses after an error of its forward pass.
    let outcome = catch_unwind(AssertUnwindSafe(|| keeping_grad_mode(body)));
    CATCHING.set(before);
    outcome.map_err(|panic| *panic.downcast::<Error>().unwrap_or_else(|panic| resume_unwind(panic)))
}

/// Runs `body`, after which this thread records gradients as before, also if `body` unwinds: `tch::no_grad` in it does not see
/// to that.
fn keeping_grad_mode<T>(body: impl FnOnce() -> T) -> T {
    let recording = c10d::grad_enabled();
    // It turns recording off, and gives the mode before back when it is dropped.
    let _mode = tch::no_grad_guard();
    if recording { tch::with_grad(body) } else { body() }
}

/// Ends a layer's forward pass with `error`.
pub(crate) fn raise(error: Error) -> ! {
    if CATCHING.get() {
        // Not a panic: the hook that prints panics, and records them for a launcher, stays out of it.
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
    fn a_failure_that_nobody_catches_is_a_panic_with_its_text() {
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
    fn another_panic_goes_on() {
        let panic = catch_unwind(|| caught(|| panic!("a bug"))).unwrap_err();
        assert_eq!(*panic.downcast::<&str>().unwrap(), "a bug");
    }
}
