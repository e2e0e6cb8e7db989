//! The verdict on a failure: the facts that are collected before the workers start, at the first failure, and when all have ended, and
//! what becomes of them.
//!
//! The stacks of the living workers when a rank has waited in vain for another: only they show where the other rank is.
//!
//! Stacks are taken once, only in the last attempt, before the workers are stopped, and never for longer than [`LIMIT`].

use std::fmt::Write as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use std::{fs, thread};

use lockstep_contract::events::AgentEvent;
use lockstep_contract::foreign;
use lockstep_process::{NoProgress, Signals, Stacks};
use tokio::sync::mpsc as channel;
use tokio::time::timeout_at;

use super::signals::SignalStream;
use super::workers::{Context, Current};
use crate::config::Response;
use crate::rendezvous::{Closing, RootCause};
use crate::report::{Failure, first_failure};
use crate::verdict::{self, AtStart, Elsewhere, Evidence, LaunchFailure, Standing, Verdict};

/// A node whose worker failed by itself has ended the job by then, unless its workers take long to end.
const PATIENCE: Duration = Duration::from_millis(1500);
/// When the verdict is printed after a failure, unless the report comes before: it may take half a second to make.
const VERDICT: Duration = Duration::from_millis(1500);

/// What was seen in the current attempt.
#[derive(Debug, Default)]
pub(super) struct Facts {
    at_start: AtStart,
    /// Workers that stood still at the first failure. One that waited in the kernel may only have waited for a disk, unless
    /// it still waits when it is killed.
    standing: Option<Vec<Standing>>,
    /// True once those in the kernel were looked at again, when the workers were killed.
    confirmed: bool,
    /// The verdict on a worker that slept in the kernel for too long, which ended the job.
    pub(super) asleep: Option<Verdict>,
    /// Another node's verdict, which ended the job.
    pub(super) elsewhere: Option<Elsewhere>,
    /// This node's own, once all workers have ended; `None` if none of them failed.
    evidence: Option<Evidence>,
    /// The verdict, once all workers have ended.
    pub(super) verdict: Option<Verdict>,
    /// The report's entries for the workers that failed, once all workers have ended.
    pub(super) failures: Vec<Failure>,
    /// When the verdict is printed if the workers have not ended by then.
    pub(super) verdict_at: Option<Instant>,
    /// The verdict was printed before the workers' end.
    verdict_said: bool,
    /// The stacks of the workers that were alive when one had waited in vain, for the report.
    pub(super) stacks: Option<String>,
    /// Why the job failed though no worker did: the nodes did not meet, or this launcher itself failed. `None` if it only noticed
    /// a failure of others.
    pub(super) launch_failure: Option<LaunchFailure>,
}

impl Facts {
    /// Notes the facts from before the workers are started.
    pub(super) fn begin() -> Self {
        Facts { at_start: AtStart::now(), ..Facts::default() }
    }

    /// The job has failed though no worker did; returns why.
    pub(super) fn failed(&mut self, failure: LaunchFailure) -> String {
        self.launch_failure.insert(failure).to_string()
    }

    /// This launcher itself has failed, for this reason, which is returned.
    pub(super) fn own_failure(&mut self, why: String) -> String {
        self.failed(LaunchFailure::new(why))
    }

    /// Another node has ended the job.
    pub(super) fn note_closing(&mut self, closing: &Closing) {
        self.elsewhere = closing.root_cause.as_ref().map(|root| Elsewhere {
            rank: root.rank,
            host: root.host.clone(),
            message: root.message.clone(),
        });
    }

    /// At the first failure: looks at the workers that are alive.
    pub(super) fn look_at_living(&mut self, current: &Current) {
        if self.standing.is_none() {
            let dead = |worker: usize| current.deaths.iter().any(|death| death.local_rank == worker);
            let living = current.pids.iter().enumerate().filter(|(worker, _)| !dead(*worker));
            self.standing = Some(verdict::standing(living.map(|(worker, pid)| (current.rank_of(worker), *pid))));
        }
    }

    /// When workers are killed, because they have not ended: looks again at those that waited in the kernel.
    pub(super) fn look_again(&mut self) {
        let waits = |pid: u32| NoProgress::of(pid as i32).is_some_and(|at| at.in_kernel());
        if let Some(standing) = &mut self.standing {
            standing.retain(|standing| !standing.at.in_kernel() || waits(standing.pid));
            self.confirmed = true;
        }
    }

    /// When all workers have ended: gathers the evidence and makes the verdict. Before a restart only what takes no time is gathered.
    pub(super) fn judge(&mut self, context: &Context<'_>, current: &Current, restarts_left: u32) {
        let search = restarts_left == 0;
        self.failures = current.collect_failures(context);
        let first = first_failure(&self.failures);
        self.evidence = first.map(|first| self.evidence(context, current, &self.failures, first, search));
        self.decide();
    }

