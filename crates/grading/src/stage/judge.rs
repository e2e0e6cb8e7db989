//! Which fault the ends of ranks show, by themselves.

use lockstep_contract::exercise::Answer;
use lockstep_process::{Exit, Orphan};

use super::End;
use crate::{Fault, Verdict};

/// Whether a rank has left its results.
pub(super) fn is_done(end: &End) -> bool {
    matches!(end, End::Answered(Answer::Done { .. }))
}

/// What does not fit between the course's own grading and its program.
pub(super) fn misunderstood(end: &End) -> Option<String> {
    match end {
        End::Answered(Answer::Misunderstood { why }) => Some(why.clone()),
        _ => None,
    }
}

/// What c10d says on a rank whose peer has gone: what happened there is the cause.
const CONSEQUENCE: &str = " lost a peer ";

/// What the ranks' own words show: a `todo!()` before a panic or an error, since it explains those of other ranks, and what happened to
/// a rank by itself before what it did to others.
pub(super) fn first_fault(ends: &[End]) -> Option<Fault> {
    let faults = ends.iter().enumerate().filter_map(|(rank, end)| of_end(rank, end));
    faults.min_by_key(|fault| match fault.verdict {
        Verdict::NotStarted => 0,
        _ if !fault.diagnosis.contains(CONSEQUENCE) => 1,
        _ => 2,
    })
}

fn of_end(rank: usize, end: &End) -> Option<Fault> {
    match end {
        End::Answered(Answer::NotStarted { what }) => {
            Some(Fault::new(Verdict::NotStarted, format!("the answer is still a `todo!()`: {what}")))
        }
        End::Answered(Answer::Panicked { message, place }) => {
            let at = place.as_ref().map_or(String::new(), |place| format!(" at {place}"));
            Some(Fault::new(Verdict::Crash, format!("the answer panicked{at}: {message}")).on_rank(rank))
        }
        End::Answered(Answer::Failed { error }) => {
            Some(Fault::new(Verdict::Crash, format!("the answer returned an error: {error}")).on_rank(rank))
        }
        End::Answered(Answer::Done { .. } | Answer::Misunderstood { .. }) | End::Died(_) | End::Stopped => None,
    }
}

/// What ranks left running.
pub(super) fn leak(orphans: &[Orphan]) -> Option<Fault> {
    let name = |orphan: &Orphan| format!("{} (process {})", orphan.name, orphan.pid);
    let names: Vec<String> = orphans.iter().map(name).collect();
    let told = format!("the answer left running what it had started: {}; it was ended", names.join(", "));
    (!names.is_empty()).then(|| Fault::new(Verdict::LeakedProcess, told))
}

/// The signals by which the kernel ends who goes beyond a limit (signal(7)), with what it was on.
const BEYOND: [(i32, &str); 2] = [(24, "computed for longer"), (25, "wrote or printed more to one file")];

/// A rank that ended without an answer.
pub(super) fn died(exit: &Exit) -> Fault {
    let beyond = BEYOND.iter().find(|(signal, _)| *exit == Exit::Signal(*signal));
    if let Some((_, what)) = beyond {
        return Fault::new(Verdict::OutOfBounds, format!("the rank was ended with {exit}: it {what} than is allowed"));
    }
    let hint = match exit {
        Exit::Code(_) => "something in it ends the process",
        Exit::Signal(_) | Exit::NotStarted(_) => "what it printed last stands below",
    };
    Fault::new(Verdict::Crash, format!("the rank's process ended before the answer did, with {exit}: {hint}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(error: &str) -> End {
        End::Answered(Answer::Failed { error: error.into() })
    }

    #[test]
    fn blames_the_rank_that_failed_by_itself_before_those_that_lost_it() {
        let lost =
            || failed("all_reduce(Sum) of [3] Double on rank 0 lost a peer after 0.03 s: rank 2 has left the group");
        let own = || failed("rank 3 is outside a group of 3");
        let blamed = |ends: &[End]| first_fault(ends).unwrap().rank;
        assert_eq!(blamed(&[lost(), lost(), own()]), Some(2));
        assert_eq!(blamed(&[lost(), lost()]), Some(0));
        assert_eq!(blamed(&[own(), own()]), Some(0), "the first of equals");
        let unfinished = End::Answered(Answer::NotStarted { what: "todo".into() });
        assert_eq!(first_fault(&[own(), unfinished]).unwrap().verdict, Verdict::NotStarted);
    }
}
