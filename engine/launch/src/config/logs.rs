//! Where each worker's output goes: torchrun's `--redirects`, `--tee`, `--local-ranks-filter` and duplicates.
//!
//! [`Logs`] only decides; [`output`](crate::output) reads and writes.
//!
//! [`LogDir`] is the folder of a run: `<base>/<run_id>_<random>/attempt_<N>/<local_rank>/{stdout.log,stderr.log,error.json}`, and the removal of
//! logs that failed runs left in the folder for temporary files, once they have not changed for a week.
//!
//! The layout is torchrun's (`DefaultLogsSpecs`, torch/distributed/elastic/multiprocessing/api.py), but an attempt
//! never replaces an earlier one.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, DirEntry, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lockstep_contract::foreign;
use lockstep_paths::{check_folder, temporary_folder};
use rustix::process::geteuid;

use super::flags::{ConfigError, Given};
use super::program::{placeholders, substitute};

/// torchrun's prefix for a line (`TailLog`, torch/distributed/elastic/multiprocessing/tail_log.py).
const PREFIX: &str = "[${role_name}${local_rank}]:";

/// The names in braces that a prefix's template may have.
pub(super) const MACROS: [&str; 4] = ["role_name", "rank", "local_rank", "hostname"];

/// What a prefix's template needs to know of a worker.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)] // the fields are the template's macros
pub struct LineOrigin<'a> {
    pub role: &'a str,
    pub rank: usize,
    pub local_rank: usize,
    pub hostname: &'a str,
}

/// How the workers' output is handled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Logs {
    /// Where the folder of a run is created.
    pub base: LogBase,
    /// Keep a temporary folder even if the run succeeds.
    pub keep: bool,
    /// Streams that go to files instead of the console.
    pub redirects: Streams,
    /// Streams that go to files and to the console.
    pub tee: Streams,
    /// Local ranks whose streams are shown on the console; `None` for all.
    pub shown: Option<BTreeSet<usize>>,
    /// Lines of tee'd stdout that contain one of these also go to `filtered_stdout.log`.
    pub duplicate_stdout: Vec<String>,
    /// Lines of tee'd stderr that contain one of these also go to `filtered_stderr.log`.
    pub duplicate_stderr: Vec<String>,
    /// Whether lines on the console have a prefix that names their writer.
    pub prefix: PrefixWhen,
    /// The prefix, with [`MACROS`]; `None` for torchrun's `[<role><local_rank>]:`.
    pub prefix_template: Option<String>,
}

/// Where the folder of a run is created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogBase {
    /// In a new temporary folder.
    Temporary,
    /// In this folder, which is created if needed.
    Folder(PathBuf),
    /// Nowhere: `--log-dir=/dev/null`.
    Nowhere,
}

/// When a line on the console has a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrefixWhen {
    /// If several workers print there, or the stream is tee'd.
    Auto,
    /// Always.
    Always,
    /// Only for a tee'd stream, as in torchrun.
    Tee,
    /// Never.
    Never,
}

/// A choice of streams, for all workers or by local rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Streams {
    /// The same for all.
    All(Std),
    /// By local rank; the others have no streams.
    Ranks(BTreeMap<usize, Std>),
}

/// A choice among one worker's streams; torch's `Std`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Std {
    /// Standard output: bit 1.
    pub out: bool,
    /// Standard error: bit 2.
    pub err: bool,
}

/// The destinations of one worker's streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routes {
    /// Standard output.
    pub stdout: Route,
    /// Standard error.
    pub stderr: Route,
}

/// The destinations of one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// To the console.
    pub console: bool,
    /// To the worker's own log file.
    pub file: bool,
    /// Each line on the console has a prefix.
    pub prefixed: bool,
    /// Lines that match a filter also go to the common filtered file.
    pub filtered: bool,
}

