//! From the workers' ends and the evidence to the verdict. Then failures of the launcher itself: nodes that did not meet, a port in use, a folder for logs that cannot be made.
//!
//! If nodes did not meet, [`crate::diagnose`] has already found the cause. Other errors are explained by the rules about the
//! machine, if one applies; otherwise the error's own text is the cause.

use std::fmt;
use std::time::Duration;

use lockstep_contract::events::VerdictRecord;
use lockstep_contract::foreign::{one_line, quotation};
use lockstep_contract::rules::Rule;

use super::flight_recorder::{Astray, astray};
use super::rules::{self, Causes, Class, WorkerFinding};
use super::worker_end::{Error, Form, Words, WorkerEnd, first_line};
use super::{Elsewhere, Evidence, Standing, communication};
use crate::config::KERNEL_SLEEP;
use crate::diagnose::{Advice, Diagnosis};
use crate::report::{Death, Failure, Reason};

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

/// Returns true if a worker ended because another rank had ended before it, according to its own output.
pub fn has_lost_a_peer(failure: &Failure) -> bool {
    explain(failure, &Evidence::default()).rule.level == Class::PeerGone
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

/// The verdict on these failures, which are in the kernel's order; `first` is the index of the first one.
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

/// Where the text of such an error stands.
const OWN_MESSAGE: &str = "its own message";
/// The advice where the text has none.
const SEE_MESSAGE: &str =
    "the message is below; `lockstep doctor` checks a node, its network and the scheduler's settings";
/// The advice where others have failed.
const SEE_OTHERS: &str =
    "see the lines above, and what the launchers on the other nodes print: the one that failed first names the cause";

/// Why the launcher failed: the whole message, and its likely cause if facts were collected about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchFailure {
    text: String,
    at_fault: bool,
    likely: Option<(Advice, String)>,
}

impl LaunchFailure {
    /// A failure of the launcher itself, known only by this text. The advice follows the text's last semicolon, if there is one.
    pub fn new(text: String) -> Self {
        LaunchFailure { text, at_fault: true, likely: None }
    }

    /// A failure of something else, such as another node, which this launcher only noticed.
    pub fn noticed(text: String) -> Self {
        LaunchFailure { text, at_fault: false, likely: None }
    }

    /// Who is at fault, and why, on this host.
    pub fn verdict(&self, host: &str) -> VerdictRecord {
        match &self.likely {
            Some((Advice { cause, fix }, seen)) => {
                record(host, "nodes-did-not-meet", cause.clone(), seen.clone(), fix.clone())
            }
            None if self.at_fault => of_texts(&[&self.text], host),
            None => {
                let cause = joined(&[&self.text]);
                let noticed =
                    record(host, "launcher-noticed", quotation(&cause), OWN_MESSAGE.to_owned(), SEE_OTHERS.to_owned());
                VerdictRecord { at_fault: false, ..noticed }
            }
        }
    }
}

impl From<Diagnosis> for LaunchFailure {
    fn from(diagnosis: Diagnosis) -> Self {
        let likely = diagnosis.causes.first().cloned().map(|advice| (advice, diagnosis.headline.clone()));
        LaunchFailure { text: diagnosis.to_string(), at_fault: true, likely }
    }
}

impl fmt::Display for LaunchFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for LaunchFailure {}

/// The verdict on an error of the launcher, before it started a worker.
pub fn why_launcher_failed(error: &anyhow::Error, host: &str) -> VerdictRecord {
    if let Some(failure) = error.downcast_ref::<LaunchFailure>() {
        return failure.verdict(host);
    }
    let texts: Vec<String> = error.chain().map(ToString::to_string).collect();
    of_texts(&texts.iter().map(String::as_str).collect::<Vec<_>>(), host)
}

/// The verdict on an error with these texts, the outermost first.
fn of_texts(texts: &[&str], host: &str) -> VerdictRecord {
    let chain: Vec<(String, Option<String>)> = texts.iter().map(|text| ((*text).to_owned(), None)).collect();
    let error = Error { form: Form::Chain, source: OWN_MESSAGE, chain, members: vec![] };
    let (failure, evidence) = (as_failure(host), Evidence { host: host.to_owned(), ..Evidence::default() });
    let worker = WorkerEnd::new(&failure, &evidence).with(error);
    match rules::of_machine().find_map(|rule| (rule.find)(&worker).map(|found| (rule, found))) {
        Some((rule, found)) => record(host, rule.name, found.what, found.evidence, rule.fix.to_owned()),
        None => {
            let text = joined(texts);
            let (cause, advice) = text.rsplit_once("; ").unwrap_or((&text, SEE_MESSAGE));
            record(host, "launcher-failed", quotation(cause), OWN_MESSAGE.to_owned(), quotation(advice))
        }
    }
}

