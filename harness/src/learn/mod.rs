//! The learner's loop: `grade`, `hint`, `progress`, `reset`, `solution`, `watch`; and a class's: `grade --class`.
//!
//! What is right and how it is told is [`lockstep_grading`]'s; here answers are built, and the course's files are found.

mod build;
mod class;
mod grade;
mod hint;
mod progress;
mod reset;
mod solution;
mod watch;

use std::path::{Path, PathBuf};

use lockstep_grading::Lab;
use lockstep_grading::exercise::{Task, Tasks};

use crate::exit::Refused;

pub(crate) use grade::Options as Grade;
pub(crate) use hint::Options as Hint;
pub(crate) use progress::Options as Show;
pub(crate) use reset::Options as Reset;
pub(crate) use solution::Options as Solution;
pub(crate) use watch::Options as Watch;

/// A lab's folder in the checkout.
fn folder(root: &Path, lab: &Lab) -> PathBuf {
    root.join("labs").join(lab.name)
}

/// The task of this name.
///
/// # Errors
/// [`Refused`], with those that there are.
fn task<'a>(lab: &Lab, tasks: &'a Tasks, name: &str) -> anyhow::Result<&'a Task> {
    tasks.tasks.iter().find(|task| task.name == name).ok_or_else(|| {
        let names: Vec<&str> = tasks.tasks.iter().map(|task| task.name.as_str()).collect();
        Refused(format!("there is no task {name} in lab {}: there are {}", lab.number(), names.join(", "))).into()
    })
}
