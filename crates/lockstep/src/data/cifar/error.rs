//! What can be wrong with CIFAR-10's files, said so that the reader knows what to do.

use std::io;
use std::path::PathBuf;

use super::RECORD;

/// A folder or a file that is not CIFAR-10's. Each message reads after "failed to".
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CifarError {
    /// None of the files is there.
    #[error("find CIFAR-10's binary files in {}: {hint}", dir.display())]
    Missing {
        /// The folder that was given.
        dir: PathBuf,
        /// What is there instead, and what to do.
        hint: String,
    },
    /// A file is missing where a later one is there, or the files of the other split are.
    #[error("read {}: it is not there, but {beside} is; get it, or unpack the archive again", path.display())]
    Gap {
        /// The file that is missing.
        path: PathBuf,
        /// One that is there.
        beside: &'static str,
    },
    /// The file cannot be opened or read.
    #[error("read {}: check the path, the right to read it, and the disk", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// A folder, a pipe, a device; or a file that is far too long.
    #[error("read {}: expected a file of at most {limit} bytes, found {found}", path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
        /// The most bytes that are read.
        limit: u64,
        /// What it is.
        found: String,
    },
    /// The file is no sequence of records.
    #[error("read {}: {why}", path.display())]
    Records {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        why: RecordError,
    },
    /// The names of the classes are not ten.
    #[error(
        "read {}: expected the names of ten classes, one a line, found {found}; get the file again, or remove it: CIFAR-10's own names \
         are then taken",
        path.display()
    )]
    Classes {
        /// The file.
        path: PathBuf,
        /// What it holds.
        found: String,
    },
    /// A training set that cannot fill its files.
    #[error("write {pictures} pictures to {files} files: each file needs one at least")]
    TooFew {
        /// How many pictures there are.
        pictures: usize,
        /// How many files they would fill.
        files: usize,
    },
    /// The file cannot be written.
    #[error("write {}: check that the folder exists, may be written and has room", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
}

/// Bytes that are no records of CIFAR-10.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// No byte at all.
    #[error("expected records of {RECORD} bytes, found an empty file; a download failed, get it again")]
    Empty,
    /// Something else altogether, by its first bytes.
    #[error("expected records of {RECORD} bytes, found {found}; {hint}")]
    Foreign {
        /// What it looks like.
        found: &'static str,
        /// What to do.
        hint: &'static str,
    },
    /// The last record is not whole.
    #[error(
        "expected whole records of {RECORD} bytes (a label, and 32 x 32 pixels in three colours), found {found} bytes: record {record} \
         begins at offset {offset} and has {rest} of them; {hint}"
    )]
    Length {
        /// How many bytes there are.
        found: usize,
        /// The number of the record that is cut off, from 0.
        record: usize,
        /// Where it begins, in bytes.
        offset: usize,
        /// How many bytes it has.
        rest: usize,
        /// What to do.
        hint: &'static str,
    },
    /// A label that is none.
    #[error(
        "expected a label from 0 to 9 at offset {offset}, where record {record} begins, found {found}; the file is damaged or not \
         CIFAR-10's, get it again"
    )]
    Label {
        /// The number of the record, from 0.
        record: usize,
        /// Where it begins, in bytes.
        offset: usize,
        /// The label there.
        found: u8,
    },
}
