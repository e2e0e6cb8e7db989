//! The answers to a request for a desync report, as one rank saw them: who is missing after a failure, and who called
//! something else. How they are asked for is [`reporter`](crate::reporter)'s.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use lockstep_contract::desync_report::RankState;

use crate::Rank;

/// How long the asking rank waits for answers: several polls, so that a busy machine does not turn a live rank into a dead one.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// The answers of all ranks, as one rank saw them. Ranks are those of the whole job.
#[derive(Clone, Debug)]
pub struct DesyncReport {
    pub(crate) own: RankState,
    pub(crate) answers: BTreeMap<Rank, Option<RankState>>,
    pub(crate) store_error: Option<String>,
}

impl DesyncReport {
    /// The ranks that did not answer: dead, stopped, or not started from this project.
    pub fn missing(&self) -> Vec<Rank> {
        self.answers.iter().filter(|(_, answer)| answer.is_none()).map(|(&rank, _)| rank).collect()
    }

    /// What each other rank said; `None` for no answer.
    pub fn answers(&self) -> &BTreeMap<Rank, Option<RankState>> {
        &self.answers
    }

    /// Returns true if a rank did not answer, or has left. Nothing is known while the store itself does not answer.
    pub(crate) fn shows_a_loss(&self) -> bool {
        let gone = |state: &Option<RankState>| matches!(state, None | Some(RankState::Left { .. }));
        self.store_error.is_none() && self.answers.values().any(gone)
    }

    /// Returns true if a rank was in another operation where this one was in its own.
    pub(crate) fn shows_a_mismatch(&self) -> bool {
        self.answers.values().flatten().any(|state| self.contradicts(state))
    }

    /// Returns true if a rank is, or failed, in a call of the same number as ours, but in another operation.
    fn contradicts(&self, other: &RankState) -> bool {
        match (self.own.call(), other.call()) {
            (Some(own), Some(other)) => {
                let same_place = own.group == other.group && own.number.is_some() && own.number == other.number;
                same_place && own.operation != other.operation
            }
            _ => false,
        }
    }
}

impl fmt::Display for DesyncReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(error) = &self.store_error {
            return write!(
                f,
                "the store did not answer a request for a desync report either ({error}): its host is gone or unreachable"
            );
        }
        let mut parts = Vec::new();
        let mut here = Vec::new();
        for (rank, answer) in &self.answers {
            match answer {
                None => parts.push(format!(
                    "rank {rank} did not answer within {} s: it has exited, was killed, is stopped, or takes no part in desync reports",
                    PATIENCE.as_secs()
                )),
                Some(answer) if answer.call().is_some() && answer.call() == self.own.call() => {
                    here.push(rank.to_string())
                }
                Some(answer) => parts.push(format!("rank {rank} {answer}")),
            }
        }
        if !here.is_empty() {
            let (word, verb) = if here.len() == 1 { ("rank", "was") } else { ("ranks", "were") };
            parts.push(format!("{word} {} {verb} in the same call", here.join(", ")));
        }
        if let Some(call) = self.own.call() {
            parts.push(format!("this rank was in {call}"));
        }
        f.write_str(&parts.join("; "))
    }
}
