//! Records which tasks a learner has passed, in `progress.toml` of the workplace.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use chrono::{Local, NaiveDateTime};
use lockstep_contract::foreign;
use serde::{Deserialize, Serialize};

use crate::{Lab, Workplace};

const FILE: &str = "progress.toml";
const TIME: &str = "%Y-%m-%d %H:%M:%S";
const HEAD: &str = "# Passed tasks, by lab. The grader writes this file; `lockstep progress` shows it.\n\n";

/// The passed tasks: by the lab's number, then by the task's name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Progress(BTreeMap<String, BTreeMap<String, Passed>>);

/// When and with which seed a task was first passed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Passed {
    /// Local time.
    pub at: String,
    /// The seed of the inputs.
    pub seed: u64,
}

impl Progress {
    /// Reads the progress of the workplace that contains `folder`.
    ///
    /// Fails when the file exists but cannot be read.
    pub fn read(folder: &Path) -> anyhow::Result<Self> {
        let file = file(folder);
        match fs::read_to_string(&file) {
            Ok(text) => toml::from_str(&text).with_context(|| {
                format!("{} is damaged: repair it, or remove it to start with no progress", foreign::path(&file))
            }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("cannot read {}", foreign::path(&file))),
        }
    }

    /// When a task was first passed, if ever.
    pub fn of(&self, lab: &str, task: &str) -> Option<&Passed> {
        self.0.get(lab)?.get(task)
    }

    /// The first of these tasks that has not passed: after this one, by its lab's number and its name, else of all.
    pub fn next<'a>(&self, tasks: &'a [(Lab, String)], after: Option<(&str, &str)>) -> Option<&'a (Lab, String)> {
        let here = after.and_then(|after| tasks.iter().position(|(lab, task)| (lab.number(), &**task) == after));
        let (before, behind) = tasks.split_at(here.map_or(0, |here| here + 1));
        behind.iter().chain(before).find(|(lab, task)| self.of(lab.number(), task).is_none())
    }

    /// The lab's number, the name and the time, in seconds since 1970, of each task that has passed.
    pub fn passed(&self) -> impl Iterator<Item = (&str, &str, u64)> {
        let seconds = |at: &str| {
            let time = NaiveDateTime::parse_from_str(at, TIME).ok()?.and_local_timezone(Local).earliest()?;
            u64::try_from(time.timestamp()).ok()
        };
        self.0.iter().flat_map(move |(lab, tasks)| {
            tasks.iter().map(move |(task, passed)| (&**lab, &**task, seconds(&passed.at).unwrap_or_default()))
        })
    }

    /// Records in the workplace that contains `folder` that a task was passed. A task that had passed before keeps its time.
    pub fn record(folder: &Path, lab: &str, task: &str, seed: u64) -> anyhow::Result<()> {
        let mut progress = Self::read(folder)?;
        if progress.of(lab, task).is_some() {
            return Ok(());
        }
        let at = Local::now().format(TIME).to_string();
        progress.0.entry(lab.into()).or_default().insert(task.into(), Passed { at, seed });
        progress.write(&file(folder))
    }

    /// Removes a lab's tasks, or one of them, from the progress of the workplace that contains `folder`. Returns those that were passed.
    pub fn forget(folder: &Path, lab: &str, task: Option<&str>) -> anyhow::Result<Vec<String>> {
        let mut progress = Self::read(folder)?;
        let Some(passed) = progress.0.get_mut(lab) else { return Ok(Vec::new()) };
        let (gone, kept) =
            std::mem::take(passed).into_iter().partition(|(name, _)| task.is_none_or(|task| task == name));
        let gone: BTreeMap<String, Passed> = gone;
        *passed = kept;
        if passed.is_empty() {
            progress.0.remove(lab);
        }
        if !gone.is_empty() {
            progress.write(&file(folder))?;
        }
        Ok(gone.into_keys().collect())
    }

    fn write(&self, file: &Path) -> anyhow::Result<()> {
        let text = format!("{HEAD}{}", toml::to_string(self)?);
        let written = lockstep_paths::write_atomically(file, |out| out.write_all(text.as_bytes()));
        written.with_context(|| format!("cannot write {}", foreign::path(file)))
    }
}

/// The file of the workplace that contains this folder.
fn file(folder: &Path) -> PathBuf {
    Workplace::around(folder).map_or_else(|| folder.join(FILE), |workplace| workplace.root().join(FILE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_passed_tasks_next_to_the_lock_file() {
        let root = tempfile::tempdir().unwrap();
        let exercise = root.path().join("labs/02/exercise");
        fs::create_dir_all(&exercise).unwrap();
        fs::write(root.path().join("Cargo.lock"), "").unwrap();
        Progress::record(&exercise, "02", "shard", 7).unwrap();
        Progress::record(&exercise, "02", "average", 8).unwrap();
        Progress::record(&exercise, "02", "shard", 9).unwrap();
        let read = Progress::read(root.path()).unwrap();
        assert_eq!(read.of("02", "shard").unwrap().seed, 7, "a task that passes again keeps its first time");
        assert!(read.of("02", "other").is_none() && read.of("03", "shard").is_none());
        assert!(Progress::forget(&exercise, "02", Some("other")).unwrap().is_empty());
        assert_eq!(Progress::forget(&exercise, "02", Some("shard")).unwrap(), ["shard"]);
        let left = Progress::read(root.path()).unwrap();
        assert!(left.of("02", "shard").is_none() && left.of("02", "average").is_some());
        assert_eq!(Progress::forget(&exercise, "02", None).unwrap(), ["average"]);
        assert_eq!(Progress::read(root.path()).unwrap(), Progress::default());
    }

    #[test]
    fn rejects_a_damaged_file() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join(FILE), "shard = 1").unwrap();
        let error = Progress::record(root.path(), "02", "shard", 7).unwrap_err().to_string();
        assert!(error.contains("progress.toml") && error.contains("remove it"), "{error}");
        assert_eq!(fs::read_to_string(root.path().join(FILE)).unwrap(), "shard = 1", "the file must not change");
    }
}
