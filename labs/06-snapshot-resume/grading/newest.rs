//! Task `newest`: folders as failures leave them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use lockstep_grading::{Claim, Fault, Stage, Verdict, explain};

/// How a file is.
#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    Good,
    /// Its end is missing.
    Torn,
    /// It has its length, and zeros where the bytes should be.
    Zeros,
    Empty,
}

/// A folder: epoch, step and state of its snapshots, from the one that was written last; none if it does not exist.
type Scene = Option<Vec<(u64, u64, State)>>;

pub(crate) fn grade(stage: &mut Stage) -> anyhow::Result<()> {
    use State::{Empty, Good, Torn, Zeros};
    let mut random = stage.random();
    let (epoch, step) = (random.below(2..8) as u64, 10 * random.below(2..9) as u64);
    let scenes: Vec<Scene> = vec![
        Some(vec![(epoch, 0, Good), (epoch - 1, step, Good), (epoch - 1, 0, Good)]),
        Some(vec![(epoch, step, Torn), (epoch, 0, Good), (epoch - 1, 0, Good)]),
        Some(vec![(epoch, step, Empty), (epoch, 0, Zeros), (epoch - 1, step, Good), (epoch - 1, 0, Good)]),
        Some(vec![(10, 0, Good), (9, 0, Good), (8, 100, Good)]),
        Some(vec![(epoch, 100, Good), (epoch, 20, Good), (epoch, 0, Good)]),
        // Copied from another disk: the oldest one was written last.
        Some(vec![(epoch - 1, 0, Good), (epoch, 0, Good), (epoch, step, Good)]),
        Some(vec![(epoch, 0, Torn)]),
        Some(vec![]),
        None,
    ];
    let folders: Vec<tempfile::TempDir> = scenes.iter().map(|_| tempfile::tempdir()).collect::<Result<_, _>>()?;
    let inputs: Vec<PathBuf> = folders.iter().map(|folder| folder.path().join("snapshots")).collect();
    for (folder, scene) in inputs.iter().zip(&scenes) {
        lay(folder, scene)?;
    }
    let outputs = stage.call::<_, Option<PathBuf>>(1, &inputs).map_err(|error| explain(error, why))?;
    scenes.iter().enumerate().try_for_each(|(case, scene)| judge(scene, outputs.of(0, case).as_deref()))
}

fn judge(scene: &Scene, observed: Option<&Path>) -> anyhow::Result<()> {
    let all = scene.as_deref().unwrap_or_default();
    let place = |one: &&(u64, u64, State)| (one.0, one.1);
    let right = all.iter().filter(|one| one.2 == State::Good).max_by_key(place).map(name);
    let observed = observed.and_then(Path::file_name).map(|name| name.to_string_lossy().into_owned());
    let is = |one: Option<&(u64, u64, State)>| one.map(name) == observed;
    let bad = all.iter().any(|one| one.2 != State::Good && Some(name(one)) == observed);
    let last_as_text = all.iter().filter(|one| one.2 == State::Good).max_by_key(|one| name(one));
    let last_written = all.iter().find(|one| one.2 == State::Good);
    let further = all.iter().max_by_key(place).is_some_and(|one| one.2 != State::Good);
    Claim::equal(&right, &observed)
        .given(given(scene))
        .knows(
            bad,
            "a torn snapshot was taken: a name says nothing of what is in a file, so `read` it before you trust it",
        )
        .knows(
            further && observed.is_none(),
            "the newest is bad, and training begins anew: go on with the one before it, that is what it was kept for",
        )
        .knows(
            is(last_as_text),
            "the names are compared as text, in which 9 is behind 10: compare the numbers, which `position` reads",
        )
        .knows(
            is(last_written),
            "taken by the time of the last change, which a copy or a touch sets anew: the position is in the name",
        )
        .otherwise("not the good snapshot of the furthest position")
}

fn why(fault: &Fault) -> Option<String> {
    let told = &fault.diagnosis;
    let missing = fault.verdict == Verdict::Crash && told.contains("No such file");
    let torn = fault.verdict == Verdict::Crash && (told.contains("torn") || told.contains("damaged"));
    let what = if missing {
        "on the first start there is no folder yet, which is no error"
    } else if torn {
        "a bad snapshot ends the program, and every new start again: pass over it"
    } else {
        return None;
    };
    Some(format!("{what}. {told}"))
}

fn name(one: &(u64, u64, State)) -> String {
    format!("snapshot-{}-{}", one.0, one.1)
}

fn given(scene: &Scene) -> String {
    let Some(all) = scene else { return "no folder".into() };
    let files: Vec<String> = all.iter().map(|one| format!("{} ({})", name(one), words(one.2))).collect();
    match &files[..] {
        [] => "a folder without a snapshot".into(),
        files => format!("from the one that was written last: {}", files.join(", ")),
    }
}

fn words(state: State) -> &'static str {
    match state {
        State::Good => "good",
        State::Torn => "torn",
        State::Zeros => "zeros after a power cut",
        State::Empty => "empty",
    }
}

/// Makes the folder, with other files in it.
fn lay(folder: &Path, scene: &Scene) -> anyhow::Result<()> {
    let Some(all) = scene else { return Ok(()) };
    fs::create_dir(folder)?;
    for other in [".snapshot-x.partial", "best_model.safetensors", "snapshot-notes"] {
        fs::write(folder.join(other), "")?;
    }
    for (age, one) in all.iter().enumerate() {
        let path = folder.join(name(one));
        fs::write(&path, bytes(one.2))?;
        let time = SystemTime::now() - Duration::from_secs(60 * age as u64);
        File::options().write(true).open(&path)?.set_modified(time)?;
    }
    Ok(())
}

/// As `given/files.rs` reads them.
fn bytes(state: State) -> Vec<u8> {
    let body = [7; 300];
    let mut bytes = format!("{:08x} {}\n", crc32fast::hash(&body), body.len()).into_bytes();
    let head = bytes.len();
    bytes.extend(body);
    match state {
        State::Good => {}
        State::Torn => bytes.truncate(head + body.len() / 2),
        State::Zeros => bytes[head..].fill(0),
        State::Empty => bytes.clear(),
    }
    bytes
}
