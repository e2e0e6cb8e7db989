//! The learner's commands: `init`, `grade`, `hint`, `progress`, `reset`, `solution`, `watch`, `book`; and for a class: `grade --class` and `class`.
//!
//! [`lockstep_grading`] decides what is right and how findings read; this module builds answers, and finds the course's files.

#![warn(clippy::print_stdout, clippy::print_stderr)] // they panic where the reader has gone: `report::Screen` prints

mod book;
mod class;
mod class_report;
mod grade_class;
mod help;
mod init;
mod labs;
mod practice;
mod route;

use lockstep_checkout::{self as checkout, cargo};
use lockstep_grading::Workplace;
use lockstep_grading::exercise::{Task, Tasks};
use lockstep_launch::exit;
use lockstep_live_page as live_page;
use lockstep_report as report;

use crate::exit::Refused;

pub use book::Book;
pub use class::ClassOptions;
pub use help::{Hint, Reset, ShowProgress, Solution};
pub use init::Init;
pub use practice::{Grade, Watch};

fn task<'a>(tasks: &'a Tasks, name: &str) -> anyhow::Result<&'a Task> {
    tasks.find(name).map_err(|error| Refused(error.to_string()).into())
}

/// Where the learner works: the checkout or the folder of `lockstep init` that contains the current folder, otherwise the checkout in which
/// this program was built.
fn workplace() -> anyhow::Result<Workplace> {
    let found = Workplace::here().or_else(|| Workplace::around(&std::env::current_exe().ok()?));
    let advice = "go to your folder with the course's tasks; `lockstep init` makes one, here or where you name";
    found.ok_or_else(|| Refused(format!("this folder has no tasks of the course: {advice}")).into())
}