    /// Makes the verdict from the evidence and from what another node has said.
    pub(super) fn decide(&mut self) {
        let elsewhere = self.elsewhere.clone();
        if self.asleep.is_some() {
            self.verdict.clone_from(&self.asleep);
            return;
        }
        self.verdict = match (first_failure(&self.failures), &mut self.evidence) {
            (Some(first), Some(evidence)) => {
                evidence.elsewhere = elsewhere;
                verdict::judge(&self.failures, first, evidence)
            }
            _ => elsewhere.as_ref().map(Verdict::from),
        };
    }

    /// Writes the verdict into the event file.
    pub(super) fn record_verdict(&self, context: &Context<'_>) {
        if let Some(verdict) = &self.verdict {
            context.events.emit(&AgentEvent::Verdict(verdict.record()));
        }
    }

    /// The verdict as far as it is known while other workers are alive.
    pub(super) fn provisional(&self, context: &Context<'_>, current: &Current) -> Option<Verdict> {
        let failures = current.collect_failures(context);
        let first = first_failure(&failures)?;
        verdict::judge(&failures, first, &self.evidence(context, current, &failures, first, false))
    }

    /// After a failure that ends the job: the report waits for the other workers, which may take long to end or to inspect.
    pub(super) fn expect_verdict(&mut self) {
        if !self.verdict_said {
            self.verdict_at.get_or_insert_with(|| Instant::now() + VERDICT);
        }
    }

    /// Prints the verdict before the report, which comes when all workers have ended: once in an attempt.
    pub(super) fn say_provisional(&mut self, context: &Context<'_>, verdict: Option<Verdict>) {
        self.verdict_at = None;
        if let Some(verdict) = verdict.filter(|_| !std::mem::replace(&mut self.verdict_said, true)) {
            context.say(&format!("provisional {verdict}"));
        }
    }

    fn evidence(
        &self,
        context: &Context<'_>,
        current: &Current,
        failures: &[Failure],
        first: usize,
        search: bool,
    ) -> Evidence {
        let master_port = current.formed.as_ref().map(|(_, master)| master.port);
        let seen = self.seen(context, current, failures[first].death.rank);
        verdict::gather(&self.at_start, failures, master_port, search, seen)
    }

    /// What this agent itself has seen of the workers, when this rank was the first that failed.
    fn seen(&self, context: &Context<'_>, current: &Current, first_rank: usize) -> Evidence {
        let before = current.deaths.iter().take_while(|death| death.rank != first_rank);
        let returned = before.filter(|death| death.exitcode == 0).map(|death| death.rank);
        let stands = |standing: &&Standing| self.confirmed || !standing.at.in_kernel();
        Evidence {
            host: context.hostname.clone(),
            command: command(context),
            nodes: current.formed.as_ref().map_or(1, |(round, _)| round.nodes),
            ranks: (0..current.pids.len()).map(|worker| current.rank_of(worker)).collect(),
            returned: returned.collect(),
            standing: self.standing.iter().flatten().filter(stands).cloned().collect(),
            elsewhere: self.elsewhere.clone(),
            ..Evidence::default()
        }
    }

    /// How long to wait for another node's verdict before this node ends the job: only if this node's own failure is a
    /// consequence.
    pub(super) fn patience(&self, context: &Context<'_>) -> Duration {
        let seeks = self.verdict.as_ref().is_some_and(|verdict| verdict.class.is_consequence());
        if seeks && context.config.nodes.max > 1 { PATIENCE } else { Duration::ZERO }
    }

    /// The description of the failed worker that other nodes receive.
    pub(super) fn root_cause(&self, host: &str) -> Option<RootCause> {
        let verdict = self.verdict.as_ref();
        let blamed =
            verdict.and_then(|verdict| self.failures.iter().find(|failure| failure.death.rank == verdict.rank));
        let failure = blamed.or(self.failures.first())?;
        let message = match verdict {
            Some(verdict) if verdict.rank == failure.death.rank => verdict.message(),
            Some(verdict) => format!("rank {}: {}", verdict.rank, verdict.message()),
            None => String::new(),
        };
        Some(RootCause {
            rank: failure.death.rank,
            local_rank: failure.death.local_rank,
            host: host.to_owned(),
            pid: failure.death.pid,
            exit_code: failure.death.exitcode,
            message,
        })
    }
}

/// The command line of this node's first worker; the command lines of the others differ only in numbers.
fn command(context: &Context<'_>) -> Vec<String> {
    let program = &context.config.program;
    let words = std::iter::once(program.file.clone()).chain(program.args(0));
    words.map(|word| word.to_string_lossy().into_owned()).collect()
}

