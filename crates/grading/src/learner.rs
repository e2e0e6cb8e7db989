//! Grades an exercise for the learner: `lockstep grade NN`, or `cargo test -p ex-NN`.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::Parser;
use lockstep_contract::Stdout;

use crate::exercise::{Lab, Task, Tasks};
use crate::grade::{Submission, failed, grade, next_line, passed};
use crate::labs::LABS;
use crate::progress::Progress;
use crate::runner::{self, CONFINED};
use crate::{GradeResult, Language, Options, Runner, seat};

/// Grade the exercise: its tasks in order, up to the first one that fails
#[derive(Parser)]
struct Args {
    /// The tasks to grade; all of them by default
    #[arg(value_name = "TASK")]
    tasks: Vec<String>,
    /// Draw the inputs from this seed; each finding prints its seed
    #[arg(long)]
    seed: Option<u64>,
    /// Accepted because Cargo passes it
    #[arg(long, hide = true)]
    nocapture: bool,
    #[arg(long, short, hide = true)]
    quiet: bool,
}

/// The `main` of an exercise's test. `program` and `folder` belong to its package.
pub fn main(lab: &Lab, program: &str, folder: &str) -> ExitCode {
    if let Some(code) = helper() {
        return code;
    }
    let args = Args::parse();
    let submission = Submission { program: Path::new(program).into(), folder: folder.into() };
    let mut out = Stdout;
    let graded = run(lab, &args.tasks, &submission, &Options::seeded(args.seed), &mut out);
    match graded.and_then(|right| {
        if right { next(lab, &args.tasks, Path::new(folder), Language::Rust, &mut out) } else { Ok(false) }
    }) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _ = writeln!(std::io::stderr(), "error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs an internal subcommand if [`Runner`](crate::Runner) or the launcher started this executable for one. Call this first in `main`.
pub fn helper() -> Option<ExitCode> {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    let (name, args) = args.split_first()?;
    match name.to_str()? {
        CONFINED => {
            // It returns only on failure: the code is a shell's for a program that could not be started.
            if let Err(error) = runner::confined(args) {
                let _ = writeln!(std::io::stderr(), "error: {error:#}");
            }
            Some(ExitCode::from(127))
        }
        _ => lockstep_process::internal_main(),
    }
}

/// Grades the named tasks in order (all tasks if `names` is empty), prints each result and returns true if all pass. Records
/// each task that passes in the checkout's progress.
pub fn run(
    lab: &Lab,
    names: &[String],
    submission: &Submission,
    options: &Options,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    run_with(&mut Runner::new(&submission.program, options), lab, names, submission, options, out)
}

/// The same with a runner of the submission's program, which several gradings can share.
pub fn run_with(
    runner: &mut Runner,
    lab: &Lab,
    names: &[String],
    submission: &Submission,
    options: &Options,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    let language = submission.program.language;
    let tasks = lab.tasks()?;
    runner.record_calls();
    names.iter().try_for_each(|name| tasks.find(name).map(drop))?;
    writeln!(out, "\nlab {}, seed {}", lab.number(), options.seed)?;
    for task in tasks.tasks.iter().filter(|task| names.is_empty() || names.contains(&task.name)) {
        let graded = grade(lab, task, submission, options, runner);
        let graded = graded.with_context(|| format!("cannot grade {}", task.name))?;
        let seconds = graded.took.as_secs_f64();
        let text = rendered(lab, &tasks, task, &graded.found, options.seed, language);
        let right = graded.found.is_ok();
        if right {
            writeln!(out, "{text} ({seconds:.1} s)")?;
            record(&submission.folder, lab, &task.name, options.seed);
        } else {
            writeln!(out, "{text}")?;
        }
        seat::tell(&submission.folder, lab.number(), &task.name, language, &graded.found);
        if !right {
            return Ok(false);
        }
    }
    let done = if names.is_empty() { "all tasks of this lab are done" } else { "done" };
    writeln!(out, "\n{done}")?;
    Ok(true)
}

/// Prints what comes after these tasks of a lab (all if there is no name), which have passed: the next task in the language that has not.
pub fn next(lab: &Lab, names: &[String], root: &Path, language: Language, out: &mut dyn Write) -> anyhow::Result<bool> {
    let mut all = Vec::new();
    for lab in LABS {
        all.extend(lab.tasks_in(root, language)?.tasks.into_iter().map(|task| (*lab, task.name)));
    }
    let graded =
        all.iter().rev().find(|(of, task)| of.number() == lab.number() && (names.is_empty() || names.contains(task)));
    let after = graded.map(|(lab, task)| (lab.number(), &**task));
    // What is wrong with the file has been said when the pass was recorded.
    let line = match Progress::read(root).unwrap_or_default().next(&all, after) {
        Some((to, task)) => {
            let tasks = to.tasks()?;
            next_line(to, &tasks, tasks.find(task)?, lab)
        }
        None => "all tasks of the course are done".to_owned(),
    };
    writeln!(out, "{line}\n")?;
    Ok(true)
}

/// The result of grading a task, as the learner reads it.
pub fn rendered(lab: &Lab, tasks: &Tasks, task: &Task, found: &GradeResult, seed: u64, language: Language) -> String {
    match found {
        Ok(()) => passed(tasks, task),
        Err(finding) => failed(lab, tasks, task, finding, seed, language),
    }
}

/// A failure to record is only a warning: the verdict matters more.
fn record(folder: &Path, lab: &Lab, task: &str, seed: u64) {
    if let Err(error) = Progress::record(folder, lab.number(), task, seed) {
        let _ = writeln!(std::io::stderr(), "warning: cannot record the progress: {error:#}");
    }
}
