//! The course's labs, and how a user may name one. Does not link libtorch.
//!
//! The list is that of the folders: `build.rs` takes each folder of `labs` that contains a `lab.toml`. It compiles in the text of
//! `lab.toml` and the functions in `grading`, so the command needs no checkout to know them.

use std::path::Path;
use std::process::ExitCode;

use lockstep_grading::course::{self, Compare};
use lockstep_grading::{Lab, learner};

include!(concat!(env!("OUT_DIR"), "/labs.rs"));

/// No lab has this name.
#[derive(Clone, Debug, thiserror::Error)]
#[error("there is no lab {name:?}: there are {}", names().join(", "))]
pub struct NoSuchLab {
    name: String,
}

/// The lab of this number, folder or package: `2`, `02`, `02-spawn-ddp`, `lab-02-spawn-ddp`, `ex-02`, `sol-02`.
///
/// # Errors
/// Returns [`NoSuchLab`], which lists the labs.
pub fn find(text: &str) -> Result<Lab, NoSuchLab> {
    LABS.iter().find(|lab| lab.is_called(text)).copied().ok_or_else(|| NoSuchLab { name: text.into() })
}

fn names() -> Vec<&'static str> {
    LABS.iter().map(|lab| lab.name).collect()
}

/// The `main` of an exercise's test: `package` is the exercise's name, `program` its built binary, `folder` its folder.
pub fn grade(package: &str, program: &str, folder: &str) -> ExitCode {
    with(package, |lab| learner::main(lab, program, folder))
}

/// The `main` of a solution's test: `package` is its name, `program` has all answers of the course, `folder` is the package's folder, and
/// `compare` compares the diagnoses of a task's wrong answers with those that are expected.
pub fn try_answers(package: &str, program: &str, folder: &str, compare: Compare) -> ExitCode {
    let root = Path::new(folder).ancestors().nth(3).unwrap_or(Path::new(""));
    with(package, |lab| course::main(lab, root, program, compare))
}

fn with(package: &str, main: impl FnOnce(&Lab) -> ExitCode) -> ExitCode {
    match find(package) {
        Ok(lab) => main(&lab),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_lab_by_number_folder_and_package() {
        for text in ["2", "02", "02-spawn-ddp", "lab-02-spawn-ddp", "ex-02", "sol-02"] {
            assert_eq!(find(text).map(|lab| lab.name).unwrap_or_default(), "02-spawn-ddp", "{text}");
        }
        for text in ["99", "", "2-spawn-ddp", "lab-"] {
            let why = find(text).map(|lab| lab.name).unwrap_err().to_string();
            assert!(why.starts_with(&format!("there is no lab {text:?}: there are 01-")), "{why}");
        }
    }

    #[test]
    fn each_lab_grades_the_tasks_that_it_names() {
        assert!(!LABS.is_empty());
        for lab in LABS {
            let tasks = lab.tasks().unwrap_or_else(|error| panic!("{error:#}")).tasks;
            let named: Vec<&str> = tasks.iter().map(|task| &*task.name).collect();
            let graded: Vec<&str> = lab.gradings.iter().map(|(name, _)| *name).collect();
            assert_eq!(named, graded, "{}", lab.name);
        }
    }
}
