//! The facts for the verdict on a failure, collected when they can be seen: before the workers start, at the first failure, and when
//! all workers have ended.

use std::time::Duration;

use lockstep_process::Standstill;

use super::workers::{Context, Current};
use crate::rendezvous::{Closing, RootCause};
use crate::report::first_failure;
use crate::verdict::{self, AtStart, Class, Elsewhere, Evidence, Standing, Verdict};

/// A node whose worker failed by itself has ended the job by then, unless its workers take long to end.
const PATIENCE: Duration = Duration::from_millis(1500);

/// What was seen in the current attempt.
#[derive(Debug, Default)]
pub(super) struct Facts {
    at_start: AtStart,
    /// Workers that stood still at the first failure. Those in the kernel may only have waited for a disk, unless they
    /// still do when they are killed.
    standing: Option<Vec<Standing>>,
    /// Set then.
    confirmed: bool,
    /// Another node's verdict, which ended the job.
    elsewhere: Option<Elsewhere>,
    /// This node's own, once all workers have ended; `None` if none of them failed.
    evidence: Option<Evidence>,
    /// The verdict, once all workers have ended.
    pub(super) verdict: Option<Verdict>,
}

impl Facts {
    /// Before the workers are started.
    pub(super) fn begin(&mut self) {
        self.at_start = AtStart::now();
    }

    /// Another node has ended the job.
    pub(super) fn note_closing(&mut self, closing: &Closing) {
        self.elsewhere = closing.root_cause.as_ref().map(|root| Elsewhere {
            rank: root.rank,
            host: root.host.clone(),
            message: root.message.clone(),
        });
    }
}

impl Current {
    /// At the first failure: looks at the workers that are alive.
    pub(super) fn look_at_living(&mut self) {
        if self.facts.standing.is_none() {
            let dead = |worker: usize| self.deaths.iter().any(|death| death.died.index == worker);
            let living = self.pids.iter().enumerate().filter(|(worker, _)| !dead(*worker));
            let standing = verdict::standing(living.map(|(worker, pid)| (self.rank_of(worker), *pid)));
            self.facts.standing = Some(standing);
        }
    }

    /// When workers are killed, because they have not ended: looks again at those that waited in the kernel.
    pub(super) fn look_again(&mut self) {
        let waits = |pid: u32| Standstill::of(pid as i32).is_some_and(|at| at.in_kernel());
        if let Some(standing) = &mut self.facts.standing {
            standing.retain(|standing| !standing.at.in_kernel() || waits(standing.pid));
            self.facts.confirmed = true;
        }
    }

    /// A worker that SIGKILL has not ended, and where it stands.
    pub(super) fn describe_stuck(&self, worker: usize) -> String {
        let pid = self.pids.get(worker).copied().unwrap_or_default();
        let at = Standstill::of(pid as i32).map_or_else(|| "why is not known".to_owned(), |at| at.to_string());
        let rank = self.rank_of(worker);
        format!("rank {rank} (local rank {worker}, pid {pid}) cannot be killed and is given up: {at}")
    }

    /// When all workers have ended: gathers the evidence, once, because what the kernel has logged can be read once only, and makes
    /// the verdict.
    pub(super) fn judge(&mut self, context: &Context<'_>) {
        self.facts.evidence = first_failure(&self.failures).map(|first| self.evidence(context, first));
        self.decide();
    }

    /// Makes the verdict from the evidence and from what another node has said.
    pub(super) fn decide(&mut self) {
        let elsewhere = self.facts.elsewhere.clone();
        self.facts.verdict = match (first_failure(&self.failures), &mut self.facts.evidence) {
            (Some(first), Some(evidence)) => {
                evidence.elsewhere = elsewhere;
                verdict::judge(&self.failures, first, evidence)
            }
            _ => elsewhere.as_ref().map(Verdict::from),
        };
    }

    fn evidence(&self, context: &Context<'_>, first: usize) -> Evidence {
        let master_port = self.formed.as_ref().map(|(_, master)| master.port);
        let first_rank = self.failures[first].death.rank;
        let before = self.deaths.iter().take_while(|death| self.rank_of(death.died.index) != first_rank);
        let returned = before.filter(|death| death.died.exit.success()).map(|death| self.rank_of(death.died.index));
        let stands = |standing: &&Standing| self.facts.confirmed || !standing.at.in_kernel();
        Evidence {
            host: context.hostname.clone(),
            ranks: (0..self.pids.len()).map(|worker| self.rank_of(worker)).collect(),
            returned: returned.collect(),
            standing: self.facts.standing.iter().flatten().filter(stands).cloned().collect(),
            ..verdict::gather(&self.facts.at_start, &self.failures, master_port)
        }
    }

    /// How long to wait for another node's verdict before this node ends the job: only if this node's own failure is a
    /// consequence.
    pub(super) fn patience(&self, context: &Context<'_>) -> Duration {
        let seeks = self.facts.verdict.as_ref().is_some_and(|verdict| verdict.class.is_consequence());
        if seeks && context.config.nodes.max > 1 { PATIENCE } else { Duration::ZERO }
    }

    /// The description of the failed worker that other nodes receive.
    pub(super) fn root_cause(&self, host: &str) -> Option<RootCause> {
        let verdict = self.facts.verdict.as_ref();
        let blamed =
            verdict.and_then(|verdict| self.failures.iter().find(|failure| failure.death.rank == verdict.rank));
        let failure = blamed.or(self.failures.first())?;
        let message = match verdict.filter(|verdict| verdict.class != Class::Unknown) {
            Some(verdict) if verdict.rank == failure.death.rank => verdict.message(),
            Some(verdict) => format!("rank {}: {}", verdict.rank, verdict.message()),
            None => failure.traceback().lines().last().unwrap_or_default().to_owned(),
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
