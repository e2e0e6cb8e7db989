//! Grades `whole`: the kernel kills the process in the middle of a write. Then checks the order of the operations without a kill.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use lockstep_grading::{CallOptions, Claim, RankOutcome, Runner, explain};
use serde::{Deserialize, Serialize};

/// An operation on the disk, as `given/disk.rs` records it.
#[derive(Debug, Deserialize)]
enum Note {
    Created(PathBuf),
    Wrote(PathBuf),
    Synced(PathBuf),
    Renamed(PathBuf, PathBuf),
    Removed(PathBuf),
}

/// A failure of the disk, as `given/disk.rs` simulates it.
#[derive(Clone, Copy, Serialize)]
enum Failure {
    FullAfter(usize),
    NoSync,
    NoFolderSync,
}

/// The file, its length, the byte that fills it, the size of a file at which the process is killed, and how the disk fails.
type Save<'a> = (&'a Path, usize, u8, Option<u64>, Option<Failure>);
/// The error, and the operations.
type Saved = (Option<String>, Vec<Note>);

const SNAPSHOT: &str = "snapshot-000003.safetensors";
/// The byte that fills old snapshots.
const OLD: u8 = b'o';
/// The byte that fills new ones.
const NEW: u8 = b'n';

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let (old, new) = (random.below(1000..4000), random.below(50_000..200_000));
    // Where the ranks may write even if they are confined.
    let base = tempfile::tempdir()?;
    killed(runner, base.path(), old, new)?;
    let folders = [tempfile::tempdir_in(&base)?, tempfile::tempdir_in(&base)?];
    let paths = folders.each_ref().map(|folder| folder.path().join(SNAPSHOT));
    fs::write(&paths[1], vec![OLD; old])?;
    let inputs = paths.each_ref().map(|path| -> Save<'_> { (path, new, NEW, None, None) });
    let givens = ["there is no snapshot yet", "there is an old snapshot"];
    let outputs = runner
        .call_with::<_, Saved>(&in_folder(base.path()), &inputs)
        .map_err(|error| lockstep_grading::given(error, |input| givens[input].to_owned()))?;
    for (case, path) in paths.iter().enumerate() {
        let given = givens[case];
        let there = content(path, new);
        Claim::that(there == Content::New, Content::New.words(), there.words())
            .given(given)
            .or_fail("the new snapshot is not at its path")?;
        order(&outputs.of(0, case).1, path, given)?;
    }
    fails(runner, base.path(), old, new)
}

fn in_folder(base: &Path) -> CallOptions {
    CallOptions { folder: Some(base.into()), ..CallOptions::default() }
}

