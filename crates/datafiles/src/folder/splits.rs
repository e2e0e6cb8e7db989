//! The folders of a data folder's splits: `Train`, `Validation` and optionally `Test`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::DataError;

/// The accepted names of each split's folder, in lower case; matching ignores case.
const TRAIN: [&str; 2] = ["train", "training"];
const VALIDATION: [&str; 3] = ["validation", "val", "valid"];
const TEST: [&str; 2] = ["test", "testing"];

/// The folder of each split.
#[derive(Debug, Clone)]
pub struct SplitFolders {
    /// `Train` or `training`.
    pub train: PathBuf,
    /// `Validation`, `val` or `valid`.
    pub validation: PathBuf,
    /// `Test` or `testing`, if there is one.
    pub test: Option<PathBuf>,
}

impl SplitFolders {
    /// Finds them in `dir`, ignoring case.
    ///
    /// # Errors
    /// Training or validation is missing (the message lists what is there), or two folders match one split.
    pub fn find(dir: &Path) -> Result<Self, DataError> {
        let folders = folders(dir)?;
        Ok(SplitFolders {
            train: need(dir, &folders, "training", &TRAIN)?,
            validation: need(dir, &folders, "validation", &VALIDATION)?,
            test: find(dir, &folders, "test", &TEST)?,
        })
    }

    /// Returns true if `dir` has a folder for training and only folders of splits.
    pub fn are_in(dir: &Path) -> bool {
        folders(dir).is_ok_and(|folders| are_splits(&folders))
    }
}

/// Returns true if all of these folders' names are names of splits, so that they cannot be classes.
pub(super) fn are_splits(names: &[String]) -> bool {
    let is_train = |name: &String| is_one_of(name, &TRAIN);
    let is_split = |name: &String| is_train(name) || is_one_of(name, &VALIDATION) || is_one_of(name, &TEST);
    names.iter().any(is_train) && names.iter().all(is_split)
}

fn is_one_of(name: &str, names: &[&str]) -> bool {
    names.iter().any(|known| name.eq_ignore_ascii_case(known))
}

fn need(dir: &Path, folders: &[String], split: &'static str, names: &[&str]) -> Result<PathBuf, DataError> {
    let found = || if folders.is_empty() { "no folder".into() } else { format!("the folders {}", folders.join(", ")) };
    find(dir, folders, split, names)?.ok_or_else(|| {
        let error = DataError::new(format!("find the {split} pictures in")).at(dir).found(found());
        let error = error.expected(format!("a folder called {} (in any case)", names.join(" or ")));
        error.hint("add it, or rename the folder that is meant")
    })
}

fn find(dir: &Path, folders: &[String], split: &'static str, names: &[&str]) -> Result<Option<PathBuf>, DataError> {
    let mut fitting = folders.iter().filter(|folder| is_one_of(folder, names));
    let Some(first) = fitting.next() else { return Ok(None) };
    let others: Vec<&str> = fitting.map(String::as_str).collect();
    if others.is_empty() {
        return Ok(Some(dir.join(first)));
    }
    let hint = format!("{first}, {} could all be meant; keep one", others.join(", "));
    Err(DataError::new(format!("find the {split} pictures in")).at(dir).hint(hint))
}

/// The names of the folders in `dir`, sorted, without names that are not UTF-8. A broken link with the name of a split is an
/// error: otherwise the split would seem to be missing.
fn folders(dir: &Path) -> Result<Vec<String>, DataError> {
    let unreadable = |source| DataError::unreadable(dir, source);
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(unreadable)? {
        let entry = entry.map_err(unreadable)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        match fs::metadata(entry.path()) {
            Ok(meta) if meta.is_dir() => names.push(name),
            Err(source) if [&TRAIN[..], &VALIDATION, &TEST].iter().any(|names| is_one_of(&name, names)) => {
                return Err(DataError::unreadable(&entry.path(), source));
            }
            _ => {}
        }
    }
    names.sort_unstable();
    Ok(names)
}
