//! A lab: the contents of its `lab.toml` (how to verify the lab, its tasks, their hints), and where its files are.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::Context;
use lockstep_contract::foreign;
use serde::Deserialize;

use crate::{Answers, Language, Runner, Workplace};

/// Grades a task from the results of real ranks. Stops at the first [`Finding`](crate::Finding).
pub type Grading = fn(&mut Runner) -> anyhow::Result<()>;

/// A lab: the text of its `lab.toml` and a grading function for each task.
#[derive(Clone, Copy, Debug)]
pub struct Lab {
    /// Its folder in `labs/`.
    pub name: &'static str,
    /// The text of its `lab.toml`.
    pub text: &'static str,
    /// The grading function of each task, by name, in the order of `lab.toml`.
    pub gradings: &'static [(&'static str, Grading)],
    /// The course's answers in Python, by the names of their tasks, with their markers: a learner who has no checkout gets them from here.
    pub python: &'static [(&'static str, &'static str)],
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

/// How `lockstep verify` runs a lab and what it checks afterwards.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Verify {
    /// The lab's promise, in a few words.
    pub shows: String,
    /// Which checks follow the run.
    pub checks: Checks,
    /// True if the lab starts its ranks itself, false if a launcher starts them.
    #[serde(default)]
    pub starts_itself: bool,
    /// A fault scenario that the lab survives.
    pub killed_by: Option<String>,
    #[serde(default)]
    pub epochs: u64,
    /// The number of training samples.
    #[serde(default)]
    pub samples: u64,
    /// The number of held-out samples, or of held-out tokens; a quarter of `samples` if not given.
    pub held_out: Option<u64>,
    /// The program's arguments, separated by spaces. `{ranks}`, `{epochs}`, `{batch}`, `{samples}` and `{seed}` stand for
    /// numbers; `{weights}`, `{snapshots}` and `{results}` stand for folders of the run.
    pub args: String,
}

/// The checks of `lockstep verify` after a lab has run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Checks {
    /// One rank visits each sample once per epoch, and its loss falls.
    OneDevice,
    /// Several ranks train as one rank does, and they learn.
    Training,
    /// Nodes with any numbers of workers, and any launcher, train as one node does.
    Nodes,
    /// Several ranks train as one rank does, in one pass per step or several; with compressed gradients, nearly so.
    Scaling,
    /// Several ranks end without an error, and leave nothing behind; the lab's own tests compare what they computed.
    Ends,
    /// Messages between ranks arrive, between processes and between threads.
    Messages,
    /// Each collective leaves the right result on each rank, between processes and between threads.
    Collectives,
}

/// A lab's tasks.
#[derive(Clone, Debug)]
pub struct Tasks {
    /// The chapter's file in `book/src`.
    pub chapter: String,
    /// In the order in which the learner does them.
    pub tasks: Vec<Task>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// The name of the task, of its file and of its function: `shard` is in `src/shard.rs`.
    pub name: String,
    /// What the learner does, in a few words.
    pub title: String,
    /// About how many minutes it takes, reading its section included: an estimate. `lockstep course check` wants one.
    #[serde(default)]
    pub minutes: u32,
    /// The heading of its section in the chapter.
    pub section: String,
    /// Three hints. The first is a nudge, the last is nearly the answer.
    pub hints: [String; 3],
    /// The last hint for an answer in Python, if the other one names Rust's functions.
    #[serde(default)]
    python_hint: Option<String>,
}

/// A lab has no such task.
#[derive(Clone, Debug, thiserror::Error)]
#[error("there is no task {name} in this lab: there are {names}")]
pub struct NoSuchTask {
    name: String,
    names: String,
}

impl Lab {
    /// Reads the lab in this folder as it is now. The result has no grading functions: those are compiled in.
    pub fn read(folder: &Path) -> anyhow::Result<Self> {
        let path = folder.join("lab.toml");
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", foreign::path(&path)))?;
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // The leak is harmless: a command reads a few labs and then ends.
        Ok(Lab { name: name.leak(), text: text.leak(), gradings: &[], python: &[] })
    }

    /// Returns true if `text` is the lab's number, its folder or one of its packages: `2`, `02`, `02-spawn-ddp`,
    /// `lab-02-spawn-ddp`, `ex-02`, `sol-02`.
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

    /// The folder that the learner edits: a package of Rust, or the lab's tasks in Python.
    pub fn learners(&self, root: &Path, language: Language) -> PathBuf {
        match language {
            Language::Rust => self.exercise(root),
            Language::Python => root.join(Workplace::at(root).tasks_in_python()).join(self.python_folder()),
        }
    }

    /// The name of the folder with its tasks in Python: `02_spawn_ddp`.
    pub fn python_folder(&self) -> String {
        self.name.replace('-', "_")
    }

