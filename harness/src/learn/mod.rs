//! The learner's commands: `grade`, `hint`, `progress`, `reset`, `solution`, `watch`; and a class's: `grade --class`.
//!
//! [`lockstep_grading`] decides what is right and how findings read; this module builds answers, and finds the course's files.

mod build;
mod class;
mod grade;
mod hint;
mod progress;
mod reset;
mod route;
mod solution;
mod watch;

use lockstep_grading::exercise::{Task, Tasks};

use crate::exit::Refused;

pub(crate) use grade::Options as Grade;
pub(crate) use hint::Options as Hint;
pub(crate) use progress::Options as Show;
pub(crate) use reset::Options as Reset;
pub(crate) use solution::Options as Solution;
pub(crate) use watch::Options as Watch;

/// The task of this name.
///
/// # Errors
/// [`Refused`], which lists the tasks.
fn task<'a>(tasks: &'a Tasks, name: &str) -> anyhow::Result<&'a Task> {
    tasks.find(name).map_err(|error| Refused(error.to_string()).into())
}
