//! Event files: what each rank did, as JSON lines, one file per rank. The harness and plots read them; people need not.
//!
//! A line is `{"t": …, "rank": …, "restart": …, "event": "step", …}`. Each line is appended with a single write, so a
//! killed process leaves at most one torn line, and a restarted one continues after it. A failure to write events never
//! stops training.
//!
//! This is a separate crate, without libtorch: the runtime writes these files and the harness reads them. Ranks are
//! plain numbers here. The launcher's agents write files of their own next to these: [`AgentEvent`].

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

mod agent;

pub use agent::{AgentEvent, AgentLog, AgentRecord, AgentSink, VerdictRecord, read_agents};

/// The variable that names the folder for event files.
pub const FOLDER: &str = "LOCKSTEP_EVENTS";

/// Something that a rank did. Counts start at 0, times are in seconds, sizes in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
#[allow(missing_docs)] // the names of the fields explain them; for units see above
pub enum Event {
    /// The process has joined its group. `device` has PyTorch's form: `cpu`, `cuda:0`.
    Start { world_size: usize, device: String, pid: u32 },
    /// The process has joined a group of `world_size` ranks over `backend` (`gloo`, `shm`, `nccl`). If the ranks were to
    /// choose and could not share memory, `reason` says why.
    Group {
        world_size: usize,
        backend: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// An epoch begins on this rank, with this number of steps and this batch size.
    Epoch { epoch: u64, steps: u64, batch_size: usize },
    /// An optimizer step is complete; `loss` is this rank's mean over `samples` samples.
    Step {
        epoch: u64,
        step: u64,
        #[serde(with = "number")]
        loss: f64,
        samples: u64,
    },
    /// The model was evaluated on `samples` samples of all ranks; `accuracy` is between 0 and 1.
    Eval {
        epoch: u64,
        #[serde(with = "number")]
        accuracy: f64,
        #[serde(with = "number")]
        loss: f64,
        samples: u64,
    },
    /// The samples that this rank processed in an epoch, in order. They show whether each sample was used once.
    Samples { epoch: u64, indices: Vec<u64> },
    /// A snapshot is safely on disk; training would resume from it at `step`.
    Snapshot { epoch: u64, step: u64, path: String, bytes: u64, seconds: f64 },
    /// Training resumes from a snapshot, at `step`.
    Resume { epoch: u64, step: u64, path: String },
    /// A collective with `bytes` bytes per rank took `seconds`. `op` is PyTorch's name: `all_reduce`.
    Collective { op: String, bytes: u64, seconds: f64 },
    /// Something went wrong.
    Fault { message: String },
    /// The others wait for these ranks in their collectives, for this part of their time, because of `cause`: `loader`, `computing`,
    /// `processor`, `other`. Without ranks: all wait for their loaders. Written by rank 0.
    Late { ranks: Vec<usize>, cause: String, share: f64, message: String },
    /// The process is about to exit.
    Exit { code: i32 },
    /// An event of a newer version, whose kind this version does not know. Only read, never written.
    #[serde(skip)]
    Other { kind: String, fields: Map<String, Value> },
}

/// An event with its time and its writer.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Seconds since the Unix epoch, by the writing host's clock.
    pub t: f64,
    /// The rank that wrote it.
    pub rank: usize,
    /// The number of restarts before it.
    pub restart: u32,
    /// The event.
    pub event: Event,
}

/// The file to which a rank writes its events. Threads share it by reference.
#[derive(Debug, Default)]
pub struct EventSink {
    open: Option<Open>,
}

#[derive(Debug)]
struct Open {
    rank: usize,
    restart: u32,
    file: Appender,
}

/// A file to which whole lines are appended.
#[derive(Debug)]
struct Appender {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: File,
    /// The last write may have left part of a line.
    torn: bool,
    lost: u64,
}

/// The contents of a rank's file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventLog {
    /// In the order of writing.
    pub records: Vec<Record>,
    /// Numbers (from 1) of lines that a killed writer or a full disk left incomplete.
    pub torn: Vec<usize>,
}

