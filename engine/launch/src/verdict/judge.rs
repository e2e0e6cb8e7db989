//! From the workers' ends and the evidence to the verdict.

use std::fmt;
use std::time::Duration;

use lockstep_contract::events::VerdictRecord;
use lockstep_contract::foreign::one_line;
use lockstep_contract::rules::Rule;

use super::flight_recorder::{Astray, astray};
use super::rules::{self, Causes, Class, WorkerFinding};
use super::worker_end::{Error, Words, WorkerEnd};
use super::{Elsewhere, Evidence, Standing, communication};
use crate::config::KERNEL_SLEEP;
use crate::report::{Failure, Reason};

/// Begins the message to other nodes if the rank only noticed the failure.
const NOTICED: &str = "it only noticed the failure: ";

/// Who is at fault, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// The rank at fault, or the one that noticed the failure if no rank is known to be at fault.
    pub rank: usize,
    /// Its host; `None` for a rank of another node whose host is not known here.
    pub host: Option<String>,
    /// What happened.
    pub cause: String,
    /// The evidence.
    pub how_known: String,
    /// What to do.
    pub advice: String,
    /// The name of the rule that found it.
    pub rule: &'static str,
    /// Whether the rank is at fault, or only noticed the failure.
    pub class: Class,
    /// The evidence is the rank's own end, not what other ranks or its node reported about it.
    pub own: bool,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.record().fmt(f)
    }
}

impl Verdict {
    /// For the event file and the report: each text in one line.
    pub fn record(&self) -> VerdictRecord {
        VerdictRecord {
            rank: Some(self.rank),
            host: self.host.as_deref().map(one_line),
            at_fault: !self.class.is_consequence(),
            cause: one_line(&self.cause),
            evidence: one_line(&self.how_known),
            advice: self.advice.clone(),
            rule: self.rule.to_owned(),
        }
    }

    /// The cause, for other nodes; [`Elsewhere::message`] there.
    pub fn message(&self) -> String {
        match self.class {
            Class::Cause => self.cause.clone(),
            Class::PeerGone | Class::Waiting => format!("{NOTICED}{}", self.cause),
            // The exit code or signal is all that is known.
            Class::Unknown => format!("{} ({})", self.cause, self.how_known),
        }
    }
}

/// Returns true if a worker ended because it had waited for another rank until a deadline, according to its own output.
pub fn has_waited(failure: &Failure) -> bool {
    let evidence = Evidence::default();
    let Explained { worker, rule, .. } = explain(failure, &evidence);
    // A desync report also follows the loss of a peer, after which the others are not where they were.
    rule.level == Class::Waiting && worker.line(&["timed out", "timeout", "timing out", "failed to pass"]).is_some()
}

/// Returns true if the cause of a worker's end is in another rank, according to its own output.
pub(super) fn blames_another(failure: &Failure) -> bool {
    explain(failure, &Evidence::default()).rule.level.is_consequence()
}

/// A worker's end with the rule that explains it.
struct Explained<'a> {
    worker: WorkerEnd<'a>,
    rule: &'static Rule<Causes>,
    found: WorkerFinding,
}

/// The verdict on these failures, in the kernel's order, of which `first` came first.
pub fn judge(failures: &[Failure], first: usize, evidence: &Evidence) -> Option<Verdict> {
    let explained: Vec<Explained<'_>> = failures.iter().map(|failure| explain(failure, evidence)).collect();
    let reporter = explained.get(first)?;
    if !reporter.rule.level.is_consequence() {
        return Some(reporter.verdict());
    }
    let named = |by: &Explained<'_>| by.found.place.map(|rank| on_named(rank, by, &explained, evidence));
    let others = || explained.iter().enumerate().filter(|(at, _)| *at != first).map(|(_, other)| other);
    let at_fault = |class| move |other: &&Explained<'_>| other.rule.level == class && other.counts();
    let verdict = named(reporter)
        .or_else(|| others().find(at_fault(Class::Cause)).map(|other| other.blamed_by(reporter)))
        .or_else(|| others().filter(|other| other.counts()).find_map(named))
        .or_else(|| on_recorded(reporter, evidence))
        .or_else(|| evidence.standing.first().map(|standing| on_standing(standing, reporter, evidence)))
        .or_else(|| elsewhere(reporter, evidence).filter(|verdict| verdict.class == Class::Cause))
        .or_else(|| evidence.returned.first().map(|rank| on_returned(*rank, reporter, evidence)))
        .or_else(|| elsewhere(reporter, evidence))
        .or_else(|| {
            others()
                .filter(|other| other.rule.level == Class::Unknown)
                .find(|other| other.counts())
                .map(|other| other.blamed_by(reporter))
        });
    Some(verdict.unwrap_or_else(|| reporter.verdict()))
}

