//! Appends events to a file.

use std::error::Error as _;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::{Event, EventsError, FOLDER};

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
pub(crate) struct Appender {
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
        let file = Appender::open(folder, folder.join(format!("rank-{rank}.jsonl")))?;
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

#[derive(Serialize)]
struct Line<'a> {
    t: f64,
    rank: usize,
    restart: u32,
    #[serde(flatten)]
    event: &'a Event,
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

fn append_to(path: &Path) -> io::Result<State> {
    let mut file = OpenOptions::new().append(true).read(true).create(true).open(path)?;
    let mut last = [b'\n'];
    if file.metadata()?.len() > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    Ok(State { file, torn: last != [b'\n'], lost: 0 })
}
