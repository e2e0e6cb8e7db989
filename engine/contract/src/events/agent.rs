//! What a launcher's agent did: `agent-<node>.jsonl`, in the same folder and format as the files of the ranks.
//!
//! An agent sees what a dying rank cannot report: that it ended, how, and who stopped it. Lines have the form
//! `{"t": …, "node": …, "event": "ended", …}`.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::sink::Appender;
use super::{EventsError, read_lines};

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

/// The file to which an agent writes its events; the default discards them.
#[derive(Debug, Default)]
pub struct AgentSink {
    open: Option<(String, Appender)>,
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
        Ok(AgentSink { open: Some((node.to_owned(), appender)) })
    }

    /// Writes `event` with the current time. Only the first failure is reported, on stderr.
    pub fn emit(&self, event: &AgentEvent) {
        if let Some((node, appender)) = &self.open {
            let t = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
            appender.append(&AgentRecord { t, node: node.clone(), event: event.clone() });
        }
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
        let known = value["event"].as_str().is_some_and(|kind| KINDS.contains(&kind));
        if known || value.get("event").is_none() {
            self.records.push(AgentRecord::deserialize(value)?);
        }
        Ok(())
    }
}

const KINDS: [&str; 9] =
    ["requeued", "formed", "started", "ended", "verdict", "restarting", "signalled", "time_limit", "finished"];

fn file_of(folder: &Path, node: &str) -> PathBuf {
    let safe = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
    folder.join(format!("agent-{}.jsonl", node.chars().map(safe).collect::<String>()))
}

pub(super) fn node_of(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    name.strip_prefix("agent-")?.strip_suffix(".jsonl").map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(one_of_each().iter().map(kind).collect::<Vec<_>>(), KINDS);
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
