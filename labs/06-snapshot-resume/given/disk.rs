//! The part of `std::fs` that task `whole` needs, under the same names. It records each operation for the grader, which cannot
//! switch off the power. It also SIMULATES two failures of a disk: one that is full, and one that cannot sync. You do not change this file.

#![allow(dead_code)] // not every answer needs all of it

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};

/// An operation on the disk.
#[derive(Serialize)]
pub enum Note {
    /// A file was created, or emptied.
    Created(PathBuf),
    /// Bytes were written to a file.
    Wrote(PathBuf),
    /// A file or a folder was synced.
    Synced(PathBuf),
    /// A file was renamed.
    Renamed(PathBuf, PathBuf),
    /// A file was removed.
    Removed(PathBuf),
}

static NOTES: Mutex<Vec<Note>> = Mutex::new(Vec::new());

/// A failure of the disk.
#[derive(Clone, Copy, PartialEq, Deserialize)]
pub enum Failure {
    /// Only this number of bytes can be written; then the disk is full.
    FullAfter(usize),
    /// No sync of a file succeeds.
    NoSync,
    /// No sync of a folder succeeds.
    NoFolderSync,
}

static FAILURE: Mutex<Option<Failure>> = Mutex::new(None);

/// From now on the disk fails in this way, or no longer.
pub fn fail(failure: Option<Failure>) {
    *FAILURE.lock().unwrap_or_else(PoisonError::into_inner) = failure;
}

/// The number of these bytes that can still be written.
fn room(bytes: usize) -> io::Result<usize> {
    match &mut *FAILURE.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(Failure::FullAfter(0)) if bytes > 0 => {
            Err(io::Error::new(io::ErrorKind::StorageFull, "no space left on device"))
        }
        Some(Failure::FullAfter(left)) => {
            let some = bytes.min(*left);
            *left -= some;
            Ok(some)
        }
        _ => Ok(bytes),
    }
}

/// `std::fs::File`.
pub struct File {
    path: PathBuf,
    file: fs::File,
}

impl File {
    /// Opens a file for writing. Empties an existing file.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = fs::File::create(&path)?;
        note(Note::Created(path.as_ref().into()));
        Ok(File { path: path.as_ref().into(), file })
    }

    /// Opens a new file for writing. Fails if the file exists.
    pub fn create_new(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = fs::File::create_new(&path)?;
        note(Note::Created(path.as_ref().into()));
        Ok(File { path: path.as_ref().into(), file })
    }

    /// Opens a file or a folder for reading.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(File { path: path.as_ref().into(), file: fs::File::open(&path)? })
    }

    /// Waits until everything that was written is on disk. For a folder, these are the names in it.
    pub fn sync_all(&self) -> io::Result<()> {
        self.can_sync()?;
        self.file.sync_all()?;
        note(Note::Synced(self.path.clone()));
        Ok(())
    }

    /// Like [`sync_all`](Self::sync_all), but without metadata that is not needed to read the bytes.
    pub fn sync_data(&self) -> io::Result<()> {
        self.can_sync()?;
        self.file.sync_data()?;
        note(Note::Synced(self.path.clone()));
        Ok(())
    }

    fn can_sync(&self) -> io::Result<()> {
        let failure = *FAILURE.lock().unwrap_or_else(PoisonError::into_inner);
        let fails = if self.path.is_dir() { Failure::NoFolderSync } else { Failure::NoSync };
        if failure == Some(fails) { Err(io::Error::other("input/output error")) } else { Ok(()) }
    }
}

impl io::Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        note(Note::Wrote(self.path.clone()));
        let room = room(bytes.len())?;
        self.file.write(&bytes[..room])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Creates or empties a file and writes the bytes to it.
pub fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    io::Write::write_all(&mut File::create(path)?, bytes.as_ref())
}

/// Renames a file atomically. Replaces an existing file with the new name.
pub fn rename(from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
    fs::rename(&from, &to)?;
    note(Note::Renamed(from.as_ref().into(), to.as_ref().into()));
    Ok(())
}

/// Removes a file.
pub fn remove_file(path: impl AsRef<Path>) -> io::Result<()> {
    fs::remove_file(&path)?;
    note(Note::Removed(path.as_ref().into()));
    Ok(())
}

/// Returns the operations since the last call.
pub fn notes() -> Vec<Note> {
    std::mem::take(&mut *NOTES.lock().unwrap_or_else(PoisonError::into_inner))
}

fn note(note: Note) {
    NOTES.lock().unwrap_or_else(PoisonError::into_inner).push(note);
}
