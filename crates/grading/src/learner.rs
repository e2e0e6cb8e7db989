//! `cargo test -p ex-NN`: what a learner runs.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;

use crate::exercise::{Lab, Task, Tasks};
use crate::grade::{Submission, grade};
use crate::progress::Progress;
use crate::stage::{self, CONFINED};
use crate::{Found, Options, tell};

/// Grade the exercise: its tasks in order, to the first that is not right
#[derive(Parser)]
struct Args {
    /// The tasks to grade; all, if none is named
    #[arg(value_name = "TASK")]
    tasks: Vec<String>,
    /// Draw the inputs from this number, which a finding names
    #[arg(long)]
    seed: Option<u64>,
    /// Taken for Cargo's sake
    #[arg(long, hide = true)]
    nocapture: bool,
    #[arg(long, short, hide = true)]
    quiet: bool,
}

/// The `main` of an exercise's test: `program` and `folder` are those of its package.
pub fn main(lab: &Lab, program: &str, folder: &str) -> ExitCode {
    if let Some(code) = helper() {
        return code;
    }
    let args = Args::parse();
    let submission = Submission { program: program.into(), folder: folder.into() };
    match run(lab, &args.tasks, &submission, &Options::seeded(args.seed), &mut std::io::stdout()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Becomes the helper that [`Stage`](crate::Stage) starts this executable as, if it is one. To be called first in `main`.
pub fn helper() -> Option<ExitCode> {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let (name, rest) = args.split_first()?;
    let done = help(name.to_str()?, rest)?;
    Some(done.map_or_else(cannot_start, |()| ExitCode::SUCCESS))
}

/// The helper of this name, with its arguments; `None` if there is none.
pub fn help(name: &str, args: &[OsString]) -> Option<anyhow::Result<()>> {
    let confined = || (name == CONFINED).then(|| stage::confined(args));
    lockstep_process::helper(name, args).or_else(confined)
}

fn cannot_start(error: anyhow::Error) -> ExitCode {
    eprintln!("error: {error:#}");
    ExitCode::from(127)
}

/// Grades the tasks of that name in order, all if there is none, and tells how it goes; whether all are right. A task that
/// is passed is noted in the checkout's progress.
///
/// # Errors
/// A task that does not exist; faults of the machine and of the course.
pub fn run(
    lab: &Lab,
    names: &[String],
    submission: &Submission,
    options: &Options,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    let tasks = lab.tasks()?;
    names.iter().try_for_each(|name| tasks.find(name).map(drop))?;
    writeln!(out, "\nlab {}, seed {}", lab.number(), options.seed)?;
    for task in tasks.tasks.iter().filter(|task| names.is_empty() || names.contains(&task.name)) {
        let graded = grade(lab, task, submission, options).with_context(|| format!("cannot grade {}", task.name))?;
        let seconds = graded.took.as_secs_f64();
        let text = told(lab, &tasks, task, &graded.found, options.seed);
        if graded.found.is_err() {
            writeln!(out, "{text}")?;
            return Ok(false);
        }
        writeln!(out, "{text} ({seconds:.1} s)")?;
        note(&submission.folder, lab, &task.name, options.seed);
    }
    let next = if names.is_empty() { "all tasks of this lab are done" } else { "done" };
    writeln!(out, "\n{next}\n")?;
    Ok(true)
}

/// What a learner reads of a task that was found to be so.
pub fn told(lab: &Lab, tasks: &Tasks, task: &Task, found: &Found, seed: u64) -> String {
    match found {
        Ok(()) => tell::passed(tasks, task),
        Err(fault) => tell::failed(lab, tasks, task, fault, seed),
    }
}

/// A verdict is worth more than its note.
fn note(folder: &Path, lab: &Lab, task: &str, seed: u64) {
    if let Err(error) = Progress::note(folder, lab.number(), task, seed) {
        eprintln!("warning: the progress was not noted: {error:#}");
    }
}
