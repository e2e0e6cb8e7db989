//! Why event files cannot be opened or read.

use std::io;
use std::path::PathBuf;

/// Why event files cannot be opened or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventsError {
    /// The folder or the file cannot be created or opened for writing.
    #[error("cannot open {} for events", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file or the folder cannot be read.
    #[error("cannot read events from {}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A complete line is not an event: the file was damaged, or another program wrote it.
    #[error("line {line} of {} is not an event: {reason}", path.display())]
    BadLine {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// The parser's error.
        reason: String,
    },
}
