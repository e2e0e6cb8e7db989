//! The outcome of each rank in a call, and the findings that follow from the outcomes alone.

use lockstep_contract::foreign;
use lockstep_process::{Exit, Orphan};
use lockstep_rank_messages::exercise::Answer;

use crate::{Finding, Verdict};

/// How a call ended on one rank.
#[derive(Clone, Debug, PartialEq)]
pub enum RankOutcome {
    /// The rank left an answer.
    Answered(Answer),
    /// The rank's process ended without an answer.
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

/// What programs print if the machine fails before an answer runs, or while it runs: a mark, and what is wrong.
const MACHINE: [(&str, &str); 3] = [
    (
        "error while loading shared libraries:",
        "the program cannot load its libraries; `ulimit -v` must be unlimited, and LD_LIBRARY_PATH, of a module for example, must not lead to \
         another libtorch: unset it",
    ),
    (
        "symbol lookup error:",
        "the program has loaded another version of a library; LD_LIBRARY_PATH, of a module for example, must not lead to another libtorch: \
         unset it",
    ),
    (
        "Resource temporarily unavailable",
        "the limit of processes and threads is reached; raise it (`ulimit -u`, pids.max of the control group: TasksMax= of a systemd unit, \
         --pids-limit of a container)",
    ),
];

/// What is wrong with the machine, if a rank's error or what the ranks printed says so: the cause, and the line.
pub(super) fn of_machine(outcomes: &[RankOutcome], printed: &[String]) -> Option<String> {
    let said = outcomes.iter().filter_map(|outcome| match outcome {
        RankOutcome::Answered(Answer::Failed { error: text } | Answer::Misunderstood { why: text }) => {
            Some(text.as_str())
        }
        _ => None,
    });
    // What ranks print counts only if a rank has died.
    let died = outcomes.iter().any(|outcome| matches!(outcome, RankOutcome::Died(_)));
    let printed = printed.iter().map(String::as_str).filter(|_| died);
    let mut lines = said.chain(printed).flat_map(str::lines);
    lines.find_map(|line| {
        // With a number this is Rust's message, and may be about a socket's deadline.
        if line.contains("os error")
            && !["failed to start", "cannot start", "spawn"].iter().any(|word| line.contains(word))
        {
            return None;
        }
        let (_, what) = MACHINE.iter().find(|(mark, _)| line.contains(mark))?;
        Some(format!("{what} ({})", foreign::escaped(line.trim())))
    })
}

/// Part of c10d's error on a rank that lost a peer. The cause is on the peer.
const CONSEQUENCE: &str = " lost a peer ";

/// Returns true for the error of a rank that lost a peer.
fn is_consequence(finding: &Finding) -> bool {
    finding.diagnosis.contains(CONSEQUENCE)
}

/// The finding that explains the others: a `todo!()` comes before a panic or an error, and an error on a rank comes before the
/// errors of ranks that lost it as a peer.
pub(super) fn first_finding(outcomes: &[RankOutcome]) -> Option<Finding> {
    let findings = outcomes.iter().enumerate().filter_map(|(rank, outcome)| of_rank(rank, outcome));
    findings.min_by_key(|finding| match finding.verdict {
        Verdict::NotStarted => 0,
        _ if !is_consequence(finding) => 1,
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
        RankOutcome::Answered(Answer::Raised { error, place: Some(place) }) if is_of_syntax(error) => {
            Some(Finding::new(Verdict::NotCompiled, format!("{place}: {error}")))
        }
        RankOutcome::Answered(Answer::Raised { error, place }) => {
            let at = place.as_ref().map_or(String::new(), |place| format!(" at {place}"));
            Some(Finding::new(Verdict::Crash, format!("the answer raised an exception{at}: {error}")).on_rank(rank))
        }
        RankOutcome::Answered(Answer::WrongType { why }) => {
            Some(Finding::new(Verdict::WrongValue, why.clone()).on_rank(rank))
        }
        RankOutcome::Answered(Answer::Failed { error }) => {
            Some(Finding::new(Verdict::Crash, format!("the answer returned an error: {error}")).on_rank(rank))
        }
        RankOutcome::Answered(Answer::Done { .. } | Answer::Misunderstood { .. })
        | RankOutcome::Died(_)
        | RankOutcome::Stopped => None,
    }
}

/// Returns true for the exception of a file that Python cannot read.
fn is_of_syntax(error: &str) -> bool {
    ["SyntaxError: ", "IndentationError: ", "TabError: "].iter().any(|kind| error.starts_with(kind))
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
    fn a_machine_that_lets_an_answer_down_is_no_finding() {
        let printed =
            ["[rank 0] /x/ex-02: error while loading shared libraries: libtorch_cpu.so: file too short".to_owned()];
        let died = [RankOutcome::Died(Exit::Code(127))];
        let why = of_machine(&died, &printed).unwrap();
        assert!(why.contains("LD_LIBRARY_PATH") && why.ends_with("libtorch_cpu.so: file too short)"), "{why}");
        assert_eq!(of_machine(&[failed("odd")], &printed), None, "only the last words of a rank that died count");
        let why = of_machine(&[failed("connect process group 0: Resource temporarily unavailable")], &[]).unwrap();
        assert!(why.starts_with("the limit of processes and threads is reached"), "{why}");
        assert_eq!(of_machine(&died, &["[rank 0] bye".to_owned()]), None);
        assert_eq!(of_machine(&[failed("cannot read: Resource temporarily unavailable (os error 11)")], &[]), None);
    }

    #[test]
    fn an_exception_has_its_place_and_a_file_that_cannot_be_read_does_not_compile() {
        let raised = |error: &str| {
            let place = Some("02_spawn_ddp/line.py:7".to_owned());
            first_finding(&[RankOutcome::Answered(Answer::Raised { error: error.into(), place })]).unwrap()
        };
        let found = raised("TypeError: no");
        assert_eq!(found.verdict, Verdict::Crash);
        assert_eq!(found.diagnosis, "the answer raised an exception at 02_spawn_ddp/line.py:7: TypeError: no");
        assert_eq!(raised("SyntaxError: '(' was never closed").verdict, Verdict::NotCompiled);
        let found = first_finding(&[RankOutcome::Answered(Answer::WrongType { why: "None".into() })]).unwrap();
        assert_eq!((found.verdict, found.rank), (Verdict::WrongValue, Some(0)));
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