/// Why event files cannot be opened or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventsError {
    /// The folder or the file cannot be created or opened for writing.
    #[error("cannot open {} for events", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The file or the folder cannot be read.
    #[error("cannot read events from {}", path.display())]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// A complete line is not an event: the file was damaged, or another program wrote it.
    #[error("line {line} of {} is not an event: {reason}", path.display())]
    BadLine {
        /// The file.
        path: PathBuf,
        /// The line's number, from 1.
        line: usize,
        /// The parser's error.
        reason: String,
    },
}

impl EventSink {
    /// A sink that discards all events.
    pub fn off() -> Self {
        Self::default()
    }

    /// Opens the sink that `LOCKSTEP_EVENTS` asks for. If that fails, prints a warning and discards events.
    pub fn from_env(rank: usize, restart: u32) -> Self {
        let Some(folder) = std::env::var_os(FOLDER).filter(|folder| !folder.is_empty()) else { return Self::off() };
        Self::open(Path::new(&folder), rank, restart).unwrap_or_else(|error| {
            let cause = error.source().map_or(String::new(), |cause| format!(": {cause}"));
            eprintln!("warning: {error}{cause}; rank {rank} trains without an event file");
            Self::off()
        })
    }

    /// Appends to `folder/rank-<rank>.jsonl` and creates both if needed.
    ///
    /// # Errors
    /// [`EventsError::Open`].
    pub fn open(folder: &Path, rank: usize, restart: u32) -> Result<Self, EventsError> {
        let file = Appender::open(folder, file_of(folder, rank))?;
        Ok(EventSink { open: Some(Open { rank, restart, file }) })
    }

    /// Writes `event` with the current time. Only the first failure is reported, on stderr.
    pub fn emit(&self, event: &Event) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.emit_at(since.as_secs_f64(), event);
    }

    /// Writes `event` with time `t`, in seconds since the Unix epoch.
    pub fn emit_at(&self, t: f64, event: &Event) {
        if let Some(Open { rank, restart, file }) = &self.open {
            file.append(&Line { t, rank: *rank, restart: *restart, event });
        }
    }

    /// Returns true if events are kept. If not, callers can skip work that only prepares events.
    pub fn is_on(&self) -> bool {
        self.open.is_some()
    }

    /// The number of events that could not be written.
    pub fn lost(&self) -> u64 {
        self.open.as_ref().map_or(0, |open| open.file.state().lost)
    }
}

impl Appender {
    fn open(folder: &Path, path: PathBuf) -> Result<Self, EventsError> {
        match fs::create_dir_all(folder).and_then(|()| append_to(&path)) {
            Ok(state) => Ok(Appender { path, state: Mutex::new(state) }),
            Err(source) => Err(EventsError::Open { path, source }),
        }
    }

