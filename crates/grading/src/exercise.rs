//! What a lab's `tasks.toml` says: its tasks, their hints, and the answers that the course itself keeps.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use serde::Deserialize;

use crate::{Stage, Verdict};

/// How a task is graded: from the results of real ranks. The first [`Fault`](crate::Fault) ends it.
pub type Grading = fn(&mut Stage) -> anyhow::Result<()>;

/// A lab's tasks and how each is graded, as its `grading` crate has them.
#[derive(Clone, Copy, Debug)]
pub struct Lab {
    /// Its folder in `labs/`.
    pub name: &'static str,
    /// The text of its `tasks.toml`.
    pub tasks: &'static str,
    /// How each task is graded, by name, in the order of `tasks.toml`.
    pub gradings: &'static [(&'static str, Grading)],
}

/// A lab's `tasks.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tasks {
    /// The chapter's file in `book/src`.
    pub chapter: String,
    /// In the order in which they are to be done.
    #[serde(rename = "task")]
    pub tasks: Vec<Task>,
}

/// One task.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// Also that of its file and its function: `shard` is `src/shard.rs`.
    pub name: String,
    /// What is to be done, in a few words.
    pub title: String,
    /// The heading of its section in the chapter.
    pub section: String,
    /// From a nudge to nearly the answer.
    pub hints: [String; 3],
    /// Wrong answers that people really give.
    #[serde(default)]
    pub wrong: Vec<Wrong>,
    /// Right answers that look unlike the course's own.
    #[serde(default)]
    pub right: Vec<Right>,
}

/// A wrong answer: the function of its name in `mutants/TASK.rs`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wrong {
    /// Its name among those of the task.
    pub name: String,
    /// What is wrong with it, for maintainers.
    pub what: String,
    /// The verdict that it must get.
    pub verdict: Verdict,
    /// A part of the diagnosis that it must get.
    pub says: String,
}

/// A right answer: the function of its name in `mutants/TASK.rs`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Right {
    /// Its name among those of the task.
    pub name: String,
    /// What is unusual about it.
    pub what: String,
}

/// A lab has no such task.
#[derive(Clone, Debug, thiserror::Error)]
#[error("there is no task {name} in the exercise of {chapter}: there are {names}")]
pub struct NoSuchTask {
    name: String,
    chapter: String,
    names: String,
}

impl Lab {
    /// Its number, two digits: `02`.
    pub fn number(&self) -> &'static str {
        self.name.split('-').next().unwrap_or(self.name)
    }

    /// Its folder in the checkout.
    pub fn folder(&self, root: &Path) -> PathBuf {
        root.join("labs").join(self.name)
    }

    /// The folder of the package that the learner edits.
    pub fn exercise(&self, root: &Path) -> PathBuf {
        self.folder(root).join("exercise")
    }

    /// The package that the learner edits.
    pub fn package(&self) -> String {
        format!("ex-{}", self.number())
    }

    /// The package with the course's own answers.
    pub fn solution(&self) -> String {
        format!("sol-{}", self.number())
    }

    /// Its tasks.
    ///
    /// # Errors
    /// When `tasks.toml` is not of its form, or the gradings are of other tasks.
    pub fn tasks(&self) -> anyhow::Result<Tasks> {
        let told = || format!("labs/{}/tasks.toml", self.name);
        let tasks: Tasks = toml::from_str(self.tasks).with_context(told)?;
        let named: Vec<&str> = tasks.tasks.iter().map(|task| task.name.as_str()).collect();
        let graded: Vec<&str> = self.gradings.iter().map(|(name, _)| *name).collect();
        ensure!(named == graded, "{} has the tasks {named:?}, but graded are {graded:?}", told());
        Ok(tasks)
    }

    /// How a task is graded.
    pub fn grading(&self, task: &str) -> Option<Grading> {
        self.gradings.iter().find(|(name, _)| *name == task).map(|(_, grading)| *grading)
    }
}

impl Tasks {
    /// The task of this name.
    ///
    /// # Errors
    /// When there is none, with those that there are.
    pub fn find(&self, name: &str) -> Result<&Task, NoSuchTask> {
        let names = || self.tasks.iter().map(|task| &*task.name).collect::<Vec<_>>().join(", ");
        let found = self.tasks.iter().find(|task| task.name == name);
        found.ok_or_else(|| NoSuchTask { name: name.into(), chapter: self.chapter.clone(), names: names() })
    }
}

impl Task {
    /// The names of the answers in `mutants`, wrong ones first.
    pub fn variants(&self) -> impl Iterator<Item = &str> {
        self.wrong.iter().map(|wrong| &*wrong.name).chain(self.right.iter().map(|right| &*right.name))
    }

    /// Its file in a package.
    pub fn file(&self) -> PathBuf {
        Path::new("src").join(format!("{}.rs", self.name))
    }
}
