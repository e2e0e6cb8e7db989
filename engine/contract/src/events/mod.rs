//! Event files: what each rank did, as JSON lines, one file for each rank; written by the runtime, read by the harness. The launcher's
//! agents write files of their own next to these: [`AgentEvent`].
//!
//! ```
//! use lockstep_contract::events::{Event, EventSink, read_folder};
//!
//! let folder = std::env::temp_dir().join(format!("events-{}", std::process::id()));
//! // Rank 0, before any restart. In a job, `EventSink::from_env` opens the folder that LOCKSTEP_EVENTS names.
//! let sink = EventSink::open(&folder, 0, 0)?;
//! sink.emit(&Event::Step { epoch: 0, step: 7, loss: 0.25, samples: 64, lr: Some(0.1) });
//! let logs = read_folder(&folder)?;
//! assert_eq!(logs[&0].records[0].event, Event::Step { epoch: 0, step: 7, loss: 0.25, samples: 64, lr: Some(0.1) });
//! std::fs::remove_dir_all(folder)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A line is `{"t": …, "rank": …, "restart": …, "event": "step", …}`. Each line is appended with a single write, so a killed process
//! leaves at most one torn line, and a restarted one continues after it. A failure to write events never stops training.
//!
//! The file of a launcher's agent is `agent-<node>.jsonl`, in the same folder and format. An agent sees what a dying rank cannot report: that it ended, how, and who stopped it. Lines have the form
//! `{"t": …, "node": …, "event": "ended", …}`.

mod sink;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sink::Appender;
pub(crate) use sink::{State, append_to};

use crate::foreign;

pub use sink::EventSink;

/// The variable that names the folder for event files.
pub const FOLDER: &str = "LOCKSTEP_EVENTS";

/// The folder that [`FOLDER`] names.
pub fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

/// Seconds since the Unix epoch, by this host's clock.
pub(crate) fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Something that a rank did. Counts start at 0, times are in seconds, sizes in bytes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// The process has joined its group. `device` has PyTorch's form: `cpu`, `cuda:0`.
    Start { world_size: usize, device: String, pid: u32 },
    /// The process has joined a group of `world_size` ranks over `backend` (`gloo`, `shm`, `shm+gloo`, `nccl`, or two:
    /// `cpu:shm,cuda:nccl`). If the ranks chose it, `reason` says why.
    Group {
        world_size: usize,
        backend: String,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        reason: Option<String>,
    },
    /// An epoch begins on this rank, with this number of steps and this batch size.
    Epoch { epoch: u64, steps: u64, batch_size: usize },
    /// An optimizer step is complete; `loss` is this rank's mean over `samples` samples, `lr` the learning rate of the optimizer's first
    /// group in it, if one of the runtime's optimizers made the step.
    Step {
        epoch: u64,
        step: u64,
        #[serde(with = "number")]
        loss: f64,
        samples: u64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        lr: Option<f64>,
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
    /// The other ranks wait for these ranks in collectives, for this fraction of their time, because of `cause`: `loader`,
    /// `computing`, `processor`, `other`. If no ranks are listed, all wait for their loaders. Written by rank 0. If ranks share
    /// memory, `waited` says how many seconds each rank waited for these.
    Late {
        ranks: Vec<usize>,
        cause: String,
        share: f64,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        waited: Vec<f64>,
        message: String,
    },
    /// This rank's memory by kind, as counted, and the bytes that it has passed to its group's operations so far.
    Memory { parameters: u64, gradients: u64, optimizer: u64, activations: u64, buckets: u64, sent: u64 },
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
    pub event: Event,
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
            Event::Memory { .. } => "memory",
            Event::Exit { .. } => "exit",
            Event::Other { kind, .. } => kind,
        }
    }
}

pub(crate) const KINDS: [&str; 13] = [
    "start",
    "group",
    "epoch",
    "step",
    "eval",
    "samples",
    "snapshot",
    "resume",
    "collective",
    "fault",
    "late",
    "memory",
    "exit",
];

#[derive(Deserialize)]
struct Head {
    t: f64,
    rank: usize,
    restart: u32,
    event: String,
}

impl Record {
    pub(crate) fn parse(value: Value) -> serde_json::Result<Self> {
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
}

/// Non-finite floats, which JSON cannot write as numbers, become strings: readers of these files look for a loss that became
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

/// Why event files cannot be opened or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EventsError {
    /// The folder or the file cannot be created or opened for writing.
    #[error("cannot open {} for events", path.display())]
    Open { path: PathBuf, source: io::Error },
    /// The file or the folder cannot be read.
    #[error("cannot read events from {}", path.display())]
    Read { path: PathBuf, source: io::Error },
    /// A complete line is not an event: the file was damaged, or another program wrote it.
    #[error("line {line} of {} is not an event: {reason}", path.display())]
    BadLine { path: PathBuf, line: usize, reason: String },
}