/// The longest time for the stacks of all workers.
const LIMIT: Duration = Duration::from_secs(10);
/// The longest wait for the last output of the worker that has ended.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// The number of tools that run at once: each needs a processor for some seconds.
const AT_ONCE: usize = 4;
/// The file's name in the folder of a worker's logs.
const FILE: &str = "stacks.txt";

/// What was found of one rank.
struct Taken {
    rank: usize,
    stacks: Stacks,
    /// The file with the complete stacks.
    file: Option<PathBuf>,
}

/// What was found of the workers, and who asks.
pub(super) struct Inquiry<'a> {
    pub(super) context: &'a Context<'a>,
    pub(super) current: &'a Current,
    pub(super) facts: &'a mut Facts,
    /// The workers that are alive, by local rank.
    pub(super) alive: Vec<usize>,
    pub(super) signals: &'a mut SignalStream,
}

impl Inquiry<'_> {
    /// After a worker's failure in the last attempt: takes stacks if the worker failed because it waited for another rank.
    pub(super) async fn look_into_hang(self) {
        // The search for a tool comes last, since it takes longest.
        if self.alive.is_empty() || !self.wants_stacks() {
            return;
        }
        let Some(death) = self.current.deaths.iter().find(|death| !death.stopped && death.exitcode != 0) else {
            return;
        };
        if let Some(outputs) = &self.current.outputs {
            outputs.catch_up(LAST_WORDS).await;
        }
        if verdict::has_waited(&self.current.failure(death, self.context)) {
            let verdict = self.facts.provisional(self.context, self.current);
            self.take_stacks(verdict).await;
        }
    }

    /// Returns true if the worker that has ended last has lost a rank, by what it printed.
    pub(super) async fn has_lost_a_peer(self) -> bool {
        let Some(death) = self.current.deaths.last() else { return false };
        if let Some(outputs) = &self.current.outputs {
            outputs.catch_up(LAST_WORDS).await;
        }
        verdict::has_lost_a_peer(&self.current.failure(death, self.context))
    }

    /// When another node has ended the job: takes stacks if that node's verdict names a rank of this node, or no rank because its
    /// own waited in vain.
    pub(super) async fn look_into_hang_of_another(self) {
        let ranks: Vec<usize> = (0..self.current.pids.len()).map(|worker| self.current.rank_of(worker)).collect();
        let other = self.facts.elsewhere.as_ref().filter(|other| other.concerns(&ranks));
        if let Some(verdict) = other.map(Verdict::from).filter(|_| self.wants_stacks()) {
            self.take_stacks(Some(verdict)).await;
        }
    }

    fn wants_stacks(&self) -> bool {
        self.context.config.stacks && self.facts.stacks.is_none() && Stacks::has_tool()
    }

    /// Takes the stacks. Prints what is known first, because this takes some time.
    async fn take_stacks(self, provisional: Option<Verdict>) {
        let Inquiry { context, current, facts, alive, signals } = self;
        let workers: Vec<_> = current.with_pids(alive).map(|worker| to_read(current, worker)).collect();
        if workers.is_empty() {
            return;
        }
        facts.say_provisional(context, provisional);
        let deadline = tokio::time::Instant::now() + LIMIT;
        // Dropping this end stops the tools.
        let Ok((held, stop)) = UnixStream::pair() else { return };
        let count = workers.len();
        let mut results = read_all(workers, &stop);
        let mut taken = Vec::new();
        while taken.len() < count {
            tokio::select! {
                result = timeout_at(deadline, results.recv()) => match result {
                    Ok(Some(one)) => taken.push(one),
                    // The deadline has passed, or the threads have ended.
                    _ => break,
                },
                signal = signals.next() => {
                    signals.hold(signal);
                    if !matches!(context.config.signals.response(signal), Response::PassOn { .. }) {
                        break;
                    }
                }
            }
        }
        drop(held);
        facts.stacks = show(taken, count);
    }
}

/// A worker's rank, its process, and where its stacks are kept.
fn to_read(current: &Current, (worker, pid): (usize, u32)) -> (usize, i32, Option<PathBuf>) {
    let error_file = current.error_files.get(worker).and_then(Option::as_ref);
    (current.rank_of(worker), pid as i32, error_file.and_then(|file| Some(file.parent()?.join(FILE))))
}

