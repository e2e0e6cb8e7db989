//! Which fault the ends of ranks show, by themselves.

use lockstep_contract::exercise::Answer;
use lockstep_launch::process::{Exit, Stray};

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

/// What the ranks' own words show: a `todo!()` before a panic or an error, since it explains those of other ranks.
pub(super) fn first_fault(ends: &[End]) -> Option<Fault> {
    let faults: Vec<Fault> = ends.iter().enumerate().filter_map(|(rank, end)| of_end(rank, end)).collect();
    let unfinished = faults.iter().position(|fault| fault.verdict == Verdict::NotStarted);
    faults.into_iter().nth(unfinished.unwrap_or(0))
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
pub(super) fn leak(strays: &[Stray]) -> Option<Fault> {
    let name = |stray: &Stray| format!("{} (process {})", stray.name, stray.pid);
    let names: Vec<String> = strays.iter().map(name).collect();
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
