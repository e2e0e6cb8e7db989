//! How the tasks of lab 03 are graded.

mod device;
mod environment;
mod nested;
mod visible;

use lockstep_grading::Grading;

/// By task, in the order of `lab.toml`.
pub(crate) const GRADINGS: &[(&str, Grading)] = &[
    ("environment", environment::grade),
    ("device", device::grade),
    ("nested", nested::grade),
    ("visible", visible::grade),
];
