//! How the tasks of lab 07 are graded.

mod accuracy;
mod crop;
mod evaluation_shard;
mod learning_rate;
mod statistics;

use lockstep_grading::Grading;

/// By task, in the order of `lab.toml`.
pub(crate) const GRADINGS: &[(&str, Grading)] = &[
    ("crop", crop::grade),
    ("statistics", statistics::grade),
    ("learning_rate", learning_rate::grade),
    ("evaluation_shard", evaluation_shard::grade),
    ("accuracy", accuracy::grade),
];