impl Logs {
    /// The routes of one of `workers` local workers.
    pub fn routes(&self, local_rank: usize, workers: usize) -> Routes {
        let shown = |rank: &usize| self.on_console(*rank) != Std::default();
        let several = (0..workers).filter(shown).nth(1).is_some();
        let (console, tee) = (self.on_console(local_rank), self.tee.of(local_rank));
        let redirect = self.redirects.of(local_rank);
        let route = |console: bool, tee: bool, redirect: bool, filters: &[String]| {
            let file = self.base != LogBase::Nowhere && (tee || redirect);
            let filtered = file && tee && console && !filters.is_empty();
            Route { console, file, prefixed: console && self.prefixed(tee, several), filtered }
        };
        Routes {
            stdout: route(console.out, tee.out, redirect.out, &self.duplicate_stdout),
            stderr: route(console.err, tee.err, redirect.err, &self.duplicate_stderr),
        }
    }

    /// Returns true if the output of one of `workers` local workers goes to a file.
    pub fn writes_files(&self, workers: usize) -> bool {
        let writes = |routes: Routes| routes.stdout.file || routes.stderr.file;
        (0..workers).any(|local_rank| writes(self.routes(local_rank, workers)))
    }

    /// The prefix of a worker's lines.
    pub fn prefix(&self, origin: LineOrigin<'_>) -> String {
        let known = |name: &str| match name {
            "role_name" => Some(origin.role.to_owned()),
            "rank" => Some(origin.rank.to_string()),
            "local_rank" => Some(origin.local_rank.to_string()),
            "hostname" => Some(origin.hostname.to_owned()),
            _ => None,
        };
        let text = substitute(self.prefix_template.as_deref().unwrap_or(PREFIX).as_bytes(), &known);
        String::from_utf8_lossy(&text).into_owned()
    }

    /// The streams of a worker that the console shows. Without log files these are all, except for the filter.
    fn on_console(&self, local_rank: usize) -> Std {
        if self.shown.as_ref().is_some_and(|shown| !shown.contains(&local_rank)) {
            return Std::default();
        }
        let (tee, redirect) = (self.tee.of(local_rank), self.redirects.of(local_rank));
        let nowhere = self.base == LogBase::Nowhere;
        Std { out: nowhere || tee.out || !redirect.out, err: nowhere || tee.err || !redirect.err }
    }

    fn prefixed(&self, tee: bool, several: bool) -> bool {
        match self.prefix {
            PrefixWhen::Always => true,
            PrefixWhen::Auto => tee || several,
            PrefixWhen::Tee => tee,
            PrefixWhen::Never => false,
        }
    }
}

impl Streams {
    /// The streams of one worker.
    pub fn of(&self, local_rank: usize) -> Std {
        match self {
            Streams::All(std) => *std,
            Streams::Ranks(ranks) => ranks.get(&local_rank).copied().unwrap_or_default(),
        }
    }

    /// The highest local rank in the map.
    pub(super) fn highest(&self) -> Option<usize> {
        match self {
            Streams::All(_) => None,
            Streams::Ranks(ranks) => ranks.last_key_value().map(|(rank, _)| *rank),
        }
    }

    /// `0` to `3`, or `rank:n,rank:n,…`; unlike in torch, ranks may have several digits.
    pub(super) fn parse(given: &Given) -> Result<Self, ConfigError> {
        if let Some(std) = Std::parse(&given.text) {
            return Ok(Streams::All(std));
        }
        let entry = |entry: &str| {
            let (rank, std) = entry.split_once(':')?;
            let digits = !rank.is_empty() && rank.bytes().all(|byte| byte.is_ascii_digit());
            Some((rank.parse::<usize>().ok().filter(|_| digits)?, Std::parse(std)?))
        };
        let ranks: Option<BTreeMap<_, _>> = given.text.split(',').map(entry).collect();
        ranks.map(Streams::Ranks).ok_or_else(|| {
            let why =
                "expected 0 (none), 1 (stdout), 2 (stderr), 3 (both), or one of these by local rank, such as 0:3,1:2";
            ConfigError::not_allowed(given, why)
        })
    }
}

impl Std {
    fn parse(text: &str) -> Option<Self> {
        let bits = ["0", "1", "2", "3"].iter().position(|known| *known == text)?;
        Some(Std { out: bits & 1 != 0, err: bits & 2 != 0 })
    }
}

/// The parts of a prefix's template that look like macros but are not.
pub(super) fn unknown_macros(template: &str) -> Vec<&str> {
    let unknown = placeholders(template).filter(|(_, name)| !MACROS.contains(name));
    unknown.map(|(text, _)| text).collect()
}

