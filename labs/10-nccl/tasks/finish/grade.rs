//! Grades `finish`: an operation that ends, one whose other rank is late, one whose other rank has called another operation, and one
//! whose other rank has ended.

use lockstep_grading::{Claim, Finding, Runner, Verdict, explain, is_too_late};
use serde::Deserialize;

use super::device;

const RANKS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
enum Ended {
    Done,
    Aborted,
}

/// How it ended, the buffer, whether the communicator still works, the sum over a new one, and milliseconds until the answer returned, by
/// the clock and without those by which the machine was late.
type Result = (Ended, f32, bool, f32, [u64; 2]);

/// How often an answer may come back late: a busy machine makes it late, but not each time.
const TRIES: usize = 3;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    // Where the answer must not wait for its end, patience is far longer than any machine takes. Where it must, that has no whole second.
    let cases = [
        ("same", 600_000, Ended::Done),
        ("late", 600_000, Ended::Done),
        ("another", 900, Ended::Aborted),
        ("lost", 600_000, Ended::Aborted),
    ];
    for (does, patience, expected) in cases {
        let given = format!("{}, a patience of {patience} ms", words(does));
        let mut took = u64::MAX;
        for _ in 0..TRIES {
            let outputs = device::call::<_, Result>(runner, RANKS, &[(does, patience)]);
            let outputs = outputs.map_err(|error| explained(error, does, &given))?;
            // Rank 1 of the last case has ended.
            for (rank, found) in outputs.all(0).enumerate().take(if does == "lost" { 1 } else { RANKS }) {
                check(rank, does, &given, expected, *found)?;
            }
            // The first rank that aborts must have waited; the other one may see that as an error.
            let waited = outputs.all(0).map(|found| found.4[0]).max().unwrap_or_default();
            let in_time = does != "another" || waited >= patience;
            Claim::that(in_time, "an abort after the patience", format!("after {waited} ms")).given(given.clone()).or_fail(
                "the answer aborts before `patience` is over, so a rank that comes later, but in time, would be lost: compare durations as \
                 they are. `as_secs` drops what is less than a second",
            )?;
            took = took.min(outputs.all(0).map(|found| found.4[1]).min().unwrap_or_default());
            if !is_too_late(took, patience) {
                break;
            }
        }
        let expected = format!("an abort {patience} ms after the call");
        Claim::that(!is_too_late(took, patience), expected, format!("after {took} ms")).given(given).or_fail(
            "the answer aborts long after `patience` is over, and so does every other rank's: look at the time since the call, and once it is \
             over, abort at once",
        )?;
    }
    Ok(())
}

fn words(does: &str) -> &'static str {
    match does {
        "same" => "both ranks call all-reduce at once",
        "late" => "rank 1 calls all-reduce half a second later",
        "another" => "rank 0 calls all-reduce and rank 1 broadcast",
        _ => "rank 0 calls all-reduce, and the process of rank 1 ends",
    }
}

fn explained(error: anyhow::Error, does: &str, given: &str) -> anyhow::Error {
    let error = explain(error, |finding| {
        let why = match (finding.verdict, does) {
            (Verdict::Hang, "same" | "late") => {
                "the operation was done long ago, and the answer still waits: if you sleep for the whole of `patience`, every operation \
                 takes that long. Query the event again and again, with a short sleep, and return as soon as it is reached"
            }
            (Verdict::Hang, "another") => {
                "the operation waits for another rank's, which never comes: NCCL does not report an error, and the operation goes on if you \
                 stop waiting. After `patience`, call `abort`, which removes it from the stream"
            }
            (Verdict::Hang, _) => {
                "the operation never ends, since a rank has ended: `check` reports that as an error of the communicator, long before \
                 `patience` is over. Call it in each iteration, and `abort` after an error, too"
            }
            (Verdict::Crash, "lost") if finding.diagnosis.contains("the answer returned an error") => {
                "the answer returned the error of the communicator, and the operation is still in the stream: after an error, call `abort` \
                 and return `Aborted`"
            }
            _ => return None,
        };
        Some(why.into())
    });
    match error.downcast::<Finding>() {
        Ok(finding) => finding.given(given).into(),
        Err(error) => error,
    }
}

fn check(
    rank: usize,
    does: &str,
    given: &str,
    expected: Ended,
    (ended, found, works, again, _): Result,
) -> anyhow::Result<()> {
    Claim::equal(&expected, &ended)
        .on_rank(rank)
        .given(given)
        .diagnose_if(
            ended == Ended::Aborted && works,
            "the answer returns `Aborted`, and it has aborted nothing: ask the event until it is reached",
        )
        .diagnose_if(
            ended == Ended::Aborted,
            "the operation was aborted although it would have ended: do not abort because of a late rank before `patience` has passed",
        )
        .diagnose_if(
            ended == Ended::Done,
            "the event was reached because the operation was aborted, not because it was done: there is no result",
        )
        .or_fail("ask the event, and look at the time")?;
    if expected == Ended::Done {
        let sum = RANKS as f32;
        Claim::equal(&sum, &found).on_rank(rank).given(given).or_fail("`Done`, but the sum was not there yet")?;
        Claim::that(works, "a communicator that works", "it was aborted").on_rank(rank).given(given).or_fail(
            "the operation was done, but the communicator was aborted: the job's next operation fails. Abort only what hangs",
        )?;
    }
    if does == "lost" {
        return Ok(());
    }
    Claim::equal(&(RANKS as f32), &again).on_rank(rank).given(given).or_fail("a new communicator must work afterwards")
}