/// Starts threads that read the stacks of these workers until the pipe is closed.
fn read_all(workers: Vec<(usize, i32, Option<PathBuf>)>, stop: &UnixStream) -> channel::UnboundedReceiver<Taken> {
    let (found, results) = channel::unbounded_channel();
    let threads = workers.len().min(AT_ONCE);
    let rest = Arc::new(Mutex::new(workers.into_iter()));
    for _ in 0..threads {
        let (found, rest) = (found.clone(), Arc::clone(&rest));
        let Ok(signals) = stop.try_clone().and_then(Signals::until_closed) else { continue };
        let work = move || {
            let next = || rest.lock().ok().and_then(|mut rest| rest.next());
            while let Some((rank, pid, file)) = next() {
                let Ok(stacks) = Stacks::of(pid, LIMIT, &signals) else { return };
                // The report has the short form if the folder is full.
                let file = file.filter(|file| fs::write(file, stacks.to_string()).is_ok());
                let _ = found.send(Taken { rank, stacks, file });
            }
        };
        // Without a thread there is one result fewer.
        let _ = thread::Builder::new().name("stacks".into()).spawn(work);
    }
    results
}

/// The report's section: the innermost frames of the main threads; ranks in the same place share them. `None` if no tool is installed
/// for any of them, or all have ended meanwhile.
fn show(mut taken: Vec<Taken>, count: usize) -> Option<String> {
    let missing = count - taken.len();
    taken.retain(|one| match &one.stacks {
        // A worker without a frame has ended before the tool reached it.
        Stacks::Read { .. } => !one.stacks.innermost().is_empty(),
        Stacks::Unread { failed, .. } => failed.is_some(),
        Stacks::InKernel(_) => true,
    });
    if taken.is_empty() && missing == 0 {
        return None;
    }
    taken.sort_by_key(|one| one.rank);
    let mut places: Vec<(Vec<String>, String)> = Vec::new();
    for Taken { rank, stacks, .. } in &taken {
        let frames = stacks.innermost();
        let text = match stacks {
            Stacks::Read { tool, .. } => format!(" (by {tool}):\n    {}", frames.join("\n    ")),
            Stacks::Unread { failed, .. } => format!(": {}", failed.as_deref().unwrap_or_default()),
            Stacks::InKernel(at) => format!(": {at}"),
        };
        match places.iter_mut().find(|(_, known)| *known == text) {
            Some((ranks, _)) => ranks.push(rank.to_string()),
            None => places.push((vec![rank.to_string()], text)),
        }
    }
    let mut shown = "Where the other ranks of this node were, innermost call first:".to_owned();
    for (ranks, text) in places {
        let _ = write!(shown, "\n  rank {}{text}", ranks.join(", "));
    }
    if missing > 0 {
        let _ = write!(shown, "\n  not read in time: {missing} of {count}");
    }
    if let Some(file) = taken.iter().find_map(|one| one.file.as_ref()) {
        let _ =
            write!(shown, "\n  all threads of each: {FILE} in the logs of its rank, such as {}", foreign::path(file));
    }
    Some(shown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_ranks_in_the_same_place_together_and_those_that_were_not_read() {
        let taken = |rank, text: &str| {
            let text = format!("Thread 7 (idle): \"MainThread\"\n    {text}\n");
            Taken { rank, stacks: Stacks::Read { tool: "py-spy", text }, file: None }
        };
        let all = vec![taken(2, "all_reduce (a.py:1)"), taken(1, "load (b.py:9)"), taken(0, "all_reduce (a.py:1)")];
        assert_eq!(
            show(all, 4).unwrap(),
            "Where the other ranks of this node were, innermost call first:\n  rank 0, 2 (by py-spy):\n    all_reduce (a.py:1)\n  \
             rank 1 (by py-spy):\n    load (b.py:9)\n  not read in time: 1 of 4"
        );
    }

    #[test]
    fn shows_one_line_where_a_tool_failed_and_nothing_where_none_is_installed() {
        let unread = |rank, failed: Option<&str>| {
            let stacks = Stacks::Unread { failed: failed.map(str::to_owned), threads: "thread 7 x: state S\n".into() };
            Taken { rank, stacks, file: None }
        };
        let title = "Where the other ranks of this node were, innermost call first:";
        let denied = "gdb failed: exit status: 1: ptrace: Operation not permitted.";
        assert_eq!(
            show(vec![unread(1, Some(denied)), unread(0, Some(denied)), unread(2, None)], 3).unwrap(),
            format!("{title}\n  rank 0, 1: {denied}")
        );
        assert_eq!(show(vec![unread(0, None)], 1), None);
        let ended = Stacks::Read { tool: "gdb", text: "ptrace: No such process.\n".into() };
        assert_eq!(show(vec![Taken { rank: 0, stacks: ended, file: None }], 1), None);
        assert_eq!(show(vec![], 1).unwrap(), format!("{title}\n  not read in time: 1 of 1"));
    }
}
