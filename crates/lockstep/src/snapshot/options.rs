//! The options of snapshots: how they are saved, and how many are kept.

use std::num::NonZeroUsize;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::loader::Position;

/// What to do when a snapshot cannot be saved, for example because the disk is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OnSaveError {
    /// Warn and continue training; a later failure loses more steps.
    #[default]
    Continue,
    /// End training with the error, at the next save or at the end.
    Stop,
}

/// How to save.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// How many of the newest to keep; 2 by default, so that there is one when the newest turns out bad.
    pub keep: NonZeroUsize,
    /// What to do when one cannot be saved; by default training continues.
    pub on_error: OnSaveError,
    /// Whether a thread writes while training continues; true by default.
    pub background: bool,
    /// Whether to resume from the folder's snapshots, whoever saved them; true by default. If false, training resumes only from
    /// snapshots that this very job saved, before a restart or a requeue. A folder with other snapshots is then an error: a run
    /// that started over next to them might later be resumed from another run's.
    pub resume: bool,
    /// How long to wait for the lock on the folder; `None`, the default, for as long as its file system may take to notice that the
    /// holder is gone.
    pub lock_wait: Option<Duration>,
    /// Whether the program itself sets the learning rate before each step; false by default. If true, the saved rate is
    /// ignored, and there is no note if it differs from the optimizer's, as it does inside a warm-up.
    pub sets_rates: bool,
}

impl Default for SnapshotOptions {
    fn default() -> Self {
        SnapshotOptions {
            keep: NonZeroUsize::MIN.saturating_add(1),
            on_error: OnSaveError::default(),
            background: true,
            resume: true,
            lock_wait: None,
            sets_rates: false,
        }
    }
}

/// A lab's flags for saving, to be flattened into its arguments.
#[derive(Args, Clone, Copy, Debug)]
pub struct SaveArgs {
    /// Also save a snapshot every N steps of an epoch
    #[arg(long, value_name = "N")]
    pub save_every_steps: Option<NonZeroUsize>,
    /// How many snapshots to keep
    #[arg(long, default_value = "2")]
    pub keep: NonZeroUsize,
    /// What to do when a snapshot or the model's file cannot be saved
    #[arg(long, value_enum, default_value_t)]
    pub on_save_error: OnSaveError,
}

impl SaveArgs {
    /// The options from the flags, and defaults for the rest.
    pub fn options(&self) -> SnapshotOptions {
        SnapshotOptions { keep: self.keep, on_error: self.on_save_error, ..Default::default() }
    }

    /// Returns true if a snapshot is due inside an epoch, at the position `next`.
    pub fn is_due(&self, next: Position) -> bool {
        !next.is_start() && self.save_every_steps.is_some_and(|every| next.step.is_multiple_of(every.get()))
    }
}
