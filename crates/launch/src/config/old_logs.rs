//! Removes the logs that failed runs left in the folder for temporary files, once nobody has touched them for a week.
//!
//! Only this user's, only of runs that have ended, and only folders in which nothing lies but what a run writes.

use std::ffi::OsStr;
use std::fs::{self, DirEntry, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::process::geteuid;

/// The start of the names of temporary log folders, and the number of random characters after it.
pub(super) const NAME: (&str, usize) = ("lockstep_", 8);
/// How long the logs of a failed run stay after their last change.
const STAY: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Locks the folder of a run for as long as the file is open, so that nobody takes the run for one that has ended. `None` where
/// there are no locks: then only the age of the files counts.
pub(super) fn lock(folder: &Path) -> Option<File> {
    File::open(folder).ok().filter(|folder| folder.try_lock().is_ok())
}

/// Removes old logs in `base`. What cannot be read or removed stays.
pub(super) fn remove(base: &Path, now: SystemTime) {
    for entry in fs::read_dir(base).into_iter().flatten().flatten().filter(|entry| is_name(&entry.file_name())) {
        let folder = entry.path();
        if is_own_folder(&entry) && is_of_a_run(&folder) && is_old(&folder, now) {
            let Some(_locked) = lock(&folder) else { continue };
            let _ = fs::remove_dir_all(&folder);
        }
    }
}

fn is_name(name: &OsStr) -> bool {
    let (start, random) = NAME;
    let rest = name.to_str().and_then(|name| name.strip_prefix(start)).unwrap_or_default();
    rest.len() == random && rest.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// Not a link, and this user's.
fn is_own_folder(entry: &DirEntry) -> bool {
    entry.metadata().is_ok_and(|about| about.is_dir() && about.uid() == geteuid().as_raw())
}

/// Folders of runs, with folders of attempts or events in each, and nothing else: another program may have such a name, too.
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

        remove(base, SystemTime::now() + STAY - Duration::from_secs(60));
        assert_eq!(names(base).len(), all.len() + 1, "younger than a week");
        remove(base, SystemTime::now() + STAY + Duration::from_secs(60));
        let stay = ["emptyone", "examples", "linklink", "running1", "tools"].map(|name| format!("lockstep_{name}"));
        assert_eq!(names(base), [&stay[..], &["torch_AAAAAAAA".to_owned()]].concat());
        drop(running);
        remove(base, SystemTime::now() + STAY + Duration::from_secs(60));
        assert!(!base.join("lockstep_running1").exists() && base.join("torch_AAAAAAAA/none_abcdefgh").exists());
    }

    #[test]
    fn counts_the_youngest_file() {
        let dir = tempfile::tempdir().unwrap();
        left(dir.path(), "lockstep_AAAAAAAA");
        let log = dir.path().join("lockstep_AAAAAAAA/none_abcdefgh/attempt_0/0/stdout.log");
        let later = SystemTime::now() + STAY + Duration::from_secs(60);
        File::create(log).unwrap().set_modified(later).unwrap();
        remove(dir.path(), later);
        assert_eq!(names(dir.path()), ["lockstep_AAAAAAAA"]);
    }
}
