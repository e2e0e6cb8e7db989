//! Finds the files, or explains what is there instead.

use std::path::{Path, PathBuf};

use crate::{DataError, Split};

/// The folder in the published archive.
const FOLDER: &str = "cifar-10-batches-bin";
/// The file with the names of the classes.
pub const CLASSES_FILE: &str = "batches.meta.txt";
const TRAIN: [&str; 5] =
    ["data_batch_1.bin", "data_batch_2.bin", "data_batch_3.bin", "data_batch_4.bin", "data_batch_5.bin"];
const TEST: [&str; 1] = ["test_batch.bin"];

const PICKLES: &str = "this is the version for Python, whose files are pickles; get the binary version, cifar-10-binary.tar.gz, and unpack it";

/// What is often there instead, by the name of the file or folder, and what to do.
const INSTEAD: [(&str, &str); 8] = [
    ("cifar-10-batches-py", PICKLES),
    ("cifar-10-python.tar.gz", PICKLES),
    ("data_batch_1", PICKLES),
    (
        "cifar-10-batches-mat",
        "this is the version for Matlab; get the binary version, cifar-10-binary.tar.gz, and unpack it",
    ),
    (
        "data_batch_1.mat",
        "this is the version for Matlab; get the binary version, cifar-10-binary.tar.gz, and unpack it",
    ),
    ("cifar-100-binary", "this is CIFAR-100; get CIFAR-10's binary version, cifar-10-binary.tar.gz, and unpack it"),
    ("train.bin", "this looks like CIFAR-100; get CIFAR-10's binary version, cifar-10-binary.tar.gz, and unpack it"),
    ("cifar-100-python", "this is CIFAR-100; get CIFAR-10's binary version, cifar-10-binary.tar.gz, and unpack it"),
];

/// The names of the files of a split.
pub fn names(split: Split) -> &'static [&'static str] {
    match split {
        Split::Train => &TRAIN,
        Split::Test => &TEST,
    }
}

/// `dir`, or the folder in it that holds the files.
///
/// # Errors
/// Neither does; the message says what is there instead and what to download.
pub fn folder(dir: &Path) -> Result<PathBuf, DataError> {
    let inner = dir.join(FOLDER);
    let found = [dir, &inner].into_iter().find(|folder| holds_any(folder));
    found.map(Path::to_owned).ok_or_else(|| DataError::new("find CIFAR-10's binary files in").at(dir).hint(hint(dir)))
}

/// The files of a split in `folder`, at least one.
///
/// # Errors
/// One is missing before others.
pub fn batches(folder: &Path, split: Split) -> Result<Vec<PathBuf>, DataError> {
    let there = |name: &&&str| folder.join(name).exists();
    let names = names(split);
    let count = names.iter().take_while(|name| there(name)).count();
    let gap = |other: &str| {
        let hint = format!("it is not there, but {other} is; get it, or unpack the archive again");
        Err(DataError::new("read").at(&folder.join(names[count])).hint(hint))
    };
    match names[count..].iter().find(there) {
        Some(other) => gap(other),
        // `folder` returned only a folder with at least one such file.
        None if count == 0 => gap(if split == Split::Train { TEST[0] } else { TRAIN[0] }),
        None => Ok(names[..count].iter().map(|name| folder.join(name)).collect()),
    }
}

fn holds_any(folder: &Path) -> bool {
    TRAIN.iter().chain(&TEST).any(|name| folder.join(name).exists())
}

/// What to do, depending on what is there.
fn hint(dir: &Path) -> String {
    if !dir.exists() {
        return "that folder does not exist, check the path".into();
    }
    if dir.is_file() {
        return about_a_file(dir);
    }
    if let Some(archive) = archive_in(dir) {
        return unpack(&archive);
    }
    if let Some((_, hint)) = INSTEAD.iter().find(|(name, _)| dir.join(name).exists()) {
        return (*hint).into();
    }
    match deeper(dir) {
        Some(inner) => format!("they lie in {}, give that folder", inner.display()),
        None => format!("there is neither {} nor a folder {FOLDER}; give the folder that holds them", TRAIN[0]),
    }
}

fn about_a_file(file: &Path) -> String {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    match () {
        () if name.contains("python") => PICKLES.into(),
        () if name.ends_with(".gz") || name.ends_with(".tgz") || name.ends_with(".tar") => unpack(file),
        () => "that is a file; give the folder that holds it".into(),
    }
}

fn unpack(archive: &Path) -> String {
    let folder = archive.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    format!("the archive is still packed; run tar -xzf {} -C {}", archive.display(), folder.display())
}

fn archive_in(dir: &Path) -> Option<PathBuf> {
    ["cifar-10-binary.tar.gz", "cifar-10-binary.tar"].map(|name| dir.join(name)).into_iter().find(|path| path.exists())
}

/// A folder one level down that holds the files.
fn deeper(dir: &Path) -> Option<PathBuf> {
    let mut inner: Vec<PathBuf> = std::fs::read_dir(dir).ok()?.filter_map(|entry| Some(entry.ok()?.path())).collect();
    inner.sort();
    inner.into_iter().find(|folder| holds_any(folder) || holds_any(&folder.join(FOLDER)))
}
