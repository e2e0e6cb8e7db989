//! The folder of a run: `<base>/<run_id>_<random>/attempt_<N>/<local_rank>/{stdout.log,stderr.log,error.json}`.
//!
//! The layout is torchrun's (`DefaultLogsSpecs`, torch/distributed/elastic/multiprocessing/api.py), but an attempt never
//! replaces an earlier one. Writing the logs is [`output`](crate::output)'s.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use super::logs::{LogBase, Logs};

/// Only their owner reads logs, as with Python's `mkdtemp`, which torchrun uses.
const OWNER_ONLY: u32 = 0o700;
/// Longer run ids are cut in a folder's name (255 bytes is the longest name, limits.h).
const LONGEST_ID: usize = 100;

/// The folder of a run.
#[derive(Debug)]
pub struct LogDir {
    run: Option<PathBuf>,
    temporary: Option<PathBuf>,
    keep: bool,
}

/// The folder of one start of this agent's workers. Without a place for logs all paths are `None`.
#[derive(Clone, Debug)]
pub struct Attempt {
    folder: Option<PathBuf>,
}

/// Why there is no folder for logs.
#[derive(Debug, thiserror::Error)]
#[error("cannot make the log folder {}: {source}; choose another with --log-dir, or none with --log-dir=/dev/null", path.display())]
pub struct LogDirError {
    /// The folder.
    pub path: PathBuf,
    /// The system's reason.
    pub source: io::Error,
}

impl LogDir {
    /// Makes the folder of a new run.
    ///
    /// # Errors
    /// When it cannot be made.
    pub fn create(logs: &Logs, run_id: &str) -> Result<Self, LogDirError> {
        let (base, temporary) = match &logs.base {
            LogBase::Nowhere => return Ok(LogDir { run: None, temporary: None, keep: true }),
            LogBase::Folder(folder) => (made(folder.clone())?, None),
            LogBase::Temporary => {
                let folder = unique(&std::env::temp_dir(), "lockstep_")?;
                (folder.clone(), Some(folder))
            }
        };
        // A relative path would lead elsewhere from a worker that changes its folder.
        let base = fs::canonicalize(&base).map_err(|source| LogDirError { path: base, source })?;
        let run = unique(&base, &format!("{}_", file_name(run_id)))?;
        Ok(LogDir { run: Some(run), temporary, keep: logs.keep })
    }

    /// The run's folder; `None` where there are no logs.
    pub fn path(&self) -> Option<&Path> {
        self.run.as_deref()
    }

    /// The folder that goes with the run if it succeeds, and when the agent is killed; `None` if it is to stay.
    pub fn temporary(&self) -> Option<&Path> {
        self.temporary.as_deref().filter(|_| !self.keep)
    }

    /// Makes the folders of a start of so many workers.
    ///
    /// # Errors
    /// When one cannot be made; so too when the attempt has a folder already.
    pub fn attempt(&self, number: u64, workers: usize) -> Result<Attempt, LogDirError> {
        let folder = self.run.as_ref().map(|run| run.join(format!("attempt_{number}")));
        if let Some(folder) = &folder {
            make_one(folder)?;
            (0..workers).try_for_each(|rank| make_one(&folder.join(rank.to_string())))?;
        }
        Ok(Attempt { folder })
    }

    /// Ends the run: a temporary folder goes if all went well or if nothing was written, unless it was to be kept. Returns
    /// the run's folder where it stays.
    ///
    /// # Errors
    /// When the folder cannot be removed.
    pub fn finish(self, success: bool) -> io::Result<Option<PathBuf>> {
        match &self.temporary {
            Some(temporary) if !self.stays(success) => fs::remove_dir_all(temporary).map(|()| None),
            _ => Ok(self.run),
        }
    }

    /// Whether [`Self::finish`] would let it stay.
    pub fn stays(&self, success: bool) -> bool {
        let Some(temporary) = &self.temporary else { return true };
        self.keep || (!success && has_content(temporary))
    }
}

impl Attempt {
    /// Where this worker's standard output is logged, if it is.
    pub fn stdout(&self, local_rank: usize) -> Option<PathBuf> {
        self.of(local_rank, "stdout.log")
    }

    /// Where this worker's standard error is logged, if it is.
    pub fn stderr(&self, local_rank: usize) -> Option<PathBuf> {
        self.of(local_rank, "stderr.log")
    }

    /// Where this worker leaves its error.
    pub fn error_file(&self, local_rank: usize) -> Option<PathBuf> {
        self.of(local_rank, "error.json")
    }

    /// Where lines of all workers' standard output go that match a filter.
    pub fn filtered_stdout(&self) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join("filtered_stdout.log"))
    }

    /// Where lines of all workers' standard error go that match a filter.
    pub fn filtered_stderr(&self) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join("filtered_stderr.log"))
    }

    fn of(&self, local_rank: usize, name: &str) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(local_rank.to_string()).join(name))
    }
}

/// A run id as part of a file's name.
fn file_name(run_id: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = run_id.chars().map(safe).take(LONGEST_ID).collect();
    if name.is_empty() { "none".to_owned() } else { name }
}

fn made(folder: PathBuf) -> Result<PathBuf, LogDirError> {
    match fs::create_dir_all(&folder) {
        Ok(()) => Ok(folder),
        Err(source) => Err(LogDirError { path: folder, source }),
    }
}

fn make_one(folder: &Path) -> Result<(), LogDirError> {
    let made = DirBuilder::new().mode(OWNER_ONLY).create(folder);
    made.map_err(|source| LogDirError { path: folder.to_owned(), source })
}

