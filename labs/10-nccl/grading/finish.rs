//! Grades `finish`: an operation that ends, one whose other rank is late, and one whose other rank has called another operation.

use lockstep_grading::{Claim, Finding, Runner, Verdict, explain};
use serde::Deserialize;

use super::device;

const RANKS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
enum Ended {
    Done,
    Aborted,
}

/// How it ended, the buffer, and the sum over a new communicator.
type Result = (Ended, f32, f32);

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    // Where the operation ends, patience is far longer than any machine takes.
    for (does, patience, expected) in
        [("same", 60_000, Ended::Done), ("late", 60_000, Ended::Done), ("another", 300, Ended::Aborted)]
    {
        let given = format!("{}, a patience of {patience} ms", words(does));
        let outputs = runner.call_with::<_, Result>(&device::simulated(RANKS), &[(does, patience)]);
        let outputs = outputs.map_err(|error| explained(error, &given))?;
        for (rank, found) in outputs.all(0).enumerate() {
            check(rank, &given, expected, *found)?;
        }
    }
    Ok(())
}

fn words(does: &str) -> &'static str {
    match does {
        "same" => "both ranks call all-reduce at once",
        "late" => "rank 1 calls all-reduce half a second later",
        _ => "rank 0 calls all-reduce and rank 1 broadcast",
    }
}

fn explained(error: anyhow::Error, given: &str) -> anyhow::Error {
    let error = explain(error, |finding| {
        (finding.verdict == Verdict::Hang).then(|| {
            "the operation waits for one that never comes, and nothing ends it: no error is reported, a wait has no time limit, and to give \
             up waiting does not end it either. After `patience`, call `abort`, which takes it out of the stream"
                .into()
        })
    });
    match error.downcast::<Finding>() {
        Ok(finding) => finding.given(given).into(),
        Err(error) => error,
    }
}

fn check(rank: usize, given: &str, expected: Ended, (ended, found, again): Result) -> anyhow::Result<()> {
    Claim::equal(&expected, &ended)
        .on_rank(rank)
        .given(given)
        .diagnose_if(
            ended == Ended::Aborted,
            "the operation was aborted although it would have ended: a rank that is late is no reason before `patience` has passed",
        )
        .diagnose_if(
            ended == Ended::Done,
            "the event was reached because the operation was aborted, and not because it was done: its result is not there",
        )
        .or_fail("ask the event, and look at the time")?;
    if expected == Ended::Done {
        let sum = RANKS as f32;
        Claim::equal(&sum, &found).on_rank(rank).given(given).or_fail("`Done`, but the sum was not there yet")?;
    }
    Claim::equal(&(RANKS as f32), &again).on_rank(rank).given(given).or_fail("a new communicator must work afterwards")
}
