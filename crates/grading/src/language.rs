//! The languages in which a task can be answered, and the programs that run answers.
//!
//! A grader does not know the language: it asks by file and reads results and calls. Its diagnoses name functions of the Rust binding, so
//! [`Language::words`] puts PyTorch's names in their place before a learner who works in Python reads them.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::exercise::Lab;
use crate::{Finding, Python, Workplace};

/// A language in which the course's tasks are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Language {
    /// All labs.
    #[default]
    Rust,
    /// Tasks that have an `answer.py`.
    Python,
}

impl Language {
    /// The sign with which a comment begins.
    pub(crate) fn comment(self) -> &'static str {
        match self {
            Language::Rust => "//",
            Language::Python => "#",
        }
    }
}

/// The folder of the checkout with what a learner in Python needs: the tasks, and the runtime that calls the answers.
pub const PYTHON: &str = "python";
/// The runtime's package in it.
const RUNTIME: &str = "lockstep_exercise";

/// A program that runs answers on ranks.
#[derive(Clone, Debug)]
pub struct Program {
    /// Its executable.
    pub path: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
    /// What the answers are written in.
    pub language: Language,
    /// What it may read where it is confined; all if this is empty.
    pub readable: Vec<PathBuf>,
    /// Where graders make the folders in which confined ranks work.
    pub given: Option<PathBuf>,
}

impl From<&Path> for Program {
    /// The compiled program of a package.
    fn from(path: &Path) -> Self {
        Program { path: path.into(), args: Vec::new(), language: Language::Rust, readable: Vec::new(), given: None }
    }
}

impl Program {
    /// The runtime of Python, which calls the answers in `folder`: `TASK.py` of a learner, or `TASK/answer.py` and `TASK/wrong.py` of the
    /// course. `root` is the checkout, whose runtime is used if it has one, and otherwise that which is installed.
    pub fn python(root: &Path, lab: &Lab, folder: &Path) -> anyhow::Result<Self> {
        let path = Python::for_answers()?.program;
        let runtime = runtime(root).map_or_else(|| vec!["-m".into(), RUNTIME.into()], |folder| vec![folder.into()]);
        let args = runtime.into_iter().chain([lab.number().into(), folder.into()]).collect();
        Ok(Program { path, args, language: Language::Python, readable: Vec::new(), given: None })
    }

    /// As [`python`](Self::python), for a program that may read nothing of a user but Python's [`folders`](Python::folders), the answers,
    /// and `given`, where graders put what answers read and write.
    ///
    /// # Errors
    /// As [`python`](Self::python).
    pub fn python_alone(
        root: &Path,
        lab: &Lab,
        folder: &Path,
        given: &Path,
        folders: &[PathBuf],
    ) -> anyhow::Result<Self> {
        let program = Self::python(root, lab, folder)?;
        let mut readable = folders.to_vec();
        readable.extend([folder.to_owned(), given.to_owned(), program.path.clone()]);
        readable.extend(runtime(root));
        Ok(Program { readable, given: Some(given.to_owned()), ..program })
    }
}

/// The folder of the runtime: in the checkout, in the one where this program was built, or where pip has put it together with this program,
/// which need not be where PyTorch is.
fn runtime(root: &Path) -> Option<PathBuf> {
    let this = std::env::current_exe().ok()?;
    let checkouts = std::iter::once(root).chain(this.ancestors());
    if let Some(own) = checkouts.map(|folder| folder.join(PYTHON).join(RUNTIME)).find(|own| own.is_dir()) {
        return Some(own);
    }
    let pythons = fs::read_dir(this.ancestors().nth(2)?.join("lib")).ok()?.flatten();
    pythons.map(|python| python.path().join("site-packages").join(RUNTIME)).find(|runtime| runtime.is_dir())
}

