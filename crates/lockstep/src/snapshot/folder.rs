//! A folder of snapshots: their names, reading one, and removing old ones.
//!
//! **A sharded snapshot** has a part of each rank, and an index, which has the name of a snapshot. A part is a file like a snapshot, with its
//! own checksum, of one-dimensional pieces of tensors. Its name ends in that checksum, so that no part ever replaces another one; the index
//! lists the parts. It is written last: a part that no index lists does not count, and is removed.

use std::cmp::Reverse;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use tch::{Device, TchError, Tensor};

use super::contents::{self, Contents, Memory};
use super::error::BadSnapshot;
use super::file::{self, Owner};
use super::meta::{Meta, PartFile, Sharded, Snapshot};
use crate::loader::Position;
use crate::parallel::Piece;

const PREFIX: &str = "snapshot-";
const SUFFIX: &str = ".safetensors";
/// The prefix of our temporary files, which nothing else uses.
pub(super) const TEMPORARY: (&str, &str) = (".snapshot-", ".partial");

/// A file with the name of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotFile {
    /// The epoch in which training would continue.
    pub epoch: u64,
    /// The step in the epoch.
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
pub fn list(folder: &Path) -> io::Result<Vec<SnapshotFile>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    let mut found: Vec<SnapshotFile> = paths.into_iter().filter_map(named).collect();
    found.sort_by_key(|one| Reverse((one.epoch, one.step)));
    Ok(found)
}

/// A file that no save may replace, with the name of a snapshot or of a part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Foreign {
    pub(super) epoch: u64,
    pub(super) step: usize,
    pub(super) file: String,
    /// What it is.
    pub(super) what: String,
}

/// The files in `folder` that would keep snapshots from being saved; with `parts`, of which there may be thousands, also of sharded ones.
pub(super) fn foreign(folder: &Path, parts: bool) -> Vec<Foreign> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let foreign = |path: PathBuf| {
        let file = path.file_name()?.to_str()?.to_owned();
        let of_part = || position_of(&file).filter(|_| parts);
        let (epoch, step) = named(path.clone()).map(|found| (found.epoch, found.step)).or_else(of_part)?;
        let Owner::Another(what) = file::owner(&path) else { return None };
        Some(Foreign { epoch, step, file, what })
    };
    entries.filter_map(foreign).collect()
}

/// Renames a damaged file to a name that no file has, and returns that; no save and no resume looks at it any more.
pub(super) fn set_aside(path: &Path) -> io::Result<PathBuf> {
    let with = |ending: String| path.with_extension(format!("safetensors.{ending}"));
    let names = std::iter::once("damaged".to_owned()).chain((2_u32..).map(|n| format!("damaged-{n}")));
    let mut names = names.map(with).filter(|name| fs::symlink_metadata(name).is_err());
    let name = names.next().ok_or(io::ErrorKind::AlreadyExists)?;
    fs::rename(path, &name).map(|()| name)
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
    let contents = assembled(path)?;
    Ok(Good { path: path.to_owned(), meta: contents.meta()?, contents })
}

