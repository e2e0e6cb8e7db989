//! Writes one snapshot atomically, and then removes old ones. The options of both.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions, TryLockError};
use std::io::{self, Write};
use std::num::NonZeroUsize;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use lockstep_contract::fault::{Point, SavePhase};
use tempfile::NamedTempFile;

use super::contents::Contents;
use super::error::SnapshotError;
use super::file::{self, Owner};
use super::folder::{self, TEMPORARY};
use super::lock::TakenOver;
use super::meta::{Attempt, PartFile};
use crate::Reporter;
use crate::events::Event;
use crate::loader::Position;
use crate::progress;

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
    /// The [virtual ranks](crate::virtual_ranks) of the training, if it has them. Then a run that resumes on another number of ranks is not a
    /// difference, and one with another number of virtual ranks is.
    pub virtual_ranks: Option<NonZeroUsize>,
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
            virtual_ranks: None,
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

/// The snapshot to write.
pub(super) struct SaveJob {
    pub(super) folder: PathBuf,
    pub(super) position: Position,
    pub(super) contents: Contents,
    pub(super) keep: usize,
    pub(super) bad: BTreeSet<PathBuf>,
    pub(super) foreign: BTreeSet<PathBuf>,
    pub(super) attempt: Option<Attempt>,
    pub(super) report: Reporter,
    /// The bytes of the parts, if this is an index.
    pub(super) parts: u64,
}

impl SaveJob {
    pub(super) fn path(&self) -> PathBuf {
        folder::path_of(&self.folder, self.position)
    }

    /// Writes the file, reports it, and removes old ones.
    ///
    /// Errors: the file cannot be written; existing files are then unchanged, and no temporary file is left.
    pub(super) fn run(self) -> io::Result<()> {
        let begun = Instant::now();
        let path = self.path();
        self.write(&path)?;
        let Position { epoch, step, .. } = self.position;
        let (bytes, seconds) = (self.contents.bytes() + self.parts, begun.elapsed().as_secs_f64());
        let shown = path.display().to_string();
        self.report.emit(&Event::Snapshot { epoch, step: step as u64, path: shown, bytes, seconds });
        // Before an epoch's first step, the trained epoch is the previous one.
        let trained = if self.position.is_start() { epoch.saturating_sub(1) } else { epoch };
        self.report.println(progress::saved_line(trained, "snapshot", &path));
        self.prune();
        Ok(())
    }

    fn write(&self, path: &Path) -> io::Result<()> {
        folder::make(&self.folder)?;
        self.check_place(path)?;
        let partial = self.temporary()?;
        self.fill(partial.as_file())?;
        partial.as_file().sync_all()?;
        self.inject_faults(SavePhase::Written)?;
        let _open = self.name(partial, path)?;
        File::open(&self.folder)?.sync_all()?;
        self.inject_faults(SavePhase::Named)
    }

    /// Writes it as the part of `rank` of `ranks`, under a name that the checksum ends.
    pub(super) fn run_as_part(self, rank: usize, ranks: usize) -> io::Result<PartFile> {
        folder::make(&self.folder)?;
        let partial = self.temporary()?;
        let checksum = self.fill(partial.as_file())?;
        partial.as_file().sync_all()?;
        self.inject_faults(SavePhase::Written)?;
        let file = folder::part_name(self.position, rank, ranks, &checksum);
        let path = self.folder.join(&file);
        self.check_place(&path)?;
        // A file of that name has these bytes.
        let _open = partial.persist(&path).map_err(|error| error.error)?;
        File::open(&self.folder)?.sync_all()?;
        self.inject_faults(SavePhase::Named)?;
        Ok(PartFile { file, bytes: self.contents.bytes() })
    }

    /// Sums the bytes as it writes them, so the checksum comes last. Returns its digits.
    fn fill(&self, mut partial: &File) -> io::Result<String> {
        let (mut written, half) = (0, self.contents.bytes() / 2);
        let checksum = self.contents.pieces(|piece| {
            let before = half.saturating_sub(written).min(piece.len() as u64) as usize;
            let (first, second) = piece.split_at(before);
            partial.write_all(first)?;
            written += piece.len() as u64;
            if before > 0 && written >= half {
                self.inject_faults(SavePhase::HalfWritten)?;
            }
            partial.write_all(second)
        })?;
        let (place, digits) = checksum.digits();
        partial.write_all_at(digits.as_bytes(), place as u64)?;
        Ok(digits)
    }

