//! `lockstep grade`: grades the answers of this checkout, lab by lab, up to the first finding.

use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use lockstep_grading::grade::Submission;
use lockstep_grading::{Lab, learner};

use super::build::{Built, build};
use super::class::Class;
use super::task;
use crate::course::{checkout, find, find_all};
use crate::exit::{Code, Refused};
use crate::report::Target;

/// Grade the exercises: tasks in order, up to the first that is not right
#[derive(Args)]
pub(crate) struct Options {
    /// Labs by number or name, or one lab and tasks of it [default: all labs]
    #[arg(value_name = "LAB")]
    labs: Vec<String>,
    /// Only this task of the lab; may be repeated
    #[arg(long = "task", value_name = "TASK", requires = "labs")]
    tasks: Vec<String>,
    /// Seed of the inputs, as a finding names it
    #[arg(long)]
    seed: Option<u64>,
    /// Grade a class instead: a folder with one folder per learner, whose answers cannot write outside it
    #[arg(long, value_name = "DIR", conflicts_with = "tasks")]
    class: Option<PathBuf>,
    /// Where the class's report goes: a .csv, .json, .xml (JUnit), .html or .txt file; may be repeated
    #[arg(long = "report", value_name = "FILE", requires = "class")]
    reports: Vec<Target>,
}

impl Options {
    pub(crate) fn exec(mut self) -> anyhow::Result<Code> {
        if self.class.is_none() {
            self.split_tasks();
        }
        let (root, labs) = (checkout()?, find_all(&self.labs)?);
        let options = lockstep_grading::Options::seeded(self.seed);
        if let Some(folder) = self.class {
            return Class::open(root, folder, labs)?.grade(options, &self.reports);
        }
        if !self.tasks.is_empty() {
            let [lab] = &labs[..] else {
                return Err(Refused("--task is of one lab: lockstep grade LAB --task TASK".into()).into());
            };
            let tasks = lab.tasks()?;
            self.tasks.iter().try_for_each(|name| task(&tasks, name).map(drop))?;
        }
        for lab in labs {
            if !grade(&root, &lab, &self.tasks, &options, &mut std::io::stdout())? {
                return Ok(Code::Failure);
            }
        }
        Ok(Code::Success)
    }

    /// Words after the first lab that are its tasks, or at least no labs, become tasks, as other commands have them: `lockstep grade 02
    /// average`.
    fn split_tasks(&mut self) {
        let [lab, others @ ..] = &self.labs[..] else { return };
        let Ok(tasks) = find(lab).and_then(|lab| lab.tasks()) else { return };
        if others.iter().all(|name| tasks.find(name).is_ok() || find(name).is_err()) {
            self.tasks.extend(self.labs.drain(1..));
        }
    }
}

/// Builds and grades a lab's exercise, and prints the progress; returns true if everything is right.
pub(super) fn grade(
    root: &Path,
    lab: &Lab,
    tasks: &[String],
    options: &lockstep_grading::Options,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    match build(root, &lab.package())? {
        Built::Program(program) => {
            let submission = Submission { program, folder: lab.exercise(root) };
            learner::run(lab, tasks, &submission, options, out)
        }
        Built::Broken(errors) => {
            writeln!(out, "{}", errors[0].text)?;
            let more = errors.len() - 1;
            let others = if more == 0 { String::new() } else { format!("; {more} more errors follow it") };
            writeln!(out, "✗ lab {}: the exercise does not compile{others}", lab.number())?;
            Ok(false)
        }
    }
}
