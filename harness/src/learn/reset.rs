//! `lockstep reset`: restores an exercise to its original state. The previous files are kept in the checkout's `backups`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use chrono::Local;
use clap::Args;
use lockstep_contract::foreign;
use lockstep_grading::Lab;
use lockstep_grading::exercise::Task;
use lockstep_grading::package;
use lockstep_grading::progress::Progress;

use crate::course::{checkout, find};
use crate::exit::{Code, Refused};

/// Restore an exercise, or one task of it, to its original state, and keep a copy of your files
#[derive(Args)]
pub(crate) struct Options {
    /// The lab, by number or name
    lab: String,
    /// One task; by default all tasks of the lab
    task: Option<String>,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let (root, lab) = (checkout()?, find(&self.lab)?);
        let tasks = lab.tasks()?;
        let file = match &self.task {
            Some(name) => Some(tasks.find(name).map(Task::file).map_err(|error| Refused(error.to_string()))?),
            None => None,
        };
        let given = package::files(&root, &lab)?;
        let kept = back_up(&root, &lab)?;
        let what = match &file {
            Some(file) => {
                let text = given.get(file).with_context(|| format!("the solution has no {}", foreign::path(file)))?;
                package::write_file(&lab.exercise(&root).join(file), text)?;
                format!("exercise/{}", file.display())
            }
            None => {
                package::write(&root, &lab, &given)?;
                "exercise".to_owned()
            }
        };
        let gone = Progress::forget(&root, lab.number(), self.task.as_deref())?;
        println!("labs/{}/{what} is as it was given", lab.name);
        if !gone.is_empty() {
            println!("no longer recorded as done: {}", gone.join(", "));
        }
        if let Some(kept) = kept {
            println!("what stood there is kept in {}", kept.display());
        }
        Ok(Code::Success)
    }
}

/// Copies the exercise and returns the copy's path, or `None` if there is no exercise.
fn back_up(root: &Path, lab: &Lab) -> anyhow::Result<Option<PathBuf>> {
    let from = lab.exercise(root);
    if !from.exists() {
        return Ok(None);
    }
    let backups = root.join("backups");
    let name = format!("{}-{}", lab.package(), Local::now().format("%Y-%m-%d-%H%M%S"));
    // Two copies within a second get different folders.
    let names = std::iter::once(name.clone()).chain((2..).map(|number| format!("{name}-{number}")));
    let to = names.map(|name| backups.join(name)).find(|to| !to.exists()).unwrap_or_default();
    copy(&from, &to).with_context(|| format!("cannot keep a copy in {}; nothing was changed", foreign::path(&to)))?;
    Ok(Some(to))
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
