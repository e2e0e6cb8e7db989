//! A survey of each node's folder of snapshots, which all ranks exchange before one snapshot is chosen.
//!
//! A survey reads names and headers, no tensors, and only the first rank of a node makes one: the others have the same disk.
//! [`super::choice`] chooses the snapshot.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use rustix::system::uname;
use serde::{Deserialize, Serialize};

use super::folder::{self, Found};
use super::source;
use super::wishes::name_of_attempt;

/// A rank's survey of its node's folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Survey {
    /// The node's name.
    pub(super) host: String,
    /// The folder, as messages show it.
    pub(super) folder: String,
    /// The job of this rank.
    pub(super) job: Option<String>,
    /// True if snapshots of other jobs may be taken. Rank 0's value counts.
    pub(super) resume: bool,
    /// The contents of the folder, newest first; `None` for ranks other than the first of a node.
    pub(super) found: Option<Vec<Sighting>>,
    /// Why this rank cannot read the folder.
    pub(super) unreadable: Option<String>,
    /// Why no rank may train.
    pub(super) refusal: Option<String>,
    /// A name for this attempt of the job, of which rank 0's counts.
    pub(super) attempt: String,
}

/// A file with the name of a snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Sighting {
    /// The epoch in which training would continue.
    pub(super) epoch: u64,
    /// The step in it.
    pub(super) step: usize,
    /// The file's identity.
    pub(super) file: FileId,
    /// The contents of its header; `None` if that cannot be read.
    pub(super) summary: Summary,
}

/// Identifies a file, also against its copies, from any node: nodes that share a disk see the same inode number and change
/// time. The device is left out, since each node numbers its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct FileId {
    inode: u64,
    /// When it was last changed or renamed, in seconds and nanoseconds.
    changed: (i64, i64),
}

impl FileId {
    /// The identity of the file at `path`; the same for all files without metadata.
    pub(super) fn of(path: &Path) -> Self {
        let id = |data: Metadata| FileId { inode: data.ino(), changed: (data.ctime(), data.ctime_nsec()) };
        path.metadata().map(id).unwrap_or_default()
    }
}

/// Distinguishes snapshots without reading their tensors.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Summary {
    /// The file's length in bytes.
    pub(super) bytes: u64,
    /// The checksum in its header.
    pub(super) checksum: Option<String>,
    /// The jobs that own it.
    pub(super) jobs: Vec<String>,
}

impl Survey {
    /// The survey of a rank of the job `job` whose folder is `folder`; lists the folder if this rank is the `first` of its
    /// node.
    pub(super) fn take(folder: &Path, job: Option<String>, resume: bool, first: bool) -> Self {
        let (found, unreadable) = match first.then(|| look(folder)).transpose() {
            Ok(found) => (found, None),
            Err(error) => (None, Some(error.to_string())),
        };
        let host = uname().nodename().to_string_lossy().into_owned();
        Survey {
            host,
            folder: folder.display().to_string(),
            job,
            resume,
            found,
            unreadable,
            refusal: None,
            attempt: name_of_attempt(),
        }
    }
}

fn look(folder: &Path) -> io::Result<Vec<Sighting>> {
    let sighting = |Found { epoch, step, path }| {
        let (file, summary) = (FileId::of(&path), source::summary(&path).unwrap_or_default());
        Sighting { epoch, step, file, summary }
    };
    Ok(folder::list(folder)?.into_iter().map(sighting).collect())
}
