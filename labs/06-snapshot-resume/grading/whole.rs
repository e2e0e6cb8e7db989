//! Task `whole`: the kernel kills the process in the middle of the write; then what it did, in which order, when it was not killed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use lockstep_grading::{Claim, End, Setting, Stage};
use serde::Deserialize;

/// What is done with the disk, as `given/disk.rs` notes it.
#[derive(Debug, Deserialize)]
enum Note {
    Created(PathBuf),
    Wrote(PathBuf),
    Synced(PathBuf),
    Renamed(PathBuf, PathBuf),
    Removed(PathBuf),
}

const SNAPSHOT: &str = "snapshot-000003.safetensors";
/// The bytes of the snapshots from before.
const OLD: u8 = b'o';
/// Those of the new ones.
const NEW: u8 = b'n';

pub(crate) fn grade(stage: &mut Stage) -> anyhow::Result<()> {
    let mut random = stage.random();
    let (old, new) = (random.below(1000..4000), random.below(50_000..200_000));
    killed(stage, old, new)?;
    let folders = [tempfile::tempdir()?, tempfile::tempdir()?];
    let paths = folders.each_ref().map(|folder| folder.path().join(SNAPSHOT));
    fs::write(&paths[1], vec![OLD; old])?;
    let inputs = paths.each_ref().map(|path| (path, new, NEW, None::<u64>));
    let outputs = stage.call::<_, Vec<Note>>(1, &inputs)?;
    for (case, path) in paths.iter().enumerate() {
        let given = ["there is no snapshot yet", "a snapshot from before is there"][case];
        let there = content(path, new);
        Claim::that(there == Content::New, Content::New.words(), there.words())
            .given(given)
            .otherwise("the new snapshot is not in its place")?;
        order(outputs.of(0, case), path, given)?;
    }
    Ok(())
}

/// What is there after a kill.
fn killed(stage: &mut Stage, old: usize, new: usize) -> anyhow::Result<()> {
    let (folder, elsewhere) = (tempfile::tempdir()?, tempfile::tempdir()?);
    let path = folder.path().join(SNAPSHOT);
    fs::write(&path, vec![OLD; old])?;
    let temporary = elsewhere.path().to_str().context("the temporary folder's name is no text")?;
    let setting = Setting { env: vec![("TMPDIR".into(), temporary.into())], ..Setting::default() };
    let half = new as u64 / 2;
    let ends = stage.play(&setting, &[(&path, new, NEW, Some(half))])?;
    let given = format!("a snapshot from before, of {old} bytes; killed after {half} of the new one's {new} bytes");
    let died = matches!(ends[0], End::Died(_));
    Claim::that(died, "a write that goes beyond half of the bytes", "none")
        .given(&given)
        .otherwise("the bytes were not written to a file one after the other, so nobody could be killed in between")?;
    let there = content(&path, new);
    let expected = "the snapshot from before, whole";
    Claim::that(there == Content::Old(old), expected, there.words())
        .given(&given)
        .knows(
            matches!(there, Content::Torn(_)),
            "the only copy is opened for writing, which empties it: a kill in the middle leaves a torn file and nothing else. Write \
             to another file, and rename that when it is whole",
        )
        .knows(there == Content::Gone, "the old snapshot is removed before the new one is whole: a kill leaves none at all")
        .otherwise("a kill in the middle of the write has harmed the snapshot from before")?;
    let names = names(folder.path());
    let taken =
        names.iter().find(|name| *name != SNAPSHOT && name.starts_with("snapshot-") && name.ends_with(".safetensors"));
    Claim::that(taken.is_none(), format!("no snapshot but {SNAPSHOT}"), format!("{names:?}"))
        .given(&given)
        .otherwise("the half-written file is named as a snapshot is, and would be taken for the newest one")?;
    Claim::that(names.len() > 1, "a half-written file beside it", format!("{names:?}"))
        .given(&given)
        .otherwise(
            "the temporary file is in another folder, which may be on another disk: there a rename fails, or becomes a copy that can be \
             torn. It belongs into the snapshot's own folder",
        )
}