/// The contents of a rank's file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct EventLog {
    /// In the order of writing.
    pub records: Vec<Record>,
    /// Numbers (from 1) of lines that a killed writer or a full disk left incomplete.
    pub torn: Vec<usize>,
}

/// Reads one rank's file.
///
/// # Errors
/// [`EventsError::BadLine`] for a complete line that is not an event. Torn lines are listed in the result.
pub fn read(path: &Path) -> Result<EventLog, EventsError> {
    let mut log = EventLog::default();
    log.torn = read_lines(path, |value| Record::parse(value).map(|record| log.records.push(record)))?;
    Ok(log)
}

/// Calls `take` with every complete line of the file at `path` and returns the numbers (from 1) of torn lines.
fn read_lines(path: &Path, take: impl FnMut(Value) -> serde_json::Result<()>) -> Result<Vec<usize>, EventsError> {
    let fail = |source| EventsError::Read { path: path.to_owned(), source };
    let (mut torn, mut bad) = (Vec::new(), None);
    let refuse = |line, error: serde_json::Error| {
        bad = Some((line, error.to_string()));
        false
    };
    each_line(File::open(path).map_err(fail)?, &mut torn, take, refuse).map_err(fail)?;
    match bad {
        Some((line, reason)) => Err(EventsError::BadLine { path: path.to_owned(), line, reason }),
        None => Ok(torn),
    }
}

