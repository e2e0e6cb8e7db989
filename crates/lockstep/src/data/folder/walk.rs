//! Which files of a folder are samples of which class: torchvision's `find_classes` and `make_dataset`, with checks.
//!
//! Reading the pictures themselves is `decode`'s duty.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;

use super::splits::are_splits;
use super::{FolderError, Sample, Skipped, Why};

/// How the names of pictures end, in any case.
const PICTURES: [&str; 3] = ["jpg", "jpeg", "png"];
/// How the names of pictures end that torchvision reads and this does not.
const OTHER_PICTURES: [&str; 6] = ["ppm", "bmp", "pgm", "tif", "tiff", "webp"];
/// How many names an error message lists before it only counts them.
const LISTED: usize = 6;

/// What a folder of pictures holds.
pub(super) struct Found {
    pub(super) classes: Vec<String>,
    pub(super) samples: Vec<Sample>,
    pub(super) skipped: Vec<Skipped>,
}

/// Walks `root`: its folders are the classes, sorted by name; below them, every file with a picture's name is a sample.
pub(super) fn walk(root: &Path) -> Result<Found, FolderError> {
    let mut skipped = Vec::new();
    let classes = classes(root, &mut skipped)?;
    let mut samples = Vec::new();
    for (class, name) in classes.iter().enumerate() {
        samples.extend(of_class(root, name, class, &mut skipped)?);
    }
    Ok(Found { classes, samples, skipped })
}

fn classes(root: &Path, skipped: &mut Vec<Skipped>) -> Result<Vec<String>, FolderError> {
    if stat(root)?.is_file() {
        return Err(FolderError::NotAFolder { path: root.into() });
    }
    let (mut classes, mut files) = (Vec::new(), Vec::new());
    for name in entries(root)? {
        let path = root.join(&name);
        if hidden(&name) {
            skipped.push(Skipped { path, why: Why::Hidden });
        } else if stat(&path)?.is_dir() {
            classes.push(name.into_string().map_err(|_| FolderError::ClassName { path })?);
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

/// The pictures of one class, in torchvision's order: folders sorted by their whole path, in each the files by name.
fn of_class(root: &Path, name: &str, class: usize, skipped: &mut Vec<Skipped>) -> Result<Vec<Sample>, FolderError> {
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

/// Python sorts the folders' paths as text, so that the folder `a-b` comes before `a/b`; Rust would compare name by name.
fn order(path: &Path) -> (Option<&[u8]>, Option<&OsStr>) {
    (path.parent().map(|folder| folder.as_os_str().as_bytes()), path.file_name())
}

/// A walk through one class's folder and the folders in it.
struct Walk {
    samples: Vec<Sample>,
    skipped: Vec<Skipped>,
    /// Device and inode of each folder between the class's and here; a folder that is one of them is a loop.
    above: Vec<(u64, u64)>,
    class: usize,
}

impl Walk {
    fn folder(&mut self, dir: &Path) -> Result<(), FolderError> {
        let meta = stat(dir)?;
        let here = (meta.dev(), meta.ino());
        if self.above.contains(&here) {
            return Err(FolderError::Loop { path: dir.into() });
        }
        self.above.push(here);
        for name in entries(dir)? {
            self.entry(dir.join(&name), &name)?;
        }
        self.above.pop();
        Ok(())
    }

    fn entry(&mut self, path: PathBuf, name: &OsStr) -> Result<(), FolderError> {
        if hidden(name) {
            self.skipped.push(Skipped { path, why: Why::Hidden });
            return Ok(());
        }
        match fs::metadata(&path) {
            Ok(meta) if meta.is_dir() => self.folder(&path),
            Ok(meta) if ends_in(name, &PICTURES) => self.picture(path, &meta),
            Err(source) if ends_in(name, &PICTURES) => Err(FolderError::Read { path, source }),
            _ => {
                let why = if ends_in(name, &OTHER_PICTURES) { Why::OtherFormat } else { Why::NotAPicture };
                self.skipped.push(Skipped { path, why });
                Ok(())
            }
        }
    }

    fn picture(&mut self, path: PathBuf, meta: &Metadata) -> Result<(), FolderError> {
        if !meta.is_file() {
            return Err(FolderError::NotAFile { path }); // opening a pipe would wait for ever
        }
        if let Err(source) = rustix::fs::access(&path, Access::READ_OK) {
            return Err(FolderError::Read { path, source: source.into() });
        }
        self.samples.push(Sample { path, class: self.class, bytes: meta.len() });
        Ok(())
    }
}

fn stat(path: &Path) -> Result<Metadata, FolderError> {
    fs::metadata(path).map_err(|source| FolderError::Read { path: path.into(), source })
}

/// The names in a folder, sorted.
fn entries(dir: &Path) -> Result<Vec<OsString>, FolderError> {
    let names: io::Result<Vec<OsString>> =
        fs::read_dir(dir).and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect());
    let mut names = names.map_err(|source| FolderError::Read { path: dir.into(), source })?;
    names.sort_unstable();
    Ok(names)
}

fn hidden(name: &OsStr) -> bool {
    name.as_bytes().starts_with(b".")
}

fn ends_in(name: &OsStr, extensions: &[&str]) -> bool {
    Path::new(name).extension().is_some_and(|end| extensions.iter().any(|known| end.eq_ignore_ascii_case(known)))
}

fn no_classes(root: &Path, files: &[OsString]) -> FolderError {
    let pictures = files.iter().filter(|name| ends_in(name, &PICTURES)).count();
    let (found, hint) = match (files.len(), pictures) {
        (0, _) => ("nothing".into(), "give the folder that holds one folder of pictures per class"),
        (_, 0) => (format!("{} files", files.len()), "give the folder that holds one folder of pictures per class"),
        _ => (format!("{pictures} pictures"), "put them into one folder per class, or give the folder above"),
    };
    FolderError::NoClasses { dir: root.into(), found, hint }
}

fn holds_splits(root: &Path, classes: &[String]) -> FolderError {
    FolderError::HoldsSplits { dir: root.into(), found: classes.join(", "), example: root.join(&classes[0]) }
}

fn empty_class(class: &str, dir: PathBuf, skipped: &[Skipped]) -> FolderError {
    let names: Vec<String> = skipped
        .iter()
        .take(LISTED)
        .map(|s| s.path.strip_prefix(&dir).unwrap_or(&s.path).display().to_string())
        .collect();
    let found = match (names.len(), skipped.len() - names.len()) {
        (0, _) => String::new(),
        (_, 0) => format!(", only {}", names.join(", ")),
        (_, more) => format!(", only {} and {more} more", names.join(", ")),
    };
    FolderError::EmptyClass { class: class.into(), dir, found }
}