/// What was done in a save that nobody disturbed.
fn order(notes: &[Note], path: &Path, given: &str) -> anyhow::Result<()> {
    let folder = path.parent().unwrap_or(path);
    let renamed = notes.iter().position(|note| matches!(note, Note::Renamed(_, to) if to == path));
    let told: Vec<String> = notes.iter().map(words).collect();
    let mut told: Vec<&str> = told.iter().map(String::as_str).collect();
    told.dedup();
    let claim = |holds: bool, expected: &str| {
        Claim::that(holds, expected, if told.is_empty() { "nothing that was noted".into() } else { told.join(", ") })
            .given(given)
    };
    let written = notes.iter().any(|note| matches!(note, Note::Created(file) | Note::Wrote(file) if file == path));
    let Some(renamed) = renamed.filter(|_| !written) else {
        return claim(false, "a file beside it is written and renamed")
            .knows(
                written,
                "the bytes are written straight to the snapshot's own file: a kill in the middle leaves it torn",
            )
            .otherwise("use `File` and `rename` of `crate::disk`, or the order of your steps cannot be seen");
    };
    let (before, after) = notes.split_at(renamed);
    let Note::Renamed(from, _) = &after[0] else { return Ok(()) };
    let gap = before.iter().any(|note| matches!(note, Note::Removed(file) if file == path));
    claim(!gap, "a rename over the snapshot from before")
        .otherwise("the old snapshot is removed before the new one has its name: a kill between the two leaves none. A rename replaces it")?;
    let last = before.iter().rev().find_map(|note| match note {
        Note::Wrote(file) | Note::Created(file) if file == from => Some(false),
        Note::Synced(file) if file == from => Some(true),
        _ => None,
    });
    claim(last == Some(true), "a sync of the file before its rename").otherwise(
        "renamed before it was synced: after a power cut the file can have its new name and none of its bytes",
    )?;
    let named = after.iter().any(|note| matches!(note, Note::Synced(file) if file == folder));
    claim(named, "a sync of the folder after the rename")
        .otherwise("the folder is not synced after the rename: a power cut can undo the new name, after you have said that it is saved")
}

#[derive(Debug, PartialEq)]
enum Content {
    Old(usize),
    New,
    /// A part of the new one, of so many bytes.
    Torn(usize),
    Gone,
    Other(usize),
}

impl Content {
    fn words(&self) -> String {
        match self {
            Content::Old(bytes) => format!("the snapshot from before, of {bytes} bytes"),
            Content::New => "the new snapshot, whole".into(),
            Content::Torn(bytes) => format!("the first {bytes} bytes of the new one"),
            Content::Gone => "no file".into(),
            Content::Other(bytes) => format!("{bytes} other bytes"),
        }
    }
}

fn content(path: &Path, new: usize) -> Content {
    let Ok(bytes) = fs::read(path) else { return Content::Gone };
    let all = |byte: u8| bytes.iter().all(|one| *one == byte);
    match bytes.len() {
        length if length == new && all(NEW) => Content::New,
        length if length < new && all(NEW) => Content::Torn(length),
        length if all(OLD) => Content::Old(length),
        length => Content::Other(length),
    }
}

/// The files in a folder and below it.
fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let of = |entry: fs::DirEntry| match entry.path() {
        path if path.is_dir() => names(&path),
        path => path.file_name().map(|name| name.to_string_lossy().into_owned()).into_iter().collect(),
    };
    let mut names: Vec<String> = entries.flat_map(of).collect();
    names.sort();
    names
}

fn words(note: &Note) -> String {
    let name = |path: &Path| match path.file_name() {
        Some(name) if !path.is_dir() => name.to_string_lossy().into_owned(),
        _ => "the folder".to_owned(),
    };
    match note {
        Note::Created(file) => format!("{} was created", name(file)),
        Note::Wrote(file) => format!("{} was written", name(file)),
        Note::Synced(file) => format!("{} was synced", name(file)),
        Note::Renamed(from, to) => format!("{} was renamed to {}", name(from), name(to)),
        Note::Removed(file) => format!("{} was removed", name(file)),
    }
}
