//! Task `deadline`: a message that comes, one that is late, and a peer that is gone.

use anyhow::Context;
use lockstep_grading::{Claim, Fault, Numbers, Stage, Verdict, explain};
use serde::Deserialize;

/// What the answer gave, on rank 0.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    Message(Numbers),
    Late,
    Gone,
}

pub(crate) fn grade(stage: &mut Stage) -> anyhow::Result<()> {
    let mut random = stage.random();
    for (does, patience) in [("sends", 3000), ("is_late", 300), ("leaves", 3000)] {
        let length = random.below(2..6);
        let message: Vec<f64> = random.numbers(length).iter().map(|value| 10.0 + value).collect();
        let case = Case { does, given: format!("a peer that {}, {patience} ms of patience", words(does)) };
        let outputs = stage
            .call::<_, Option<Outcome>>(2, &[(does, &message, patience)])
            .map_err(|error| case.explained(error))?;
        let observed = outputs.of(0, 0).clone().context("rank 0 left no outcome")?;
        case.judge(message, &observed)?;
    }
    Ok(())
}

fn words(does: &str) -> &'static str {
    match does {
        "sends" => "sends at once",
        "is_late" => "sends after 3 s",
        _ => "has closed its connections",
    }
}

struct Case {
    does: &'static str,
    given: String,
}

impl Case {
    fn explained(&self, error: anyhow::Error) -> anyhow::Error {
        let error = explain(error, |fault| {
            let what = match (fault.verdict, self.does) {
                (Verdict::Hang, _) => return Some("the receive goes on for ever: `wait_for` takes a deadline".into()),
                (Verdict::Crash, "is_late") => "a deadline that has passed is `Late`",
                (Verdict::Crash, "leaves") => "a peer that has closed its connection is `Gone`",
                _ => return None,
            };
            Some(format!(
                "{what}, an outcome that the caller asks for, not an error of `irecv` or `wait_for`: {}",
                fault.diagnosis
            ))
        });
        match error.downcast::<Fault>() {
            Ok(fault) => fault.given(self.given.clone()).into(),
            Err(error) => error,
        }
    }

    fn judge(&self, message: Vec<f64>, observed: &Outcome) -> anyhow::Result<()> {
        let expected = match self.does {
            "sends" => Outcome::Message(Numbers(message)),
            "is_late" => Outcome::Late,
            _ => Outcome::Gone,
        };
        let came = matches!(observed, Outcome::Message(_));
        Claim::equal(&expected, observed)
            .on_rank(0)
            .given(self.given.clone())
            .knows(
                self.does == "is_late" && came,
                "the deadline was not kept: the message was waited for as long as it took. `wait_for` takes a deadline, \
                 `recv` and `wait` have the group's",
            )
            .knows(
                self.does == "sends" && *observed == Outcome::Late,
                "the message was there, and nobody took it: with Gloo a receive completes in `wait`, so `is_completed` never \
                 says yes before",
            )
            .knows(
                self.does == "leaves" && *observed == Outcome::Late,
                "not every error is a deadline that has passed: `fault()` of this one is `PeerGone`, and the peer will never \
                 send",
            )
            .knows(
                self.does == "is_late" && *observed == Outcome::Gone,
                "a peer that is silent need not be gone: `fault()` of this error is `Timeout`",
            )
            .knows(
                self.does == "sends" && came,
                "what came is not what was sent: use the tensor that `wait_for` gives back",
            )
            .otherwise("`fault()` of the error tells the outcomes apart")
    }
}