/// The files to remove once the snapshot of `saved` is on disk: of those up to it, all but the newest `keep`. Files in `bad` do
/// not count as kept; files in `foreign` are never removed, and neither is anything newer than `saved`.
pub(super) fn superfluous(
    found: Vec<SnapshotFile>,
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
        if file::open_regular(&path).is_ok_and(|file| file.try_lock().is_ok()) {
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
fn named(path: PathBuf) -> Option<SnapshotFile> {
    let name = path.file_name()?.to_str()?;
    let (epoch, step) = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?.split_once('-')?;
    let (epoch, step) = (number(epoch)?, number(step)?);
    let ours = path_of(path.parent()?, Position { epoch, step, samples: 0 });
    (ours.file_name() == path.file_name()).then_some(SnapshotFile { epoch, step, path })
}

/// Digits only: `parse` alone would take a plus sign.
fn number<N: std::str::FromStr>(digits: &str) -> Option<N> {
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

impl Snapshot {
    /// Reads and checks the file at `path`.
    pub fn read(path: &Path) -> Result<Self, BadSnapshot> {
        assembled(path)?.snapshot()
    }
}

/// The name of the part of `rank` whose checksum has these digits.
pub(super) fn part_name(position: Position, rank: usize, ranks: usize, checksum: &str) -> String {
    format!("{}-{rank}-of-{ranks}-{checksum}.safetensors", start_of(position.epoch, position.step))
}

fn start_of(epoch: u64, step: usize) -> String {
    format!("part-{epoch:06}-{step:08}")
}

/// The contents of the snapshot at `path`, as one rank would have saved it; read from the parts if it is an index.
fn assembled(path: &Path) -> Result<Contents, BadSnapshot> {
    let index = Contents::of_file(path)?;
    let meta = index.meta()?;
    match &meta.sharded {
        None => Ok(index),
        Some(Sharded::Part { .. }) => Err(BadSnapshot::NotOurs("it is a part of a sharded snapshot".into())),
        Some(Sharded::Index(files)) => {
            let folder = path.parent().unwrap_or(Path::new("."));
            let mut whole = Assembly::default();
            for (rank, part) in files.iter().enumerate() {
                let taken = whole.take(&folder.join(&part.file), part, rank, &meta);
                taken.map_err(|why| BadSnapshot::Part { file: part.file.clone(), why: Box::new(why) })?;
            }
            whole.finish(&meta, index.extra()?.as_deref())
        }
    }
}

/// Tensors that are being put together.
#[derive(Default)]
struct Assembly {
    /// By their names in the file; how many elements have come.
    tensors: BTreeMap<String, (Tensor, usize)>,
    /// Up to which element the pieces of each parameter have come, and its shape.
    params: BTreeMap<String, (Vec<i64>, usize)>,
}

impl Assembly {
    fn take(&mut self, path: &Path, listed: &PartFile, rank: usize, index: &Meta) -> Result<(), BadSnapshot> {
        if Path::new(&listed.file).file_name().is_none_or(|name| name != listed.file.as_str()) {
            return Err(BadSnapshot::NotOurs("the index lists a file that is not next to it".into()));
        }
        let contents = Contents::of_file(path)?;
        let ending = contents.checksum().map(|checksum| format!("-{checksum}.safetensors"));
        if contents.bytes() != listed.bytes || ending.is_none_or(|ending| !listed.file.ends_with(&ending)) {
            return Err(BadSnapshot::NotOurs("it is not the file that the index lists".into()));
        }
        let meta = contents.meta()?;
        let pieces = match &meta.sharded {
            Some(Sharded::Part { rank: of, pieces }) if *of == rank && meta.position == index.position => pieces,
            _ => return Err(BadSnapshot::NotOurs(format!("it is not the part of rank {rank} of this snapshot"))),
        };
        let mut by_name = BTreeMap::new();
        for piece in pieces {
            by_name.insert(piece.name.as_str(), (piece, self.numel(piece)?));
        }
        for (name, saved) in contents.named()? {
            match by_name.get(param_of(&name)) {
                Some((piece, numel)) => self.copy(name, &saved, piece, *numel)?,
                None => drop(self.tensors.insert(name, (saved, 0))),
            }
        }
        Ok(())
    }

    /// The parameter's length, if the piece follows the one before.
    fn numel(&mut self, piece: &Piece) -> Result<usize, BadSnapshot> {
        let (shape, so_far) = self.params.entry(piece.name.clone()).or_insert_with(|| (piece.shape.clone(), 0));
        let sizes = shape.iter().map(|size| usize::try_from(*size).ok());
        let numel = sizes.into_iter().try_fold(1_usize, |numel, size| numel.checked_mul(size?));
        let follows = *shape == piece.shape && *so_far == piece.elements.start && !piece.elements.is_empty();
        match numel.filter(|numel| follows && piece.elements.end <= *numel) {
            Some(numel) => {
                *so_far = piece.elements.end;
                Ok(numel)
            }
            None => Err(BadSnapshot::NotOurs(format!(
                "its elements {:?} of {} do not fit the others'",
                piece.elements, piece.name
            ))),
        }
    }

    fn copy(&mut self, name: String, saved: &Tensor, piece: &Piece, numel: usize) -> Result<(), BadSnapshot> {
        let length = piece.elements.len();
        let torch = |error: TchError| BadSnapshot::Unreadable(io::Error::other(error));
        let (whole, came) = match self.tensors.entry(name) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(free) => {
                let whole = Tensor::f_empty([numel as i64], (saved.kind(), Device::Cpu)).map_err(torch)?;
                free.insert((whole.f_view(&*piece.shape).map_err(torch)?, 0))
            }
        };
        if saved.size() != [length as i64] || saved.kind() != whole.kind() || whole.size() != piece.shape {
            return Err(BadSnapshot::NotOurs(format!("its tensors of {} do not fit the others'", piece.name)));
        }
        let elements = whole.f_view(-1).and_then(|flat| flat.f_narrow(0, piece.elements.start as i64, length as i64));
        elements.and_then(|mut elements| elements.f_copy_(saved)).map_err(torch)?;
        *came += length;
        Ok(())
    }

    /// Everything, if it is complete.
    fn finish(self, index: &Meta, extra: Option<&str>) -> Result<Contents, BadSnapshot> {
        let lacks = |name: &str| BadSnapshot::NotOurs(format!("its parts do not have all of {name}"));
        let whole = |shape: &[i64]| shape.iter().product::<i64>() as usize;
        if let Some((name, _)) = self.params.iter().find(|(_, (shape, came))| *came != whole(shape)) {
            return Err(lacks(name));
        }
        let mut tensors = Vec::new();
        for (name, (tensor, came)) in self.tensors {
            if self.params.contains_key(param_of(&name)) && came != tensor.numel() {
                return Err(lacks(&name));
            }
            tensors.push((name, tensor));
        }
        contents::sort(&mut tensors);
        let meta = Meta { sharded: None, ..index.clone() };
        let contents = Contents::new(&meta, extra, &tensors, Memory::Shared).map_err(io::Error::other)?;
        Ok(contents.sealed()?)
    }
}

/// The parameter that a tensor of the file belongs to: `model.<name>`, `optimizer.<state>.<name>`.
pub(super) fn param_of(name: &str) -> &str {
    match name.split_once('.') {
        Some(("optimizer", state)) => state.split_once('.').map_or(state, |(_, param)| param),
        Some((_, param)) => param,
        None => name,
    }
}

/// The parts in `folder` of snapshots up to `saved` that no index there lists. If an index cannot be read, its parts are not known:
/// then those of its position stay.
pub(super) fn unlisted_parts(folder: &Path, saved: Position) -> Vec<PathBuf> {
    let Ok(indices) = list(folder) else { return Vec::new() };
    let (mut listed, mut unknown) = (BTreeSet::new(), BTreeSet::new());
    for found in indices {
        match file::meta(&found.path).map(|meta| meta.sharded) {
            Ok(Some(Sharded::Index(files))) => listed.extend(files.into_iter().map(|part| part.file)),
            Ok(_) => {}
            Err(_) => drop(unknown.insert((found.epoch, found.step))),
        }
    }
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let unlisted = |path: &PathBuf| {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
        let Some(at) = position_of(name) else { return false };
        at <= (saved.epoch, saved.step)
            && !listed.contains(name)
            && !unknown.contains(&at)
            && file::owner(path) == Owner::Ours
    };
    entries.filter(unlisted).collect()
}

/// Epoch and step of the part with this name.
fn position_of(name: &str) -> Option<(u64, usize)> {
    let mut words = name.strip_prefix("part-")?.strip_suffix(".safetensors")?.split('-');
    let (epoch, step) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    name.starts_with(&format!("{}-", start_of(epoch, step))).then_some((epoch, step))
}

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    fn found(names: &[(u64, usize)]) -> Vec<SnapshotFile> {
        let one = |&(epoch, step)| {
            let path = path_of(Path::new("f"), Position { epoch, step, samples: 0 });
            SnapshotFile { epoch, step, path }
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
