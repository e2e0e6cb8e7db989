//! Checks what a learner begins with: exercises compile without a warning, and all their tasks are graded as not started.

use std::path::Path;
use std::process::Stdio;

use anyhow::Context;
use lockstep_grading::exercise::Task;
use lockstep_grading::grade::{Submission, grade};
use lockstep_grading::{Lab, Options, Runner, Verdict, checksums};

use crate::cargo::{self, Message};

/// The result of the check.
#[derive(Default)]
pub(super) struct Beginning {
    /// Faults, one per line.
    pub(super) faults: Vec<String>,
    /// What could not be checked, with the reasons.
    pub(super) not_verified: Vec<String>,
}

/// Builds the exercises and grades them in their original state. An exercise that a learner has edited is skipped.
///
/// # Errors
/// cargo cannot build, or a task cannot be graded.
pub(super) fn look(root: &Path, labs: &[Lab]) -> anyhow::Result<Beginning> {
    let mut found = Beginning::default();
    let mut given = Vec::new();
    for lab in labs {
        let folder = lab.exercise(root);
        let edited =
            checksums::read(&folder).keys().find(|path| !checksums::untouched(&folder, Path::new(path))).cloned();
        match edited {
            Some(path) => found.not_verified.push(format!("labs/{}/exercise/{path} has been edited", lab.name)),
            None => given.push((lab, folder)),
        }
    }
    let messages = build(root)?;
    for (lab, folder) in given {
        let package = lab.package();
        let of_it = |message: &&Message| {
            message.package_id.as_ref().is_some_and(|id| id.contains(&format!("/labs/{}/exercise", lab.name)))
        };
        let warnings = messages.iter().filter(of_it).filter_map(|message| message.message.as_ref()?.rendered.clone());
        found.faults.extend(warnings.map(|text| format!("labs/{}: the exercise has a warning: {text}", lab.name)));
        let program = messages.iter().filter(of_it).find_map(|message| message.program(&package));
        let program = program.with_context(|| format!("cargo built no program {package}"))?.to_owned();
        found.faults.extend(started(lab, &Submission { program, folder })?);
    }
    Ok(found)
}

/// Builds all targets of the workspace, like the test run: with fewer, crates would have other features and be rebuilt.
fn build(root: &Path) -> anyhow::Result<Vec<Message>> {
    let mut command = cargo::command(root, &["test", "--workspace", "--no-run"]);
    let output = command.stderr(Stdio::inherit()).output().context("cannot start cargo: is it on PATH?")?;
    anyhow::ensure!(output.status.success(), "cargo cannot build the workspace; see its output above");
    Ok(cargo::messages(&output.stdout))
}

/// The tasks that seem to have been started.
fn started(lab: &Lab, submission: &Submission) -> anyhow::Result<Vec<String>> {
    let Ok(lab) = &super::find(lab.name) else {
        return Ok(vec![format!("labs/{}: this command was built before the lab was: cargo build", lab.name)]);
    };
    let (mut faults, options) = (Vec::new(), Options::seeded(None));
    let mut runner = Runner::new(&submission.program, &options);
    for task in lab.tasks()?.tasks {
        let Task { name, .. } = &task;
        let verdict = match grade(lab, &task, submission, &options, &mut runner)?.found {
            Ok(()) => "passed",
            Err(fault) if fault.verdict == Verdict::NotStarted => continue,
            Err(fault) => fault.verdict.words(),
        };
        faults.push(format!("labs/{}: {name} is {verdict}, as it was given, not \"not started\"", lab.name));
    }
    Ok(faults)
}
