//! Grades one task of an exercise.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::Context;

use crate::exercise::{Lab, Task};
use crate::{Finding, Found, Options, Runner, Verdict, checksums};

/// A learner's program and its sources.
#[derive(Clone, Debug)]
pub struct Submission {
    /// The learner's program.
    pub program: PathBuf,
    /// The folder of the learner's package.
    pub folder: PathBuf,
}

/// The result of grading one task.
#[derive(Clone, Debug)]
pub struct Graded {
    /// The task.
    pub task: Task,
    /// The finding, if any.
    pub found: Found,
    /// How long the grading took.
    pub took: Duration,
}

/// Grades one task, with a runner of the submission's program. Several tasks can share it.
///
/// # Errors
/// Failures of the machine or the course, after which the runner is of no use. A wrong answer is not an error but part of the result.
pub fn grade(
    lab: &Lab,
    task: &Task,
    submission: &Submission,
    options: &Options,
    runner: &mut Runner,
) -> anyhow::Result<Graded> {
    let begin = Instant::now();
    let found = find(lab, &task.name, &task.name, options, runner)?;
    let untouched = || checksums::untouched(&submission.folder, &task.file());
    let found = found.map_err(|finding| if untouched() { Box::new(not_started(*finding)) } else { finding });
    Ok(Graded { task: task.clone(), found, took: begin.elapsed() })
}

/// Grades the answer `answer` of the runner's program as an answer to `task`.
///
/// # Errors
/// As [`grade`].
pub fn find(lab: &Lab, task: &str, answer: &str, options: &Options, runner: &mut Runner) -> anyhow::Result<Found> {
    let grading = lab.grading(task).with_context(|| format!("there is no task {task} in lab {}", lab.number()))?;
    runner.turn_to(answer, options);
    match grading(runner) {
        Ok(()) => Ok(Ok(())),
        Err(error) => error.downcast().map(|finding| Err(Box::new(finding))),
    }
}

/// Turns the finding into "not started": the file is still as the course wrote it, so its bugs are not the learner's.
fn not_started(finding: Finding) -> Finding {
    if finding.verdict == Verdict::NotStarted {
        return finding;
    }
    let diagnosis = format!("the program is still as it was given. What it does now: {}", finding.diagnosis);
    Finding { verdict: Verdict::NotStarted, diagnosis, ..finding }
}
