//! The runtime of an exercise's program: it runs the task that the grader requests on one rank and reports the outcome.
//!
//! An exercise's `main` lists its tasks. [`main`] reads which one the grader requests, calls the learner's function with each
//! input, and leaves the results for the grader. A panic, a `todo!()` and an error are outcomes, too. This crate does not know
//! which results are right.

mod rank;

pub use rank::{Task, Took, main, main_of, mark_sleep, numbers, tensor, timed};
