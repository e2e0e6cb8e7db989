//! How snapshots are saved, and how many are kept.

use std::num::NonZeroUsize;

use clap::ValueEnum;

/// What to do when a snapshot cannot be saved, because the disk is full for one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnSaveError {
    /// Warn and train on; a failure later costs more steps.
    #[default]
    Continue,
    /// End training with the error, at the next save or at the end.
    Stop,
}

/// How to save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// How many of the newest to keep; 2, so that there is one when the newest turns out bad.
    pub keep: NonZeroUsize,
    /// What to do when one cannot be saved; train on.
    pub on_error: OnSaveError,
    /// Whether a thread writes while training goes on; yes.
    pub background: bool,
    /// Whether to go on from what the folder holds; yes. If not, a folder that holds snapshots is refused: a run that began anew
    /// beside them would one day be resumed from another's.
    pub resume: bool,
}

impl Default for SnapshotOptions {
    fn default() -> Self {
        SnapshotOptions {
            keep: NonZeroUsize::MIN.saturating_add(1),
            on_error: OnSaveError::default(),
            background: true,
            resume: true,
        }
    }
}