    /// Gives the file its name, unless a later attempt of the job has saved. A file that appears under the name in between is looked
    /// at again: it may be a later attempt's.
    fn name(&self, partial: NamedTempFile, path: &Path) -> io::Result<File> {
        self.check_attempt()?;
        if fs::symlink_metadata(path).is_ok() {
            return partial.persist(path).map_err(|error| error.error);
        }
        match partial.persist_noclobber(path) {
            Ok(file) => Ok(file),
            Err(lost) if lost.error.kind() == io::ErrorKind::AlreadyExists => {
                self.check_attempt()?;
                lost.file.persist(path).map_err(|error| error.error)
            }
            Err(lost) => Err(lost.error),
        }
    }

    fn check_attempt(&self) -> io::Result<()> {
        let checked = self.attempt.as_ref().map(|attempt| attempt.check(&self.folder)).transpose();
        checked.map(drop).map_err(io::Error::other)
    }

    /// Ensures that `path` is free, or a file of ours: a damaged one that may be ours is set aside, and another's stays.
    fn check_place(&self, path: &Path) -> io::Result<()> {
        if fs::symlink_metadata(path).is_err() {
            return Ok(());
        }
        match file::owner(path) {
            Owner::Ours => {}
            Owner::Unclear => {
                let aside = folder::set_aside(path)?;
                self.report.warn(format!(
                    "{} is damaged beyond recognition, and stands in the way of a new snapshot: it is {} now",
                    path.display(),
                    aside.display()
                ));
            }
            Owner::Another(what) => {
                let why = format!("a file of this name exists, and {what}; move it away");
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
            }
        }
        Ok(())
    }

    /// Creates a file with a unique name in the folder, with the usual permissions, locked for as long as this process lives.
    fn temporary(&self) -> io::Result<NamedTempFile> {
        let (prefix, suffix) = TEMPORARY;
        loop {
            let mut builder = tempfile::Builder::new();
            builder.prefix(prefix).suffix(suffix).permissions(Permissions::from_mode(0o666)); // less the umask
            let file = builder.tempfile_in(&self.folder)?;
            // If there are no locks, no process can mistake the file for a dead writer's either. If another process holds the
            // lock, it is about to sweep the file; and it may have done so between creating and locking it.
            let swept = matches!(file.as_file().try_lock(), Err(TryLockError::WouldBlock));
            if !swept && file.as_file().metadata()?.nlink() > 0 {
                return Ok(file);
            }
        }
    }

    fn inject_faults(&self, phase: SavePhase) -> io::Result<()> {
        if !self.report.has_faults() {
            return Ok(());
        }
        let Position { epoch, step, .. } = self.position;
        self.report.inject_faults(&Point::Save { epoch, step: step as u64, phase })
    }

    /// Failing to remove an old file does no harm: the next save tries again.
    fn prune(&self) {
        let Ok(found) = folder::list(&self.folder) else { return };
        let mut bad = self.bad.clone();
        // Torn ones that no resume has met.
        bad.extend(found.iter().filter(|one| !file::is_whole(&one.path)).map(|one| one.path.clone()));
        bad.remove(&self.path()); // it has just been replaced by a good one
        // Files of others with such a name are neither counted nor removed, even if no resume has seen them.
        let others = found.iter().map(|one| &one.path).filter(|path| file::owner(path) != Owner::Ours);
        let foreign = others.chain(&self.foreign).cloned().collect();
        for path in folder::superfluous(found, self.position, self.keep, &bad, &foreign) {
            let _ = fs::remove_file(path);
        }
        for path in folder::unlisted_parts(&self.folder, self.position) {
            let _ = fs::remove_file(path);
        }
    }
}

/// Handles a failed save according to the options: an error, or a warning.
pub(super) fn handle_failure(
    written: io::Result<()>,
    path: PathBuf,
    stop: bool,
    report: &Reporter,
) -> Result<(), SnapshotError> {
    let Err(source) = written else { return Ok(()) };
    if let Some(error) = taken_over(&path, &source) {
        return Err(error);
    }
    let error = SnapshotError::Save { path, source };
    if stop {
        return Err(error);
    }
    report.warn(format!("{:#}; training goes on", anyhow::Error::from(error)));
    Ok(())
}

/// The error if a write of `path` failed because a later attempt of the job saves there.
pub(super) fn taken_over(path: &Path, source: &io::Error) -> Option<SnapshotError> {
    let TakenOver { own, later } = *source.get_ref()?.downcast_ref::<TakenOver>()?;
    Some(SnapshotError::TakenOver { folder: path.parent().unwrap_or(path).to_owned(), own, later })
}
