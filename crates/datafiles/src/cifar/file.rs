//! Reads and checks one file of CIFAR-10, and writes one atomically.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;

use super::find::CLASSES_FILE;
use super::{CLASSES, RECORD};
use crate::{DataError, kind_of, whole};

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
///
/// # Errors
/// As [`check`]; the file cannot be read.
pub fn read(path: &Path) -> Result<Vec<u8>, DataError> {
    let records = bytes(path, MAX_BYTES)?;
    check(&records).map_err(|mut error| {
        error.operation = "read".into();
        error.at(path)
    })?;
    Ok(records)
}

/// Returns an error unless these are one or more complete records with valid labels.
///
/// # Errors
/// What is there instead, and what to do.
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
///
/// # Errors
/// The file does not hold ten names.
pub fn read_classes(folder: &Path) -> Result<Vec<String>, DataError> {
    let path = folder.join(CLASSES_FILE);
    if !path.exists() {
        return Ok(CLASSES.map(str::to_owned).into());
    }
    let bad = |found: String| {
        let error = DataError::new("read").at(&path).expected("the names of ten classes, one a line").found(found);
        Err(error.hint("get the file again, or remove it: CIFAR-10's own names are then taken"))
    };
    let Ok(text) = String::from_utf8(bytes(&path, MAX_TEXT)?) else { return bad("what is not text".into()) };
    let names: Vec<String> = text.lines().map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect();
    if names.len() == CLASSES.len() { Ok(names) } else { bad(names.len().to_string()) }
}

/// Writes a file atomically.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), DataError> {
    whole::write(path, |out| out.write_all(bytes)).map_err(|source| DataError::unwritable(path, source))
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