fn explain<'a>(failure: &'a Failure, evidence: &'a Evidence) -> Explained<'a> {
    let worker = WorkerEnd::new(failure, evidence);
    let mut explained = by_first_rule(worker);
    let is_specific = |rule: &Rule<Causes>| !rule.level.is_consequence() && !rules::is_general(rule);
    let Explained { worker, rule, .. } = &explained;
    if let Some(doubt) = worker.doubt.as_ref().map(|doubt| by_first_rule(worker.with(doubt.clone()))) {
        // A rank that lost another one must not be taken for the one at fault.
        if doubt.rule.level.is_consequence() {
            return doubt;
        }
    }
    match &worker.later {
        // What an exception was printed for, and went on after, does not explain the end, but a lost rank does.
        None if worker.words == Words::Exception && !rule.level.is_consequence() => {
            explained = by_first_rule(worker.without_words());
        }
        Some(later) => {
            let later = worker.with(later.clone());
            let what = format!("; while it was handled, {}", later.error.as_ref().map(Error::text).unwrap_or_default());
            let other = by_first_rule(later).rule;
            // Two causes: which of them came first is all that is known.
            if is_specific(rule) && is_specific(other) && rule.name != other.name {
                explained.general();
            }
            explained.found.what += &what;
        }
        None => {}
    }
    let Explained { worker, rule, found } = &mut explained;
    if rules::is_general(rule) || matches!(worker.failure.reason, Reason::Recorded { .. }) {
        found.evidence.extend(worker.past.take().map(|past| format!("; {past}")));
    }
    explained
}

fn by_first_rule(worker: WorkerEnd<'_>) -> Explained<'_> {
    let found = rules::all().find_map(|rule| (rule.find)(&worker).map(|found| (rule, found)));
    let (rule, found) = found.unwrap_or_else(|| (rules::last(), rules::unknown(&worker)));
    Explained { worker, rule, found }
}

impl Explained<'_> {
    /// Takes the rule that only repeats the program's own error.
    fn general(&mut self) {
        let found = rules::all().filter(|rule| rules::is_general(rule));
        if let Some((rule, found)) = found.filter_map(|rule| Some((rule, (rule.find)(&self.worker)?))).next() {
            (self.rule, self.found) = (rule, found);
        }
    }

    fn verdict(&self) -> Verdict {
        let Explained { worker, rule, found } = self;
        let rank = worker.failure.death.rank;
        let named = found.place.filter(|named| *named != rank);
        let how_known = match named {
            Some(_) => format!("rank {rank} reported it, {}", found.evidence),
            None => found.evidence.clone(),
        };
        let rank = named.unwrap_or(rank);
        let host = worker.evidence.ranks.contains(&rank).then(|| worker.evidence.host.clone());
        let host = if named.is_none() { Some(worker.failure.host.clone()) } else { host };
        Verdict {
            rank,
            host,
            cause: found.what.clone(),
            how_known,
            advice: rule.fix_of(found).to_owned(),
            rule: rule.name,
            class: if named.is_some() { Class::Cause } else { rule.level },
            own: named.is_none(),
        }
    }

    /// A worker that was stopped failed by itself only if it left an error of its own.
    fn counts(&self) -> bool {
        !self.worker.failure.death.stopped || self.worker.error.is_some()
    }

    /// The verdict on this worker, whose failure another one noticed.
    fn blamed_by(&self, reporter: &Explained<'_>) -> Verdict {
        let verdict = self.verdict();
        Verdict { how_known: format!("{}; {}", verdict.how_known, reporter.as_consequence()), ..verdict }
    }

    fn as_consequence(&self) -> String {
        format!("rank {} ended first, but as a consequence: {}", self.worker.failure.death.rank, self.found.what)
    }
}

/// The verdict on the rank that the reporter's own evidence names.
fn on_named(rank: usize, reporter: &Explained<'_>, all: &[Explained<'_>], evidence: &Evidence) -> Verdict {
    let own = all.iter().find(|other| other.worker.failure.death.rank == rank && other.rule.level == Class::Cause);
    if let Some(own) = own.filter(|own| own.counts()) {
        return own.blamed_by(reporter);
    }
    if let Some(standing) = evidence.standing.iter().find(|standing| standing.rank == rank) {
        return on_standing(standing, reporter, evidence);
    }
    if evidence.returned.contains(&rank) { on_returned(rank, reporter, evidence) } else { reporter.verdict() }
}