    /// The folder of the package that the learner edits.
    pub fn exercise(&self, root: &Path) -> PathBuf {
        self.folder(root).join("exercise")
    }

    /// The folder with its tasks, which is also the package with the course's answers.
    pub fn tasks_folder(&self, root: &Path) -> PathBuf {
        self.folder(root).join("tasks")
    }

    /// The file with the course's own answer to a task.
    pub fn own_answer(&self, root: &Path, task: &str, language: Language) -> PathBuf {
        self.tasks_folder(root).join(task).join("answer").with_extension(language.extension())
    }

    /// The course's own answer to a task, with the markers of what the learner gets instead; `None` if there is none in this language.
    pub fn answer_text(&self, root: &Path, task: &str, language: Language) -> anyhow::Result<Option<String>> {
        let path = self.own_answer(root, task, language);
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound && language == Language::Python => {
                Ok(self.python.iter().find(|(name, _)| *name == task).map(|(_, text)| (*text).to_owned()))
            }
            Err(error) => Err(error).with_context(|| format!("cannot read {}", foreign::path(&path))),
        }
    }

    /// The file with the wrong and unusual answers to a task.
    pub fn other_answers(&self, root: &Path, task: &str, language: Language) -> PathBuf {
        self.tasks_folder(root).join(task).join("wrong").with_extension(language.extension())
    }

    /// The file that grades a task.
    pub fn grader(&self, root: &Path, task: &str) -> PathBuf {
        self.tasks_folder(root).join(task).join("grade.rs")
    }

    /// The names of the wrong and unusual answers to a task, as they are in the checkout now.
    pub fn answers(&self, root: &Path, task: &str, language: Language) -> anyhow::Result<Answers> {
        let path = self.other_answers(root, task, language);
        let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", foreign::path(&path)))?;
        Ok(match language {
            Language::Rust => Answers::read(&text),
            Language::Python => Answers::read_python(&text),
        })
    }

    /// The package that the learner edits.
    pub fn package(&self) -> String {
        format!("ex-{}", self.number())
    }

    /// The package with the course's answers.
    pub fn solution(&self) -> String {
        format!("sol-{}", self.number())
    }

    /// Its tasks.
    pub fn tasks(&self) -> anyhow::Result<Tasks> {
        let LabFile { chapter, tasks, .. } = self.file()?;
        Ok(Tasks { chapter, tasks })
    }

    /// Its tasks that can be answered in this language.
    pub fn tasks_in(&self, root: &Path, language: Language) -> anyhow::Result<Tasks> {
        let Tasks { chapter, mut tasks } = self.tasks()?;
        tasks.retain(|task| self.has(root, &task.name, language));
        Ok(Tasks { chapter, tasks })
    }

    /// Returns true if this task can be answered in this language.
    pub fn has(&self, root: &Path, task: &str, language: Language) -> bool {
        let is_compiled = || self.python.iter().any(|(name, _)| *name == task);
        language == Language::Rust || is_compiled() || self.own_answer(root, task, language).is_file()
    }

    /// How to verify the lab. `None` if there is nothing that can be checked.
    pub fn verify(&self) -> anyhow::Result<Option<Verify>> {
        Ok(self.file()?.verify)
    }

    fn file(&self) -> anyhow::Result<LabFile> {
        toml::from_str(self.text).with_context(|| format!("labs/{}/lab.toml", self.name))
    }

    /// The grading function of a task.
    pub fn grading(&self, task: &str) -> Option<Grading> {
        self.gradings.iter().find(|(name, _)| *name == task).map(|(_, grading)| *grading)
    }
}

impl Tasks {
    /// The task of this name.
    pub fn find(&self, name: &str) -> Result<&Task, NoSuchTask> {
        let names = || self.tasks.iter().map(|task| &*task.name).collect::<Vec<_>>().join(", ");
        let found = self.tasks.iter().find(|task| task.name == name);
        found.ok_or_else(|| NoSuchTask { name: name.into(), names: names() })
    }
}

impl Task {
    /// Its file in a package.
    pub fn file(&self) -> PathBuf {
        self.file_in(Language::Rust)
    }

    /// Its file in the learner's folder.
    pub fn file_in(&self, language: Language) -> PathBuf {
        match language {
            Language::Rust => Path::new("src").join(format!("{}.rs", self.name)),
            Language::Python => format!("{}.py", self.name).into(),
        }
    }

    /// Its hints for an answer in this language.
    pub fn hints_in(&self, language: Language) -> [String; 3] {
        let mut hints = self.hints.clone().map(|hint| language.words(&hint));
        if let (Language::Python, Some(hint)) = (language, &self.python_hint) {
            hints[2].clone_from(hint);
        }
        hints
    }
}
