//! Folders of pictures, one for each class, as torchvision's `ImageFolder` takes them: finds the samples of each class
//! (`find_classes` and `make_dataset` in torchvision), with checks, and the folders of splits.
//!
//! Does not read the pictures; `lockstep-picture-decoder` does.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use lockstep_contract::counted;
use rustix::fs::Access;

use crate::{DataError, kind_of};

#[derive(Debug, Clone)]
pub struct Sample {
    pub path: PathBuf,
    pub class: usize,
    /// The file's length when the folder was opened.
    pub bytes: u64,
}

/// A file or folder that was skipped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Skipped {
    pub path: PathBuf,
    pub why: Why,
}

/// Why a file or folder is not a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Why {
    /// Its name begins with a dot.
    Hidden,
    /// A file next to the class folders.
    OutsideOfClasses,
    /// Its name has the extension of a picture format that torchvision reads but this crate does not.
    OtherFormat,
    /// Its name does not have a picture's extension.
    NotAPicture,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Why::Hidden => "with a hidden name",
            Why::OutsideOfClasses => "next to the class folders",
            Why::OtherFormat => "of a format that is not read here",
            Why::NotAPicture => "without a picture's name",
        })
    }
}

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
    /// Finds the splits' folders in `dir`, ignoring case.
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
fn are_splits(names: &[String]) -> bool {
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

/// The extensions of pictures, ignoring case.
const PICTURES: [&str; 3] = ["jpg", "jpeg", "png"];
/// The extensions of pictures that torchvision reads but this crate does not.
const OTHER_PICTURES: [&str; 6] = ["ppm", "bmp", "pgm", "tif", "tiff", "webp"];
/// How many names an error message lists before it gives only a count.
const LISTED: usize = 6;

/// The contents of a folder of pictures.
#[derive(Debug)]
pub struct ImageFiles {
    /// The names of the classes, sorted.
    pub classes: Vec<String>,
    /// The pictures, class by class.
    pub samples: Vec<Sample>,
    pub skipped: Vec<Skipped>,
}

/// Walks `root`: its folders are the classes, sorted by name; every file below them with a picture's extension is a sample.
///
/// Errors: there is no class folder, a class has no pictures, something cannot be read, or links form a loop.
pub fn walk(root: &Path) -> Result<ImageFiles, DataError> {
    let mut skipped = Vec::new();
    let classes = classes(root, &mut skipped)?;
    let mut samples = Vec::new();
    for (class, name) in classes.iter().enumerate() {
        samples.extend(of_class(root, name, class, &mut skipped)?);
    }
    Ok(ImageFiles { classes, samples, skipped })
}

fn classes(root: &Path, skipped: &mut Vec<Skipped>) -> Result<Vec<String>, DataError> {
    if stat(root)?.is_file() {
        let error = DataError::new("read").at(root).expected("a folder of pictures").found("a file");
        return Err(error.hint("give the folder that holds one folder per class"));
    }
    let (mut classes, mut files) = (Vec::new(), Vec::new());
    for name in entries(root)? {
        let path = root.join(&name);
        if hidden(&name) {
            skipped.push(Skipped { path, why: Why::Hidden });
        } else if stat(&path)?.is_dir() {
            classes.push(name.into_string().map_err(|_| not_text(&path))?);
        } else {
            files.push(name);
            skipped.push(Skipped { path, why: Why::OutsideOfClasses });
        }
    }
    match classes.is_empty() {
        true => Err(no_classes(root, &files)),
        false if are_splits(&classes) => Err(holds_splits(root, &classes)),
        false => Ok(classes),
    }
}

/// The pictures of one class in torchvision's order: folders sorted by their whole path, files in each sorted by name.
fn of_class(root: &Path, name: &str, class: usize, skipped: &mut Vec<Skipped>) -> Result<Vec<Sample>, DataError> {
    let dir = root.join(name);
    let mut walk = Walk { samples: Vec::new(), skipped: Vec::new(), above: Vec::new(), class };
    walk.folder(&dir)?;
    if walk.samples.is_empty() {
        return Err(empty_class(name, dir, &walk.skipped));
    }
    walk.samples.sort_unstable_by(|a, b| order(&a.path).cmp(&order(&b.path)));
    walk.skipped.sort_unstable_by(|a, b| order(&a.path).cmp(&order(&b.path)));
    skipped.append(&mut walk.skipped);
    Ok(walk.samples)
}

/// Python sorts the folders' paths as text, so that the folder `a-b` comes before `a/b`; Rust would compare component by
/// component.
fn order(path: &Path) -> (Option<&[u8]>, Option<&OsStr>) {
    (path.parent().map(|folder| folder.as_os_str().as_bytes()), path.file_name())
}

/// A walk through one class's folder and its subfolders.
struct Walk {
    samples: Vec<Sample>,
    skipped: Vec<Skipped>,
    /// Device and inode of each folder from the class's folder to the current one; meeting one of them again is a loop.
    above: Vec<(u64, u64)>,
    class: usize,
}

impl Walk {
    fn folder(&mut self, dir: &Path) -> Result<(), DataError> {
        let meta = stat(dir)?;
        let here = (meta.dev(), meta.ino());
        if self.above.contains(&here) {
            let hint = "the link leads back to a folder above it, without end; remove the link";
            return Err(DataError::new("walk").at(dir).hint(hint));
        }
        self.above.push(here);
        for name in entries(dir)? {
            self.entry(dir.join(&name), &name)?;
        }
        self.above.pop();
        Ok(())
    }

    fn entry(&mut self, path: PathBuf, name: &OsStr) -> Result<(), DataError> {
        if hidden(name) {
            self.skipped.push(Skipped { path, why: Why::Hidden });
            return Ok(());
        }
        match fs::metadata(&path) {
            Ok(meta) if meta.is_dir() => self.folder(&path),
            Ok(meta) if ends_in(name, &PICTURES) => self.picture(path, &meta),
            Err(source) if ends_in(name, &PICTURES) => Err(DataError::unreadable(&path, source)),
            _ => {
                let why = if ends_in(name, &OTHER_PICTURES) { Why::OtherFormat } else { Why::NotAPicture };
                self.skipped.push(Skipped { path, why });
                Ok(())
            }
        }
    }

    fn picture(&mut self, path: PathBuf, meta: &Metadata) -> Result<(), DataError> {
        if !meta.is_file() {
            // Opening a pipe would block forever.
            let error = DataError::new("read").at(&path).expected("a picture, by its name").found(kind_of(meta));
            return Err(error.hint("remove it"));
        }
        if let Err(source) = rustix::fs::access(&path, Access::READ_OK) {
            return Err(DataError::unreadable(&path, source.into()));
        }
        self.samples.push(Sample { path, class: self.class, bytes: meta.len() });
        Ok(())
    }
}

fn stat(path: &Path) -> Result<Metadata, DataError> {
    fs::metadata(path).map_err(|source| DataError::unreadable(path, source))
}

fn entries(dir: &Path) -> Result<Vec<OsString>, DataError> {
    let names: io::Result<Vec<OsString>> =
        fs::read_dir(dir).and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    let mut names = names.map_err(|source| DataError::unreadable(dir, source))?;
    names.sort_unstable();
    Ok(names)
}

fn hidden(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".")
}

