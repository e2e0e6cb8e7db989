//! The outcome of each rank in a call, and the findings that follow from the outcomes alone.

use lockstep_contract::exercise::Answer;
use lockstep_process::{Exit, Orphan};

use crate::{Finding, Verdict};

/// How a call ended on one rank.
#[derive(Clone, Debug, PartialEq)]
pub enum RankOutcome {
    /// The rank left an answer.
    Answered(Answer),
    /// Its process ended without an answer.
    Died(Exit),
    /// The rank was still running when the call was over.
    Stopped,
}

/// Returns true if a rank has left its results.
pub(super) fn is_done(outcome: &RankOutcome) -> bool {
    matches!(outcome, RankOutcome::Answered(Answer::Done { .. }))
}

/// The mismatch between the course's grading function and its program, if there is one.
pub(super) fn misunderstood(outcome: &RankOutcome) -> Option<String> {
    match outcome {
        RankOutcome::Answered(Answer::Misunderstood { why }) => Some(why.clone()),
        _ => None,
    }
}

/// Part of c10d's error on a rank that lost a peer. The cause is on the peer.
const CONSEQUENCE: &str = " lost a peer ";

/// The finding that explains the others: a `todo!()` comes before a panic or an error, and an error on a rank comes before the
/// errors of ranks that lost it as a peer.
pub(super) fn first_finding(outcomes: &[RankOutcome]) -> Option<Finding> {
    let findings = outcomes.iter().enumerate().filter_map(|(rank, outcome)| of_rank(rank, outcome));
    findings.min_by_key(|finding| match finding.verdict {
        Verdict::NotStarted => 0,
        _ if !finding.diagnosis.contains(CONSEQUENCE) => 1,
        _ => 2,
    })
}

fn of_rank(rank: usize, outcome: &RankOutcome) -> Option<Finding> {
    match outcome {
        RankOutcome::Answered(Answer::NotStarted { what }) => {
            Some(Finding::new(Verdict::NotStarted, format!("the answer is still a `todo!()`: {what}")))
        }
        RankOutcome::Answered(Answer::Panicked { message, place }) => {
            let at = place.as_ref().map_or(String::new(), |place| format!(" at {place}"));
            Some(Finding::new(Verdict::Crash, format!("the answer panicked{at}: {message}")).on_rank(rank))
        }
        RankOutcome::Answered(Answer::Failed { error }) => {
            Some(Finding::new(Verdict::Crash, format!("the answer returned an error: {error}")).on_rank(rank))
        }
        RankOutcome::Answered(Answer::Done { .. } | Answer::Misunderstood { .. })
        | RankOutcome::Died(_)
        | RankOutcome::Stopped => None,
    }
}

/// The finding for processes that ranks left running.
pub(super) fn leak(orphans: &[Orphan]) -> Option<Finding> {
    let name = |orphan: &Orphan| format!("{} (process {})", orphan.name, orphan.pid);
    let names: Vec<String> = orphans.iter().map(name).collect();
    let diagnosis = format!("the answer left processes running: {}; the grader has killed them", names.join(", "));
    (!names.is_empty()).then(|| Finding::new(Verdict::LeakedProcess, diagnosis))
}

/// The signals with which the kernel kills a process that exceeds a limit (signal(7)), and what the process did.
const LIMITS: [(i32, &str); 2] = [(24, "computed for longer"), (25, "wrote or printed more to one file")];

/// The finding for the first rank whose process ended without an answer.
pub(super) fn first_death(outcomes: &[RankOutcome]) -> Option<Finding> {
    outcomes.iter().enumerate().find_map(|(rank, outcome)| match outcome {
        RankOutcome::Died(exit) => Some(died(exit).on_rank(rank)),
        _ => None,
    })
}

fn died(exit: &Exit) -> Finding {
    let limit = LIMITS.iter().find(|(signal, _)| *exit == Exit::Signal(*signal));
    if let Some((_, what)) = limit {
        return Finding::new(
            Verdict::OutOfBounds,
            format!("the kernel killed the rank with {exit}: it {what} than is allowed"),
        );
    }
    let hint = match exit {
        Exit::Code(_) => "something in the answer ends the process",
        Exit::Signal(_) | Exit::NotStarted(_) => "see below what it printed last",
    };
    Finding::new(
        Verdict::Crash,
        format!("the rank's process ended before the answer was complete, with {exit}: {hint}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(error: &str) -> RankOutcome {
        RankOutcome::Answered(Answer::Failed { error: error.into() })
    }

    #[test]
    fn blames_the_rank_that_failed_before_the_ranks_that_lost_it() {
        let lost =
            || failed("all_reduce(Sum) of [3] Double on rank 0 lost a peer after 0.03 s: rank 2 has left the group");
        let own = || failed("rank 3 is outside a group of 3");
        let blamed = |outcomes: &[RankOutcome]| first_finding(outcomes).unwrap().rank;
        assert_eq!(blamed(&[lost(), lost(), own()]), Some(2));
        assert_eq!(blamed(&[lost(), lost()]), Some(0));
        assert_eq!(blamed(&[own(), own()]), Some(0), "the first of several");
        let unfinished = RankOutcome::Answered(Answer::NotStarted { what: "todo".into() });
        assert_eq!(first_finding(&[own(), unfinished]).unwrap().verdict, Verdict::NotStarted);
    }
}
