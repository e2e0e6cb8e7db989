//! Grades an exercise: its tasks in their order, to the first finding.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::exercise::{Lab, Task};
use crate::{Fault, Found, Options, Stage, Verdict, sums};

/// What is graded.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The learner's program.
    pub program: PathBuf,
    /// The folder of the learner's package.
    pub folder: PathBuf,
}

/// How one task went.
#[derive(Clone, Debug)]
pub struct Graded {
    /// The task.
    pub task: Task,
    /// What was found.
    pub found: Found,
    /// How long it took.
    pub took: Duration,
}

/// Grades one task.
///
/// # Errors
/// Faults of the machine or the course; what is wrong with the answer is in the result.
pub fn grade(lab: &Lab, task: &Task, submission: &Submission, options: &Options) -> anyhow::Result<Graded> {
    let begin = Instant::now();
    let found = find(lab, &task.name, &task.name, &submission.program, options)?;
    let untouched = || sums::untouched(&submission.folder, &task.file());
    let found = found.map_err(|fault| if untouched() { Box::new(as_given(*fault)) } else { fault });
    Ok(Graded { task: task.clone(), found, took: begin.elapsed() })
}

/// Grades what the program calls `answer`, as an answer to `task`.
///
/// # Errors
/// As [`grade`].
pub fn find(lab: &Lab, task: &str, answer: &str, program: &Path, options: &Options) -> anyhow::Result<Found> {
    let grading = lab.grading(task).with_context(|| format!("there is no task {task} in lab {}", lab.number()))?;
    let mut stage = Stage::new(program, answer, options);
    match grading(&mut stage) {
        Ok(()) => Ok(Ok(())),
        Err(error) => error.downcast().map(|fault| Err(Box::new(fault))),
    }
}

/// The file is as the course gave it: whatever it does wrong, nobody has begun to mend it.
fn as_given(fault: Fault) -> Fault {
    if fault.verdict == Verdict::NotStarted {
        return fault;
    }
    let diagnosis = format!("the program is still as it was given. What it does now: {}", fault.diagnosis);
    Fault { verdict: Verdict::NotStarted, diagnosis, ..fault }
}
