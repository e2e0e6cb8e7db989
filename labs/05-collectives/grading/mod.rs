//! How the tasks of lab 05 are graded.

mod leaders;
mod mean;
mod ring_all_reduce;
mod same_order;
mod transpose;

use lockstep_grading::Grading;

/// By task, in the order of `lab.toml`.
pub(crate) const GRADINGS: &[(&str, Grading)] = &[
    ("mean", mean::grade),
    ("transpose", transpose::grade),
    ("same_order", same_order::grade),
    ("leaders", leaders::grade),
    ("ring_all_reduce", ring_all_reduce::grade),
];
