//! Answers to `newest`: wrong ones, and unusual right ones.

use std::fs;
use std::io::{ErrorKind, Result};
use std::path::{Path, PathBuf};

use lockstep_answers::edit;

use crate::snapshots::{position, read};

/// Chooses the newest without reading it.
#[edit(.find(|path| read(path).is_ok()) => .next())]
pub fn unchecked() {}

/// Starts from the beginning if the newest is torn.
#[edit(.rev().find(|path| read(path).is_ok()) => .last().filter(|path| read(path).is_ok()))]
pub fn gives_up() {}

/// Sorts names as text, so `snapshot-9-0` comes after `snapshot-10-0`.
#[edit(snapshots.sort_by_key(|path| position(path)) => snapshots.sort())]
pub fn by_name() {}

/// Sorts by the time of the last change, which a copy changes.
#[edit(snapshots.sort_by_key(|path| position(path)) => snapshots.sort_by_key(|path| fs::metadata(path).and_then(|data| data.modified()).ok()))]
pub fn by_time() {}

/// Panics at a torn file.
#[edit(.rev().find(|path| read(path).is_ok()) => .last().inspect(|path| drop(read(path).unwrap())))]
pub fn unwraps() {}

/// Fails if there is no folder, so the first run fails.
pub fn first_start(folder: &Path) -> Result<Option<PathBuf>> {
    let paths: Vec<PathBuf> = fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<Result<_>>()?;
    let good = paths.into_iter().filter(|path| position(path).is_some() && read(path).is_ok());
    Ok(good.max_by_key(|path| position(path)))
}

/// Treats every error of `read_dir` as the first start.
pub fn any_error(folder: &Path) -> Result<Option<PathBuf>> {
    let Ok(entries) = fs::read_dir(folder) else { return Ok(None) };
    let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let good = paths.filter(|path| position(path).is_some() && read(path).is_ok());
    Ok(good.max_by_key(|path| position(path)))
}

/// Asks whether it is a folder, and takes a file, or a folder that it may not look at, for the first start.
#[edit(let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    }; => if !folder.is_dir() {
        return Ok(None);
    }
    let entries = fs::read_dir(folder)?;)]
pub fn is_dir() {}

/// Skips files that are torn, and lets one that cannot be read stop it.
#[edit(Ok(snapshots.into_iter().rev().find(|path| read(path).is_ok())) => for path in snapshots.into_iter().rev() {
        match read(&path) {
            Ok(_) => return Ok(Some(path)),
            // What is torn is no error of the system.
            Err(error) => drop(error.downcast::<std::io::Error>().map_or(Ok(()), Err)?),
        }
    }
    Ok(None))]
pub fn unreadable_file() {}

/// Right: slower, as it reads all of them.
pub fn reads_all(folder: &Path) -> std::io::Result<Option<PathBuf>> {
    if !folder.exists() {
        return Ok(None);
    }
    let mut best = None;
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let Some(place) = position(&path) else { continue };
        if read(&path).is_ok() && best.as_ref().is_none_or(|(best, _)| place > *best) {
            best = Some((place, path));
        }
    }
    Ok(best.map(|(_, path)| path))
}

/// Treats every readable file as a snapshot.
pub fn by_content(folder: &Path) -> Result<Option<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    let mut good = Vec::new();
    for entry in entries {
        let path = entry?.path();
        // A file that reads well is a snapshot.
        if read(&path).is_ok() {
            good.push((position(&path), path));
        }
    }
    Ok(good.into_iter().max().map(|(_, path)| path))
}

/// Wants a greater epoch and a greater step.
pub fn both_greater(folder: &Path) -> Result<Option<PathBuf>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        entries => entries?,
    };
    let mut best: Option<(u64, u64, PathBuf)> = None;
    for entry in entries {
        let path = entry?.path();
        let Some((epoch, step)) = position(&path) else { continue };
        if read(&path).is_err() {
            continue;
        }
        if best.as_ref().is_none_or(|(e, s, _)| epoch >= *e && step >= *s) {
            best = Some((epoch, step, path));
        }
    }
    Ok(best.map(|(_, _, path)| path))
}
