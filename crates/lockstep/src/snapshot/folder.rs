//! A folder of snapshots: their names, reading one, and removing old ones.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::contents::Contents;
use super::error::BadSnapshot;
use super::meta::Meta;
use super::{parts, source};
use crate::loader::Position;

const PREFIX: &str = "snapshot-";
const SUFFIX: &str = ".safetensors";
/// The prefix of our temporary files, which nothing else uses.
pub(super) const TEMPORARY: (&str, &str) = (".snapshot-", ".partial");

/// A file with the name of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The epoch in which training would continue.
    pub epoch: u64,
    /// The step in it.
    pub step: usize,
    /// The file.
    pub path: PathBuf,
}

/// A file that was read and checked.
pub(super) struct Good {
    pub(super) path: PathBuf,
    pub(super) meta: Meta,
    pub(super) contents: Contents,
}

/// The files in `folder` with names of snapshots, newest first; empty if there is no such folder. They may be bad.
///
/// # Errors
/// The folder cannot be read.
pub fn list(folder: &Path) -> io::Result<Vec<Found>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    let mut found: Vec<Found> = paths.into_iter().filter_map(named).collect();
    found.sort_by_key(|one| Reverse((one.epoch, one.step)));
    Ok(found)
}

/// The path of the snapshot from which training would continue at `position`.
pub(super) fn path_of(folder: &Path, position: Position) -> PathBuf {
    folder.join(format!("{PREFIX}{:06}-{:08}{SUFFIX}", position.epoch, position.step))
}

/// Creates `folder` and its missing parents, and syncs their names to disk.
pub(super) fn make(folder: &Path) -> io::Result<()> {
    let missing: Vec<&Path> =
        folder.ancestors().take_while(|above| !above.as_os_str().is_empty() && !above.exists()).collect();
    fs::create_dir_all(folder)?;
    for made in missing {
        let parent = made.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(parent)?.sync_all()?;
    }
    Ok(())
}

/// Reads and checks the file at `path`.
pub(super) fn read(path: &Path) -> Result<Good, BadSnapshot> {
    let contents = parts::read(path)?;
    Ok(Good { path: path.to_owned(), meta: contents.meta()?, contents })
}

/// The files to remove once the snapshot of `saved` is on disk: of those up to it, all but the newest `keep`. Files in `bad` do
/// not count as kept; files in `foreign` are never removed, and neither is anything newer than `saved`.
pub(super) fn superfluous(
    found: Vec<Found>,
    saved: Position,
    keep: usize,
    bad: &BTreeSet<PathBuf>,
    foreign: &BTreeSet<PathBuf>,
) -> Vec<PathBuf> {
    let past = found.into_iter().filter(|one| (one.epoch, one.step) <= (saved.epoch, saved.step));
    let ours = past.map(|one| one.path).filter(|path| !foreign.contains(path));
    let (damaged, good): (Vec<_>, Vec<_>) = ours.partition(|path| bad.contains(path));
    good.into_iter().skip(keep).chain(damaged).collect()
}

/// Removes temporary files of writers that were killed. A living writer holds a lock on its file.
pub(super) fn sweep(folder: &Path) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())).filter(|path| is_temporary(path)) {
        // Without locks, the owner's state is unknown, so the file stays.
        if source::open_regular(&path).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = fs::remove_file(&path);
        }
    }
}

fn is_temporary(path: &Path) -> bool {
    let (prefix, suffix) = TEMPORARY;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.starts_with(prefix) && name.ends_with(suffix)
}

/// Accepts only names that [`path_of`] makes: a file without the leading zeros belongs to someone else.
fn named(path: PathBuf) -> Option<Found> {
    let name = path.file_name()?.to_str()?;
    let (epoch, step) = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.split_once('-')?;
    let (epoch, step) = (number(epoch)?, number(step)?);
    let ours = path_of(path.parent()?, Position { epoch, step, samples: 0 });
    (ours.file_name() == path.file_name()).then_some(Found { epoch, step, path })
}

/// Digits only: `parse` alone would take a plus sign.
fn number<N: std::str::FromStr>(digits: &str) -> Option<N> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn found(names: &[(u64, usize)]) -> Vec<Found> {
        let one = |&(epoch, step)| {
            let path = path_of(Path::new("f"), Position { epoch, step, samples: 0 });
            Found { epoch, step, path }
        };
        names.iter().map(one).collect()
    }

    fn places(paths: &[PathBuf]) -> Vec<(u64, usize)> {
        paths.iter().cloned().filter_map(named).map(|one| (one.epoch, one.step)).collect()
    }

    #[test]
    fn lists_snapshots_by_epoch_and_step_newest_first_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let others = [
            ".snapshot-abc.partial",
            "snapshot-1-2.pt",
            "snapshot-1.safetensors",
            "snapshot-1-2.safetensors",
            "snapshot-0000001-00000002.safetensors",
            "snapshot-+1-2.safetensors",
            "snapshot-99999999999999999999-0.safetensors",
            "checkpoint.safetensors",
        ];
        others.iter().for_each(|name| fs::write(folder.path().join(name), "").unwrap());
        for (epoch, step) in [(2, 0), (1, 100_000_000), (10, 0), (1, 99_999_999)] {
            fs::write(path_of(folder.path(), Position { epoch, step, samples: 0 }), "").unwrap();
        }
        let listed = list(folder.path()).unwrap();
        let places: Vec<_> = listed.iter().map(|one| (one.epoch, one.step)).collect();
        assert_eq!(places, [(10, 0), (2, 0), (1, 100_000_000), (1, 99_999_999)]);
        assert_eq!(list(&folder.path().join("absent")).unwrap(), []);
    }

    #[test]
    fn keeps_the_newest_of_those_up_to_what_was_saved() {
        let (none, saved) = (BTreeSet::new(), Position { epoch: 2, step: 0, samples: 0 });
        let all = || found(&[(3, 0), (2, 0), (1, 5), (1, 0), (0, 5)]);
        assert_eq!(places(&superfluous(all(), saved, 2, &none, &none)), [(1, 0), (0, 5)]);
        assert_eq!(places(&superfluous(all(), saved, 1, &none, &none)), [(1, 5), (1, 0), (0, 5)]);
        assert!(superfluous(all(), saved, 9, &none, &none).is_empty());
    }

    #[test]
    fn does_not_count_bad_ones_as_kept_nor_touch_those_of_another_version() {
        let saved = Position { epoch: 2, step: 0, samples: 0 };
        let all = || found(&[(2, 0), (1, 5), (1, 0), (0, 5)]);
        let of = |at: usize| BTreeSet::from([all()[at].path.clone()]);
        let removed = superfluous(all(), saved, 2, &of(1), &of(3));
        assert_eq!(places(&removed), [(1, 5)]);
    }

    #[test]
    fn removes_the_files_of_a_dead_writer_and_keeps_those_of_a_living_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let living = File::create(path(".snapshot-living.partial")).unwrap();
        living.lock().unwrap();
        for name in [".snapshot-dead.partial", "dead.partial", ".snapshot-note", "snapshot-1-0.safetensors"] {
            fs::write(path(name), "").unwrap();
        }
        mknodat(CWD, path(".snapshot-pipe.partial"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        sweep(folder.path());
        fs::remove_file(path(".snapshot-pipe.partial")).unwrap(); // left, and not waited for
        let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, [".snapshot-living.partial", ".snapshot-note", "dead.partial", "snapshot-1-0.safetensors"]);
        sweep(&path("absent"));
    }
}
