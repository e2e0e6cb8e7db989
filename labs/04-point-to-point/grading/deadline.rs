//! Grades `deadline`: a message that arrives, one that is late, and a peer that is gone.

use anyhow::Context;
use lockstep_grading::{Claim, Finding, Numbers, Runner, Verdict, explain};
use serde::Deserialize;

/// The answer's result on rank 0.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Message(Numbers),
    Late,
    Gone,
}

/// How often an answer may find that a message is late which is not.
const TRIES: usize = 3;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    for (does, patience) in [("sends", 3000), ("is_late", 300), ("leaves", 3000)] {
        let length = random.below(2..6);
        let message: Vec<f64> = random.numbers(length).iter().map(|value| 10.0 + value).collect();
        let case = Case { does, given: format!("a peer that {}, a deadline of {patience} ms", words(does)) };
        let (mut observed, tries) = (Outcome::Late, if does == "is_late" { 1 } else { TRIES });
        // On a busy machine the deadline may pass before a message comes that is sent at once, but not each time.
        for _ in 0..tries {
            let outputs = runner
                .call::<_, Option<Outcome>>(2, &[(does, &message, patience)])
                .map_err(|error| case.explained(error))?;
            observed = outputs.of(0, 0).clone().context("rank 0 left no outcome")?;
            if observed != Outcome::Late {
                break;
            }
        }
        case.check(message, &observed)?;
    }
    Ok(())
}

fn words(does: &str) -> &'static str {
    match does {
        "sends" => "sends at once",
        "is_late" => "stays silent",
        _ => "has closed its connections",
    }
}

struct Case {
    does: &'static str,
    given: String,
}

impl Case {
    fn explained(&self, error: anyhow::Error) -> anyhow::Error {
        let error = explain(error, |finding| {
            let what = match (finding.verdict, self.does) {
                (Verdict::Hang, _) => {
                    return Some(
                        "the receive never gives up, whatever the deadline is: `recv` and `wait` use the group's timeout, and a look at \
                         the clock comes after they have returned. `wait_for` takes a deadline"
                            .into(),
                    );
                }
                (Verdict::Crash, "is_late") => "a deadline that has passed is `Late`",
                (Verdict::Crash, "leaves") => "a peer that has closed its connection is `Gone`",
                _ => return None,
            };
            Some(format!(
                "{what}, an outcome that the caller asks for, so do not return the error of `irecv` or `wait_for`: {}",
                finding.diagnosis
            ))
        });
        match error.downcast::<Finding>() {
            Ok(finding) => finding.given(self.given.clone()).into(),
            Err(error) => error,
        }
    }

    fn check(&self, message: Vec<f64>, observed: &Outcome) -> anyhow::Result<()> {
        let expected = match self.does {
            "sends" => Outcome::Message(Numbers(message)),
            "is_late" => Outcome::Late,
            _ => Outcome::Gone,
        };
        let came = matches!(observed, Outcome::Message(_));
        Claim::equal(&expected, observed)
            .on_rank(0)
            .given(self.given.clone())
            .diagnose_if(
                self.does == "sends" && *observed == Outcome::Late,
                "the message was there but was never received: with Gloo, a receive completes in `wait`, so `is_completed` is \
                 never true before",
            )
            .diagnose_if(
                self.does == "leaves" && *observed == Outcome::Late,
                "not every error is a deadline that has passed: `kind()` of this error is `PeerGone`, so the peer will never send",
            )
            .diagnose_if(
                self.does == "is_late" && *observed == Outcome::Gone,
                "a silent peer need not be gone: `kind()` of this error is `Timeout`",
            )
            .diagnose_if(
                self.does == "sends" && came,
                "this is not the message that was sent: use the tensor that `wait_for` returns",
            )
            .or_fail("use `kind()` of the error to distinguish the outcomes")
    }
}
