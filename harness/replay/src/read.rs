//! Reads a recording in spite of damage: the lines of each rank's processes, and those of launchers.
//!
//! A killed job, a full disk or a copy that broke off leave recordings that lack lines. What lacks is a [`Gap`] of the lane, in which
//! nothing is claimed about the rank, and a sentence of [`Replay::missing`].

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use lockstep_contract::events::AgentRecord;
use lockstep_contract::recording::{Header, Line, Recorded, VERSION, parts};
use lockstep_contract::{counted, foreign};

use crate::model::Replay;

/// At most this many bytes of a file are read.
const MOST_BYTES: u64 = 1 << 30;

/// Recordings of nodes that are further apart, in seconds, are of different runs.
const SAME_RUN: f64 = 60.0;

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// There is no such file or folder.
    #[error("there is no recording {path}: start the run with `lockstep run --record {path}`")]
    Absent { path: String },
    /// The system does not let it be read.
    #[error("cannot read {path}: {source}")]
    Unreadable { path: String, source: io::Error },
    /// It is something else.
    #[error("{path} is not a recording: {why}")]
    NotARecording { path: String, why: String },
}

/// Reads the recording at `path`, and the analysis of it: a file of `lockstep run --record`, with those of other nodes next to it
/// (`FILE.<host>`); the parts of a job that still runs or whose launcher was killed (`FILE.parts`); or a folder that `LOCKSTEP_RECORD` named.
///
/// # Errors
/// [`ReadError`]. What is wrong with single lines is part of the result.
pub fn read(path: &Path) -> Result<Replay, ReadError> {
    let mut all = sources(path)?.iter().map(|source| Collected::of(source)).collect::<Result<Vec<_>, _>>()?;
    all.sort_by(|one, other| other.span().1.total_cmp(&one.span().1));
    let mut all = all.into_iter();
    let mut collected = all.next().unwrap_or_default();
    let mut began = collected.span().0;
    for other in all {
        // Of an earlier run of the same name, on other nodes. Clocks may differ a little.
        let (first, last) = other.span();
        if last + SAME_RUN < began {
            let name = &other.name;
            collected
                .missing
                .push(format!("{name} is of an earlier run and is left out: it ended before this one began"));
        } else {
            began = began.min(first);
            collected.merge(other);
        }
    }
    if collected.ranks.is_empty() && collected.agents.is_empty() {
        let why = "it has no line of a rank or a launcher".to_owned();
        return Err(ReadError::NotARecording { path: foreign::path(path), why });
    }
    let mut replay = collected.replay();
    crate::analyse(&mut replay);
    Ok(replay)
}

