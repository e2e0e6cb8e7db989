//! Appends events to a file.

use std::error::Error as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::Serialize;

use super::{Event, EventsError, folder, now};
use crate::recording::Recorder;
use crate::warn;

/// The file to which a rank writes its events. Threads share it by reference.
#[derive(Debug, Default)]
pub struct EventSink {
    open: Option<Open>,
    /// Gets the events, too, if the rank is recorded.
    recorder: Option<Arc<Recorder>>,
}

#[derive(Debug)]
struct Open {
    rank: usize,
    restart: u32,
    file: Appender,
}

/// A file to which whole lines are appended.
#[derive(Debug)]
pub(crate) struct Appender {
    path: PathBuf,
    state: Mutex<State>,
}

/// A file that is open for appending.
#[derive(Debug)]
pub(crate) struct State {
    file: File,
    /// The last write may have left part of a line.
    torn: bool,
    lost: u64,
}

impl EventSink {
    /// A sink that discards all events.
    pub fn off() -> Self {
        Self::default()
    }

    /// Opens the sink that `LOCKSTEP_EVENTS` asks for. If that fails, prints a warning and discards events. If the rank is
    /// [recorded](crate::recording), its events are recorded, too.
    pub fn from_env(rank: usize, restart: u32) -> Self {
        let open = |folder: PathBuf| {
            Self::open(&folder, rank, restart).unwrap_or_else(|error| {
                let cause = error.source().map_or(String::new(), |cause| format!(": {cause}"));
                warn(&format_args!("warning: {error}{cause}; rank {rank} trains without an event file"));
                Self::off()
            })
        };
        EventSink { recorder: Recorder::from_env(rank), ..folder().map(open).unwrap_or_default() }
    }

    /// Appends to `folder/rank-<rank>.jsonl` and creates both if needed.
    ///
    /// # Errors
    /// [`EventsError::Open`].
    pub fn open(folder: &Path, rank: usize, restart: u32) -> Result<Self, EventsError> {
        let file = Appender::open(folder, folder.join(format!("rank-{rank}.jsonl")))?;
        Ok(EventSink { open: Some(Open { rank, restart, file }), recorder: None })
    }

    /// Writes `event` with the current time. Only the first failure is reported, on stderr.
    pub fn emit(&self, event: &Event) {
        self.emit_at(now(), event);
        if let Some(recorder) = &self.recorder {
            recorder.event(event);
        }
    }

    /// Writes `event` to the file with time `t`, in seconds since the Unix epoch.
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
    pub(crate) fn open(folder: &Path, path: PathBuf) -> Result<Self, EventsError> {
        match fs::create_dir_all(folder).and_then(|()| append_to(&path)) {
            Ok(state) => Ok(Appender { path, state: Mutex::new(state) }),
            Err(source) => Err(EventsError::Open { path, source }),
        }
    }

    pub(crate) fn append(&self, line: &impl Serialize) {
        let mut state = self.state();
        if let Err(error) = state.write(line) {
            state.lost += 1;
            if state.lost == 1 {
                warn(&format_args!(
                    "warning: cannot write events to {}: {error}; training continues without them",
                    self.path.display()
                ));
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Serialize)]
struct Line<'a> {
    t: f64,
    rank: usize,
    restart: u32,
    #[serde(flatten)]
    event: &'a Event,
}

impl State {
    /// Appends a line by a single write; returns its length.
    pub(crate) fn write(&mut self, line: &impl Serialize) -> io::Result<u64> {
        let mut bytes = if self.torn { b"\n".to_vec() } else { Vec::new() };
        serde_json::to_writer(&mut bytes, line)?;
        bytes.push(b'\n');
        self.torn = true;
        self.file.write_all(&bytes)?;
        self.torn = false;
        Ok(bytes.len() as u64)
    }
}

pub(crate) fn append_to(path: &Path) -> io::Result<State> {
    let mut file = OpenOptions::new().append(true).read(true).create(true).open(path)?;
    let mut last = [b'\n'];
    if file.metadata()?.len() > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    Ok(State { file, torn: last != [b'\n'], lost: 0 })
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value};

    use super::*;
    use crate::events::{KINDS, *};

    fn one_of_each() -> Vec<Event> {
        let text = || "a \"text\"\nwith é".to_owned();
        vec![
            Event::Start { world_size: 2, device: "cpu".into(), pid: 7 },
            Event::Group { world_size: 2, backend: "gloo".into(), reason: Some("two hosts".into()) },
            Event::Epoch { epoch: 0, steps: 64, batch_size: 32 },
            Event::Step { epoch: 0, step: 1, loss: 0.1 + 0.2, samples: 32, lr: Some(1e-3) },
            Event::Eval { epoch: 0, accuracy: 0.9625, loss: f64::INFINITY, samples: 1000 },
            Event::Samples { epoch: 0, indices: vec![3, 1, u64::MAX] },
            Event::Snapshot { epoch: 1, step: 64, path: text(), bytes: 10, seconds: 0.5 },
            Event::Resume { epoch: 1, step: 64, path: text() },
            Event::Collective { op: "all_reduce".into(), bytes: 4, seconds: 1e-3 },
            Event::Fault { message: text() },
            Event::Late {
                ranks: vec![2],
                cause: "loader".into(),
                share: 0.5,
                waited: vec![4.5, 5.0, 0.0],
                message: text(),
            },
            Event::Memory { parameters: 1, gradients: 2, optimizer: 3, activations: 4, buckets: 5, sent: 6 },
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
        let step = |loss| Event::Step { epoch: 0, step: 0, loss, samples: 1, lr: None };
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
        assert_eq!(log.torn, [13]);
        assert_eq!((log.records.len(), log.records[12].restart), (13, 2));
        assert_eq!(log.records[12].event, Event::Exit { code: 0 });
    }

    #[test]
    fn accepts_a_last_line_that_only_lacks_its_newline() {
        let (_dir, path) = written(&one_of_each());
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(read(&path).unwrap().records.len(), 13);
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
