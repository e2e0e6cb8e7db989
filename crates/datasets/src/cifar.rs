//! CIFAR-10's binary files: a record for each picture.
//!
//! The format (Alex Krizhevsky's CIFAR-10 page, "binary version"): a file is a sequence of records, 10,000 in each published
//! file. A record is one byte for the label, 0 to 9, and 3,072 bytes for the red, green and blue planes, each row by row.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use lockstep_paths::write_atomically;

use crate::{DataError, Split, kind_of};

/// Pixels along each side of a picture.
pub const SIDE: usize = 32;
pub const PIXELS: usize = SIDE * SIDE;
/// Bytes of a record: the label, then the red, green and blue planes, each row by row.
pub const RECORD: usize = 1 + 3 * PIXELS;
/// The ten classes in the order of their labels, as in `batches.meta.txt`.
pub const CLASSES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// Maximum size of a file with records: 1 GiB. The published ones have 30,730,000 bytes.
const MAX_BYTES: u64 = 1 << 30;
/// Maximum size of the file with the class names; the published one has 61 bytes.
const MAX_TEXT: u64 = 1 << 12;
/// Bytes of a CIFAR-100 record, which has two labels.
const RECORD_OF_100: usize = RECORD + 1;
const AGAIN: &str = "the file is cut off, get it again";

/// Files that are often found under such a name: how they begin, what they are, and what to do.
const IMPOSTORS: [(&[u8], &str, &str); 5] = [
    (b"\x1f\x8b", "a gzip file", "unpack it with tar -xzf"),
    (b"\x80", "a Python pickle", "get the binary version of CIFAR-10, cifar-10-binary.tar.gz"),
    (b"version https://git-lfs", "a Git LFS pointer, not the file that it points to", "run git lfs pull"),
    (b"PK\x03\x04", "a zip archive", "unpack it and give the folder with the files in it"),
    (b"<", "a HTML or XML page, perhaps a server's error message", "download the file again"),
];

/// The records of a file, all of them checked.
pub fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    let records = bytes(path, MAX_BYTES)?;
    check(&records).map_err(|mut error| {
        error.operation = "read".into();
        error.at(path)
    })?;
    Ok(records)
}

/// Returns an error unless these are one or more complete records with valid labels.
pub fn check(records: &[u8]) -> Result<(), DataError> {
    let refuse = |expected: String, found: &str, hint: &str| {
        Err(DataError::new("read CIFAR-10's records").expected(expected).found(found).hint(hint))
    };
    let of_this_length = format!("records of {RECORD} bytes");
    if records.is_empty() {
        return refuse(of_this_length, "an empty file", "a download failed, get it again");
    }
    // None of these first bytes is a valid label.
    if let Some(&(_, found, hint)) = IMPOSTORS.iter().find(|(begin, ..)| records.starts_with(begin)) {
        return refuse(of_this_length, found, hint);
    }
    let (record, rest) = (records.len() / RECORD, records.len() % RECORD);
    if rest > 0 {
        let (length, offset) = (records.len(), record * RECORD);
        let found = format!("{length} bytes: record {record} begins at offset {offset} and has {rest} of them");
        let of_100 = records.len().is_multiple_of(RECORD_OF_100);
        let hint = if of_100 { "that would be whole records of CIFAR-100, get CIFAR-10's" } else { AGAIN };
        let layout = "(a label, and 32 x 32 pixels in three colours)";
        return refuse(format!("whole records of {RECORD} bytes {layout}"), &found, hint);
    }
    let labels = records.iter().step_by(RECORD);
    match labels.enumerate().find(|(_, label)| **label > 9) {
        Some((record, found)) => refuse(
            format!("a label from 0 to 9 at offset {}, where record {record} begins", record * RECORD),
            &found.to_string(),
            "the file is damaged or not CIFAR-10's, get it again",
        ),
        None => Ok(()),
    }
}

/// The names of the classes in `folder`; CIFAR-10's own if there is no file with names.
pub fn read_classes(folder: &Path) -> Result<Vec<String>, DataError> {
    let path = folder.join(CLASSES_FILE);
    if !path.exists() {
        return Ok(CLASSES.map(str::to_owned).into());
    }
    let bad = |found: String| {
        let error = DataError::new("read").at(&path).expected("the names of ten classes, one a line").found(found);
        Err(error.hint("download it again, or delete it to use CIFAR-10's names"))
    };
    let Ok(text) = String::from_utf8(bytes(&path, MAX_TEXT)?) else { return bad("what is not text".into()) };
    let names: Vec<String> = text.lines().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if names.len() == CLASSES.len() { Ok(names) } else { bad(names.len().to_string()) }
}

/// Writes a file atomically.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    write_atomically(path, |out| out.write_all(bytes)).map_err(|source| DataError::unwritable(path, source))
}

/// Reads all bytes of a file, up to this many.
fn bytes(path: &Path, limit: u64) -> Result<Vec<u8>, DataError> {
    let fail = |source| DataError::unreadable(path, source);
    let refuse =
        |found| Err(DataError::new("read").at(path).expected(format!("a file of at most {limit} bytes")).found(found));
    // Check before opening: opening a pipe would wait for a writer.
    let about = std::fs::metadata(path).map_err(fail)?;
    if !about.is_file() {
        return refuse(kind_of(&about));
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(fail)?.take(limit + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > limit { refuse("more") } else { Ok(bytes) }
}

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
/// Errors: neither holds them; the message says what is there instead and what to download.
pub fn folder(dir: &Path) -> Result<PathBuf, DataError> {
    let inner = dir.join(FOLDER);
    let found = [dir, &inner].into_iter().find(|folder| holds_any(folder));
    found.map(Path::to_owned).ok_or_else(|| DataError::new("find CIFAR-10's binary files in").at(dir).hint(hint(dir)))
}

/// The files of a split in `folder`, at least one.
///
/// Errors: a file is missing although a later one exists.
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
