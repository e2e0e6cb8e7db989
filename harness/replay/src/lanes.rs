//! The lanes of a replay: what each rank's lines and its launcher say of its processes, as spans and marks in time.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_contract::events::{AgentEvent, AgentRecord, Event};
use lockstep_contract::recording::{Enter, Form, Kind, Leave, Recorded};
use lockstep_contract::{counted, foreign};
use lockstep_process::signal_name;

use crate::model::{self, Attempt, Call, Gap, Group, Lane, Mark, MarkKind, Process, Replay, Span, SpanKind, Step};
use crate::read::{Collected, Item, Own};

/// A worker as its launcher has it.
struct Worker<'a> {
    node: &'a str,
    attempt: u64,
    rank: usize,
    pid: u32,
    started: f64,
    ended: Option<(f64, i32, bool)>,
}

fn workers(agents: &[AgentRecord]) -> Vec<Worker<'_>> {
    let mut workers: Vec<Worker<'_>> = Vec::new();
    for AgentRecord { t, node, event } in agents {
        match event {
            AgentEvent::Started { attempt, rank, pid, .. } => {
                let (attempt, rank, pid) = (*attempt, *rank, *pid);
                workers.push(Worker { node, attempt, rank, pid, started: *t, ended: None });
            }
            AgentEvent::Ended { attempt, rank, pid, code, stopped, .. } => {
                let mut own = workers.iter_mut().filter(|own| own.node == node && own.attempt == *attempt);
                if let Some(own) = own.find(|own| own.rank == *rank && own.pid == *pid) {
                    own.ended = Some((*t, *code, *stopped));
                }
            }
            _ => {}
        }
    }
    // An agent that joins later counts its own attempts. The rounds are common to all.
    let formed = agents.iter().filter_map(|AgentRecord { node, event, .. }| match event {
        AgentEvent::Formed { round, attempt, .. } => Some(((node.as_str(), *attempt), *round)),
        _ => None,
    });
    let rounds: BTreeMap<(&str, u64), u64> = formed.collect();
    let own: Option<Vec<u64>> =
        workers.iter().map(|worker| rounds.get(&(worker.node, worker.attempt)).copied()).collect();
    if let Some(own) = own {
        let numbers: BTreeSet<u64> = own.iter().copied().collect();
        for (worker, round) in workers.iter_mut().zip(own) {
            worker.attempt = numbers.range(..round).count() as u64;
        }
    }
    workers
}

/// How a process ended.
fn ended_with(code: i32) -> String {
    match code {
        code if code < 0 => format!("killed by {}", signal_name(-code)),
        code => format!("exit code {code}"),
    }
}

/// Nanoseconds since the start of the recording.
#[derive(Clone, Copy)]
struct Clock {
    started: f64,
}

impl Clock {
    fn at(self, t: f64) -> u64 {
        ((t - self.started).max(0.0) * 1e9).round() as u64
    }
}

impl Collected {
    pub(crate) fn replay(mut self) -> Replay {
        self.agents.sort_by(|one, other| one.t.total_cmp(&other.t));
        let (started, last) = self.span();
        let clock = Clock { started: if started.is_finite() { started } else { 0.0 } };
        let (end, ranks) = (clock.at(last), &self.ranks);
        let workers = workers(&self.agents);
        let mut replay = Replay {
            version: model::VERSION,
            started: clock.started,
            end,
            flight_recorder: self.flight_recorder.clone(),
            missing: self.missing.clone(),
            ..Replay::default()
        };
        let known: BTreeSet<usize> = ranks.keys().copied().chain(workers.iter().map(|worker| worker.rank)).collect();
        let mut groups = BTreeMap::new();
        for rank in known {
            let dropped = self.dropped.get(&rank).copied().unwrap_or(0);
            let workers: Vec<&Worker<'_>> = workers.iter().filter(|worker| worker.rank == rank).collect();
            let own = ranks.get(&rank).map_or(&[][..], Vec::as_slice);
            let lane = LaneBuilder { clock, end, groups: &mut groups, lane: Lane { rank, ..Lane::default() } };
            replay.lanes.push(lane.build(own, &workers, dropped));
            if dropped > 0 {
                let lines = counted(dropped, "line");
                replay
                    .missing
                    .push(format!("rank {rank}: the oldest {lines} were dropped to keep the recording short"));
            }
        }
        let silent: Vec<usize> = replay.lanes.iter().filter(|lane| !lane.recorded).map(|lane| lane.rank).collect();
        if !silent.is_empty() {
            replay.missing.push(format!(
                "of {} only the launcher's part is recorded: programs that do not use the runtime, as in Python, do not record their calls",
                ranks_text(&silent)
            ));
        }
        replay.groups = groups.into_iter().map(|((attempt, name), members)| Group { attempt, name, members }).collect();
        let nodes: BTreeSet<&str> = replay.lanes.iter().filter_map(|lane| lane.node.as_deref()).collect();
        if nodes.len() > 1 {
            let hosts = nodes.into_iter().map(foreign::one_line).collect::<Vec<_>>().join(", ");
            replay.missing.push(format!(
                "times are by the clocks of {hosts}: which of two hosts was earlier is only as sure as their clocks agree"
            ));
        }
        replay.attempts = attempts(&replay, &workers, clock);
        replay.marks = self.agents.iter().filter_map(|record| job_mark(record, clock, &workers)).collect();
        number_spans(&mut replay);
        replay
    }
}

