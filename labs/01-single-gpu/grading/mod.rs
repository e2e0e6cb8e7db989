//! How the tasks of lab 01 are graded.

mod batches;
mod checkpoints;
mod learns;
mod mean_loss;

use lockstep_grading::Grading;

/// By task, in the order of `lab.toml`.
pub(crate) const GRADINGS: &[(&str, Grading)] = &[
    ("batches", batches::grade),
    ("mean_loss", mean_loss::grade),
    ("checkpoints", checkpoints::grade),
    ("learns", learns::grade),
];
