//! A data folder that holds a folder per split: `Train`, `Validation` and perhaps `Test`.

use std::fs;
use std::path::{Path, PathBuf};

use super::ImageFolder;
use lockstep::data::DataError;

/// The names of each split's folder, in lower case; any case is found.
const TRAIN: [&str; 2] = ["train", "training"];
const VALIDATION: [&str; 3] = ["validation", "val", "valid"];
const TEST: [&str; 2] = ["test", "testing"];

/// The splits of one data folder. All have the same classes in the same order.
#[derive(Debug, Clone)]
pub struct Splits {
    /// The pictures to learn from.
    pub train: ImageFolder,
    /// The held-out pictures that choose the best model.
    pub validation: ImageFolder,
    /// The held-out pictures that choose nothing, if there are any.
    pub test: Option<ImageFolder>,
}

impl Splits {
    /// What was passed over in each, as [`ImageFolder::passed_over`] says it.
    pub fn passed_over(&self) -> Vec<String> {
        let all = [Some(&self.train), Some(&self.validation), self.test.as_ref()];
        all.into_iter().flatten().filter_map(ImageFolder::passed_over).collect()
    }

    /// Finds and checks `Train` (or `training`), `Validation` (or `val`, `valid`) and, where there is one, `Test` (or
    /// `testing`) in `dir`, in upper or lower case.
    ///
    /// # Errors
    /// When training or validation is missing (the message lists what is there), two folders could be meant, one is no
    /// good [`ImageFolder`], or their classes differ.
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

/// Whether all of these folders' names are splits', so that they are no classes.
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

/// The names of the folders in `dir`, sorted; one that is no text is none of those that are looked for. A link that leads nowhere
/// under a split's name is an error: the split would be taken for missing.
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
