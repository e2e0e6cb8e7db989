//! Grades `newest`: folders with good and damaged snapshots, as failures leave them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lockstep_grading::{Claim, Finding, Runner, Verdict, causes, explain};
use serde::Serialize;

/// The state of a snapshot file.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Good,
    /// Its end is missing.
    Torn,
    /// It has the right length but contains zeros.
    Zeros,
    Empty,
    /// A folder has its name, so it cannot be read.
    Folder,
}

/// In which state the answer finds the folder.
#[derive(Clone, Copy, Serialize)]
enum Access {
    /// It can be read, if it is there.
    Readable,
    /// The process can open no file or folder: too many are open.
    NoMoreFiles,
    /// A file has its name.
    NotAFolder,
}

/// The snapshots in a folder, the last written one first: epoch, step and state. `None` if the folder does not exist.
type Snapshots = Option<Vec<(u64, u64, State)>>;

/// The answer's result: a snapshot, or the error where the folder cannot be read.
type Found = Result<Option<PathBuf>, String>;

/// Folders whose errors must be returned.
const UNREADABLE: [(Access, &str); 2] = [
    (Access::NoMoreFiles, "a folder with good snapshots that cannot be read: too many files are open"),
    (Access::NotAFolder, "a file where the folder should be"),
];

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    use State::{Empty, Folder, Good, Torn, Zeros};
    let mut random = runner.random();
    let (epoch, step) = (random.below(2..8) as u64, 10 * random.below(2..9) as u64);
    // Each epoch ends earlier than the one before. The order of a folder's files is the file system's: several folders, in both orders.
    let falling = |more: u64| -> Vec<(u64, u64, State)> { (0..16).map(|at| (16 - at, more + 10 * at, Good)).collect() };
    let rising = |more: u64| falling(more).into_iter().rev().collect();
    let crossed = [falling(0), rising(0), falling(1), rising(1), falling(2), rising(2)].map(Some);
    let mut folders_to_try: Vec<Snapshots> = vec![
        Some(vec![(epoch, 0, Good), (epoch - 1, step, Good), (epoch - 1, 0, Good)]),
        Some(vec![(epoch, step, Torn), (epoch, 0, Good), (epoch - 1, 0, Good)]),
        Some(vec![(epoch, step, Empty), (epoch, 0, Zeros), (epoch - 1, step, Good), (epoch - 1, 0, Good)]),
        Some(vec![(10, 0, Good), (9, 0, Good), (8, 100, Good)]),
        Some(vec![(epoch, 100, Good), (epoch, 20, Good), (epoch, 0, Good)]),
        // Copied from another disk: the oldest snapshot was written last.
        Some(vec![(epoch - 1, 0, Good), (epoch, 0, Good), (epoch, step, Good)]),
        Some(vec![(epoch, step, Folder), (epoch, 0, Good), (epoch - 1, 0, Good)]),
        Some(vec![(epoch, 0, Torn)]),
        Some(vec![]),
        None,
    ];
    folders_to_try.extend(crossed);
    let folders: Vec<tempfile::TempDir> =
        folders_to_try.iter().map(|_| tempfile::tempdir()).collect::<Result<_, _>>()?;
    let paths: Vec<PathBuf> = folders.iter().map(|folder| folder.path().join("snapshots")).collect();
    for (folder, snapshots) in paths.iter().zip(&folders_to_try) {
        create(folder, snapshots)?;
    }
    // The first folder once more, which cannot be read then; and a file.
    let file = folders[0].path().join("file");
    fs::write(&file, bytes(Good))?;
    let readable = paths.iter().map(|path| (path, Access::Readable));
    let inputs: Vec<(&PathBuf, Access)> =
        readable.chain([(&paths[0], UNREADABLE[0].0), (&file, UNREADABLE[1].0)]).collect();
    let shown = |case: usize| match folders_to_try.get(case) {
        Some(snapshots) => given(snapshots),
        None => UNREADABLE[case - folders_to_try.len()].1.to_owned(),
    };
    let outputs =
        runner.call::<_, Found>(1, &inputs).map_err(|error| lockstep_grading::given(explain(error, why), shown))?;
    let all_are = |rule: Rule| {
        folders_to_try.iter().enumerate().all(|(case, snapshots)| {
            let all = snapshots.as_deref().unwrap_or_default();
            let good: Vec<_> = all.iter().filter(|one| one.2 == State::Good).collect();
            outputs.of(0, case).as_ref().is_ok_and(|found| found.as_deref().map(name_of) == rule(&good).map(name))
        })
    };
    let causes = causes(&RULES, |rule| all_are(*rule));
    for (case, snapshots) in folders_to_try.iter().enumerate() {
        let found = outputs.of(0, case).as_ref().map_err(|error| anyhow::anyhow!("an error as a result: {error}"))?;
        check(snapshots, found.as_deref(), &causes)?;
    }
    for (number, (_, given)) in UNREADABLE.iter().enumerate() {
        check_unreadable(outputs.of(0, folders_to_try.len() + number), given)?;
    }
    Ok(())
}

