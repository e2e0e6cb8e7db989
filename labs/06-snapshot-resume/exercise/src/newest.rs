//! Task 5: the newest good snapshot.
//!
//! After a failure, the newest file is the one most likely to be torn. Training then continues from the one before it. On the
//! very first start, there is no snapshot, and the folder does not exist. A folder that cannot be read for another reason is an
//! error: a program that treats it as empty starts the training over, without a message. A snapshot that cannot be read is no good one.

use std::fs;
use std::io::{ErrorKind, Result};
use std::path::{Path, PathBuf};

use crate::snapshots::{position, read};

/// Returns the good snapshot in `folder` with the last position, or `None` if there is no good one.
///
/// # Errors
/// When the folder exists but cannot be read.
pub fn newest(folder: &Path) -> Result<Option<PathBuf>> {
    // `fs::read_dir(folder)` also lists files that are not snapshots. `position(&path)` parses the name, `read(&path)` checks the
    // file.
    todo!("find the newest good snapshot")
}
