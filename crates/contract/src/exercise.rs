//! What a grader and the ranks of a learner's program say to each other.
//!
//! The grader starts the program once a rank, with [`CALL`] and [`ANSWERS`] in its environment. Each rank reads the call, works
//! on its inputs one after the other, leaves its [`Answer`], and stays until the grader has seen those of all: a rank that left
//! early would turn another's hang into an error.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The variable that names the file with the [`Call`].
pub const CALL: &str = "LOCKSTEP_CALL";
/// The variable that names the folder for answers.
pub const ANSWERS: &str = "LOCKSTEP_ANSWERS";

/// The file in the folder of answers whose presence lets the ranks go.
const DISMISSED: &str = "dismissed";

/// What is asked of all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The task; with a slash and a name behind it, one of the answers to it that the course itself keeps.
    pub task: String,
    /// What the answer is to be applied to, one after the other.
    pub inputs: Vec<Value>,
}

/// How it went on one rank.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Answer {
    /// A result for each input.
    Done {
        /// In the order of the inputs.
        outputs: Vec<Value>,
    },
    /// The answer is still a `todo!()`.
    NotStarted {
        /// Its text.
        what: String,
    },
    /// The answer panicked.
    Panicked {
        /// What it said.
        message: String,
        /// File, line and column.
        place: Option<String>,
    },
    /// The answer returned an error.
    Failed {
        /// With its causes.
        error: String,
    },
    /// The program has no such task, or the inputs are not of the task's type: a fault of the course.
    Misunderstood {
        /// What is wrong.
        why: String,
    },
}

/// The folder in which ranks leave answers.
#[derive(Clone, Debug)]
pub struct Answers(pub PathBuf);

impl Answers {
    /// Leaves a rank's answer: whole or not at all.
    ///
    /// # Errors
    /// The system's own.
    pub fn leave(&self, rank: usize, answer: &Answer) -> io::Result<()> {
        let unfinished = self.0.join(format!("rank-{rank}.partial"));
        fs::write(&unfinished, serde_json::to_vec(answer)?)?;
        fs::rename(unfinished, self.of(rank))
    }

    /// A rank's answer; `None` as long as there is none.
    ///
    /// # Errors
    /// The system's own; a file that is no answer.
    pub fn read(&self, rank: usize) -> io::Result<Option<Answer>> {
        match fs::read(self.of(rank)) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lets all ranks go.
    ///
    /// # Errors
    /// The system's own.
    pub fn dismiss(&self) -> io::Result<()> {
        fs::write(self.0.join(DISMISSED), "")
    }

    /// Whether the ranks may go: they were let go, or nobody waits for them any more.
    pub fn dismissed(&self) -> bool {
        self.0.join(DISMISSED).exists() || !self.0.exists()
    }

    fn of(&self, rank: usize) -> PathBuf {
        self.0.join(format!("rank-{rank}.json"))
    }
}

impl Call {
    /// Writes it for the ranks to read.
    ///
    /// # Errors
    /// The system's own.
    pub fn write(&self, file: &Path) -> io::Result<()> {
        fs::write(file, serde_json::to_vec(self)?)
    }

    /// Reads what was written.
    ///
    /// # Errors
    /// The system's own; a file that is no call.
    pub fn read(file: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(file)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hands_calls_and_answers_over_and_lets_ranks_go() {
        let folder = tempfile::tempdir().unwrap();
        let call = Call { task: "average".into(), inputs: vec![1.into(), "a".into()] };
        call.write(&folder.path().join("call")).unwrap();
        assert_eq!(Call::read(&folder.path().join("call")).unwrap(), call);
        let answers = Answers(folder.path().into());
        assert_eq!(answers.read(1).unwrap(), None);
        let answer = Answer::Panicked { message: "no".into(), place: None };
        answers.leave(1, &answer).unwrap();
        assert_eq!(answers.read(1).unwrap(), Some(answer));
        assert!(!answers.dismissed());
        answers.dismiss().unwrap();
        assert!(answers.dismissed());
        fs::write(answers.of(2), "{").unwrap();
        assert!(answers.read(2).is_err());
    }

    #[test]
    fn ranks_go_when_the_folder_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let answers = Answers(folder.path().join("gone"));
        assert!(answers.dismissed());
    }
}
