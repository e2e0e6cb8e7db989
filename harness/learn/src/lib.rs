//! The learner's commands: `grade`, `hint`, `progress`, `reset`, `solution`, `watch`; and for a class: `grade --class` and `class`.
//!
//! [`lockstep_grading`] decides what is right and how findings read; this module builds answers, and finds the course's files.

#![warn(clippy::print_stdout, clippy::print_stderr)] // they panic where the reader has gone: `report::Screen` prints

mod class;
mod grade_class;
mod help;
mod labs;
mod practice;
mod route;

use lockstep_checkout::{self as checkout, cargo};
use lockstep_grading::exercise::{Task, Tasks};
use lockstep_launch::exit;
use lockstep_report as report;
use lockstep_serve as serve;

use crate::exit::Refused;

pub use class::ClassOptions;
pub use help::{Hint, Reset, ShowProgress, Solution};
pub use practice::{Grade, Watch};

/// The task of this name.
///
/// # Errors
/// [`Refused`], which lists the tasks.
fn task<'a>(tasks: &'a Tasks, name: &str) -> anyhow::Result<&'a Task> {
    tasks.find(name).map_err(|error| Refused(error.to_string()).into())
}