/// Calls `take` with every complete line, and `refuse` with the number (from 1) and the error of one that is not an event, until that
/// returns false.
///
/// A line that ends inside a value is torn: its writer was killed, or its disk was full. Whoever reads event files skips torn lines, which
/// are numbered in `torn`.
fn each_line(
    file: impl Read,
    torn: &mut Vec<usize>,
    mut take: impl FnMut(Value) -> serde_json::Result<()>,
    mut refuse: impl FnMut(usize, serde_json::Error) -> bool,
) -> io::Result<()> {
    let (mut reader, mut bytes) = (BufReader::new(file), Vec::new());
    for line in 1.. {
        bytes.clear();
        if reader.read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        match serde_json::from_slice(bytes.strip_suffix(b"\n").unwrap_or(&bytes)).and_then(&mut take) {
            Err(error) if error.is_eof() => torn.push(line),
            Err(error) => {
                if !refuse(line, error) {
                    break;
                }
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

/// What is left of the event files in a folder, some of which may be damaged.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Salvaged {
    /// By rank.
    pub ranks: BTreeMap<usize, EventLog>,
    /// By node.
    pub agents: BTreeMap<String, AgentLog>,
    /// What is left out, and why: one sentence each.
    pub left_out: Vec<String>,
}

/// At most this many bytes of a file are read: some two million steps.
const MOST_BYTES: u64 = 256 << 20;

/// Reads all event files in `folder` and ignores other files, and lines that are not events: for pictures, where [`read_folder`] and
/// [`read_agents`] are for proofs. Memory and time are limited, whatever the files are.
///
/// # Errors
/// [`EventsError::Read`] for the folder itself.
pub fn salvage(folder: &Path) -> Result<Salvaged, EventsError> {
    salvage_up_to(MOST_BYTES, folder)
}

fn salvage_up_to(most: u64, folder: &Path) -> Result<Salvaged, EventsError> {
    let fail = |source| EventsError::Read { path: folder.to_owned(), source };
    let mut paths = Vec::new();
    for entry in fs::read_dir(folder).map_err(fail)? {
        paths.push(entry.map_err(fail)?.path());
    }
    paths.sort();
    let mut left = Salvaged::default();
    for path in paths {
        if let Some(rank) = rank_of(&path) {
            let mut log = EventLog::default();
            log.torn = left.lines_of(&path, most, |value| {
                let record = Record::parse(value)?;
                if record.rank != rank {
                    return Err(serde::de::Error::custom(format!("it is of rank {}", record.rank)));
                }
                log.records.push(record);
                Ok(())
            });
            left.ranks.insert(rank, log);
        } else if let Some(node) = node_of(&path) {
            let mut log = AgentLog::default();
            log.torn = left.lines_of(&path, most, |value| log.take(&value));
            left.agents.insert(node, log);
        }
    }
    left.ranks.retain(|_, log| !log.records.is_empty() || !log.torn.is_empty());
    left.agents.retain(|_, log| !log.records.is_empty() || !log.torn.is_empty());
    Ok(left)
}

impl Salvaged {
    /// As [`read_lines`], and goes on after lines that are not events.
    fn lines_of(&mut self, path: &Path, most: u64, take: impl FnMut(Value) -> serde_json::Result<()>) -> Vec<usize> {
        let name = foreign::one_line(&path.file_name().unwrap_or_default().to_string_lossy());
        // A pipe would have to be waited for.
        match fs::metadata(path) {
            Err(error) => {
                self.left_out.push(format!("{name}: {error}"));
                return Vec::new();
            }
            Ok(about) if !about.is_file() => {
                self.left_out.push(format!("{name} is not a file"));
                return Vec::new();
            }
            Ok(about) if about.len() > most => self.left_out.push(format!(
                "{name} has {}, of which the first {} are read",
                shown(about.len()),
                shown(most)
            )),
            Ok(_) => {}
        }
        let (mut torn, mut bad): (Vec<usize>, Option<(usize, String)>) = (Vec::new(), None);
        let mut more = 0;
        let refuse = |line, error: serde_json::Error| {
            match bad {
                Some(_) => more += 1,
                None => bad = Some((line, foreign::one_line(&error.to_string()))),
            }
            true
        };
        let read = File::open(path).and_then(|file| each_line(file.take(most), &mut torn, take, refuse));
        if let Err(error) = read {
            self.left_out.push(format!("{name} cannot be read to its end: {error}"));
        }
        if let Some((line, reason)) = bad {
            let more = if more == 0 { String::new() } else { format!(", nor are {more} more") };
            self.left_out.push(format!("line {line} of {name} is not an event{more}: {reason}"));
        }
        torn
    }
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

fn rank_of(path: &Path) -> Option<usize> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix("rank-")?.strip_suffix(".jsonl")?.parse().ok()
}

/// `3.0 MiB: parameters 1.0 MiB, optimizer 2.0 MiB; sent 512 B`: all kinds together, each kind, and what was sent, in bytes.
pub fn memory_line(kinds: &[(&str, u64)], sent: u64) -> String {
    let total = kinds.iter().map(|(_, bytes)| bytes).sum();
    let kinds: Vec<String> = kinds.iter().map(|(kind, bytes)| format!("{kind} {}", shown(*bytes))).collect();
    format!("{}: {}; sent {}", shown(total), kinds.join(", "), shown(sent))
}

/// In the largest unit that is not above the value.
fn shown(bytes: u64) -> String {
    let unit = [(30, "GiB"), (20, "MiB"), (10, "KiB")].into_iter().find(|(power, _)| bytes >> power > 0);
    unit.map_or_else(
        || format!("{bytes} B"),
        |(power, unit)| format!("{:.1} {unit}", bytes as f64 / f64::from(1 << power)),
    )
}

/// Something that an agent did or saw. `attempt` counts from 0 how often this agent started its workers; it names the
/// log folder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum AgentEvent {
    /// The scheduler has started this job before, `count` times; the last time ended for `reason`.
    Requeued { count: u32, reason: String },
    /// The nodes agreed on a group; `round` counts these agreements from 0.
    Formed { round: u64, attempt: u64, group_rank: usize, nodes: usize, world_size: usize },
    /// A worker was started.
    Started { attempt: u64, rank: usize, local_rank: usize, pid: u32 },
    /// A worker ended: `code` is its exit code, or minus the signal's number. `stopped` is true if this agent stopped
    /// it.
    Ended { attempt: u64, rank: usize, local_rank: usize, pid: u32, code: i32, stopped: bool },
    /// Why workers of an attempt failed, or why none could be started.
    Verdict(VerdictRecord),
    /// This agent will start all of its workers again, because of `reason`.
    Restarting { attempt: u64, restarts_left: u32, reason: String },
    /// The agent received a signal that asks it to exit.
    Signalled { signal: i32 },
    /// The scheduler's job ends in this many seconds, as `source` says, so the agent asks its workers to save a snapshot and to end.
    TimeLimit { seconds_left: f64, source: String },
    /// The agent exits with this code.
    Finished { code: i32 },
}

/// Who is at fault for a failure, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VerdictRecord {
    /// The rank; `None` if the launcher itself failed.
    pub rank: Option<usize>,
    /// The rank's host; `None` if it is another host, whose name is not known.
    pub host: Option<String>,
    /// False if the rank or the launcher only noticed the failure, and who is at fault is unknown.
    pub at_fault: bool,
    /// What happened.
    pub cause: String,
    /// How this is known.
    pub evidence: String,
    /// What to do.
    pub advice: String,
    /// The name of the cause in the book's list of causes.
    pub rule: String,
}

/// The first line of the launcher's report.
impl fmt::Display for VerdictRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let VerdictRecord { rank, host, at_fault, cause, evidence, advice, .. } = self;
        let host = host.as_deref().unwrap_or("another node");
        match rank {
            Some(rank) if *at_fault => write!(f, "verdict: rank {rank} on {host}: {cause}")?,
            Some(rank) => {
                write!(f, "verdict: unknown which rank is at fault; rank {rank} on {host} noticed it: {cause}")?;
            }
            None if *at_fault => write!(f, "verdict: the launcher on {host}: {cause}")?,
            None => write!(f, "verdict: unknown who is at fault; the launcher on {host} noticed it: {cause}")?,
        }
        write!(f, " (evidence: {evidence}); advice: {advice}")
    }
}