/// The files and folders of a recording.
fn sources(path: &Path) -> Result<Vec<PathBuf>, ReadError> {
    let unreadable = |source| ReadError::Unreadable { path: foreign::path(path), source };
    if path.exists() {
        return Ok(vec![path.to_owned()]);
    }
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let parts = path.with_file_name(format!("{name}.parts"));
    if parts.is_dir() {
        return Ok(vec![parts]);
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let mut found = Vec::new();
    match fs::read_dir(folder) {
        Ok(entries) => {
            for entry in entries {
                let entry = entry.map_err(unreadable)?.path();
                let other = entry.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let is_of_a_node = other.strip_prefix(&name).and_then(|rest| rest.strip_prefix('.')).is_some();
                if is_of_a_node && is_recording(&entry) {
                    found.push(entry);
                }
            }
        }
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
        Err(error) => return Err(unreadable(error)),
    }
    found.sort();
    match found.is_empty() {
        true => Err(ReadError::Absent { path: foreign::path(path) }),
        false => Ok(found),
    }
}

fn is_recording(path: &Path) -> bool {
    if path.is_dir() {
        return path.extension().is_some_and(|ending| ending == "parts");
    }
    let mut first = [0; 13];
    path.is_file()
        && File::open(path).and_then(|mut file| file.read_exact(&mut first)).is_ok()
        && first == *b"{\"recording\":"
}

/// What lines say, or that some are not there.
pub(crate) enum Item {
    Line(f64, Recorded),
    Gap,
}

/// The parts of a recording, before they are put in order.
#[derive(Default)]
pub(crate) struct Collected {
    /// The file or folder.
    name: String,
    /// The lines of each rank that have not been divided among its processes.
    items: BTreeMap<usize, Vec<Item>>,
    pub(crate) ranks: BTreeMap<usize, Vec<Own>>,
    pub(crate) agents: Vec<AgentRecord>,
    /// How many lines before the first of each rank were dropped.
    pub(crate) dropped: BTreeMap<usize, u64>,
    pub(crate) flight_recorder: Option<String>,
    pub(crate) missing: Vec<String>,
}

impl Collected {
    fn of(source: &Path) -> Result<Self, ReadError> {
        let mut collected = Collected { name: foreign::path(source), ..Collected::default() };
        if source.is_dir() { collected.take_folder(source) } else { collected.take_file(source) }?;
        let items = std::mem::take(&mut collected.items);
        collected.ranks = items.into_iter().map(|(rank, items)| (rank, processes(items))).collect();
        Ok(collected)
    }

    /// The times of all that is recorded.
    fn times(&self) -> impl Iterator<Item = f64> {
        let lines = self.ranks.values().flatten().flat_map(Own::times);
        lines.chain(self.agents.iter().map(|record| record.t))
    }

    /// The first and the last time.
    pub(crate) fn span(&self) -> (f64, f64) {
        self.times().fold((f64::INFINITY, 0.0), |(first, last), t| (first.min(t), last.max(t)))
    }

    /// Adds the parts of another node.
    fn merge(&mut self, other: Collected) {
        for (rank, own) in other.ranks {
            let all = self.ranks.entry(rank).or_default();
            all.extend(own);
            all.sort_by(|one, other| one.opened.unwrap_or(0.0).total_cmp(&other.opened.unwrap_or(0.0)));
        }
        self.agents.extend(other.agents);
        for (rank, lines) in other.dropped {
            *self.dropped.entry(rank).or_default() += lines;
        }
        self.flight_recorder = self.flight_recorder.take().or(other.flight_recorder);
        self.missing.extend(other.missing);
    }

    fn take_file(&mut self, path: &Path) -> Result<(), ReadError> {
        let shown = foreign::path(path);
        let unreadable = |source| ReadError::Unreadable { path: shown.clone(), source };
        // A pipe would have to be waited for.
        if !path.is_file() {
            let why = "it is neither a file nor a folder".to_owned();
            return Err(ReadError::NotARecording { path: shown, why });
        }
        let mut bytes = Vec::new();
        File::open(path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes)).map_err(unreadable)?;
        let (first, mut rest) = match bytes.iter().position(|byte| *byte == b'\n') {
            Some(end) => (&bytes[..end], &bytes[end + 1..]),
            None => (&bytes[..], &[][..]),
        };
        let header: Header = serde_json::from_slice(first).map_err(|error| {
            let why =
                format!("its first line does not list the parts of one ({})", foreign::one_line(&error.to_string()));
            ReadError::NotARecording { path: shown.clone(), why }
        })?;
        if header.recording > VERSION {
            let why = format!("version {} is newer than this program, which reads version {VERSION}", header.recording);
            return Err(ReadError::NotARecording { path: shown, why });
        }
        self.flight_recorder = self.flight_recorder.take().or(header.flight_recorder);
        for part in &header.parts {
            let whole = usize::try_from(part.bytes).unwrap_or(usize::MAX);
            let is_cut = rest.len() < whole;
            let (own, others) = rest.split_at(whole.min(rest.len()));
            rest = others;
            if is_cut {
                self.missing.push(format!(
                    "{shown} is cut: {} has {} of {} bytes",
                    foreign::one_line(&part.name),
                    own.len(),
                    part.bytes
                ));
            }
            self.take_part(&part.name, own, is_cut);
        }
        if !rest.is_empty() {
            self.missing.push(format!("{shown} has {} bytes after its last part, which are not read", rest.len()));
        }
        Ok(())
    }

    fn take_folder(&mut self, folder: &Path) -> Result<(), ReadError> {
        let unreadable = |path: &Path, source| ReadError::Unreadable { path: foreign::path(path), source };
        for path in parts(folder).map_err(|error| unreadable(folder, error))? {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let mut bytes = Vec::new();
            let read = File::open(&path).and_then(|file| file.take(MOST_BYTES).read_to_end(&mut bytes));
            read.map_err(|error| unreadable(&path, error))?;
            self.take_part(&name, &bytes, bytes.len() as u64 == MOST_BYTES);
        }
        Ok(())
    }

    /// `is_cut`: its end is not there.
    fn take_part(&mut self, name: &str, bytes: &[u8], is_cut: bool) {
        let stem = name.strip_suffix(".jsonl").unwrap_or(name);
        if stem.starts_with("agent-") {
            return self.take_agent(name, bytes);
        }
        let Some((rank, age)) = stem.strip_prefix("rank-").map(|rest| rest.split_once('.').unwrap_or((rest, "")))
        else {
            return;
        };
        let Ok(rank) = rank.parse::<usize>() else { return };
        let items = self.items.entry(rank).or_default();
        let (mut damaged, mut first) = (0, None);
        for (number, line) in (1..).zip(bytes.split_inclusive(|byte| *byte == b'\n')) {
            match parse(line, rank) {
                Parsed::Line(Line { what: Recorded::Dropped { lines }, .. }) => {
                    let dropped = self.dropped.entry(rank).or_default();
                    *dropped = (*dropped).max(lines);
                }
                Parsed::Line(line) => items.push(Item::Line(line.t, line.what)),
                Parsed::Newer => {}
                Parsed::Damaged => {
                    damaged += 1;
                    first.get_or_insert(number);
                    items.push(Item::Gap);
                }
            }
        }
        if is_cut || age == "cut" {
            items.push(Item::Gap);
        }
        let name = foreign::one_line(name);
        if let Some(first) = first {
            let more = if damaged > 1 { format!(", and {} more", damaged - 1) } else { String::new() };
            self.missing.push(format!("line {first} of {name} is torn or damaged{more}"));
        }
        if age == "cut" {
            self.missing.push(format!("rank {rank} could not write its recording any more: {name} ends there"));
        }
    }

    fn take_agent(&mut self, name: &str, bytes: &[u8]) {
        let mut damaged = 0;
        for line in bytes.split_inclusive(|byte| *byte == b'\n') {
            match serde_json::from_slice::<AgentRecord>(line) {
                Ok(record) if is_time(record.t) => self.agents.push(record),
                // A newer launcher may write other events.
                _ if serde_json::from_slice::<serde_json::Value>(line)
                    .is_ok_and(|value| value["event"].is_string()) => {}
                _ => damaged += 1,
            }
        }
        if damaged > 0 {
            let what = counted(damaged, "line");
            self.missing.push(format!("{what} of {} cannot be read: torn or damaged", foreign::one_line(name)));
        }
    }
}

