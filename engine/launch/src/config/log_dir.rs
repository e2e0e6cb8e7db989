//! The folder of a run: `<base>/<run_id>_<random>/attempt_<N>/<local_rank>/{stdout.log,stderr.log,error.json}`, and the removal of
//! logs that failed runs left in the folder for temporary files, once they have not changed for a week.
//!
//! The layout is torchrun's (`DefaultLogsSpecs`, torch/distributed/elastic/multiprocessing/api.py), but an attempt
//! never replaces an earlier one. [`output`](crate::output) writes the logs.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, DirEntry, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lockstep_contract::foreign;
use lockstep_paths::{check_folder, temporary_folder};
use rustix::process::geteuid;

use super::logs::{LogBase, Logs};

/// Only the owner can read logs, as with Python's `mkdtemp`, which torchrun uses.
const OWNER_ONLY: u32 = 0o700;
/// Longer run ids are truncated in the folder's name (a name has at most 255 bytes, limits.h).
const LONGEST_ID: usize = 100;

/// The folder of a run.
#[derive(Debug)]
pub struct LogDir {
    run: Option<PathBuf>,
    temporary: Option<Temporary>,
    keep: bool,
}

#[derive(Debug)]
struct Temporary {
    folder: PathBuf,
    /// Keeps others from removing it while the run lasts.
    lock: RefCell<Option<File>>,
}

/// The folder of one attempt, that is, one start of this agent's workers. Without log files all paths are `None`.
#[derive(Clone, Debug, Default)]
pub struct Attempt {
    folder: Option<PathBuf>,
    /// The run's folder, if it had been removed and was made again.
    pub made_again: Option<PathBuf>,
}

/// Why the log folder could not be created.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot create the log folder {}: {source}; choose another with --log-dir, or none with --log-dir=/dev/null",
    foreign::path(path)
)]
pub struct LogDirError {
    /// The folder.
    pub path: PathBuf,
    /// What is in the way.
    pub source: io::Error,
}

impl LogDir {
    /// Creates the folder of a new run.
    ///
    /// # Errors
    /// When the folder cannot be created.
    pub fn create(logs: &Logs, run_id: &str) -> Result<Self, LogDirError> {
        let (base, temporary) = match &logs.base {
            LogBase::Nowhere => return Ok(LogDir { run: None, temporary: None, keep: true }),
            LogBase::Folder(folder) => (made(folder.clone())?, None),
            LogBase::Temporary => {
                let folder = unique(temporary_folder(), TEMPORARY_NAME.0)?;
                (folder.clone(), Some(Temporary { lock: RefCell::new(lock(&folder)), folder }))
            }
        };
        // A relative path would break in a worker that changes its working directory.
        let base = fs::canonicalize(&base).map_err(|source| LogDirError { path: base, source })?;
        let run = unique(&base, &format!("{}_", file_name(run_id)))?;
        Ok(LogDir { run: Some(run), temporary, keep: logs.keep })
    }

    /// The run's folder; `None` without log files.
    pub fn path(&self) -> Option<&Path> {
        self.run.as_deref()
    }

    /// Returns true if the user has not named a folder.
    pub fn is_temporary(&self) -> bool {
        self.temporary.is_some()
    }

    /// The folder that is removed if the run succeeds or the agent is killed; `None` if it is kept.
    pub fn temporary(&self) -> Option<&Path> {
        self.temporary.as_ref().filter(|_| !self.keep).map(|temporary| &*temporary.folder)
    }

    /// Creates the folders of an attempt with this number of workers. If the run's own folder is gone, as when a job outlives what is
    /// removed from `/tmp` regularly, it is made again.
    ///
    /// # Errors
    /// When a folder cannot be created, or the attempt already has one.
    pub fn attempt(&self, number: u64, workers: usize) -> Result<Attempt, LogDirError> {
        let Some(run) = &self.run else { return Ok(Attempt::default()) };
        let made_again = (!run.is_dir()).then(|| self.make_again(run).map(|()| run.clone())).transpose()?;
        let folder = run.join(format!("attempt_{number}"));
        make_one(&folder)?;
        (0..workers).try_for_each(|rank| make_one(&folder.join(rank.to_string())))?;
        Ok(Attempt { folder: Some(folder), made_again })
    }

