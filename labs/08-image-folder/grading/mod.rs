//! How the tasks of lab 08 are graded.

mod best;
mod freeze;
mod plateau;
mod smoothing;
mod two_files;

use lockstep_grading::Grading;

/// By task, in the order of `lab.toml`.
pub(crate) const GRADINGS: &[(&str, Grading)] = &[
    ("freeze", freeze::grade),
    ("smoothing", smoothing::grade),
    ("plateau", plateau::grade),
    ("best", best::grade),
    ("two_files", two_files::grade),
];
