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
    // <answer>
    //~ // `fs::read_dir(folder)` also lists files that are not snapshots. `position(&path)` parses the name, `read(&path)` checks the
    //~ // file.
    //~ todo!("find the newest good snapshot")
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    let paths = entries.map(|entry| Ok(entry?.path())).collect::<Result<Vec<PathBuf>>>()?;
    let mut snapshots: Vec<_> = paths.into_iter().filter(|path| position(path).is_some()).collect();
    snapshots.sort_by_key(|path| position(path));
    Ok(snapshots.into_iter().rev().find(|path| read(path).is_ok()))
    // </answer>
}
