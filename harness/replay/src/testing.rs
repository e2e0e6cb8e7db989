//! Recordings for tests: each call adds a line. Times are milliseconds since the start of the job.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use lockstep_contract::events::{AgentEvent, AgentRecord, Event};
use lockstep_contract::recording::{Element, Enter, Form, Header, Kind, Leave, Line, Recorded, write_file};

use crate::{Replay, read};

/// When the jobs of tests start.
pub(crate) const START: f64 = 1_764_000_000.0;

/// Whole milliseconds.
pub(crate) fn ms(nanoseconds: u64) -> u64 {
    (nanoseconds + 500_000) / 1_000_000
}

/// A job of one node.
#[derive(Clone, Default)]
pub(crate) struct Recording {
    agent: String,
    /// The lines of each rank, and the number of its last call.
    ranks: Vec<(String, u64)>,
    attempt: u64,
    forgotten: Vec<usize>,
}

impl Recording {
    /// Ranks that have started and joined group 0 at once.
    pub(crate) fn new(ranks: usize) -> Self {
        let mut run = Recording { ranks: vec![(String::new(), 0); ranks], ..Recording::default() };
        run.start(0);
        run
    }

    /// All workers start, again after the first time.
    fn start(&mut self, t: u64) {
        let (attempt, all) = (self.attempt, (0..self.ranks.len()).collect::<Vec<_>>());
        for rank in 0..self.ranks.len() {
            let pid = 100 * (attempt as u32 + 1) + rank as u32;
            self.agent(t, AgentEvent::Started { attempt, rank, local_rank: rank, pid });
            self.line(rank, t, Recorded::Opened { pid, restart: attempt as u32, host: "node1".into() });
            self.join(rank, t, "0", &all);
        }
    }

    pub(crate) fn restart(&mut self, t: u64, reason: &str) -> &mut Self {
        let attempt = self.attempt;
        self.agent(t, AgentEvent::Restarting { attempt, restarts_left: 1, reason: reason.into() });
        self.attempt += 1;
        self.start(t + 5);
        self
    }

    pub(crate) fn agent(&mut self, t: u64, event: AgentEvent) {
        let record = AgentRecord { t: START + t as f64 / 1e3, node: "node1-7".into(), event };
        writeln!(self.agent, "{}", serde_json::to_string(&record).unwrap()).unwrap();
    }

    pub(crate) fn line(&mut self, rank: usize, t: u64, what: Recorded) {
        let line = Line { t: START + t as f64 / 1e3, rank, what };
        writeln!(self.ranks[rank].0, "{}", serde_json::to_string(&line).unwrap()).unwrap();
    }

    pub(crate) fn event(&mut self, rank: usize, t: u64, event: Event) -> &mut Self {
        self.line(rank, t, Recorded::Event(event));
        self
    }

    pub(crate) fn join(&mut self, rank: usize, t: u64, group: &str, ranks: &[usize]) {
        self.line(rank, t, Recorded::Join { group: group.into(), ranks: ranks.to_vec() });
        self.line(rank, t, Recorded::Joined { group: group.into(), error: None });
    }

    #[allow(clippy::too_many_arguments)] // the fields of a line
    pub(crate) fn enter(
        &mut self,
        rank: usize,
        t: u64,
        form: Form,
        kind: Kind,
        operation: &str,
        group: &str,
        number: Option<u64>,
        peer: Option<usize>,
    ) -> &mut Self {
        self.ranks[rank].1 += 1;
        let (call, tag) = (self.ranks[rank].1, (kind != Kind::Collective).then_some(0));
        let (group, operation, bytes) = (group.to_owned(), operation.to_owned(), Some(8));
        let before = vec![Element::Float(rank as f64)];
        self.line(
            rank,
            t,
            Recorded::Enter(Enter { call, group, kind, number, operation, bytes, peer, tag, form, before }),
        );
        self
    }

    pub(crate) fn collective(&mut self, rank: usize, t: u64, operation: &str, group: &str, number: u64) -> &mut Self {
        self.enter(rank, t, Form::Blocking, Kind::Collective, operation, group, Some(number), None)
    }

    pub(crate) fn message(&mut self, rank: usize, t: u64, kind: Kind, peer: usize, number: Option<u64>) -> &mut Self {
        let name = if kind == Kind::Send { format!("send to rank {peer}") } else { format!("recv from rank {peer}") };
        self.enter(rank, t, Form::Async, kind, &name, "0", number, Some(peer))
    }

    /// The rank waits for the end of its last call.
    pub(crate) fn wait(&mut self, rank: usize, t: u64) -> &mut Self {
        let call = self.ranks[rank].1;
        self.line(rank, t, Recorded::Wait { call });
        self
    }

    /// The rank's last call ends.
    pub(crate) fn leave(&mut self, rank: usize, t: u64, error: Option<&str>) -> &mut Self {
        let (call, error) = (self.ranks[rank].1, error.map(str::to_owned));
        self.line(rank, t, Recorded::Leave(Leave { call, error, ..Leave::default() }));
        self
    }

    /// The launcher sees the rank's end.
    pub(crate) fn ends(&mut self, rank: usize, t: u64, code: i32) -> &mut Self {
        let attempt = self.attempt;
        let pid = 100 * (attempt as u32 + 1) + rank as u32;
        let stopped = matches!(code, -15 | -2);
        self.agent(t, AgentEvent::Ended { attempt, rank, local_rank: rank, pid, code, stopped });
        self
    }

    /// Adds this text to the rank's lines.
    pub(crate) fn raw(&mut self, rank: usize, text: &str) {
        self.ranks[rank].0.push_str(text);
    }

    /// The rank has not recorded.
    pub(crate) fn forget(&mut self, rank: usize) {
        self.forgotten.push(rank);
    }

    /// The oldest lines are not there, as the recorder drops them.
    pub(crate) fn drop_lines(&mut self, rank: usize, keep_from_end: usize) {
        let lines: Vec<String> = self.ranks[rank].0.lines().map(str::to_owned).collect();
        let kept = lines[lines.len().saturating_sub(keep_from_end)..].to_vec();
        let dropped = (lines.len() - kept.len()) as u64;
        let pid = 100 + rank as u32;
        let members = (0..self.ranks.len()).collect();
        self.ranks[rank].0.clear();
        self.line(rank, 9, Recorded::Dropped { lines: dropped });
        self.line(rank, 0, Recorded::Opened { pid, restart: 0, host: "node1".into() });
        self.line(rank, 0, Recorded::Members { group: "0".into(), ranks: members });
        kept.iter().for_each(|line| writeln!(self.ranks[rank].0, "{line}").unwrap());
    }

    /// Writes the parts to a folder.
    pub(crate) fn write(&self, folder: &Path) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("agent-node1-7.jsonl"), &self.agent).unwrap();
        for (rank, (lines, _)) in self.ranks.iter().enumerate().filter(|(rank, _)| !self.forgotten.contains(rank)) {
            fs::write(folder.join(format!("rank-{rank}.jsonl")), lines).unwrap();
        }
    }

    /// As one file.
    pub(crate) fn file(&self) -> Vec<u8> {
        let dir = tempfile::tempdir().unwrap();
        self.write(dir.path());
        let mut out = Vec::new();
        write_file(dir.path(), Header { program: "train".into(), ..Header::default() }, &mut out).unwrap();
        out
    }

    /// Reads the parts.
    pub(crate) fn read(&self) -> Replay {
        let dir = tempfile::tempdir().unwrap();
        self.write(dir.path());
        read(dir.path()).unwrap()
    }
}
