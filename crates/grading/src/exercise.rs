//! What a lab's `lab.toml` says: how the lab is verified, its tasks, their hints, and the answers that the course itself keeps.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::Deserialize;

use crate::{Stage, Verdict};

/// How a task is graded: from the results of real ranks. The first [`Fault`](crate::Fault) ends it.
pub type Grading = fn(&mut Stage) -> anyhow::Result<()>;

/// A lab: what its `lab.toml` says, and how each task is graded.
#[derive(Clone, Copy, Debug)]
pub struct Lab {
    /// Its folder in `labs/`.
    pub name: &'static str,
    /// The text of its `lab.toml`.
    pub text: &'static str,
    /// How each task is graded, by name, in the order of `lab.toml`.
    pub gradings: &'static [(&'static str, Grading)],
}

/// A lab's `lab.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LabFile {
    chapter: String,
    verify: Option<Verify>,
    #[serde(default, rename = "task")]
    tasks: Vec<Task>,
}

/// How `lockstep verify` runs a lab, and what it then checks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Verify {
    /// What the lab promises, in a few words.
    pub shows: String,
    /// What is checked.
    pub checks: Checks,
    /// Whether the lab starts its ranks itself; otherwise a launcher does.
    #[serde(default)]
    pub starts_itself: bool,
    /// The scenario of the library that kills the lab, if it survives that.
    pub killed_by: Option<String>,
    /// How often it goes through its samples.
    #[serde(default)]
    pub epochs: u64,
    /// How many samples there are to learn from.
    #[serde(default)]
    pub samples: u64,
    /// The program's arguments, with spaces between them. `{ranks}`, `{epochs}`, `{batch}`, `{samples}` and `{seed}` stand for
    /// numbers, `{weights}`, `{snapshots}` and `{results}` for folders of the run.
    pub args: String,
}

/// What `lockstep verify` checks after a lab has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Checks {
    /// One rank takes each sample once an epoch, and its loss falls.
    OneDevice,
    /// Several ranks train as one rank does, and learn.
    Training,
    /// Messages from rank to rank arrive, between processes and between threads.
    Messages,
    /// Collectives leave what they promise, between processes and between threads.
    Collectives,
}

/// A lab's tasks.
#[derive(Clone, Debug)]
pub struct Tasks {
    /// The chapter's file in `book/src`.
    pub chapter: String,
    /// In the order in which they are to be done.
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
    /// The lab in this folder, with what stands there now. Nothing of it is compiled in, so that its tasks cannot be graded.
    ///
    /// # Errors
    /// When its `lab.toml` cannot be read.
    pub fn read(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join("lab.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Few are read, by a command that then ends.
        Ok(Lab { name: name.leak(), text: text.leak(), gradings: &[] })
    }

    /// Whether this is its number, its folder or one of its packages: `2`, `02`, `02-spawn-ddp`, `lab-02-spawn-ddp`, `ex-02`,
    /// `sol-02`.
    pub fn is_called(&self, text: &str) -> bool {
        let plain = ["lab-", "ex-", "sol-"].iter().find_map(|package| text.strip_prefix(package)).unwrap_or(text);
        self.name == plain || self.number() == format!("{plain:0>2}")
    }

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
    /// When `lab.toml` is not of its form.
    pub fn tasks(&self) -> anyhow::Result<Tasks> {
        let LabFile { chapter, tasks, .. } = self.file()?;
        Ok(Tasks { chapter, tasks })
    }

    /// How it is verified; `None` for a lab that promises nothing that can be checked.
    ///
    /// # Errors
    /// When `lab.toml` is not of its form.
    pub fn verify(&self) -> anyhow::Result<Option<Verify>> {
        Ok(self.file()?.verify)
    }

    fn file(&self) -> anyhow::Result<LabFile> {
        toml::from_str(self.text).with_context(|| format!("labs/{}/lab.toml", self.name))
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
