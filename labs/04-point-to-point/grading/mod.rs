//! How the tasks of lab 04 are graded.

mod deadline;
mod exchange;
mod prefetch;
mod ring;
mod waits;

use lockstep_grading::Grading;

/// By task, in the order of `lab.toml`.
pub(crate) const GRADINGS: &[(&str, Grading)] = &[
    ("ring", ring::grade),
    ("exchange", exchange::grade),
    ("prefetch", prefetch::grade),
    ("deadline", deadline::grade),
];
