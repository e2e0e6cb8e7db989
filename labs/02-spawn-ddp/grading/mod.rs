//! How the tasks of lab 02 are graded.

mod average;
mod epochs;
mod line;
mod prepare;
mod shard;

use lockstep_grading::Grading;

/// By task, in the order of `lab.toml`.
pub(crate) const GRADINGS: &[(&str, Grading)] = &[
    ("shard", shard::grade),
    ("average", average::grade),
    ("epochs", epochs::grade),
    ("line", line::grade),
    ("prepare", prepare::grade),
];