/// Checks saves on a disk that fails: the error must be returned, and the old snapshot must still be there.
fn fails(runner: &mut Runner, base: &Path, old: usize, new: usize) -> anyhow::Result<()> {
    let failures = [
        (Failure::FullAfter(new / 2), "the disk is full after half of the bytes", "an error of a write is ignored"),
        (Failure::NoSync, "no file can be synced", "an error of the file's sync is ignored"),
        (Failure::NoFolderSync, "the folder cannot be synced", "an error of the folder's sync is ignored"),
    ];
    for (failure, what, ignored) in failures {
        let folder = tempfile::tempdir_in(base)?;
        let path = folder.path().join(SNAPSHOT);
        fs::write(&path, vec![OLD; old])?;
        let given = format!("an old snapshot of {old} bytes, and a disk that fails (simulated): {what}");
        let input: [Save<'_>; 1] = [(&path, new, NEW, None, Some(failure))];
        let outputs = runner
            .call_with::<_, Saved>(&in_folder(base), &input)
            .map_err(|error| lockstep_grading::given(error, |_| given.clone()))?;
        let error = &outputs.of(0, 0).0;
        let there = content(&path, new);
        let may_be_new = matches!(failure, Failure::NoFolderSync);
        let kept = there == Content::Old(old) || may_be_new && there == Content::New;
        let expected = if may_be_new { "an error" } else { "an error, and the whole old snapshot" };
        let returned = error.as_ref().map_or("no error".to_owned(), |error| format!("the error \"{error}\""));
        Claim::that(error.is_some() && kept, expected, format!("{returned}, and {}", there.words()))
            .given(given)
            .diagnose_if(
                error.is_none(),
                format!("{ignored}, so the caller believes that the snapshot is safe: return it, before the rename if it comes before"),
            )
            .or_fail("the error is returned, but the old snapshot is lost: a save that fails must leave it as it was")?;
    }
    Ok(())
}

/// Checks the folder after a kill.
fn killed(runner: &mut Runner, base: &Path, old: usize, new: usize) -> anyhow::Result<()> {
    let (folder, elsewhere) = (tempfile::tempdir_in(base)?, tempfile::tempdir_in(base)?);
    let path = folder.path().join(SNAPSHOT);
    fs::write(&path, vec![OLD; old])?;
    let temporary = elsewhere.path().to_str().context("the temporary folder's name is not UTF-8")?;
    let options = CallOptions { env: vec![("TMPDIR".into(), temporary.into())], ..in_folder(base) };
    let half = new as u64 / 2;
    let outcomes = runner.outcomes(&options, &[(path.as_path(), new, NEW, Some(half), None::<Failure>)])?;
    let given = format!("an old snapshot of {old} bytes; killed after {half} of the new one's {new} bytes");
    let there = content(&path, new);
    let died = matches!(outcomes[0], RankOutcome::Died(_));
    Claim::that(died, "a write of more than half of the bytes", "no such write")
        .given(&given)
        .diagnose_if(
            matches!(there, Content::Torn(_)),
            "`write` may write only a part of the bytes, and returns how many: the rest is missing, without an error. Use `write_all`",
        )
        .or_fail("the bytes were not written to a file in order, so the grader could not kill the process in the middle")?;
    let expected = "the whole old snapshot";
    Claim::that(there == Content::Old(old), expected, there.words())
        .given(&given)
        .diagnose_if(
            matches!(there, Content::Torn(_)),
            "the only copy is opened for writing, which empties it: a kill in the middle leaves only a torn file. Write to another \
             file, and rename that file when it is complete",
        )
        .diagnose_if(there == Content::Gone, "the old snapshot is removed before the new one is complete: a kill leaves none at all")
        .or_fail("a kill in the middle of the write has damaged the old snapshot")?;
    let names = names(folder.path());
    let taken =
        names.iter().find(|name| *name != SNAPSHOT && name.starts_with("snapshot-") && name.ends_with(".safetensors"));
    Claim::that(taken.is_none(), format!("no snapshot but {SNAPSHOT}"), names.join(" and "))
        .given(&given)
        .or_fail("the half-written file has the name of a snapshot, so it would be loaded as the newest one")?;
    Claim::that(names.len() > 1, "a half-written file in the same folder", names.join(" and "))
        .given(&given)
        .or_fail(
            "the temporary file is in another folder, which may be on another disk: then a rename fails, or becomes a copy that can be \
             torn. Create it in the snapshot's folder",
        )?;
    again(runner, base, &path, new, &given)
}

/// Saves once more where a killed save has left its files.
fn again(runner: &mut Runner, base: &Path, path: &Path, new: usize, given: &str) -> anyhow::Result<()> {
    let given = format!("{given}; then a save in the same folder");
    runner.call_with::<_, Saved>(&in_folder(base), &[(path, new, NEW, None::<u64>, None::<Failure>)]).map_err(|error| {
        lockstep_grading::given(
            explain(error, |finding| {
                Some(format!(
                    "the save after a killed one fails, and so will all later ones: its temporary file already exists, left by the killed \
                     one. Empty that file and write it again ({})",
                    finding.diagnosis
                ))
            }),
            |_| given.clone(),
        )
    })?;
    let there = content(path, new);
    Claim::that(there == Content::New, Content::New.words(), there.words())
        .given(&given)
        .or_fail("the save after a killed one does not leave the whole new snapshot")
}

/// Checks the operations of a save without a kill.
fn order(notes: &[Note], path: &Path, given: &str) -> anyhow::Result<()> {
    let folder = path.parent().unwrap_or(path);
    let renamed = notes.iter().position(|note| matches!(note, Note::Renamed(_, to) if to == path));
    let operations: Vec<String> = notes.iter().map(|note| words(note, folder)).collect();
    let mut operations: Vec<&str> = operations.iter().map(String::as_str).collect();
    operations.dedup();
    let claim = |holds: bool, expected: &str| {
        Claim::that(
            holds,
            expected,
            if operations.is_empty() { "no recorded operation".into() } else { operations.join(", ") },
        )
        .given(given)
    };
    let written = notes.iter().any(|note| matches!(note, Note::Created(file) | Note::Wrote(file) if file == path));
    let Some(renamed) = renamed.filter(|_| !written) else {
        return claim(false, "another file is written and then renamed")
            .diagnose_if(
                written,
                "the bytes are written directly to the snapshot's file: a kill in the middle leaves it torn",
            )
            .or_fail("use `File` and `rename` from `crate::disk`; the grader can see only their operations");
    };
    let (before, after) = notes.split_at(renamed);
    let Note::Renamed(from, _) = &after[0] else { return Ok(()) };
    let moved = before.iter().any(|note| matches!(note, Note::Renamed(file, _) if file == path));
    let gap = moved || before.iter().any(|note| matches!(note, Note::Removed(file) if file == path));
    claim(!gap, "a rename that replaces the old snapshot")
        .diagnose_if(
            moved,
            "the old snapshot gets another name before the new one has its name: a kill between the two leaves no snapshot. A rename \
             replaces it",
        )
        .or_fail("the old snapshot is removed before the new one has its name: a kill between the two leaves none. A rename replaces it")?;
    let last = before.iter().rev().find_map(|note| match note {
        Note::Wrote(file) | Note::Created(file) if file == from => Some(false),
        Note::Synced(file) if file == from => Some(true),
        _ => None,
    });
    let early = before.iter().any(|note| matches!(note, Note::Synced(file) if file == from));
    claim(last == Some(true), "a sync of the file after its last write and before its rename")
        .diagnose_if(
            early,
            "the file was synced before its last bytes were written (a buffer writes them when it is flushed or dropped): after a power \
             failure they can be missing",
        )
        .or_fail(
            "the file was renamed before it was synced: after a power failure, it can have its new name but none of its bytes",
        )?;
    let named = after.iter().any(|note| matches!(note, Note::Synced(file) if same(file, folder)));
    let another = after.iter().any(|note| matches!(note, Note::Synced(file) if file.is_dir()));
    claim(named, "a sync of the folder after the rename")
        .diagnose_if(another, "another folder than the snapshot's is synced after the rename: a folder's sync keeps only the names in it")
        .or_fail("the folder is not synced after the rename: a power failure can undo the rename after you have reported success")
}

#[derive(Debug, PartialEq)]
enum Content {
    Old(usize),
    New,
    /// The first part of the new snapshot, with its length in bytes.
    Torn(usize),
    Gone,
    Other(usize),
}

impl Content {
    fn words(&self) -> String {
        match self {
            Content::Old(bytes) => format!("the old snapshot of {bytes} bytes"),
            Content::New => "the whole new snapshot".into(),
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

/// Returns true if both are the same file or folder.
fn same(one: &Path, other: &Path) -> bool {
    let full = |path: &Path| fs::canonicalize(path).ok();
    one == other || full(one).is_some_and(|one| Some(one) == full(other))
}

fn words(note: &Note, folder: &Path) -> String {
    let name = |path: &Path| match path.file_name() {
        Some(name) if !path.is_dir() => name.to_string_lossy().into_owned(),
        _ if same(path, folder) => "the folder".to_owned(),
        _ => "another folder".to_owned(),
    };
    match note {
        Note::Created(file) => format!("{} was created", name(file)),
        Note::Wrote(file) => format!("{} was written", name(file)),
        Note::Synced(file) => format!("{} was synced", name(file)),
        Note::Renamed(from, to) => format!("{} was renamed to {}", name(from), name(to)),
        Note::Removed(file) => format!("{} was removed", name(file)),
    }
}
