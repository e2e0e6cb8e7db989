//! One job a folder: rank 0 holds a lock on it for as long as it may save there.
//!
//! The kernel lets the lock go when the process ends, however it ends, so a job that was killed can start again at once. It is
//! a lock on the folder itself (flock(2)), so that no file is left.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;

use super::folder;

/// What came of asking for the folder.
pub(super) enum Claim {
    /// It is this job's until this is dropped.
    Held(File),
    /// Another job has it.
    Taken,
    /// Nobody can tell: it cannot be made, or the file system has no locks.
    Unknown(io::Error),
}

/// Asks for `folder`, which is made if it is not there.
pub(super) fn claim(folder: &Path) -> Claim {
    match folder::make(folder)
        .and_then(|()| File::open(folder))
        .map_err(TryLockError::Error)
        .and_then(|file| file.try_lock().map(|()| file))
    {
        Ok(file) => Claim::Held(file),
        Err(TryLockError::WouldBlock) => Claim::Taken,
        Err(TryLockError::Error(error)) => Claim::Unknown(error),
    }
}