fn unique(base: &Path, prefix: &str) -> Result<PathBuf, LogDirError> {
    let owner_only = fs::Permissions::from_mode(OWNER_ONLY);
    let made = tempfile::Builder::new().prefix(prefix).rand_bytes(8).permissions(owner_only).tempdir_in(base);
    made.map(tempfile::TempDir::keep).map_err(|source| LogDirError { path: base.join(format!("{prefix}…")), source })
}

/// Whether there is a file with something in it, at any depth.
fn has_content(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)))
        .any(|(path, about)| if about.is_dir() { has_content(&path) } else { about.len() > 0 })
}

#[cfg(test)]
mod tests {
    use super::super::logs::{PrefixWhen, Std, Streams};
    use super::*;

    fn logs(base: LogBase) -> Logs {
        let none = Streams::All(Std::default());
        Logs {
            base,
            keep: false,
            redirects: none.clone(),
            tee: none,
            shown: None,
            duplicate_stdout: vec![],
            duplicate_stderr: vec![],
            prefix: PrefixWhen::Auto,
            prefix_template: None,
        }
    }

    #[test]
    fn lays_folders_out_as_torchrun_does() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().join("made/on/the/way");
        let log_dir = LogDir::create(&logs(LogBase::Folder(base.clone())), "my job/1").unwrap();
        let run = log_dir.path().unwrap().to_owned();
        assert_eq!(run.parent().unwrap(), base.canonicalize().unwrap());
        assert!(run.file_name().unwrap().to_str().unwrap().starts_with("my_job_1_"), "{run:?}");
        assert_eq!(fs::metadata(&run).unwrap().permissions().mode() & 0o777, 0o700);
        let attempt = log_dir.attempt(0, 2).unwrap();
        assert_eq!(attempt.stdout(1).unwrap(), run.join("attempt_0/1/stdout.log"));
        assert_eq!(attempt.stderr(0).unwrap(), run.join("attempt_0/0/stderr.log"));
        assert_eq!(attempt.error_file(1).unwrap(), run.join("attempt_0/1/error.json"));
        assert_eq!(attempt.filtered_stdout().unwrap(), run.join("attempt_0/filtered_stdout.log"));
        assert_eq!(attempt.filtered_stderr().unwrap(), run.join("attempt_0/filtered_stderr.log"));
        assert!(run.join("attempt_0/1").is_dir());
        assert_eq!(log_dir.temporary(), None);
        assert_eq!(log_dir.finish(true).unwrap(), Some(run.clone()));
        assert!(run.exists(), "a folder that was asked for stays");
    }

    #[test]
    fn never_touches_an_earlier_attempt() {
        let dir = tempfile::tempdir().unwrap();
        let log_dir = LogDir::create(&logs(LogBase::Folder(dir.path().into())), "x").unwrap();
        fs::write(log_dir.attempt(0, 1).unwrap().stdout(0).unwrap(), "precious").unwrap();
        assert!(log_dir.attempt(0, 1).unwrap_err().to_string().contains("attempt_0"));
        let second = log_dir.attempt(1, 1).unwrap();
        assert!(second.stdout(0).unwrap().parent().unwrap().is_dir());
        assert_eq!(fs::read(log_dir.path().unwrap().join("attempt_0/0/stdout.log")).unwrap(), b"precious");
    }

    #[test]
    fn removes_a_temporary_folder_unless_it_tells_of_a_failure_or_was_asked_for() {
        let after = |keep: bool, success: bool, written: bool| {
            let log_dir = LogDir::create(&Logs { keep, ..logs(LogBase::Temporary) }, "none").unwrap();
            let temporary = log_dir.temporary.clone().unwrap();
            assert_eq!(log_dir.temporary().is_none(), keep);
            let attempt = log_dir.attempt(0, 1).unwrap();
            if written {
                fs::write(attempt.error_file(0).unwrap(), "{}").unwrap();
            }
            let kept = log_dir.finish(success).unwrap();
            assert_eq!(kept.is_some(), temporary.exists());
            let _ = fs::remove_dir_all(temporary);
            kept.is_some()
        };
        assert!(!after(false, true, true), "a success leaves nothing");
        assert!(after(false, false, true), "a failure keeps what tells of it");
        assert!(!after(false, false, false), "nothing written, nothing to keep");
        assert!(after(true, true, false), "asked for");
    }

    #[test]
    fn has_no_files_where_none_are_wanted() {
        let log_dir = LogDir::create(&logs(LogBase::Nowhere), "none").unwrap();
        let attempt = log_dir.attempt(0, 2).unwrap();
        assert_eq!((attempt.stdout(0), attempt.error_file(1), attempt.filtered_stdout()), (None, None, None));
        assert_eq!((log_dir.path(), log_dir.temporary()), (None, None));
        assert_eq!(log_dir.finish(true).unwrap(), None);
    }

    #[test]
    fn makes_any_run_id_a_file_name() {
        assert_eq!(file_name("../../etc"), ".._.._etc");
        assert_eq!(file_name(""), "none");
        assert_eq!(file_name("zürich 1\n"), "z_rich_1_");
        assert_eq!(file_name(&"x".repeat(300)).len(), LONGEST_ID);
    }

    #[test]
    fn names_the_folder_that_cannot_be_made_and_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        let error = LogDir::create(&logs(LogBase::Folder(file.clone())), "none").unwrap_err().to_string();
        assert!(error.contains(file.to_str().unwrap()) && error.contains("--log-dir=/dev/null"), "{error}");
    }
}