    fn make_again(&self, run: &Path) -> Result<(), LogDirError> {
        let base = run.parent().unwrap_or(run);
        if let Some(temporary) = &self.temporary {
            made(base.parent().unwrap_or(base).to_owned())?;
            match make_one(base) {
                // Another user may have taken the name.
                Err(error) if !fs::symlink_metadata(base).is_ok_and(|about| is_own(&about)) => return Err(error),
                _ => *temporary.lock.borrow_mut() = lock(base),
            }
        } else {
            made(base.to_owned())?;
        }
        make_one(run)
    }

    /// Ends the run: removes a temporary folder after a success or if nothing was written, unless the user wants to
    /// keep it. Also removes what failed runs left next to it long ago. Returns the run's folder if it is kept.
    ///
    /// # Errors
    /// When the folder cannot be removed.
    pub fn finish(self, success: bool) -> io::Result<Option<PathBuf>> {
        let Some(Temporary { folder, .. }) = &self.temporary else { return Ok(self.run) };
        remove_old(folder.parent().unwrap_or(folder), SystemTime::now());
        if self.stays(success) {
            return Ok(self.run);
        }
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(None),
        }
    }

    /// Returns true if [`Self::finish`] would keep the folder.
    pub fn stays(&self, success: bool) -> bool {
        let Some(temporary) = &self.temporary else { return true };
        self.keep || (!success && has_content(&temporary.folder))
    }
}

impl Attempt {
    /// The log file of this worker's standard output, if it has one.
    pub fn stdout(&self, local_rank: usize) -> Option<PathBuf> {
        self.of(local_rank, "stdout.log")
    }

    /// The log file of this worker's standard error, if it has one.
    pub fn stderr(&self, local_rank: usize) -> Option<PathBuf> {
        self.of(local_rank, "stderr.log")
    }

    /// The file for this worker's error.
    pub fn error_file(&self, local_rank: usize) -> Option<PathBuf> {
        self.of(local_rank, "error.json")
    }

    /// The file for lines of all workers' standard output that match a filter.
    pub fn filtered_stdout(&self) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join("filtered_stdout.log"))
    }

    /// The file for lines of all workers' standard error that match a filter.
    pub fn filtered_stderr(&self) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join("filtered_stderr.log"))
    }

    fn of(&self, local_rank: usize, name: &str) -> Option<PathBuf> {
        self.folder.as_ref().map(|folder| folder.join(local_rank.to_string()).join(name))
    }
}

/// A run id in a form that is valid in a file name.
fn file_name(run_id: &str) -> String {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let name: String = run_id.chars().map(safe).take(LONGEST_ID).collect();
    if name.is_empty() { "none".to_owned() } else { name }
}

fn made(folder: PathBuf) -> Result<PathBuf, LogDirError> {
    match check_folder(&folder).map_err(io::Error::other).and_then(|()| fs::create_dir_all(&folder)) {
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
    let made =
        tempfile::Builder::new().prefix(prefix).rand_bytes(TEMPORARY_NAME.1).permissions(owner_only).tempdir_in(base);
    made.map(tempfile::TempDir::keep).map_err(|source| LogDirError { path: base.join(format!("{prefix}…")), source })
}

/// Returns true if the folder contains a non-empty file, at any depth.
fn has_content(folder: &Path) -> bool {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)))
        .any(|(path, about)| if about.is_dir() { has_content(&path) } else { about.len() > 0 })
}

/// The start of the names of temporary log folders, and the number of random characters after it.
const TEMPORARY_NAME: (&str, usize) = ("lockstep_", 8);
/// How long the logs of a failed run stay after their last change.
const STAY: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Locks the folder of a run for as long as the file is open, so that other runs see that it has not ended. `None` where
/// the file system has no locks: then only the age of the files counts.
fn lock(folder: &Path) -> Option<File> {
    File::open(folder).ok().filter(|folder| folder.try_lock().is_ok())
}

/// Removes old logs in `base`. What cannot be read or removed stays.
fn remove_old(base: &Path, now: SystemTime) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten().filter(|entry| is_name(&entry.file_name())) {
        let folder = entry.path();
        if is_own_folder(&entry) && is_of_a_run(&folder) && is_old(&folder, now) {
            let Some(_locked) = lock(&folder) else { continue };
            let _ = fs::remove_dir_all(&folder);
        }
    }
}

