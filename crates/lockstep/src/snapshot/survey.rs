//! What each node has in its folder of snapshots: one look, which all ranks learn of before one snapshot is chosen.
//!
//! A look reads names and headers, no tensors, and only the first rank of a node looks: the others have the same disk. Which of
//! the snapshots is taken is decided in [`super::choice`].

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::system::uname;
use serde::{Deserialize, Serialize};

use super::folder::{self, Found};
use super::source;

/// What a rank says of its node's folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Survey {
    /// The node's name.
    pub(super) host: String,
    /// The folder, as messages show it.
    pub(super) folder: String,
    /// The job that this rank is a worker of.
    pub(super) job: Option<String>,
    /// Whether snapshots of other jobs may be taken. Rank 0's word counts.
    pub(super) resume: bool,
    /// What is in the folder, newest first; `None` of a rank that left the look to the first rank of its node.
    pub(super) found: Option<Vec<Sighting>>,
    /// Why this rank cannot look.
    pub(super) unreadable: Option<String>,
    /// Why nobody may train.
    pub(super) refusal: Option<String>,
}

/// A file that is named as a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Sighting {
    /// The epoch in which training would go on.
    pub(super) epoch: u64,
    /// The step in it.
    pub(super) step: usize,
    /// Which file it is.
    pub(super) file: FileId,
    /// What its header says; nothing if that cannot be read.
    pub(super) summary: Summary,
}

/// What tells a file from all others, also from a copy of it, whichever node looks: nodes that share a disk see the same number
/// and time of change. The device is left out, since each node numbers its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct FileId {
    inode: u64,
    /// When it was last changed or renamed, in seconds and nanoseconds.
    changed: (i64, i64),
}

impl FileId {
    /// Of the file at `path`; the same for all that cannot be looked at.
    pub(super) fn of(path: &Path) -> Self {
        let id = |data: Metadata| FileId { inode: data.ino(), changed: (data.ctime(), data.ctime_nsec()) };
        path.metadata().map(id).unwrap_or_default()
    }
}

/// What tells one snapshot from another without its tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Summary {
    /// The file's length in bytes.
    pub(super) bytes: u64,
    /// The checksum in its header.
    pub(super) checksum: Option<String>,
    /// The jobs that it belongs to.
    pub(super) jobs: Vec<String>,
}

impl Survey {
    /// Of a rank of the job `job` whose folder is `folder`; looks into it if this rank is the `first` of its node.
    pub(super) fn take(folder: &Path, job: Option<String>, resume: bool, first: bool) -> Self {
        let (found, unreadable) = match first.then(|| look(folder)).transpose() {
            Ok(found) => (found, None),
            Err(error) => (None, Some(error.to_string())),
        };
        let host = uname().nodename().to_string_lossy().into_owned();
        Survey { host, folder: folder.display().to_string(), job, resume, found, unreadable, refusal: None }
    }
}

fn look(folder: &Path) -> io::Result<Vec<Sighting>> {
    let sighting = |Found { epoch, step, path }| {
        let (file, summary) = (FileId::of(&path), source::summary(&path).unwrap_or_default());
        Sighting { epoch, step, file, summary }
    };
    Ok(folder::list(folder)?.into_iter().map(sighting).collect())
}
