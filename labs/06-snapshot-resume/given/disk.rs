//! What task `whole` needs of `std::fs`, under the same names. It does the same, and notes it for the grader, which cannot cut
//! the power. There is nothing to change here.

#![allow(dead_code)] // not every answer needs all of it

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use serde::Serialize;

/// Something that was done with the disk.
#[derive(Serialize)]
pub enum Note {
    /// A file was created, or emptied.
    Created(PathBuf),
    /// Bytes were written to it.
    Wrote(PathBuf),
    /// It was synced, or a folder was.
    Synced(PathBuf),
    /// It got another name.
    Renamed(PathBuf, PathBuf),
    /// It was removed.
    Removed(PathBuf),
}

static NOTES: Mutex<Vec<Note>> = Mutex::new(Vec::new());

/// `std::fs::File`.
pub struct File {
    path: PathBuf,
    file: fs::File,
}

impl File {
    /// Opens a file for writing; one that is there is emptied.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = fs::File::create(&path)?;
        note(Note::Created(path.as_ref().into()));
        Ok(File { path: path.as_ref().into(), file })
    }

    /// Opens a file for writing, unless there is one of this name.
    pub fn create_new(path: impl AsRef<Path>) -> io::Result<Self> {
        let file = fs::File::create_new(&path)?;
        note(Note::Created(path.as_ref().into()));
        Ok(File { path: path.as_ref().into(), file })
    }

    /// Opens a file for reading, or a folder.
    pub fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(File { path: path.as_ref().into(), file: fs::File::open(&path)? })
    }

    /// Returns when all that was written is on the disk itself. Of a folder: the names in it.
    pub fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()?;
        note(Note::Synced(self.path.clone()));
        Ok(())
    }

    /// As [`sync_all`](Self::sync_all), without what is not needed to read the bytes again.
    pub fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()?;
        note(Note::Synced(self.path.clone()));
        Ok(())
    }
}

impl io::Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        note(Note::Wrote(self.path.clone()));
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes a file, which is created or emptied.
pub fn write(path: impl AsRef<Path>, bytes: impl AsRef<[u8]>) -> io::Result<()> {
    io::Write::write_all(&mut File::create(path)?, bytes.as_ref())
}

/// Gives a file another name, at once or not at all; a file that has that name is replaced.
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

/// What was done since the last call.
pub fn notes() -> Vec<Note> {
    std::mem::take(&mut *NOTES.lock().unwrap_or_else(PoisonError::into_inner))
}

fn note(note: Note) {
    NOTES.lock().unwrap_or_else(PoisonError::into_inner).push(note);
}
