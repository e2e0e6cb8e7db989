//! The verdict on a failure: the facts that are collected before the workers start, at the first failure, and when all have ended, and
//! what becomes of them.

use std::time::{Duration, Instant};

use lockstep_contract::events::AgentEvent;
use lockstep_process::NoProgress;

use super::workers::{Context, Current};
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

/// The command line of this node's first worker; those of the others differ only in numbers.
fn command(context: &Context<'_>) -> Vec<String> {
    let program = &context.config.program;
    let words = std::iter::once(program.file.clone()).chain(program.args(0));
    words.map(|word| word.to_string_lossy().into_owned()).collect()
}