/// An event with its time and its writer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentRecord {
    /// Seconds since the Unix epoch, by the writing host's clock.
    pub t: f64,
    /// The node that wrote it.
    pub node: String,
    #[serde(flatten)]
    pub event: AgentEvent,
}

/// The files to which an agent writes its events; the default discards them.
#[derive(Debug, Default)]
pub struct AgentSink {
    node: String,
    files: Vec<Appender>,
}

/// The contents of an agent's file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AgentLog {
    /// In the order of writing, without events of a kind that this version does not know.
    pub records: Vec<AgentRecord>,
    /// Numbers (from 1) of lines that a killed writer or a full disk left incomplete.
    pub torn: Vec<usize>,
}

impl AgentSink {
    /// Appends to `folder/agent-<node>.jsonl` and creates both if needed. Characters of `node` that do not belong in a
    /// file name become `_`.
    ///
    /// # Errors
    /// [`EventsError::Open`].
    pub fn open(folder: &Path, node: &str) -> Result<Self, EventsError> {
        let appender = Appender::open(folder, file_of(folder, node))?;
        Ok(AgentSink { node: node.to_owned(), files: vec![appender] })
    }

    /// Writes from now on to the files of both.
    #[must_use]
    pub fn and(mut self, other: AgentSink) -> Self {
        if self.files.is_empty() {
            return other;
        }
        self.files.extend(other.files);
        self
    }

    /// Writes `event` with the current time. Only the first failure is reported, on stderr.
    pub fn emit(&self, event: &AgentEvent) {
        if self.files.is_empty() {
            return;
        }
        let record = AgentRecord { t: now(), node: self.node.clone(), event: event.clone() };
        self.files.iter().for_each(|file| file.append(&record));
    }
}

/// Reads the files of all agents in `folder`. The keys are nodes.
///
/// # Errors
/// [`EventsError::Read`]; [`EventsError::BadLine`] for a complete line that is not an event.
pub fn read_agents(folder: &Path) -> Result<BTreeMap<String, AgentLog>, EventsError> {
    let fail = |source| EventsError::Read { path: folder.to_owned(), source };
    let mut logs = BTreeMap::new();
    for entry in fs::read_dir(folder).map_err(fail)? {
        let path = entry.map_err(fail)?.path();
        if let Some(node) = node_of(&path) {
            logs.insert(node, read_one(&path)?);
        }
    }
    Ok(logs)
}

fn read_one(path: &Path) -> Result<AgentLog, EventsError> {
    let mut log = AgentLog::default();
    log.torn = read_lines(path, |value| log.take(&value))?;
    Ok(log)
}

impl AgentLog {
    /// Adds a line's event, if it is of a known kind.
    pub(super) fn take(&mut self, value: &Value) -> serde_json::Result<()> {
        let known = value["event"].as_str().is_some_and(|kind| AGENT_KINDS.contains(&kind));
        if known || value.get("event").is_none() {
            self.records.push(AgentRecord::deserialize(value)?);
        }
        Ok(())
    }
}

const AGENT_KINDS: [&str; 9] =
    ["requeued", "formed", "started", "ended", "verdict", "restarting", "signalled", "time_limit", "finished"];

fn file_of(folder: &Path, node: &str) -> PathBuf {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
    folder.join(format!("agent-{}.jsonl", node.chars().map(safe).collect::<String>()))
}