fn is_name(name: &OsStr) -> bool {
    let (start, random) = TEMPORARY_NAME;
    let rest = name.to_str().and_then(|name| name.strip_prefix(start)).unwrap_or_default();
    rest.len() == random && rest.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Returns true for a folder of this user that is not a link.
fn is_own_folder(entry: &DirEntry) -> bool {
    entry.metadata().is_ok_and(|about| is_own(&about))
}

fn is_own(about: &Metadata) -> bool {
    about.is_dir() && about.uid() == geteuid().as_raw()
}

/// Returns true if the folder has only folders of runs, with only folders of attempts or events in each: another program's
/// folder may have such a name, too.
fn is_of_a_run(folder: &Path) -> bool {
    let folders = |folder: &Path, is_known: &dyn Fn(&DirEntry) -> bool| {
        let entries = fs::read_dir(folder).map(|entries| entries.collect::<Result<Vec<_>, _>>());
        let is_known = |entry: &DirEntry| entry.file_type().is_ok_and(|kind| kind.is_dir()) && is_known(entry);
        entries.flatten().is_ok_and(|entries| !entries.is_empty() && entries.iter().all(is_known))
    };
    let is_attempt = |entry: &DirEntry| {
        let name = entry.file_name();
        name == "events" || name.to_str().is_some_and(|name| name.starts_with("attempt_"))
    };
    folders(folder, &|run| folders(&run.path(), &is_attempt))
}

/// Returns true if the folder and all in it were last changed long ago.
fn is_old(path: &Path, now: SystemTime) -> bool {
    let Ok(about) = fs::symlink_metadata(path) else { return false };
    let age = about.modified().ok().and_then(|changed| now.duration_since(changed).ok());
    let is_old_itself = age.is_some_and(|age| age > STAY);
    let within = |folder: &Path| {
        fs::read_dir(folder).is_ok_and(|mut all| all.all(|one| one.is_ok_and(|one| is_old(&one.path(), now))))
    };
    is_old_itself && (!about.is_dir() || within(path))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::logs::{PrefixWhen, Std, Streams};

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
    fn uses_torchruns_folder_layout() {
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
        assert!(run.exists(), "a folder that the user named is kept");
    }

    #[test]
    fn never_changes_an_earlier_attempt() {
        let dir = tempfile::tempdir().unwrap();
        let log_dir = LogDir::create(&logs(LogBase::Folder(dir.path().into())), "x").unwrap();
        fs::write(log_dir.attempt(0, 1).unwrap().stdout(0).unwrap(), "precious").unwrap();
        assert!(log_dir.attempt(0, 1).unwrap_err().to_string().contains("attempt_0"));
        let second = log_dir.attempt(1, 1).unwrap();
        assert!(second.stdout(0).unwrap().parent().unwrap().is_dir());
        assert_eq!(fs::read(log_dir.path().unwrap().join("attempt_0/0/stdout.log")).unwrap(), b"precious");
    }

    #[test]
    fn removes_a_temporary_folder_unless_a_failure_needs_it_or_the_user_keeps_it() {
        let after = |keep: bool, success: bool, written: bool| {
            let log_dir = LogDir::create(&Logs { keep, ..logs(LogBase::Temporary) }, "none").unwrap();
            let temporary = log_dir.temporary.as_ref().unwrap().folder.clone();
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
        assert!(after(false, false, true), "a failure keeps its logs");
        assert!(!after(false, false, false), "nothing written, nothing to keep");
        assert!(after(true, true, false), "the user keeps it");
    }

    #[test]
    fn makes_again_what_was_removed_while_the_job_ran() {
        let dir = tempfile::tempdir().unwrap();
        for base in [LogBase::Temporary, LogBase::Folder(dir.path().join("logs/of/mine"))] {
            let log_dir = LogDir::create(&logs(base), "x").unwrap();
            let run = log_dir.path().unwrap().to_owned();
            for (number, gone) in [run.as_path(), run.parent().unwrap()].into_iter().enumerate() {
                assert_eq!(log_dir.attempt(2 * number as u64, 1).unwrap().made_again.is_some(), number > 0);
                fs::remove_dir_all(gone).unwrap();
                let attempt = log_dir.attempt(2 * number as u64 + 1, 2).unwrap();
                assert_eq!(attempt.made_again.as_ref(), Some(&run));
                assert!(attempt.error_file(1).unwrap().parent().unwrap().is_dir());
                assert_eq!(fs::metadata(&run).unwrap().permissions().mode() & 0o777, 0o700);
                fs::remove_dir_all(gone).unwrap();
            }
            assert_eq!(log_dir.finish(false).unwrap().is_some(), run.starts_with(dir.path().canonicalize().unwrap()));
        }
    }

    #[test]
    fn has_no_files_without_a_log_folder() {
        let log_dir = LogDir::create(&logs(LogBase::Nowhere), "none").unwrap();
        let attempt = log_dir.attempt(0, 2).unwrap();
        assert_eq!((attempt.stdout(0), attempt.error_file(1), attempt.filtered_stdout()), (None, None, None));
        assert_eq!((log_dir.path(), log_dir.temporary()), (None, None));
        assert_eq!(log_dir.finish(true).unwrap(), None);
    }

    #[test]
    fn converts_any_run_id_to_a_file_name() {
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
        let error =
            |folder: &Path| LogDir::create(&logs(LogBase::Folder(folder.into())), "none").unwrap_err().to_string();
        assert!(error(&file).contains("file is a file, and a folder is meant; choose another with --log-dir"));
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/no/such/disk", &link).unwrap();
        assert!(error(&link).contains("link is a link to /no/such/disk, which does not exist; choose"));
        assert!(error(&link).ends_with("or none with --log-dir=/dev/null"));
    }

    /// A folder as a failed run leaves it.
    fn left(base: &Path, name: &str) {
        let attempt = base.join(name).join("none_abcdefgh/attempt_0/0");
        fs::create_dir_all(&attempt).unwrap();
        fs::write(attempt.join("error.json"), "{}").unwrap();
    }

    fn names(base: &Path) -> Vec<String> {
        let names = fs::read_dir(base).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    #[test]
    fn removes_the_logs_of_runs_that_ended_long_ago_and_no_others() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path();
        let all = [
            "lockstep_AAAAAAAA",
            "lockstep_running1",
            "lockstep_examples",
            "lockstep_emptyone",
            "lockstep_tools",
            "torch_AAAAAAAA",
        ];
        for name in ["lockstep_AAAAAAAA", "lockstep_running1", "lockstep_tools", "torch_AAAAAAAA"] {
            left(base, name);
        }
        left(base, "lockstep_examples");
        fs::write(base.join("lockstep_examples/none_abcdefgh/notes.txt"), "mine").unwrap();
        fs::create_dir(base.join("lockstep_emptyone")).unwrap();
        std::os::unix::fs::symlink(base.join("torch_AAAAAAAA"), base.join("lockstep_linklink")).unwrap();
        let running = lock(&base.join("lockstep_running1")).unwrap();

        remove_old(base, SystemTime::now() + STAY - Duration::from_secs(60));
        assert_eq!(names(base).len(), all.len() + 1, "younger than a week");
        remove_old(base, SystemTime::now() + STAY + Duration::from_secs(60));
        let stay = ["emptyone", "examples", "linklink", "running1", "tools"].map(|name| format!("lockstep_{name}"));
        assert_eq!(names(base), [&stay[..], &["torch_AAAAAAAA".to_owned()]].concat());
        drop(running);
        remove_old(base, SystemTime::now() + STAY + Duration::from_secs(60));
        assert!(!base.join("lockstep_running1").exists() && base.join("torch_AAAAAAAA/none_abcdefgh").exists());
    }

    #[test]
    fn counts_the_youngest_file() {
        let dir = tempfile::tempdir().unwrap();
        left(dir.path(), "lockstep_AAAAAAAA");
        let log = dir.path().join("lockstep_AAAAAAAA/none_abcdefgh/attempt_0/0/stdout.log");
        let later = SystemTime::now() + STAY + Duration::from_secs(60);
        File::create(log).unwrap().set_modified(later).unwrap();
        remove_old(dir.path(), later);
        assert_eq!(names(dir.path()), ["lockstep_AAAAAAAA"]);
    }
}