/// `ranks 0, 1 and 3`.
pub(crate) fn ranks_text(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    match &numbers[..] {
        [] => "no rank".to_owned(),
        [one] => format!("rank {one}"),
        [all @ .., last] => format!("ranks {} and {last}", all.join(", ")),
    }
}

fn number_spans(replay: &mut Replay) {
    let spans = replay.lanes.iter_mut().flat_map(|lane| &mut lane.spans);
    for (id, span) in (0..).zip(spans) {
        span.id = id;
    }
}

/// The attempts, by the launchers or else by the ranks' numbers of restarts.
fn attempts(replay: &Replay, workers: &[Worker<'_>], clock: Clock) -> Vec<Attempt> {
    let mut attempts: BTreeMap<u32, Attempt> = BTreeMap::new();
    for process in replay.lanes.iter().flat_map(|lane| &lane.processes) {
        let of = Attempt { number: process.attempt, from: process.from, to: Some(0), ended: None };
        let attempt = attempts.entry(process.attempt).or_insert(of);
        attempt.from = attempt.from.min(process.from);
        attempt.to = attempt.to.zip(process.to).map(|(one, other)| one.max(other));
    }
    for attempt in attempts.values_mut() {
        let number = u64::from(attempt.number);
        let ends = workers.iter().filter(|worker| worker.attempt == number).filter_map(|worker| {
            let (t, code, stopped) = worker.ended?;
            Some((worker.rank, clock.at(t), code, stopped))
        });
        let ends: Vec<_> = ends.collect();
        let failed = ends.iter().filter(|(_, _, code, stopped)| *code != 0 && !stopped).min_by_key(|(_, at, ..)| *at);
        attempt.ended = match failed {
            Some((rank, _, code, _)) if *code < 0 => Some(format!("rank {rank} was {}", ended_with(*code))),
            Some((rank, _, code, _)) => Some(format!("rank {rank} ended with {}", ended_with(*code))),
            None if ends.is_empty() => None,
            None if ends.iter().all(|(_, _, code, _)| *code == 0) => Some("all ranks succeeded".to_owned()),
            None => Some("the launcher stopped the ranks".to_owned()),
        };
    }
    attempts.into_values().collect()
}

/// A launcher's event that concerns the whole job.
fn job_mark(record: &AgentRecord, clock: Clock, workers: &[Worker<'_>]) -> Option<Mark> {
    let (kind, text) = match &record.event {
        AgentEvent::Restarting { restarts_left, reason, .. } => {
            let left = counted(*restarts_left, "restart");
            (MarkKind::Restart, format!("{reason}: all workers are started again ({left} left)"))
        }
        AgentEvent::Verdict(verdict) => (MarkKind::Verdict, verdict.to_string()),
        AgentEvent::Signalled { signal } => {
            (MarkKind::Signal, format!("the launcher received {}", signal_name(*signal)))
        }
        AgentEvent::TimeLimit { seconds_left, source } => {
            (MarkKind::Signal, format!("the job ends in {seconds_left:.0} s, says {source}"))
        }
        _ => return None,
    };
    let earlier = workers.iter().filter(|worker| worker.started <= record.t);
    let attempt = earlier.map(|worker| worker.attempt).max().unwrap_or(0);
    Some(Mark { at: clock.at(record.t), attempt: attempt as u32, kind, text: foreign::one_line(&text) })
}

/// Builds the lane of one rank.
struct LaneBuilder<'a> {
    clock: Clock,
    end: u64,
    /// By attempt and name.
    groups: &'a mut BTreeMap<(u32, String), Vec<usize>>,
    lane: Lane,
}

/// What is open in a process.
#[derive(Default)]
struct Opened {
    /// The place of each call's span, and how it holds the rank up.
    calls: BTreeMap<u64, (usize, Form)>,
    joins: BTreeMap<String, usize>,
    /// When the next step begins: at the end of the last one, or of what came before the first.
    step_from: Option<u64>,
    /// The epoch, its steps, and the next step.
    next_step: Option<(u64, u64, u64)>,
}

impl LaneBuilder<'_> {
    fn build(mut self, own: &[Own], workers: &[&Worker<'_>], dropped: u64) -> Lane {
        self.lane.recorded = own.iter().any(|own| own.opened.is_some());
        for (index, process) in own.iter().enumerate() {
            let worker = workers.iter().find(|worker| process.pid == Some(worker.pid));
            let attempt = worker.map_or(process.restart, |worker| worker.attempt as u32);
            // Without a launcher, the next process of the rank says that this one is gone.
            let next = own.get(index + 1).and_then(|next| next.opened);
            self.process(process, worker.copied(), attempt, next, index == 0 && dropped > 0);
        }
        // What only the launcher knows, unless the rank's own program has started ranks under its number.
        for worker in workers {
            let attempt = worker.attempt as u32;
            if !self.lane.processes.iter().any(|process| process.attempt == attempt) {
                let from = self.clock.at(worker.started);
                let to = worker.ended.map_or(self.end, |(t, ..)| self.clock.at(t));
                self.begin(worker, attempt, from);
                self.lane.gaps.push(Gap { from, to });
            }
        }
        let lane = &mut self.lane;
        lane.processes.sort_by_key(|process| process.from);
        lane.gaps.sort_by_key(|gap| gap.from);
        lane.spans.sort_by_key(|span| (span.from, span.kind != SpanKind::Step));
        lane.marks.sort_by_key(|mark| mark.at);
        self.lane
    }

    /// A process as its launcher knows it.
    fn begin(&mut self, worker: &Worker<'_>, attempt: u32, from: u64) {
        let to = worker.ended.map(|(t, ..)| self.clock.at(t));
        let ended = worker.ended.map(|(_, code, _)| ended_with(code));
        self.lane.node.get_or_insert_with(|| host_of(worker.node));
        self.mark(from, attempt, MarkKind::Start, format!("process {} starts", worker.pid));
        if let (Some(to), Some((_, code, _))) = (to, worker.ended) {
            let kind = if code == 0 { MarkKind::Exit } else { MarkKind::Death };
            self.mark(to, attempt, kind, format!("the process ends: {}", ended_with(code)));
        }
        let stopped = worker.ended.is_some_and(|(_, _, stopped)| stopped);
        self.lane.processes.push(Process { attempt, pid: Some(worker.pid), from, to, ended, stopped });
    }

    fn mark(&mut self, at: u64, attempt: u32, kind: MarkKind, text: String) {
        self.lane.marks.push(Mark { at, attempt, kind, text: foreign::one_line(&text) });
    }

    fn process(&mut self, own: &Own, worker: Option<&Worker<'_>>, attempt: u32, next: Option<f64>, dropped: bool) {
        let lines = own.items.iter().filter_map(|item| match item {
            Item::Line(_, Recorded::Members { .. }) | Item::Gap => None,
            Item::Line(t, _) => Some(self.clock.at(*t)),
        });
        let first = lines.min();
        let opened = own.opened.map(|t| self.clock.at(t));
        let from = worker.map(|worker| self.clock.at(worker.started)).or(opened).or(first).unwrap_or(0);
        match worker {
            Some(worker) => self.begin(worker, attempt, from),
            None => {
                let to = next.map(|t| self.clock.at(t));
                self.mark(from, attempt, MarkKind::Start, "the rank begins to record".to_owned());
                self.lane.processes.push(Process { attempt, pid: own.pid, from, to, ended: None, stopped: false });
            }
        }
        self.lane.node = self.lane.node.take().or_else(|| own.host.clone());
        let ended = self.lane.processes.last().and_then(|process| process.to);
        let until = ended.unwrap_or(self.end);
        if dropped || own.opened.is_none() {
            self.lane.gaps.push(Gap { from, to: first.unwrap_or(until) });
        }
        let mut open = Opened { step_from: opened, ..Opened::default() };
        let mut at = opened.unwrap_or(from);
        let mut in_gap = false;
        for item in &own.items {
            match item {
                Item::Gap => in_gap = true,
                Item::Line(t, what) => {
                    let t = self.clock.at(*t);
                    if std::mem::take(&mut in_gap) {
                        self.close_in_gap(&mut open, at, t);
                    }
                    if !matches!(what, Recorded::Members { .. }) {
                        at = at.max(t);
                    }
                    self.line(t, what, attempt, &mut open);
                }
            }
        }
        if in_gap {
            self.close_in_gap(&mut open, at, until.max(at));
        } else if ended.is_none() || worker.is_some_and(|worker| worker.ended.is_some_and(|(_, code, _)| code != 0)) {
            self.unfinished_step(&open, attempt);
        }
        for (place, form) in open.calls.values() {
            // What the rank has not waited for does not hold it up.
            if *form == Form::Pass {
                self.lane.spans[*place].waits_from = Some(self.lane.spans[*place].from);
            }
        }
    }

    /// Lines between these times are not there: what was open may have ended.
    fn close_in_gap(&mut self, open: &mut Opened, from: u64, to: u64) {
        let places = open.calls.values().map(|(place, _)| *place).chain(open.joins.values().copied());
        for place in places {
            // Nor is it known for how long it held the rank up.
            (self.lane.spans[place].to, self.lane.spans[place].waits_from) = (Some(to), None);
        }
        self.lane.gaps.push(Gap { from, to });
        *open = Opened { step_from: None, ..Opened::default() };
    }

    fn unfinished_step(&mut self, open: &Opened, attempt: u32) {
        if let (Some((epoch, steps, step)), Some(from)) = (open.next_step, open.step_from)
            && step < steps
        {
            let mut span = span(attempt, SpanKind::Step, format!("step {step}"), from);
            span.step = Some(Step { epoch, step, loss: None });
            self.lane.spans.push(span);
        }
    }

    fn line(&mut self, t: u64, what: &Recorded, attempt: u32, open: &mut Opened) {
        match what {
            Recorded::Join { group, ranks } => {
                self.groups.insert((attempt, group.clone()), ranks.clone());
                let name = format!("join group {group} of {}", counted(ranks.len() as u64, "rank"));
                let mut span = span(attempt, SpanKind::Join, name, t);
                span.waits_from = Some(t);
                span.call = Some(Call { group: group.clone(), ..Call::default() });
                open.joins.insert(group.clone(), self.lane.spans.len());
                self.lane.spans.push(span);
            }
            Recorded::Joined { group, error } => {
                if let Some(place) = open.joins.remove(group) {
                    self.lane.spans[place].to = Some(t);
                    self.lane.spans[place].error.clone_from(error);
                    self.note_error(place, t);
                }
                open.step_from = Some(t);
            }
            Recorded::Members { group, ranks } => {
                self.groups.entry((attempt, group.clone())).or_insert_with(|| ranks.clone());
            }
            Recorded::Enter(enter) => self.enter(t, enter, attempt, open),
            Recorded::Wait { call } => {
                if let Some((place, _)) = open.calls.get(call) {
                    self.lane.spans[*place].waits_from = Some(t);
                }
            }
            Recorded::Leave(leave) => self.leave(t, leave, open),
            Recorded::Event(event) => self.event(t, event, attempt, open),
            _ => {}
        }
    }

    fn enter(&mut self, t: u64, enter: &Enter, attempt: u32, open: &mut Opened) {
        let Enter { call, group, kind, number, operation, bytes, peer, tag, form, before } = enter.clone();
        let kind = match kind {
            Kind::Collective => SpanKind::Collective,
            Kind::Send => SpanKind::Send,
            Kind::Receive => SpanKind::Receive,
        };
        let mut span = span(attempt, kind, operation, t);
        span.waits_from = (form == Form::Blocking).then_some(t);
        let tag = tag.map(u32::from);
        span.call = Some(Call { group, number, bytes, peer, tag, before, after: Vec::new() });
        open.calls.insert(call, (self.lane.spans.len(), form));
        self.lane.spans.push(span);
    }

    fn leave(&mut self, t: u64, leave: &Leave, open: &mut Opened) {
        let Some((place, form)) = open.calls.remove(&leave.call) else { return };
        let span = &mut self.lane.spans[place];
        span.to = Some(t.max(span.from));
        span.error.clone_from(&leave.error);
        if form == Form::Pass {
            let waited = leave.waited.map(|seconds| (seconds.max(0.0) * 1e9) as u64);
            span.waits_from = match &leave.error {
                Some(_) => Some(span.from),
                None => waited.map(|waited| t.saturating_sub(waited).max(span.from)),
            };
        }
        if let Some(call) = &mut span.call {
            call.bytes = call.bytes.or(leave.bytes);
            call.peer = call.peer.or(leave.peer);
            call.number = call.number.or(leave.number);
            call.after.clone_from(&leave.after);
        }
        self.note_error(place, t);
    }

    fn note_error(&mut self, place: usize, at: u64) {
        let span = &self.lane.spans[place];
        if let Some(error) = &span.error {
            let (attempt, text) = (span.attempt, format!("{} failed: {error}", span.name));
            self.mark(at, attempt, MarkKind::Error, text);
        }
    }

    fn event(&mut self, t: u64, event: &Event, attempt: u32, open: &mut Opened) {
        let (kind, text) = match event {
            Event::Epoch { epoch, steps, .. } => {
                (open.step_from, open.next_step) = (Some(t), Some((*epoch, *steps, 0)));
                return;
            }
            Event::Step { epoch, step, loss, .. } => {
                let from = open.step_from.unwrap_or(t).min(t);
                let mut span = span(attempt, SpanKind::Step, format!("step {step}"), from);
                span.to = Some(t);
                span.step =
                    Some(Step { epoch: *epoch, step: *step, loss: Some(*loss).filter(|loss| loss.is_finite()) });
                self.lane.spans.push(span);
                open.step_from = Some(t);
                open.next_step =
                    open.next_step.filter(|(of, ..)| of == epoch).map(|(of, steps, _)| (of, steps, step + 1));
                return;
            }
            Event::Snapshot { step, bytes, seconds, .. } => {
                let from = t.saturating_sub((seconds.max(0.0) * 1e9) as u64);
                let mut span =
                    span(attempt, SpanKind::Snapshot, format!("snapshot at step {step}, {bytes} bytes"), from);
                span.to = Some(t);
                self.lane.spans.push(span);
                return;
            }
            Event::Resume { step, path, .. } => (MarkKind::Resume, format!("resumes at step {step} from {path}")),
            Event::Eval { epoch, accuracy, loss, .. } => {
                (MarkKind::Evaluation, format!("evaluated after epoch {epoch}: accuracy {accuracy:.4}, loss {loss:.4}"))
            }
            Event::Fault { message } => (MarkKind::Fault, message.clone()),
            Event::Late { message, .. } => (MarkKind::Late, message.clone()),
            Event::Exit { code } => (MarkKind::Exit, format!("the rank is about to exit with code {code}")),
            _ => return,
        };
        if matches!(kind, MarkKind::Resume | MarkKind::Evaluation) {
            open.step_from = Some(t);
        }
        self.mark(t, attempt, kind, text);
    }
}

/// An agent's node is its host and its process id.
fn host_of(node: &str) -> String {
    match node.rsplit_once('-') {
        Some((host, pid)) if !host.is_empty() && pid.bytes().all(|byte| byte.is_ascii_digit()) => host.to_owned(),
        _ => node.to_owned(),
    }
}

fn span(attempt: u32, kind: SpanKind, name: String, from: u64) -> Span {
    Span {
        id: 0,
        attempt,
        kind,
        name: foreign::one_line(&name),
        from,
        waits_from: None,
        to: None,
        error: None,
        call: None,
        step: None,
        matched: Vec::new(),
    }
}
