//! For tests: event files of fictional runs, and a small report like those of the commands.

use std::time::{Duration, SystemTime};

use lockstep_contract::events::{AgentEvent, AgentRecord, Event, Record, VerdictRecord};

use crate::history::RunEvents;
use crate::model::{Finding, HostInfo, Report, ReportCase, Table, Verdict};
use crate::timeline::Timeline;

/// A text with dangerous characters.
pub const HOSTILE: &str = "</script><script>alert(1)</script>\"'&lt;]]>--> \u{1b}[31m\0\u{fffe}{% raw %}</style></svg>";

/// Three cases, one for each verdict; the first has two failures, of a rank and of a node.
pub fn sample() -> Report {
    Report {
        title: "Lockstep inject: 3 scenarios".into(),
        command: "lockstep inject --seed 7 --report report.html".into(),
        started: SystemTime::UNIX_EPOCH + Duration::from_millis(1_770_091_506_250),
        took: Duration::from_millis(14_900),
        machine: machine(),
        not_verified: machine().not_verified(),
        tables: vec![],
        cases: vec![killed_and_lost(), torn(), cut()],
    }
}

fn machine() -> HostInfo {
    HostInfo {
        host: "atlas".into(),
        kernel: "Linux 6.8.0".into(),
        architecture: "x86_64".into(),
        cores: 2,
        processor: Some("Some CPU at 2.4 GHz".into()),
        memory: Some(8 << 30),
        gpus: vec![],
    }
}

fn finding(claim: &str, verdict: Verdict, evidence: &str) -> Finding {
    Finding { claim: claim.into(), verdict, evidence: evidence.into() }
}

fn killed_and_lost() -> ReportCase {
    ReportCase {
        name: "kill-one-then-lose-a-node".into(),
        shows: "Training survives the kill of a worker and then the loss of a whole node".into(),
        findings: vec![
            finding(
                "The final weights are the same bits as without the faults",
                Verdict::Passed,
                "8 tensors, 105,866 values on each of 2 ranks: no bit differs",
            ),
            finding("At most 10 steps are lost at a time", Verdict::Passed, "5 and 4 steps"),
        ],
        took: Duration::from_millis(9_300),
        seed: Some(7),
        replay: Some("lockstep inject kill-one-then-lose-a-node --seed 7".into()),
        timeline: Some(two_nodes().timeline()),
        tables: vec![Table {
            title: "Loss".into(),
            headings: ["epoch", "loss", "accuracy"].map(Into::into).to_vec(),
            rows: vec![
                ["0", "0.4121", "88.20 %"].map(Into::into).to_vec(),
                ["1", "0.2077", "93.95 %"].map(Into::into).to_vec(),
            ],
        }],
        log: vec!["[default1]: injected: SIGKILL".into(), "rank 1 ended by SIGKILL, 2 restarts left".into()],
    }
}

fn torn() -> ReportCase {
    ReportCase {
        name: "tear-newest-snapshot".into(),
        shows: "A torn snapshot is skipped, and the one before it is taken".into(),
        findings: vec![
            finding("The torn snapshot is named", Verdict::Passed, "step-0-10.safetensors: 212,000 of 424,000 bytes"),
            finding(
                "The final weights are the same bits as without the faults",
                Verdict::Failed,
                "rank 0, fc.weight[3]: 0.12500001 instead of 0.125 (bits 0x3e000001, 0x3e000000)",
            ),
        ],
        took: Duration::from_millis(5_150),
        seed: Some(7),
        replay: Some("lockstep inject tear-newest-snapshot --seed 7".into()),
        log: vec!["resume skips a torn snapshot: step-0-10.safetensors".into()],
        ..ReportCase::default()
    }
}

fn cut() -> ReportCase {
    ReportCase {
        name: "cut-network".into(),
        shows: "A cut network is noticed, and named".into(),
        findings: vec![finding(
            "The message names the node that cannot be reached",
            Verdict::NotVerified,
            "network namespaces need a user who may make them",
        )],
        took: Duration::from_millis(12),
        ..ReportCase::default()
    }
}

/// The start of fictional runs, in seconds since the Unix epoch.
pub const NOON: f64 = 1_763_640_000.0;

/// The records of ranks and agents. Times are seconds since [`NOON`].
#[derive(Default)]
pub struct FakeRun(pub RunEvents);

impl FakeRun {
    pub fn agent(mut self, node: &str, t: f64, event: AgentEvent) -> Self {
        let record = AgentRecord { t: NOON + t, node: node.into(), event };
        self.0.agents.entry(node.into()).or_default().records.push(record);
        self
    }

    pub fn rank(mut self, rank: usize, restart: u32, t: f64, event: Event) -> Self {
        let record = Record { t: NOON + t, rank, restart, event };
        self.0.ranks.entry(rank).or_default().records.push(record);
        self
    }

    /// Steps of an epoch, the first of them completed at `t`, then one every `every` seconds.
    pub fn steps(
        self,
        (rank, restart): (usize, u32),
        epoch: u64,
        steps: std::ops::Range<u64>,
        t: f64,
        every: f64,
    ) -> Self {
        let first = steps.start;
        steps.fold(self, |run, step| run.rank(rank, restart, t + (step - first) as f64 * every, step_of(epoch, step)))
    }

    pub fn timeline(&self) -> Timeline {
        Timeline::of(&self.0)
    }
}

/// The verdict on a rank that somebody killed.
pub fn killed(rank: usize) -> VerdictRecord {
    VerdictRecord {
        rank: Some(rank),
        host: Some("node0".into()),
        at_fault: true,
        cause: "somebody else killed it".into(),
        evidence: "SIGKILL".into(),
        advice: "ask on the node".into(),
        rule: "killed".into(),
    }
}