/// The first lines of these texts, uncut.
fn joined(texts: &[&str]) -> String {
    texts.iter().map(|text| first_line(text)).collect::<Vec<_>>().join(": ")
}

fn record(host: &str, rule: &str, cause: String, evidence: String, advice: String) -> VerdictRecord {
    let [host, cause, evidence, advice] = [host, &cause, &evidence, &advice].map(one_line);
    VerdictRecord { rank: None, host: Some(host), at_fault: true, cause, evidence, advice, rule: rule.to_owned() }
}

/// The launcher as the rules see it: they look at a process that has ended with exit code 1.
fn as_failure(host: &str) -> Failure {
    let now = std::time::SystemTime::now();
    let death = Death {
        rank: 0,
        local_rank: 0,
        pid: std::process::id(),
        exitcode: 1,
        started: now,
        at: now,
        stopped: false,
        not_started: None,
        error_file: None,
        tail: vec![],
        stdout: vec![],
        together: false,
        log: None,
        unread: false,
    };
    Failure { death, host: host.to_owned(), reason: Reason::Nothing(String::new()) }
}

#[cfg(test)]
mod tests {
    use anyhow::{Context, anyhow};

    use super::*;
    use crate::diagnose::{ConnectFailure, Observed, diagnose};

    #[test]
    fn names_the_likeliest_cause_of_nodes_that_did_not_meet() {
        let connect = Some(ConnectFailure::Unresolved { error: "not known".into() });
        let seen = Observed { endpoint: "n9:29500".into(), connect, ..Observed::default() };
        let error = anyhow!(LaunchFailure::from(diagnose(&seen)));
        let verdict = why_launcher_failed(&error, "n1");
        assert_eq!(
            verdict.to_string(),
            "verdict: the launcher on n1: the name `n9` does not resolve on this node (not known) (evidence: this node did not \
             reach the rendezvous at n9:29500); advice: see what `getent hosts n9` says here; name the host as this node knows \
             it, or by its IP address"
        );
        assert_eq!((verdict.rank, verdict.rule.as_str()), (None, "nodes-did-not-meet"));
    }

    #[test]
    fn knows_the_machines_limits_in_the_launchers_own_errors() {
        for (text, rule) in [
            ("No space left on device (os error 28)", "disk-full"),
            ("Read-only file system (os error 30)", "disk-read-only"),
            ("Too many open files (os error 24)", "too-many-open-files"),
            (
                "this needs 8 more processes and threads, and the system has room for 3 (Resource temporarily unavailable (os error 11))",
                "too-many-processes",
            ),
        ] {
            let error = Err::<(), _>(anyhow!(text)).context("cannot make the folder for logs /x").unwrap_err();
            let verdict = why_launcher_failed(&error, "n1");
            assert_eq!(verdict.rule, rule, "{verdict}");
            assert!(verdict.evidence.starts_with(OWN_MESSAGE) && verdict.evidence.contains(text), "{verdict}");
        }
    }

    #[test]
    fn takes_the_advice_from_the_message_where_it_has_one() {
        let verdict = why_launcher_failed(&anyhow!("--node-rank=1 is taken; give each node its own --node-rank"), "n1");
        let shown = verdict.to_string();
        assert!(shown.starts_with("verdict: the launcher on n1: --node-rank=1 is taken (evidence: its own message); "));
        assert!(shown.ends_with("advice: give each node its own --node-rank"), "{shown}");
        assert_eq!(why_launcher_failed(&anyhow!("odd"), "n1").advice, SEE_MESSAGE);
    }

    #[test]
    fn keeps_the_advice_of_a_long_message_whole() {
        let long = "x".repeat(300);
        let error = anyhow!("the port is taken by {long}; give another --master-port").context("cannot meet");
        let verdict = why_launcher_failed(&error, "n1");
        assert_eq!(verdict.advice, "give another --master-port");
        assert!(verdict.cause.starts_with("cannot meet: the port is taken by xxx") && verdict.cause.ends_with("x…"));
    }

    #[test]
    fn blames_nobody_for_what_the_launcher_only_noticed() {
        let text =
            "the rendezvous' store at n2:29500 does not answer; it was hosted by n2; see that agent's own output";
        let verdict = LaunchFailure::noticed(text.to_owned()).verdict("n1");
        assert_eq!(
            verdict.to_string(),
            format!(
                "verdict: unknown who is at fault; the launcher on n1 noticed it: {text} (evidence: its own message); advice: {SEE_OTHERS}"
            )
        );
        assert!(!verdict.at_fault && LaunchFailure::new(text.to_owned()).verdict("n1").at_fault);
    }
}