enum Parsed {
    Line(Line),
    /// An event of a newer version.
    Newer,
    Damaged,
}

fn parse(line: &[u8], rank: usize) -> Parsed {
    /// The kinds of this version that are no events of the runtime.
    const KINDS: [&str; 8] = ["opened", "join", "joined", "members", "enter", "wait", "leave", "dropped"];
    if let Ok(line) = serde_json::from_slice::<Line>(line) {
        return if line.rank == rank && is_time(line.t) { Parsed::Line(line) } else { Parsed::Damaged };
    }
    let value = serde_json::from_slice::<serde_json::Value>(line).unwrap_or_default();
    match value["event"].as_str() {
        Some(kind) if !KINDS.contains(&kind) && value["rank"] == rank => Parsed::Newer,
        _ => Parsed::Damaged,
    }
}

/// Returns true for a time of this and the next thousand years.
fn is_time(t: f64) -> bool {
    (0.0..1e11).contains(&t)
}

/// A rank's process as its lines have it.
#[derive(Default)]
pub(crate) struct Own {
    pub(crate) pid: Option<u32>,
    pub(crate) restart: u32,
    pub(crate) host: Option<String>,
    pub(crate) opened: Option<f64>,
    pub(crate) items: Vec<Item>,
}

impl Own {
    fn times(&self) -> impl Iterator<Item = f64> {
        let lines = self.items.iter().filter_map(|item| match item {
            // They are repeated with the time of the first.
            Item::Line(_, Recorded::Members { .. }) | Item::Gap => None,
            Item::Line(t, _) => Some(*t),
        });
        lines.chain(self.opened)
    }
}

