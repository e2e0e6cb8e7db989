//! A data folder with one folder per split: `Train`, `Validation` and optionally `Test`.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::{DecodedCache, ImageFolder};
use lockstep::data::DataError;

/// The accepted names of each split's folder, in lower case; matching ignores case.
const TRAIN: [&str; 2] = ["train", "training"];
const VALIDATION: [&str; 3] = ["validation", "val", "valid"];
const TEST: [&str; 2] = ["test", "testing"];

/// The splits of one data folder. All have the same classes in the same order.
#[derive(Debug, Clone)]
pub struct Splits {
    /// The pictures to train on.
    pub train: ImageFolder,
    /// The held-out pictures that select the best model.
    pub validation: ImageFolder,
    /// The held-out pictures that select nothing, if there are any.
    pub test: Option<ImageFolder>,
}

impl Splits {
    /// What was skipped in each split, as [`ImageFolder::skip_summary`] describes it.
    pub fn skip_summaries(&self) -> Vec<String> {
        let all = [Some(&self.train), Some(&self.validation), self.test.as_ref()];
        all.into_iter().flatten().filter_map(ImageFolder::skip_summary).collect()
    }

    /// Finds and checks `Train` (or `training`), `Validation` (or `val`, `valid`) and, if it exists, `Test` (or `testing`) in
    /// `dir`, ignoring case.
    ///
    /// # Errors
    /// Fails when training or validation is missing (the message lists what is there), two folders match one split, one is not
    /// a valid [`ImageFolder`], or their classes differ.
    pub fn open(dir: &Path) -> Result<Self, DataError> {
        let folders = folders(dir)?;
        let (train, validation) =
            (need(dir, &folders, "training", &TRAIN)?, need(dir, &folders, "validation", &VALIDATION)?);
        let test = find(dir, &folders, "test", &TEST)?;
        let splits = Splits {
            train: ImageFolder::open(&train)?,
            validation: ImageFolder::open(&validation)?,
            test: test.map(|test| ImageFolder::open(&test)).transpose()?,
        };
        splits.check()?;
        Ok(splits)
    }

    /// Takes decoded pictures from this cache, and adds them to it.
    #[must_use]
    pub fn cached(self, cache: &Arc<DecodedCache>) -> Self {
        let cached = |folder: ImageFolder| folder.cached(Arc::clone(cache));
        Splits { train: cached(self.train), validation: cached(self.validation), test: self.test.map(cached) }
    }

    fn check(&self) -> Result<(), DataError> {
        let train = &self.train;
        match [Some(&self.validation), self.test.as_ref()].into_iter().flatten().find(|o| o.classes != train.classes) {
            None => Ok(()),
            Some(other) => Err(DataError::new("use")
                .at(&other.root)
                .expected(format!("the classes of {}: {}", train.root.display(), train.classes.join(", ")))
                .found(other.classes.join(", "))
                .hint("both need the same class folders")),
        }
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
        error.expected(format!("a folder called {} (in any case)", names.join(" or ")))
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