/// `--local-ranks-filter`.
pub(super) fn shown(given: &Given) -> Result<Option<BTreeSet<usize>>, ConfigError> {
    if given.text.is_empty() {
        return Ok(None);
    }
    let ranks: Option<BTreeSet<usize>> = given.text.split(',').map(|rank| rank.trim().parse().ok()).collect();
    let why = "expected local ranks with commas between them, such as 0,1,2";
    ranks.map(Some).ok_or_else(|| ConfigError::not_allowed(given, why))
}

/// `--duplicate-*-filters`: comma-separated texts, where `,,` is a comma in a text.
pub(super) fn filters(given: &Given) -> Vec<String> {
    if given.text.is_empty() {
        return Vec::new();
    }
    let mut filters = vec![String::new()];
    let mut pieces = given.text.split(",,").peekable();
    while let Some(piece) = pieces.next() {
        for (at, text) in piece.split(',').enumerate() {
            if at > 0 {
                filters.push(String::new());
            }
            if let Some(last) = filters.last_mut() {
                last.push_str(text);
            }
        }
        if let (Some(last), Some(_)) = (filters.last_mut(), pieces.peek()) {
            last.push(',');
        }
    }
    filters.retain(|filter| !filter.is_empty()); // an empty text would match every line
    filters
}

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
        if entry.metadata().is_ok_and(|about| is_own(&about)) && is_of_a_run(&folder) && is_old(&folder, now) {
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
    use super::{PrefixWhen, Std, Streams, *};
    use crate::config::flags::Source;

    fn given(flag: &'static str, text: &str) -> Given {
        Given { flag, text: text.into(), source: Source::CommandLine }
    }

    fn logs(redirects: &str, tee: &str, shown_ranks: &str) -> Logs {
        Logs {
            base: LogBase::Temporary,
            keep: false,
            redirects: Streams::parse(&given("redirects", redirects)).unwrap(),
            tee: Streams::parse(&given("tee", tee)).unwrap(),
            shown: shown(&given("local-ranks-filter", shown_ranks)).unwrap(),
            duplicate_stdout: vec![],
            duplicate_stderr: vec![],
            prefix: PrefixWhen::Auto,
            prefix_template: None,
        }
    }

    /// One letter for each property of a route.
    fn letters(route: Route) -> String {
        let all = [(route.console, 'c'), (route.file, 'f'), (route.prefixed, 'p'), (route.filtered, 'd')];
        all.iter().filter(|(is, _)| *is).map(|(_, letter)| letter).collect()
    }

    fn letters_of(logs: &Logs, workers: usize) -> Vec<String> {
        let routes = (0..workers).map(|rank| logs.routes(rank, workers));
        routes.map(|routes| format!("{}/{}", letters(routes.stdout), letters(routes.stderr))).collect()
    }

    #[test]
    fn shows_prefixes_only_if_several_workers_print_or_a_stream_is_teed() {
        assert_eq!(letters_of(&logs("0", "0", ""), 1), ["c/c"]);
        assert_eq!(letters_of(&logs("0", "0", ""), 2), ["cp/cp", "cp/cp"]);
        assert_eq!(letters_of(&logs("0", "1", ""), 1), ["cfp/c"]);
        assert_eq!(letters_of(&logs("0", "0", "1"), 2), ["/", "c/c"]);
        assert_eq!(letters_of(&logs("1:3", "0", ""), 2), ["c/c", "f/f"]);
        assert_eq!(letters_of(&Logs { prefix: PrefixWhen::Never, ..logs("0", "3", "") }, 2), ["cf/cf", "cf/cf"]);
        assert_eq!(letters_of(&Logs { prefix: PrefixWhen::Tee, ..logs("0", "2", "") }, 2), ["c/cfp", "c/cfp"]);
        assert_eq!(letters_of(&Logs { prefix: PrefixWhen::Always, ..logs("0", "0", "") }, 1), ["cp/cp"]);
    }

    #[test]
    fn routes_streams_as_torch_does() {
        assert_eq!(letters_of(&logs("3", "0", ""), 2), ["f/f", "f/f"]);
        // Tee overrides a redirect of the same stream, and the filter keeps the file.
        assert_eq!(letters_of(&logs("3", "1", "0"), 2), ["cfp/f", "f/f"]);
        assert_eq!(letters_of(&logs("0:1,1:2", "0", ""), 2), ["f/cp", "cp/f"]);
        assert_eq!(letters_of(&Logs { base: LogBase::Nowhere, ..logs("3", "0", "0") }, 2), ["c/c", "/"]);
    }

    #[test]
    fn filters_only_streams_that_are_teed_and_shown() {
        let both =
            Logs { duplicate_stdout: vec!["x".into()], duplicate_stderr: vec!["y".into()], ..logs("0", "0:1", "") };
        assert_eq!(letters_of(&both, 2), ["cfpd/cp", "cp/cp"]);
        assert_eq!(letters_of(&Logs { shown: Some(BTreeSet::from([1])), ..both }, 2), ["f/", "c/c"]);
    }

    #[test]
    fn reads_rank_maps_with_ranks_of_any_number_of_digits() {
        let map = logs("0:3,12:2", "0", "").redirects;
        let none = Std::default();
        assert_eq!(
            [map.of(0), map.of(1), map.of(12)],
            [Std { out: true, err: true }, none, Std { out: false, err: true }]
        );
        assert_eq!(map.highest(), Some(12));
        for text in ["4", "", "x", "0:4", "0:1,", ":1", "0:", "-1:1", "+1:1", "0:1;1:1", " 1"] {
            let error = Streams::parse(&given("redirects", text)).unwrap_err().to_string();
            assert!(error.starts_with(&format!("--redirects={text}: expected 0 (none)")), "{error}");
        }
    }

    #[test]
    fn rejects_filters_that_are_not_local_ranks() {
        assert_eq!(shown(&given("local-ranks-filter", "0, 2")).unwrap(), Some(BTreeSet::from([0, 2])));
        for text in ["a", "0,", ",", "1.5", "-1"] {
            assert!(shown(&given("local-ranks-filter", text)).is_err(), "{text}");
        }
    }

    #[test]
    fn splits_duplicate_filters_at_single_commas() {
        let split = |text| filters(&given("duplicate-stdout-filters", text));
        assert_eq!(split("apple,orange"), ["apple", "orange"]);
        assert_eq!(split("a,,b,c"), ["a,b", "c"]);
        assert_eq!(split(""), [""; 0]);
        assert_eq!(split("a,"), ["a"]);
    }

    #[test]
    fn renders_the_prefix_by_torchs_template() {
        let mut logs = logs("0", "0", "");
        let origin = LineOrigin { role: "default", rank: 5, local_rank: 1, hostname: "r12i0n8" };
        assert_eq!(logs.prefix(origin), "[default1]:");
        logs.prefix_template = Some("${hostname}:${role_name} $rank/${local_rank} $x ".into());
        assert_eq!(logs.prefix(LineOrigin { role: "trainer", ..origin }), "r12i0n8:trainer 5/1 $x ");
    }

    fn in_base(base: LogBase) -> Logs {
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
        let log_dir = LogDir::create(&in_base(LogBase::Folder(base.clone())), "my job/1").unwrap();
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
        let log_dir = LogDir::create(&in_base(LogBase::Folder(dir.path().into())), "x").unwrap();
        fs::write(log_dir.attempt(0, 1).unwrap().stdout(0).unwrap(), "precious").unwrap();
        assert!(log_dir.attempt(0, 1).unwrap_err().to_string().contains("attempt_0"));
        let second = log_dir.attempt(1, 1).unwrap();
        assert!(second.stdout(0).unwrap().parent().unwrap().is_dir());
        assert_eq!(fs::read(log_dir.path().unwrap().join("attempt_0/0/stdout.log")).unwrap(), b"precious");
    }

    #[test]
    fn removes_a_temporary_folder_unless_a_failure_needs_it_or_the_user_keeps_it() {
        let after = |keep: bool, success: bool, written: bool| {
            let log_dir = LogDir::create(&Logs { keep, ..in_base(LogBase::Temporary) }, "none").unwrap();
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
            let log_dir = LogDir::create(&in_base(base), "x").unwrap();
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
        let log_dir = LogDir::create(&in_base(LogBase::Nowhere), "none").unwrap();
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
            |folder: &Path| LogDir::create(&in_base(LogBase::Folder(folder.into())), "none").unwrap_err().to_string();
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
