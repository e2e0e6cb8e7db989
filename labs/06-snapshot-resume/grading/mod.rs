//! How the tasks of lab 06 are graded.

mod newest;
mod next_step;
mod order;
mod state;
mod whole;

use lockstep_grading::Grading;

/// By task, in the order of `lab.toml`.
pub(crate) const GRADINGS: &[(&str, Grading)] = &[
    ("next_step", next_step::grade),
    ("state", state::grade),
    ("order", order::grade),
    ("whole", whole::grade),
    ("newest", newest::grade),
];