/// Chooses one of the good snapshots, the last written first.
type Rule = for<'a> fn(&[&'a (u64, u64, State)]) -> Option<&'a (u64, u64, State)>;

/// Wrong rules, with their diagnoses.
const RULES: [(Rule, &str); 5] = [
    (
        |good| good.iter().copied().min_by_key(|one| (one.0, one.1)),
        "the oldest good snapshot is chosen: the work since then is lost. Try them from the last position backwards",
    ),
    (
        |good| good.iter().copied().max_by_key(|one| name(one)),
        "the names are compared as text, which sorts 9 after 10: compare the numbers, which `position` reads",
    ),
    (
        |good| good.first().copied(),
        "chosen by the time of the last change, which a copy or a touch changes: use the position in the name",
    ),
    (
        |good| good.iter().copied().max_by_key(|one| (one.1, one.0)),
        "the snapshot with the greatest step is chosen: compare the pair that `position` returns, the epoch first",
    ),
    (
        |good| good.iter().copied().max_by_key(|one| one.0 + one.1),
        "the snapshot with the greatest sum of epoch and step is chosen: compare the pair that `position` returns, the epoch first",
    ),
];

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Checks that an unreadable folder is not taken for one without a snapshot.
fn check_unreadable(found: &Found, given: &str) -> anyhow::Result<()> {
    Claim::that(found.is_err(), "an error", format!("{found:?}")).given(given).or_fail(
        "the folder is there but cannot be read, and training starts from the beginning without a message: only `ErrorKind::NotFound` is the \
         first start. Return every other error",
    )
}

fn check(snapshots: &Snapshots, observed: Option<&Path>, causes: &[&str]) -> anyhow::Result<()> {
    let all = snapshots.as_deref().unwrap_or_default();
    let place = |one: &&(u64, u64, State)| (one.0, one.1);
    let right = all.iter().filter(|one| one.2 == State::Good).max_by_key(place).map(name);
    let observed = observed.map(name_of);
    let of = |name_of: &Option<String>| all.iter().find(|one| Some(name(one)) == *name_of);
    let step_first = of(&right).zip(of(&observed)).is_some_and(|(right, one)| one.0 < right.0 && one.1 > right.1);
    let same_epoch = of(&right).zip(of(&observed)).is_some_and(|(right, one)| one.0 == right.0 && one.1 < right.1);
    let bad = all.iter().any(|one| one.2 != State::Good && Some(name(one)) == observed);
    let further = all.iter().max_by_key(place).is_some_and(|one| one.2 != State::Good);
    Claim::equal(&right, &observed).given(given(snapshots))
        .causes(causes)
        .diagnose_if(
            bad,
            "a torn snapshot was chosen: a name says nothing about the content of a file, so `read` it before you trust it",
        )
        .diagnose_if(
            observed.is_some() && of(&observed).is_none(),
            "this file can be read, but is not a snapshot: its name has no position. A writer that was killed before its rename leaves such \
             a file, and so do other programs",
        )
        .diagnose_if(
            further && observed.is_none(),
            "the newest snapshot is damaged, and training starts from the beginning: continue from the one before it, which was \
             kept for this case",
        )
        .diagnose_if(
            step_first,
            "the snapshot with the greater step was chosen, of an earlier epoch: compare the pair that `position` returns, the epoch first",
        )
        .diagnose_if(
            same_epoch,
            "of the right epoch, an earlier step was chosen: compare the pair that `position` returns, the step where epochs are equal",
        )
        .or_fail("choose the good snapshot with the furthest position")
}