fn ends_in(name: &OsStr, extensions: &[&str]) -> bool {
    Path::new(name).extension().is_some_and(|end| extensions.iter().any(|known| end.eq_ignore_ascii_case(known)))
}

fn not_text(path: &Path) -> DataError {
    DataError::new("name the class of").at(path).hint("the folder's name is not UTF-8; rename it")
}

fn no_classes(root: &Path, files: &[OsString]) -> DataError {
    let pictures = files.iter().filter(|name| ends_in(name, &PICTURES)).count();
    let (found, hint): (String, _) = match (files.len(), pictures) {
        (0, _) => ("no folder, but nothing".into(), "give the folder that holds one folder of pictures per class"),
        (_, 0) => (
            format!("no folder, but {}", counted(files.len(), "file")),
            "give the folder that holds one folder of pictures per class",
        ),
        _ => (
            format!("no folder, but {}", counted(pictures, "picture")),
            "put them into one folder per class, or give the folder above",
        ),
    };
    DataError::new("find classes in").at(root).found(found).hint(hint)
}

fn holds_splits(root: &Path, classes: &[String]) -> DataError {
    let found = format!("{}, which are splits of the data, not classes", classes.join(", "));
    let hint = format!("give {} for one of them", root.join(&classes[0]).display());
    DataError::new("find classes in").at(root).found(found).hint(hint)
}

fn empty_class(class: &str, dir: PathBuf, skipped: &[Skipped]) -> DataError {
    let names: Vec<String> = skipped
        .iter()
        .take(LISTED)
        .map(|s| s.path.strip_prefix(&dir).unwrap_or(&s.path).display().to_string())
        .collect();
    let found = match (names.len(), skipped.len() - names.len()) {
        (0, _) => "none".into(),
        (_, 0) => format!("only {}", names.join(", ")),
        (_, more) => format!("only {} and {more} more", names.join(", ")),
    };
    let error = DataError::new(format!("find pictures of the class {class:?} in")).at(&dir).found(found);
    error.expected("names that end in .jpg, .jpeg or .png").hint("add some or remove the folder")
}
