//! The learner's commands: `init`, `grade`, `hint`, `progress`, `reset`, `solution`, `watch`, `book`; and for a class: `grade --class` and `class`.
//!
//! [`lockstep_grading`] decides what is right and how findings read; this module builds answers, and finds the course's files.

mod book;
mod class;
mod grade_class;
mod help;
mod init;
mod practice;
mod route;

use lockstep_grading::exercise::{Task, Tasks};

use crate::exit::Refused;

pub(crate) use book::Book;
pub(crate) use class::ClassOptions;
pub(crate) use help::{Hint, Reset, ShowProgress, Solution};
pub(crate) use init::Init;
pub(crate) use practice::{Grade, Watch};

/// The task of this name.
///
/// # Errors
/// [`Refused`], which lists the tasks.
fn task<'a>(tasks: &'a Tasks, name: &str) -> anyhow::Result<&'a Task> {
    tasks.find(name).map_err(|error| Refused(error.to_string()).into())
}