fn why(finding: &Finding) -> Option<String> {
    let text = &finding.diagnosis;
    let missing = finding.verdict == Verdict::Crash && text.contains("No such file");
    let torn = finding.verdict == Verdict::Crash && (text.contains("torn") || text.contains("damaged"));
    let unreadable = finding.verdict == Verdict::Crash && text.contains("os error 24");
    let not_a_file = finding.verdict == Verdict::Crash && text.contains("os error 21");
    let what = if unreadable {
        "return the error of a folder that cannot be read, so that the program can report it"
    } else if not_a_file {
        "a snapshot that cannot be read (here a folder has its name) ends the program, and ends it again at every restart: it is no good one, \
         so skip it"
    } else if missing {
        "on the first start there is no folder yet, which is not an error"
    } else if torn {
        "a damaged snapshot ends the program, and ends it again at every restart: skip it"
    } else {
        return None;
    };
    Some(format!("{what} ({text})"))
}

fn name(one: &(u64, u64, State)) -> String {
    format!("snapshot-{}-{}", one.0, one.1)
}

fn given(snapshots: &Snapshots) -> String {
    let Some(all) = snapshots else { return "no folder".into() };
    let files: Vec<String> = all.iter().map(|one| format!("{} ({})", name(one), words(one.2))).collect();
    match &files[..] {
        [] => "a folder without a snapshot".into(),
        files => format!("the last written one first: {}", files.join(", ")),
    }
}

fn words(state: State) -> &'static str {
    match state {
        State::Good => "good",
        State::Torn => "torn",
        State::Zeros => "zeros after a power cut",
        State::Empty => "empty",
        State::Folder => "a folder, which cannot be read",
    }
}

/// Creates the folder with the snapshots and some other files.
fn create(folder: &Path, snapshots: &Snapshots) -> anyhow::Result<()> {
    let Some(all) = snapshots else { return Ok(()) };
    fs::create_dir(folder)?;
    for other in [".snapshot-x.partial", "best_model.safetensors", "snapshot-notes"] {
        // A file that is not a snapshot may be readable: a writer was killed just before the rename.
        fs::write(folder.join(other), bytes(State::Good))?;
    }
    for (age, one) in all.iter().enumerate() {
        let path = folder.join(name(one));
        if one.2 == State::Folder {
            fs::create_dir(&path)?;
        } else {
            fs::write(&path, bytes(one.2))?;
        }
        let time = SystemTime::now() - Duration::from_secs(60 * age as u64);
        File::open(&path)?.set_modified(time)?;
    }
    Ok(())
}

/// The bytes of a snapshot, in the format of `given/snapshots.rs`.
fn bytes(state: State) -> Vec<u8> {
    let body = [7; 300];
    let mut bytes = format!("{:08x} {}\n", crc32fast::hash(&body), body.len()).into_bytes();
    let head = bytes.len();
    bytes.extend(body);
    match state {
        State::Good => {}
        State::Torn => bytes.truncate(head + body.len() / 2),
        State::Zeros => bytes[head..].fill(0),
        State::Empty | State::Folder => bytes.clear(),
    }
    bytes
}