/// The verdict on a rank that PyTorch's flight recorder shows apart from the others, with the reason, if that is known.
fn on_recorded(reporter: &Explained<'_>, evidence: &Evidence) -> Option<Verdict> {
    let Astray { rank, cause, evidence: seen } = astray(&evidence.recordings, reporter.worker.failure.death.rank)?;
    if let Some(standing) = evidence.standing.iter().find(|standing| standing.rank == rank) {
        return Some(on_standing(standing, reporter, evidence));
    }
    if evidence.returned.contains(&rank) {
        return Some(on_returned(rank, reporter, evidence));
    }
    let how = format!("{seen}; {}", reporter.as_consequence());
    let here = evidence.ranks.contains(&rank);
    let verdict = by_rule("rank-astray", rank, cause, how, evidence);
    Some(Verdict { host: verdict.host.filter(|_| here), ..verdict })
}

/// The verdict on a worker that stood still at the first failure.
fn on_standing(standing: &Standing, reporter: &Explained<'_>, evidence: &Evidence) -> Verdict {
    let name = if standing.at.in_kernel() { "rank-cannot-be-killed" } else { "rank-stopped" };
    let how = format!("/proc/{}/stat at the first failure; {}", standing.pid, reporter.as_consequence());
    by_rule(name, standing.rank, standing.at.to_string(), how, evidence)
}

/// The verdict on a worker that the launcher ends because it has slept in the kernel for this long.
pub fn on_sleeper(standing: &Standing, lasted: Duration, host: &str) -> Verdict {
    let how =
        format!("/proc/{}/status for {:.1} s, longer than {KERNEL_SLEEP} allows", standing.pid, lasted.as_secs_f64());
    let evidence = Evidence { host: host.to_owned(), ..Evidence::default() };
    by_rule("rank-cannot-be-killed", standing.rank, standing.at.to_string(), how, &evidence)
}

/// The verdict on a worker that had ended with exit code 0.
fn on_returned(rank: usize, reporter: &Explained<'_>, evidence: &Evidence) -> Verdict {
    let cause = "it returned with exit code 0 while other ranks still waited for it".to_owned();
    by_rule("rank-returned-early", rank, cause, format!("its exit code; {}", reporter.as_consequence()), evidence)
}

fn by_rule(name: &str, rank: usize, cause: String, how_known: String, evidence: &Evidence) -> Verdict {
    let rule = rules::all().find(|rule| rule.name == name).unwrap_or(rules::last());
    let host = Some(evidence.host.clone());
    let advice = rule.fix.to_owned();
    Verdict { rank, host, cause, how_known, advice, rule: rule.name, class: Class::Cause, own: false }
}

/// The verdict of the node that ended the job.
fn elsewhere(reporter: &Explained<'_>, evidence: &Evidence) -> Option<Verdict> {
    let verdict = Verdict::from(evidence.elsewhere.as_ref()?);
    Some(Verdict { how_known: format!("{}; {}", verdict.how_known, reporter.as_consequence()), ..verdict })
}

impl Elsewhere {
    /// Returns true if that node's message is about one of these ranks, or about a wait for a rank that it does not name.
    pub fn concerns(&self, ranks: &[usize]) -> bool {
        let named = self.message.strip_prefix("rank ").and_then(|rest| rest.split(':').next()?.parse().ok());
        let noticed = self.message.strip_prefix(NOTICED);
        noticed.is_some_and(|cause| cause.starts_with(communication::NOT_IN_TIME))
            || named.is_some_and(|rank: usize| ranks.contains(&rank))
    }
}

impl From<&Elsewhere> for Verdict {
    fn from(Elsewhere { rank, host, message }: &Elsewhere) -> Self {
        let (class, cause) = match message.strip_prefix(NOTICED) {
            Some(cause) => (Class::PeerGone, cause),
            None if message.is_empty() => (Class::Unknown, "unknown: its node does not name a cause"),
            None => (Class::Cause, message.as_str()),
        };
        Verdict {
            rank: *rank,
            host: Some(host.clone()),
            cause: cause.to_owned(),
            how_known: "the verdict of its node, which ended the job".to_owned(),
            advice: "see the report of that node".to_owned(),
            rule: "elsewhere",
            class,
            own: false,
        }
    }
}
