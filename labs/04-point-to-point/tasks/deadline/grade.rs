//! Grades `deadline`: a message that arrives, one that is late, and a peer that is gone.

use anyhow::Context;
use lockstep_grading::{Claim, Finding, Numbers, Runner, Verdict, explain, is_too_late};
use serde::Deserialize;

/// The answer's result on rank 0.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Message(Numbers),
    Late,
    Gone,
    /// The answer has returned an error.
    Error(String),
}

/// A call of the answer, and whether its end was waited for.
type Called = (String, bool);

/// How often an answer may report a message as late that is not, or come back too late.
const TRIES: usize = 3;
/// What a clock may round away, in milliseconds.
const ROUNDED: u64 = 10;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // Less than a second, which `as_secs` drops, and much more than the 0.2 s in which the other rank answers what it does.
    for (does, patience) in [("sends", 3000), ("is_late", 900), ("leaves", 3000), ("itself", 3000)] {
        let length = random.below(2..6);
        let message: Vec<f64> = random.numbers(length).iter().map(|value| 10.0 + value).collect();
        let case = DeadlineCase { does, given: format!("a peer that {}, a deadline of {patience} ms", words(does)) };
        let (mut observed, mut calls, mut took) = (Outcome::Late, Vec::new(), 0);
        // On a busy machine the deadline may pass before a message comes that is sent at once, and an answer may come back late, but not each
        // time.
        for _ in 0..TRIES {
            let outputs = runner
                .call::<_, Option<(Outcome, Vec<Called>, [u64; 2])>>(2, &[(does, &message, patience)])
                .map_err(|error| case.explained(error))?;
            let (outcome, made, [clock, own]) = outputs.of(0, 0).clone().context("rank 0 left no outcome")?;
            case.check_tries(made.len())?;
            case.check_patience(&outcome, clock, patience)?;
            (observed, calls, took) = (outcome, made, own);
            if (observed == Outcome::Late) == (does == "is_late") && !is_too_late(took, patience) {
                break;
            }
        }
        case.check(message, &observed, &calls)?;
        case.check_end(took, patience)?;
    }
    Ok(())
}

fn words(does: &str) -> &'static str {
    match does {
        "sends" => "sends at once",
        "is_late" => "stays silent",
        "itself" => "is the receiving rank itself",
        _ => "has closed its connections",
    }
}

struct DeadlineCase {
    does: &'static str,
    given: String,
}

impl DeadlineCase {
    /// A wrong argument is neither a late peer nor one that is gone.
    fn check_error(&self, observed: &Outcome) -> anyhow::Result<()> {
        Claim::that(matches!(observed, Outcome::Error(_)), "an error", format!("{observed:?}"))
            .on_rank(0)
            .given(self.given.clone())
            .diagnose_if(
                *observed == Outcome::Gone,
                "a rank cannot receive from itself, and the error says so: an error that is not a timeout does not always mean that the \
                 peer is gone. `Gone` is for `ErrorKind::PeerGone`; return all others as errors",
            )
            .diagnose_if(
                *observed == Outcome::Late,
                "a rank cannot receive from itself, and waiting longer does not help: `Late` is for `ErrorKind::Timeout`; return all \
                 others as errors",
            )
            .or_fail("a rank cannot receive from itself: return the error")
    }

    fn explained(&self, error: anyhow::Error) -> anyhow::Error {
        let error = explain(error, |finding| {
            let what = match (finding.verdict, self.does) {
                (Verdict::Hang, _) if finding.ranks_wait() => {
                    return Some(
                        "the receive goes on after the deadline: `recv` and `wait` end at the group's timeout, and a look at the clock after \
                         they have returned comes too late. `wait_for` takes a deadline"
                            .into(),
                    );
                }
                (Verdict::Crash, "is_late") if finding.diagnosis.to_lowercase().contains("timed out") => {
                    "a deadline that has passed is `Late`"
                }
                (Verdict::Crash, "leaves") if ["recv", "peer"].iter().any(|word| finding.diagnosis.contains(word)) => {
                    "a peer that has closed its connection is `Gone`"
                }
                _ => return None,
            };
            Some(format!("{what}: return that, and not the error of `irecv` or `wait_for` ({})", finding.diagnosis))
        });
        match error.downcast::<Finding>() {
            Ok(finding) => finding.given(self.given.clone()).into(),
            Err(error) => error,
        }
    }

    /// An answer that tries again waits longer than `patience`.
    fn check_tries(&self, started: usize) -> anyhow::Result<()> {
        Claim::that(started <= 1, "one receive", format!("{started} receives")).on_rank(0).given(self.given.clone()).or_fail(
            "a second try waits as long again, but the deadline is for the whole call. The caller decides whether to try again; with Gloo, \
             the group is closed once a deadline has passed in it",
        )
    }

    /// A busy machine makes the wait longer, never shorter.
    fn check_patience(&self, outcome: &Outcome, took: u64, patience: u64) -> anyhow::Result<()> {
        let may_be_late = ["sends", "is_late"].contains(&self.does);
        let early = may_be_late && *outcome == Outcome::Late && took + ROUNDED < patience;
        Claim::that(!early, format!("`Late` after {patience} ms"), format!("`Late` after {took} ms"))
            .on_rank(0)
            .given(self.given.clone())
            .or_fail(
                "the receive gives up before the deadline: wait for all of `patience`; `as_secs()` drops its fraction of a second",
            )
    }

    /// The time by which the machine was late does not count.
    fn check_end(&self, took: u64, patience: u64) -> anyhow::Result<()> {
        let expected = format!("an end after {patience} ms at the latest");
        Claim::that(!is_too_late(took, patience), expected, format!("an end after {took} ms"))
            .on_rank(0)
            .given(self.given.clone())
            .or_fail("the answer comes back long after the deadline: `patience` is for all that it does, and the caller has other work")
    }

    fn check(&self, message: Vec<f64>, observed: &Outcome, calls: &[Called]) -> anyhow::Result<()> {
        let expected = match self.does {
            "sends" => Outcome::Message(Numbers(message)),
            "is_late" => Outcome::Late,
            "leaves" => Outcome::Gone,
            _ => return self.check_error(observed),
        };
        let came = matches!(observed, Outcome::Message(_));
        let missed = self.does == "sends" && *observed == Outcome::Late;
        Claim::equal(&expected, observed)
            .on_rank(0)
            .given(self.given.clone())
            .diagnose_if(
                missed && calls.iter().any(|(call, _)| !call.contains(" tag 0 ")),
                "the message was there and was not received: a receive takes only messages of its tag, which is 0 here",
            )
            .diagnose_if(
                missed && calls.iter().any(|(_, waited)| !waited),
                "the message was there and was not received: a receive completes only in a call that waits for it, and with Gloo \
                 `is_completed` is never true before",
            )
            .diagnose_if(missed, "the message was there and was not received")
            .diagnose_if(
                self.does == "leaves" && *observed == Outcome::Late,
                "not every error is a deadline that has passed: `kind()` of this error is `PeerGone`, so the peer will never send",
            )
            .diagnose_if(
                self.does == "is_late" && *observed == Outcome::Gone,
                "a silent peer may still be there: `kind()` of this error is `Timeout`",
            )
            .diagnose_if(
                self.does == "sends" && came,
                "this is not the message that was sent: use the tensor that `wait_for` returns",
            )
            .or_fail("use `kind()` of the error to distinguish the outcomes")
    }
}