fn node_of(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix("agent-")?.strip_suffix(".jsonl").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_is_whole_and_names_what_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let exit = |rank: usize| format!("{{\"t\":1,\"rank\":{rank},\"restart\":0,\"event\":\"exit\",\"code\":0}}\n");
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        write("rank-0.jsonl", &format!("{}\0\0\0\n[]\n{}{{\"t\":2", exit(0), exit(0)));
        write("rank-1.jsonl", &exit(7));
        write("rank-2.jsonl", "");
        write("agent-a.jsonl", "{\"t\":1,\"node\":\"a\",\"event\":\"finished\",\"code\":0}\nnone\n");
        write("notes.jsonl", "none\n");
        fs::create_dir(dir.path().join("rank-3.jsonl")).unwrap();
        fs::File::create(dir.path().join("rank-4.jsonl")).unwrap().set_len(1025).unwrap();
        std::os::unix::fs::symlink("none", dir.path().join("rank-5.jsonl")).unwrap();
        let left = salvage_up_to(1024, dir.path()).unwrap();
        assert_eq!(left.ranks.keys().copied().collect::<Vec<_>>(), [0]);
        assert_eq!((left.ranks[&0].records.len(), &left.ranks[&0].torn), (2, &vec![5]));
        assert_eq!(left.agents["a"].records.len(), 1);
        for (place, expected) in [
            "line 2 of agent-a.jsonl is not an event: ",
            "line 2 of rank-0.jsonl is not an event, nor are 1 more: ",
            "line 1 of rank-1.jsonl is not an event: it is of rank 7",
            "rank-3.jsonl is not a file",
            "rank-4.jsonl has 1.0 KiB, of which the first 1.0 KiB are read",
            "line 1 of rank-4.jsonl is not an event: ",
            "rank-5.jsonl: ",
        ]
        .iter()
        .enumerate()
        {
            assert!(left.left_out[place].starts_with(expected), "{expected}: {:?}", left.left_out);
        }
        assert!(salvage(&dir.path().join("none")).is_err());
    }

    #[test]
    fn shows_bytes_in_the_largest_unit() {
        assert_eq!([0, 1023, 1536, 5 << 20, 3 << 29].map(shown), ["0 B", "1023 B", "1.5 KiB", "5.0 MiB", "1.5 GiB"]);
    }

    fn one_of_each() -> Vec<AgentEvent> {
        vec![
            AgentEvent::Requeued { count: 1, reason: "the former start was lost".into() },
            AgentEvent::Formed { round: 0, attempt: 0, group_rank: 0, nodes: 1, world_size: 2 },
            AgentEvent::Started { attempt: 0, rank: 1, local_rank: 1, pid: 7 },
            AgentEvent::Ended { attempt: 0, rank: 1, local_rank: 1, pid: 7, code: -9, stopped: false },
            AgentEvent::Verdict(VerdictRecord {
                rank: Some(1),
                host: Some("n1".into()),
                at_fault: true,
                cause: "somebody else killed it".into(),
                evidence: "SIGKILL".into(),
                advice: "ask".into(),
                rule: "killed".into(),
            }),
            AgentEvent::Restarting { attempt: 1, restarts_left: 2, reason: "rank 1 ended by SIGKILL".into() },
            AgentEvent::Signalled { signal: 15 },
            AgentEvent::TimeLimit { seconds_left: 60.0, source: "squeue".into() },
            AgentEvent::Finished { code: 1 },
        ]
    }

    #[test]
    fn reads_back_what_each_agent_wrote() {
        let dir = tempfile::tempdir().unwrap();
        let sink = AgentSink::open(dir.path(), "node/0").unwrap();
        one_of_each().iter().for_each(|event| sink.emit(event));
        let logs = read_agents(dir.path()).unwrap();
        let log = &logs["node_0"];
        assert_eq!(log.records.iter().map(|record| record.event.clone()).collect::<Vec<_>>(), one_of_each());
        assert!(log.records.iter().all(|record| record.node == "node/0" && record.t > 1.6e9));
        let kind = |event: &AgentEvent| serde_json::to_value(event).unwrap()["event"].as_str().unwrap().to_owned();
        assert_eq!(one_of_each().iter().map(kind).collect::<Vec<_>>(), AGENT_KINDS);
    }

    #[test]
    fn skips_unknown_kinds_and_rejects_lines_that_are_not_events() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent-a.jsonl");
        fs::write(&path, "{\"t\":1,\"node\":\"a\",\"event\":\"slept\"}\n{\"t\":2,\"node\":\"a\",\"event\":\"fin")
            .unwrap();
        let logs = read_agents(dir.path()).unwrap();
        assert_eq!(logs["a"], AgentLog { records: vec![], torn: vec![2] });
        fs::write(&path, "{\"t\":1,\"node\":\"a\"}\n").unwrap();
        assert!(matches!(read_agents(dir.path()), Err(EventsError::BadLine { line: 1, .. })));
    }
}