    fn append(&self, line: &impl Serialize) {
        let mut state = self.state();
        if let Err(error) = state.write(line) {
            state.lost += 1;
            if state.lost == 1 {
                eprintln!(
                    "warning: cannot write events to {}: {error}; training continues without them",
                    self.path.display()
                );
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Event {
    /// The value of the field `event`.
    pub fn kind(&self) -> &str {
        match self {
            Event::Start { .. } => "start",
            Event::Group { .. } => "group",
            Event::Epoch { .. } => "epoch",
            Event::Step { .. } => "step",
            Event::Eval { .. } => "eval",
            Event::Samples { .. } => "samples",
            Event::Snapshot { .. } => "snapshot",
            Event::Resume { .. } => "resume",
            Event::Collective { .. } => "collective",
            Event::Fault { .. } => "fault",
            Event::Late { .. } => "late",
            Event::Exit { .. } => "exit",
            Event::Other { kind, .. } => kind,
        }
    }
}

const KINDS: [&str; 12] =
    ["start", "group", "epoch", "step", "eval", "samples", "snapshot", "resume", "collective", "fault", "late", "exit"];

/// Reads one rank's file.
///
/// # Errors
/// [`EventsError::BadLine`] for a complete line that is not an event. Torn lines are listed in the result.
pub fn read(path: &Path) -> Result<EventLog, EventsError> {
    let mut log = EventLog::default();
    log.torn = read_lines(path, |value| record(value).map(|record| log.records.push(record)))?;
    Ok(log)
}

/// Calls `take` with every complete line of the file at `path` and returns the numbers (from 1) of torn lines.
fn read_lines(path: &Path, mut take: impl FnMut(Value) -> serde_json::Result<()>) -> Result<Vec<usize>, EventsError> {
    let fail = |source| EventsError::Read { path: path.to_owned(), source };
    let mut reader = BufReader::new(File::open(path).map_err(fail)?);
    let (mut torn, mut bytes) = (Vec::new(), Vec::new());
    for line in 1.. {
        bytes.clear();
        if reader.read_until(b'\n', &mut bytes).map_err(fail)? == 0 {
            break;
        }
        let taken = match serde_json::from_slice(bytes.strip_suffix(b"\n").unwrap_or(&bytes)) {
            Ok(value) => take(value),
            Err(error) if error.is_eof() => {
                torn.push(line);
                continue;
            }
            Err(error) => Err(error),
        };
        taken.map_err(|error| EventsError::BadLine { path: path.to_owned(), line, reason: error.to_string() })?;
    }
    Ok(torn)
}

/// Reads the files of all ranks in `folder` and ignores other files.
///
/// # Errors
/// As [`read`], at the first file that fails.
pub fn read_folder(folder: &Path) -> Result<BTreeMap<usize, EventLog>, EventsError> {
    let fail = |source| EventsError::Read { path: folder.to_owned(), source };
    let mut logs = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if let Some(rank) = rank_of(&path) {
            logs.insert(rank, read(&path)?);
        }
    }
    Ok(logs)
}

#[derive(Serialize)]
struct Line<'a> {
    t: f64,
    rank: usize,
    restart: u32,
    #[serde(flatten)]
    event: &'a Event,
}

#[derive(Deserialize)]
struct Head {
    t: f64,
    rank: usize,
    restart: u32,
    event: String,
}

impl State {
    fn write(&mut self, line: &impl Serialize) -> io::Result<()> {
        let mut bytes = if self.torn { b"\n".to_vec() } else { Vec::new() };
        serde_json::to_writer(&mut bytes, line)?;
        bytes.push(b'\n');
        self.torn = true;
        self.file.write_all(&bytes)?;
        self.torn = false;
        Ok(())
    }
}

fn file_of(folder: &Path, rank: usize) -> PathBuf {
    folder.join(format!("rank-{rank}.jsonl"))
}

fn rank_of(path: &Path) -> Option<usize> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix("rank-")?.strip_suffix(".jsonl")?.parse().ok()
}

fn append_to(path: &Path) -> io::Result<State> {
    let mut file = OpenOptions::new().append(true).read(true).create(true).open(path)?;
    let mut last = [b'\n'];
    if file.metadata()?.len() > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    Ok(State { file, torn: last != [b'\n'], lost: 0 })
}

fn record(value: Value) -> serde_json::Result<Record> {
    let Head { t, rank, restart, event: kind } = Head::deserialize(&value)?;
    let event = if KINDS.contains(&kind.as_str()) {
        Event::deserialize(value)?
    } else {
        let mut fields = Map::deserialize(value)?;
        fields.retain(|name, _| !["t", "rank", "restart", "event"].contains(&name.as_str()));
        Event::Other { kind, fields }
    };
    Ok(Record { t, rank, restart, event })
}

/// Non-finite floats, which JSON has no numbers for, become strings: readers of these files look for a loss that became
/// NaN.
mod number {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &f64, serializer: S) -> Result<S::Ok, S::Error> {
        match value {
            value if value.is_finite() => serializer.serialize_f64(*value),
            value => serializer.serialize_str(if value.is_nan() {
                "NaN"
            } else if *value > 0.0 {
                "inf"
            } else {
                "-inf"
            }),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Number {
            Finite(f64),
            Named(Named),
        }
        #[derive(Deserialize)]
        enum Named {
            NaN,
            #[serde(rename = "inf")]
            Inf,
            #[serde(rename = "-inf")]
            MinusInf,
        }
        Ok(match Number::deserialize(deserializer)? {
            Number::Finite(value) => value,
            Number::Named(Named::NaN) => f64::NAN,
            Number::Named(Named::Inf) => f64::INFINITY,
            Number::Named(Named::MinusInf) => f64::NEG_INFINITY,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one_of_each() -> Vec<Event> {
        let text = || "a \"text\"\nwith é".to_owned();
        vec![
            Event::Start { world_size: 2, device: "cpu".into(), pid: 7 },
            Event::Group { world_size: 2, backend: "gloo".into(), reason: Some("two hosts".into()) },
            Event::Epoch { epoch: 0, steps: 64, batch_size: 32 },
            Event::Step { epoch: 0, step: 1, loss: 0.1 + 0.2, samples: 32 },
            Event::Eval { epoch: 0, accuracy: 0.9625, loss: f64::INFINITY, samples: 1000 },
            Event::Samples { epoch: 0, indices: vec![3, 1, u64::MAX] },
            Event::Snapshot { epoch: 1, step: 64, path: text(), bytes: 10, seconds: 0.5 },
            Event::Resume { epoch: 1, step: 64, path: text() },
            Event::Collective { op: "all_reduce".into(), bytes: 4, seconds: 1e-3 },
            Event::Fault { message: text() },
            Event::Late { ranks: vec![2], cause: "loader".into(), share: 0.5, message: text() },
            Event::Exit { code: -9 },
        ]
    }

    fn written(events: &[Event]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("made/on/demand");
        let sink = EventSink::open(&folder, 3, 1).unwrap();
        for (index, event) in events.iter().enumerate() {
            sink.emit_at(1.763_635_200_123_456_7e9 + index as f64, event);
        }
        (dir, folder.join("rank-3.jsonl"))
    }

    #[test]
    fn reads_back_every_kind_as_it_was_written() {
        let events = one_of_each();
        let (_dir, path) = written(&events);
        let log = read(&path).unwrap();
        assert!(log.torn.is_empty());
        for (index, (record, event)) in log.records.iter().zip(&events).enumerate() {
            let expected =
                Record { t: 1.763_635_200_123_456_7e9 + index as f64, rank: 3, restart: 1, event: event.clone() };
            assert_eq!(record, &expected);
        }
        assert_eq!(log.records.len(), events.len());
    }

    #[test]
    fn knows_every_kind_that_it_writes() {
        let kinds: Vec<_> = one_of_each().iter().map(|event| event.kind().to_owned()).collect();
        assert_eq!(kinds, KINDS);
        for event in one_of_each() {
            assert_eq!(serde_json::to_value(&event).unwrap()["event"], event.kind());
        }
    }

    #[test]
    fn keeps_a_loss_that_is_not_a_number() {
        let step = |loss| Event::Step { epoch: 0, step: 0, loss, samples: 1 };
        let (_dir, path) = written(&[step(f64::NAN), step(f64::NEG_INFINITY)]);
        let losses: Vec<f64> = read(&path)
            .unwrap()
            .records
            .iter()
            .map(|record| match record.event {
                Event::Step { loss, .. } => loss,
                ref other => panic!("{other:?}"),
            })
            .collect();
        assert!(losses[0].is_nan());
        assert_eq!(losses[1], f64::NEG_INFINITY);
    }

    #[test]
    fn tolerates_a_last_line_torn_at_any_byte() {
        let (_dir, path) = written(&one_of_each());
        let whole = fs::read(&path).unwrap();
        let (records, mut last) = (read(&path).unwrap().records, whole.len() - 1);
        while whole[last - 1] != b'\n' {
            last -= 1;
            fs::write(&path, &whole[..last]).unwrap();
            let log = read(&path).unwrap();
            assert_eq!(log.records, records[..records.len() - 1], "cut at {last}");
            assert_eq!(log.torn, if whole[last - 1] == b'\n' { vec![] } else { vec![records.len()] });
        }
    }

    #[test]
    fn continues_after_a_torn_line_of_an_earlier_process() {
        let (_dir, path) = written(&one_of_each());
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 5]).unwrap();
        let again = EventSink::open(path.parent().unwrap(), 3, 2).unwrap();
        again.emit(&Event::Exit { code: 0 });
        let log = read(&path).unwrap();
        assert_eq!(log.torn, [12]);
        assert_eq!((log.records.len(), log.records[11].restart), (12, 2));
        assert_eq!(log.records[11].event, Event::Exit { code: 0 });
    }

    #[test]
    fn accepts_a_last_line_that_only_lacks_its_newline() {
        let (_dir, path) = written(&one_of_each());
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(read(&path).unwrap().records.len(), 12);
    }

    #[test]
    fn keeps_kinds_and_fields_of_a_newer_version() {
        let (_dir, path) = written(&[]);
        let lines = r#"{"t":1.0,"rank":0,"restart":0,"event":"teleport","to":"mars"}
{"t":2.0,"rank":0,"restart":0,"event":"exit","code":0,"why":"done"}
"#;
        fs::write(&path, lines).unwrap();
        let records = read(&path).unwrap().records;
        let fields = Map::from_iter([("to".to_owned(), Value::from("mars"))]);
        assert_eq!(records[0].event, Event::Other { kind: "teleport".into(), fields });
        assert_eq!(records[1].event, Event::Exit { code: 0 });
    }

    #[test]
    fn reports_a_damaged_line_by_its_number() {
        let good = r#"{"t":1.0,"rank":0,"restart":0,"event":"exit","code":0}"#;
        for bad in [
            "\0\0\0\0",
            "}",
            "[]",
            "{} {}",
            r#"{"rank":0,"restart":0,"event":"exit","code":0}"#,
            r#"{"t":1.0,"rank":-1,"restart":0,"event":"exit","code":0}"#,
            r#"{"t":1.0,"rank":0,"restart":0,"event":"exit"}"#,
            r#"{"t":1.0,"rank":0,"restart":0,"event":"step","epoch":0,"step":0,"loss":"big","samples":1}"#,
        ] {
            let (_dir, path) = written(&[]);
            fs::write(&path, format!("{good}\n{bad}\n{good}\n")).unwrap();
            match read(&path) {
                Err(EventsError::BadLine { line, .. }) => assert_eq!(line, 2, "{bad}"),
                other => panic!("{bad:?} gave {other:?}"),
            }
        }
    }

    #[test]
    fn reads_the_files_of_a_folder_by_rank() {
        let dir = tempfile::tempdir().unwrap();
        for rank in [11, 2] {
            EventSink::open(dir.path(), rank, 0).unwrap().emit(&Event::Exit { code: 0 });
        }
        fs::write(dir.path().join("notes.txt"), "hello").unwrap();
        let logs = read_folder(dir.path()).unwrap();
        assert_eq!(logs.keys().copied().collect::<Vec<_>>(), [2, 11]);
        assert!(logs.values().all(|log| log.records.len() == 1));
    }

    #[test]
    fn survives_a_full_disk_and_counts_what_it_lost() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", dir.path().join("rank-0.jsonl")).unwrap();
        let sink = EventSink::open(dir.path(), 0, 0).unwrap();
        sink.emit(&Event::Exit { code: 0 });
        sink.emit(&Event::Exit { code: 0 });
        assert_eq!(sink.lost(), 2);
    }

    #[test]
    fn keeps_the_lines_of_several_threads_apart() {
        let dir = tempfile::tempdir().unwrap();
        let sink = EventSink::open(dir.path(), 0, 0).unwrap();
        std::thread::scope(|scope| {
            for epoch in 0..4 {
                let sink = &sink;
                scope.spawn(move || {
                    for _ in 0..50 {
                        sink.emit(&Event::Samples { epoch, indices: (0..2000).collect() });
                    }
                });
            }
        });
        assert_eq!(read(&dir.path().join("rank-0.jsonl")).unwrap().records.len(), 200);
    }

    #[test]
    fn does_nothing_without_a_folder() {
        let sink = EventSink::off();
        sink.emit(&Event::Exit { code: 0 });
        assert_eq!(sink.lost(), 0);
    }

    #[test]
    fn rejects_a_folder_that_is_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(matches!(EventSink::open(&file, 0, 0), Err(EventsError::Open { .. })));
    }
}
