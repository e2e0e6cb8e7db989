//! The messages between a grader and the ranks of a learner's program.
//!
//! The grader starts the program once per rank, with [`CALL`] and [`ANSWERS`] in its environment. Each rank reads the
//! call, processes the inputs one after the other, writes its [`Answer`], and stays until the grader has seen the
//! answers of all ranks: if a rank left early, a hang of another rank would become an error.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The variable that names the file with the [`Call`].
pub const CALL: &str = "LOCKSTEP_CALL";
/// The variable that names the folder for the answers.
pub const ANSWERS: &str = "LOCKSTEP_ANSWERS";

/// The file in the folder of answers that allows the ranks to exit.
const DISMISSED: &str = "dismissed";

/// The request to all ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The task. A name after a slash selects one of the course's own answers to it.
    pub task: String,
    /// The inputs that the answer is applied to, one after the other.
    pub inputs: Vec<Value>,
}

/// The outcome on one rank.
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
        /// The text of the `todo!()`.
        what: String,
    },
    Panicked {
        message: String,
        /// File, line and column.
        place: Option<String>,
    },
    /// The answer, in Python, raised an exception.
    Raised {
        /// The error's type and message.
        error: String,
        /// The answer's innermost line in the traceback: file and line.
        place: Option<String>,
    },
    /// The answer, in Python, returned something else than was asked for.
    WrongType {
        /// What it returned, and what was asked for.
        why: String,
    },
    /// The answer returned an error.
    Failed {
        /// The error with its causes.
        error: String,
    },
    /// The program has no such task, or the inputs do not have the task's type: a bug in the course.
    Misunderstood {
        /// What is wrong.
        why: String,
    },
}

/// The folder in which ranks write their answers.
#[derive(Clone, Debug)]
pub struct Answers(pub PathBuf);

impl Answers {
    /// Writes a rank's answer, atomically.
    ///
    /// # Errors
    /// The file system's.
    pub fn leave(&self, rank: usize, answer: &Answer) -> io::Result<()> {
        let unfinished = self.0.join(format!("rank-{rank}.partial"));
        fs::write(&unfinished, serde_json::to_vec(answer)?)?;
        fs::rename(unfinished, self.of(rank))
    }

    /// Records that a rank is connected to all others. None of them may run an answer before all are: one that ended at once would be
    /// lost to those that still connect.
    ///
    /// # Errors
    /// The file system's.
    pub fn join(&self, rank: usize) -> io::Result<()> {
        fs::write(self.joined_file(rank), "")
    }

    /// Returns true if all ranks are connected.
    pub fn all_joined(&self, ranks: usize) -> bool {
        (0..ranks).all(|rank| self.joined_file(rank).exists())
    }

    /// Records that a rank begins with the input of this number, counted from 0.
    ///
    /// # Errors
    /// The file system's.
    pub fn begin(&self, rank: usize, input: usize) -> io::Result<()> {
        fs::write(self.begun_file(rank), input.to_string())
    }

    /// The input that a rank began with last; `None` if it has not begun.
    pub fn begun(&self, rank: usize) -> Option<usize> {
        fs::read_to_string(self.begun_file(rank)).ok()?.parse().ok()
    }

    /// Reads a rank's answer; `None` if it has not been written yet.
    ///
    /// # Errors
    /// The file system's; an error if the file is not an answer.
    pub fn read(&self, rank: usize) -> io::Result<Option<Answer>> {
        match fs::read(self.of(rank)) {
            Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// What a runtime has seen in the source of the answer and in its calls, each a sentence: what a compiler would warn of. The runtime of
    /// Python writes such notes. Those of all ranks, each once.
    pub fn notes(&self, ranks: usize) -> Vec<String> {
        let of = |rank| fs::read(self.0.join(format!("rank-{rank}.notes"))).unwrap_or_default();
        let all = (0..ranks).flat_map(|rank| serde_json::from_slice::<Vec<String>>(&of(rank)).unwrap_or_default());
        all.fold(Vec::new(), |mut notes, note| {
            if !notes.contains(&note) {
                notes.push(note);
            }
            notes
        })
    }

    /// Allows all ranks to exit.
    ///
    /// # Errors
    /// The file system's.
    pub fn dismiss(&self) -> io::Result<()> {
        fs::write(self.0.join(DISMISSED), "")
    }

    /// Returns true if the ranks may exit: the grader allowed it, or removed the folder.
    pub fn dismissed(&self) -> bool {
        self.0.join(DISMISSED).exists() || !self.0.exists()
    }

    fn joined_file(&self, rank: usize) -> PathBuf {
        self.0.join(format!("rank-{rank}.joined"))
    }

    fn begun_file(&self, rank: usize) -> PathBuf {
        self.0.join(format!("rank-{rank}.begun"))
    }

    fn of(&self, rank: usize) -> PathBuf {
        self.0.join(format!("rank-{rank}.json"))
    }
}

impl Call {
    /// Writes the call for the ranks to read.
    ///
    /// # Errors
    /// The file system's.
    pub fn write(&self, file: &Path) -> io::Result<()> {
        fs::write(file, serde_json::to_vec(self)?)
    }

    /// Reads a call from `file`.
    ///
    /// # Errors
    /// The file system's; an error if the file is not a call.
    pub fn read(file: &Path) -> io::Result<Self> {
        Ok(serde_json::from_slice(&fs::read(file)?)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_calls_and_answers_and_lets_ranks_exit() {
        let folder = tempfile::tempdir().unwrap();
        let call = Call { task: "average".into(), inputs: vec![1.into(), "a".into()] };
        call.write(&folder.path().join("call")).unwrap();
        assert_eq!(Call::read(&folder.path().join("call")).unwrap(), call);
        let answers = Answers(folder.path().into());
        assert_eq!((answers.read(1).unwrap(), answers.begun(1)), (None, None));
        answers.begin(1, 12).unwrap();
        assert_eq!(answers.begun(1), Some(12));
        let answer = Answer::Panicked { message: "no".into(), place: None };
        answers.leave(1, &answer).unwrap();
        assert_eq!(answers.read(1).unwrap(), Some(answer));
        fs::write(folder.path().join("rank-0.notes"), r#"["line 3"]"#).unwrap();
        fs::write(folder.path().join("rank-1.notes"), r#"["line 3", "line 4"]"#).unwrap();
        fs::write(folder.path().join("rank-2.notes"), "torn").unwrap();
        assert_eq!(answers.notes(4), ["line 3", "line 4"]);
        assert!(!answers.dismissed());
        answers.dismiss().unwrap();
        assert!(answers.dismissed());
        fs::write(answers.of(2), "{").unwrap();
        assert!(answers.read(2).is_err());
    }

    #[test]
    fn ranks_exit_when_the_folder_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let answers = Answers(folder.path().join("gone"));
        assert!(answers.dismissed());
    }
}
