//! Failures of the launcher itself: nodes that did not meet, a port in use, a folder for logs that cannot be made.
//!
//! If nodes did not meet, [`crate::diagnose`] has already found the cause. Other errors are explained by the rules about the
//! machine, if one applies; otherwise the error's own text is the cause.

use std::fmt;

use lockstep_contract::events::VerdictRecord;
use lockstep_contract::foreign::{one_line, quotation};

use super::worker_end::{Error, Form, WorkerEnd, first_line};
use super::{Evidence, rules};
use crate::diagnose::{Advice, Diagnosis};
use crate::report::{Death, Failure, Reason};

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