pub fn start(world_size: usize, pid: u32) -> Event {
    Event::Start { world_size, device: "cpu".into(), pid }
}

pub fn step_of(epoch: u64, step: u64) -> Event {
    Event::Step { epoch, step, loss: 0.5, samples: 32, lr: None }
}

pub fn resume(epoch: u64, step: u64) -> Event {
    Event::Resume { epoch, step, path: format!("snapshots/step-{epoch}-{step}.safetensors") }
}

pub fn snapshot(epoch: u64, step: u64) -> Event {
    let path = format!("snapshots/step-{epoch}-{step}.safetensors");
    Event::Snapshot { epoch, step, path, bytes: 424_000, seconds: 0.012 }
}

pub fn formed(round: u64, attempt: u64, group_rank: usize, nodes: usize) -> AgentEvent {
    AgentEvent::Formed { round, attempt, group_rank, nodes, world_size: 2 * nodes }
}

pub fn started(attempt: u64, rank: usize, pid: u32) -> AgentEvent {
    AgentEvent::Started { attempt, rank, local_rank: rank % 2, pid }
}

pub fn ended(attempt: u64, rank: usize, pid: u32, code: i32, stopped: bool) -> AgentEvent {
    AgentEvent::Ended { attempt, rank, local_rank: rank % 2, pid, code, stopped }
}

pub fn restarting(attempt: u64, restarts_left: u32, reason: &str) -> AgentEvent {
    AgentEvent::Restarting { attempt, restarts_left, reason: reason.into() }
}

/// Two nodes with two ranks each, two epochs of 20 steps, a snapshot every ten. Rank 1 is killed in the first epoch, and the
/// second node is lost in the second: one node trains the rest.
pub fn two_nodes() -> FakeRun {
    let mut run = FakeRun::default();
    for (node, group_rank) in [("node0", 0), ("node1", 1)] {
        run = run.agent(node, 0.0, formed(0, 0, group_rank, 2));
        for rank in [2 * group_rank, 2 * group_rank + 1] {
            run = run.agent(node, 0.05, started(0, rank, 100 + rank as u32));
        }
    }
    for rank in 0..4 {
        run = run.rank(rank, 0, 0.6, start(4, 100 + rank as u32));
        run = run.rank(rank, 0, 0.6, Event::Epoch { epoch: 0, steps: 20, batch_size: 32 });
        run = run.steps((rank, 0), 0, 0..10, 0.7, 0.1);
        if rank == 0 {
            run = run.rank(0, 0, 1.65, snapshot(0, 10));
        }
        run = run.steps((rank, 0), 0, 10..15, 1.7, 0.1);
    }
    run = run.rank(1, 0, 2.12, Event::Fault { message: "injected: SIGKILL (kill-one)".into() });
    run = first_restart(run);
    second_loss(run)
}

/// Rank 1 is killed at 2.12 s; all four continue from step 10.
fn first_restart(mut run: FakeRun) -> FakeRun {
    let reason = "rank 1 ended by SIGKILL";
    run = run.agent("node0", 2.13, ended(0, 1, 101, -9, false));
    for (node, ranks, t) in [("node0", &[0][..], 2.2), ("node1", &[2, 3], 2.3)] {
        for rank in ranks {
            run = run.agent(node, t, ended(0, *rank, 100 + *rank as u32, -15, true));
        }
    }
    run = run.agent("node0", 2.25, AgentEvent::Verdict(killed(1)));
    for (node, group_rank) in [("node0", 0), ("node1", 1)] {
        run = run.agent(node, 2.31, restarting(1, 2, reason)).agent(node, 2.4, formed(1, 1, group_rank, 2));
        for rank in [2 * group_rank, 2 * group_rank + 1] {
            run = run.agent(node, 2.41 + 0.01 * rank as f64, started(1, rank, 200 + rank as u32));
        }
    }
    for rank in 0..4 {
        run = run.rank(rank, 1, 2.9, start(4, 200 + rank as u32)).rank(rank, 1, 2.95, resume(0, 10));
        run = run.steps((rank, 1), 0, 10..20, 3.1, 0.1);
        run = run.rank(rank, 1, 4.05, Event::Epoch { epoch: 1, steps: 20, batch_size: 32 });
        if rank == 0 {
            run = run.rank(0, 1, 4.06, snapshot(1, 0));
        }
        run = run.steps((rank, 1), 1, 0..4, 4.1, 0.1);
    }
    run
}

/// The second node falls silent at 4.4 s; the first one's ranks stall until it is given up, and train the rest.
fn second_loss(mut run: FakeRun) -> FakeRun {
    for rank in [0, 1] {
        run = run.agent("node0", 6.5, ended(1, rank, 200 + rank as u32, -15, true));
    }
    run = run.agent("node0", 6.52, restarting(2, 2, "node1 was lost: no heartbeat for 2.0 s"));
    run = run.agent("node0", 6.6, formed(2, 2, 0, 1));
    for rank in [0, 1] {
        let pid = 300 + rank as u32;
        run = run.agent("node0", 6.62, started(2, rank, pid));
        run = run.rank(rank, 1, 7.0, start(2, pid)).rank(rank, 1, 7.05, resume(1, 0));
        run = run.steps((rank, 1), 1, 0..20, 7.2, 0.1).rank(rank, 1, 9.2, Event::Exit { code: 0 });
    }
    for rank in [0, 1] {
        run = run.agent("node0", 9.25, ended(2, rank, 300 + rank as u32, 0, false));
    }
    run.agent("node0", 9.3, AgentEvent::Finished { code: 0 })
}