/// Divides the lines of a rank into those of its processes.
fn processes(items: Vec<Item>) -> Vec<Own> {
    let mut all: Vec<Own> = Vec::new();
    for item in items {
        if let Item::Line(t, Recorded::Opened { pid, restart, host }) = &item {
            // A process repeats this line where earlier ones were dropped.
            let is_known = all.last().is_some_and(|last| last.pid == Some(*pid) && last.opened == Some(*t));
            if !is_known {
                let (pid, opened) = (Some(*pid), Some(*t));
                all.push(Own { pid, restart: *restart, host: Some(host.clone()), opened, items: Vec::new() });
            }
            continue;
        }
        if all.is_empty() {
            all.push(Own::default());
        }
        if let Some(last) = all.last_mut() {
            last.items.push(item);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use lockstep_contract::events::Event;
    use lockstep_contract::recording::Kind;

    use super::*;
    use crate::model::{Awaited, MarkKind, Span, SpanKind, Wait};
    use crate::testing::{Recording, ms};

    /// Two steps after which rank 2 is killed; then the start again, messages round the ranks, and a hang in two groups.
    fn job() -> Recording {
        let mut run = Recording::new(3);
        for rank in 0..3 {
            run.event(rank, 2, Event::Epoch { epoch: 0, steps: 4, batch_size: 8 });
            for step in 0..2 {
                let t = 10 + 10 * step + rank as u64;
                run.collective(rank, t, "all_reduce", "0", 1 + step).leave(rank, 14 + 10 * step, None);
                run.event(rank, 15 + 10 * step, Event::Step { epoch: 0, step, loss: 0.5, samples: 8, lr: None });
            }
        }
        run.event(0, 28, Event::Snapshot { epoch: 0, step: 2, path: "s".into(), bytes: 9, seconds: 0.002 });
        run.event(2, 29, Event::Fault { message: "injected: SIGKILL".into() });
        run.collective(0, 30, "all_reduce", "0", 3).leave(0, 40, Some("PeerGone"));
        run.collective(1, 31, "all_reduce", "0", 3).leave(1, 40, Some("PeerGone"));
        run.ends(2, 35, -9).ends(0, 45, 1).ends(1, 46, -15).restart(50, "rank 2 was killed");
        for rank in 0..3 {
            run.event(rank, 60, Event::Resume { epoch: 0, step: 2, path: "s".into() });
            for group in ["1", "2"] {
                run.join(rank, 61, group, &[0, 1, 2]);
            }
            let (next, last) = ((rank + 1) % 3, (rank + 2) % 3);
            run.message(rank, 70 + rank as u64, Kind::Send, next, Some(1)).wait(rank, 73).leave(rank, 80, None);
            run.message(rank, 81, Kind::Receive, last, Some(1)).wait(rank, 81).leave(rank, 82, None);
            run.collective(rank, 90 + rank as u64, "barrier", if rank == 1 { "2" } else { "1" }, 1);
        }
        run.ends(0, 4000, -15).ends(1, 4000, -15).ends(2, 4000, -15);
        run
    }

    fn times(spans: &[Span], kind: SpanKind, attempt: u32) -> Vec<(u64, Option<u64>)> {
        let of_kind = spans.iter().filter(|span| span.kind == kind && span.attempt == attempt);
        of_kind.map(|span| (ms(span.from), span.to.map(ms))).collect()
    }

    #[test]
    fn makes_lanes_of_lines() {
        let replay = job().read();
        let lane = &replay.lanes[0];
        assert_eq!((lane.node.as_deref(), lane.recorded), (Some("node1"), true));
        // The third step has not ended.
        assert_eq!(times(&lane.spans, SpanKind::Step, 0), [(2, Some(15)), (15, Some(25)), (25, None)]);
        assert_eq!(times(&lane.spans, SpanKind::Snapshot, 0), [(26, Some(28))]);
        assert_eq!(times(&lane.spans, SpanKind::Collective, 0), [(10, Some(14)), (20, Some(24)), (30, Some(40))]);
        assert_eq!(times(&lane.spans, SpanKind::Collective, 1), [(90, None)]);
        let ends: Vec<_> = lane.processes.iter().map(|own| (own.attempt, own.ended.clone().unwrap())).collect();
        assert_eq!(ends, [(0, "exit code 1".to_owned()), (1, "killed by SIGTERM".to_owned())]);
        let ended: Vec<_> = replay.attempts.iter().map(|attempt| attempt.ended.as_deref().unwrap()).collect();
        assert_eq!(ended, ["rank 2 was killed by SIGKILL", "the launcher stopped the ranks"]);
        let marks: Vec<MarkKind> = replay.lanes[2].marks.iter().map(|mark| mark.kind).collect();
        use MarkKind::{Death, Fault, Restart, Resume, Start};
        assert_eq!(marks, [Start, Fault, Death, Start, Resume, Death]);
        assert_eq!(replay.marks.iter().map(|mark| mark.kind).collect::<Vec<_>>(), [Restart]);
        assert_eq!(
            replay.standstills.iter().map(|still| still.ranks.clone()).collect::<Vec<_>>(),
            [vec![2], vec![0, 1, 2]]
        );
        assert!(replay.missing.is_empty(), "{:?}", replay.missing);
        let call = lane.spans.iter().find_map(|span| span.call.as_ref().filter(|call| call.bytes.is_some())).unwrap();
        assert_eq!((call.number, call.bytes, call.before.len()), (Some(1), Some(8), 1));
    }

    #[test]
    fn a_file_says_the_same_as_its_parts() {
        let dir = tempfile::tempdir().unwrap();
        let (run, file) = (job(), dir.path().join("run"));
        fs::write(&file, run.file()).unwrap();
        assert_eq!(read(&file).unwrap(), run.read());
    }

    #[test]
    fn reads_the_files_of_all_nodes_and_leaves_out_those_of_an_earlier_run() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        let mut early = Recording::new(1);
        fs::write(dir.path().join("run.old"), early.ends(0, 1, 0).file()).unwrap();
        let run = |node: &str, ranks: &[usize]| {
            let folder = dir.path().join(format!("run.{node}.parts"));
            fs::create_dir(&folder).unwrap();
            for rank in ranks {
                let t = 1_764_000_900.0 + *rank as f64;
                let opened = Recorded::Opened { pid: 7, restart: 0, host: node.into() };
                let line = serde_json::to_string(&Line { t, rank: *rank, what: opened }).unwrap();
                fs::write(folder.join(format!("rank-{rank}.jsonl")), line + "\n").unwrap();
            }
        };
        run("a", &[0, 1]);
        run("b", &[2]);
        let replay = read(&path).unwrap();
        let nodes: Vec<_> = replay.lanes.iter().map(|lane| (lane.rank, lane.node.as_deref().unwrap())).collect();
        assert_eq!(nodes, [(0, "a"), (1, "a"), (2, "b")]);
        assert!(
            replay.missing.iter().any(|text| text.contains("run.old is of an earlier run")),
            "{:?}",
            replay.missing
        );
        assert!(
            replay.missing.iter().any(|text| text.starts_with("times are by the clocks of a, b")),
            "{:?}",
            replay.missing
        );
    }

    #[test]
    fn says_what_is_not_a_recording() {
        let dir = tempfile::tempdir().unwrap();
        let said = |path: &Path| read(path).unwrap_err().to_string();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        assert!(said(&dir.path().join("none")).contains("start the run with `lockstep run --record"));
        assert!(said(&file("text", "hello\n")).contains("its first line does not list the parts of one"));
        assert!(
            said(&file("newer", "{\"recording\":99,\"program\":\"\",\"parts\":[]}\n")).contains("version 99 is newer")
        );
        assert!(
            said(&file("empty", "{\"recording\":1,\"program\":\"\",\"parts\":[]}\n")).contains("no line of a rank")
        );
        assert!(said(Path::new("/dev/null")).contains("neither a file nor a folder"));
        assert!(said(dir.path()).contains("no line of a rank"));
    }

    #[test]
    fn names_what_is_not_recorded() {
        let mut run = job();
        run.raw(0, "{\"t\":1,\"rank\":0,\"event\":\"teleport\"}\n"); // of a newer version
        run.raw(1, "\0\0\n{\"t\":1,\"rank\":7,\"event\":\"wait\",\"call\":1}\n");
        run.forget(2);
        let replay = run.read();
        assert!(!replay.lanes[2].recorded && replay.lanes[2].processes.len() == 2);
        let lines = run.read().missing;
        assert!(lines.iter().any(|line| line.contains("of rank-1.jsonl is torn or damaged, and 1 more")), "{lines:?}");
        assert!(lines.iter().any(|line| line.starts_with("of rank 2 only the launcher's part")), "{lines:?}");
        assert_eq!(lines.len(), 2, "{lines:?}");
    }

    /// What a wait claims, apart from the ids of spans.
    fn claims(replay: &Replay) -> Vec<(usize, u32, u64, Awaited)> {
        let of = |wait: &Wait| {
            let (rank, attempt, from) = (wait.rank, wait.attempt, wait.from);
            wait.on.iter().map(move |on| (rank, attempt, from, *on)).collect::<Vec<_>>()
        };
        replay.waits.iter().flat_map(of).collect()
    }

    /// A recording that is cut says so, and claims nothing that the whole one does not.
    fn check_cut(whole: &[u8], at: usize) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run");
        fs::write(&path, &whole[..at]).unwrap();
        let Ok(cut) = read(&path) else {
            let first = whole.iter().position(|byte| *byte == b'\n').unwrap();
            // Nothing but the first line, perhaps with a part of the next.
            return assert!(!whole[first + 1..at.max(first + 1)].contains(&b'\n'), "cut at {at}");
        };
        fs::write(&path, whole).unwrap();
        let full = read(&path).unwrap();
        assert!(cut.missing.iter().any(|line| line.contains("is cut")), "{:?}", cut.missing);
        let known = claims(&full);
        for claim in claims(&cut) {
            assert!(known.contains(&claim), "{claim:?} of a file cut at {at}");
        }
        for still in &cut.standstills {
            let all = full.standstills.iter().find(|all| all.attempt == still.attempt);
            assert!(all.is_some_and(|all| still.ranks.iter().all(|rank| all.ranks.contains(rank))), "{still:?}");
        }
        for mismatch in &cut.mismatches {
            assert!(full.mismatches.iter().any(|other| other.text == mismatch.text));
        }
    }

    #[test]
    fn a_recording_that_is_cut_after_a_line_claims_nothing_that_the_whole_one_does_not() {
        let whole = job().file();
        let ends = whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
        ends.filter(|end| *end < whole.len()).for_each(|end| check_cut(&whole, end));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
        #[test]
        fn a_recording_that_is_cut_anywhere_claims_nothing_that_the_whole_one_does_not(part in 0.0..1.0_f64) {
            let whole = job().file();
            check_cut(&whole, (part * whole.len() as f64) as usize);
        }
    }
}