impl Language {
    /// The language of a command: Python if the learner asks for it, otherwise that of the workplace whose root this is.
    pub fn of(root: &Path, python: bool) -> Self {
        if python { Language::Python } else { Workplace::at(root).language() }
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Language::Rust => "Rust",
            Language::Python => "Python",
        }
    }

    /// The end of the name of an answer's file.
    pub fn extension(self) -> &'static str {
        match self {
            Language::Rust => "rs",
            Language::Python => "py",
        }
    }

    /// The option that selects the language in a command, with a space before it; nothing where there is no other.
    pub fn option(self) -> &'static str {
        match self {
            Language::Python if !Workplace::here().is_some_and(|place| place.is_folder()) => " --python",
            _ => "",
        }
    }

    /// A finding in the words of this language.
    #[must_use]
    pub(crate) fn finding(self, finding: Finding) -> Finding {
        if self == Language::Rust {
            return finding;
        }
        let words = |text: String| self.words(&text);
        Finding {
            given: finding.given.map(words),
            expected: finding.expected.map(words),
            observed: finding.observed.map(words),
            diagnosis: words(finding.diagnosis),
            seen: finding.seen.map(words),
            ..finding
        }
    }

    /// A text with this language's names of functions and types.
    pub fn words(self, text: &str) -> String {
        match self {
            Language::Rust => text.to_owned(),
            Language::Python => WORDS.iter().fold(text.to_owned(), |text, (rust, python)| text.replace(rust, python)),
        }
    }
}

/// Names of the Rust binding, and what they are called in Python. Longer texts come before their parts.
const WORDS: &[(&str, &str)] = &[
    ("the answer is still a `todo!()`", "the answer still raises NotImplementedError"),
    ("`group.size()`", "`dist.get_world_size()`"),
    ("group.size().get()", "dist.get_world_size()"),
    ("ReduceOp::Sum", "ReduceOp.SUM"),
    ("`if env.rank.is_zero()`", "`if rank == 0`"),
    ("In Python, sampler.set_epoch(epoch) sets it; here, loader.epoch(epoch) does", "sampler.set_epoch(epoch) sets it"),
    ("In Python, the missing line", "The missing line"),
    ("init_process_group(env, …)", "dist.init_process_group()"),
    ("env.rank", "dist.get_rank()"),
    ("create it with the block's `kind()`", "create it with the block's `dtype`"),
    ("`kind()` of this error is `PeerGone`", "the text of this exception says that the connection is closed"),
    ("`kind()` of this error is `Timeout`", "the text of this exception says that the wait has timed out"),
    ("use `kind()` of the error", "use the text of the exception"),
    ("`ErrorKind::PeerGone`", "a connection that is closed or reset"),
    ("`ErrorKind::Timeout`", "a wait that has timed out"),
    ("`ErrorKind::NotFound`", "FileNotFoundError"),
    ("return all others as errors", "raise all others"),
    ("return that, and not the error of `irecv` or `wait_for`", "return that, and do not let the exception pass"),
    ("`wait_for` takes a deadline", "A request's `wait` takes a timeout"),
    ("use the tensor that `wait_for` returns", "use the buffer once `wait` has returned"),
    ("use the tensors that `wait` returns", "use the buffers once `wait` has returned"),
    (
        "a batch is complete when `wait` returns it, not before",
        "a batch is complete once `wait` has returned, not before",
    ),
    (
        " The compiler forbids reads of the tensor that was passed to `irecv`, but not reads of another handle to its memory",
        "",
    ),
    ("`as_secs()`", "`int(patience.total_seconds())`"),
    ("`g_add_` and `copy_` write", "`+=` and `copy_` write"),
    ("`tr` only", "`t` only"),
    ("Return every other error", "Raise every other error"),
    ("`variables`", "`environ`"),
    ("that of the map", "that of the dict"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Verdict;

    #[test]
    fn a_finding_has_the_names_of_its_language() {
        let text = "all ranks need it: `group.size()` says how many";
        let found = Finding::new(Verdict::WrongValue, text).given("1 rank");
        assert_eq!(Language::Rust.finding(found.clone()), found);
        let found = Language::Python.finding(found);
        assert_eq!(found.diagnosis, "all ranks need it: `dist.get_world_size()` says how many");
    }

    #[test]
    fn no_name_is_replaced_twice() {
        for (at, (rust, python)) in WORDS.iter().enumerate() {
            assert!(WORDS[..at].iter().all(|(earlier, _)| !rust.contains(earlier)), "`{rust}` comes too late");
            assert!(WORDS[at..].iter().all(|(later, _)| !python.contains(later)), "`{python}` is replaced again");
        }
    }
}
