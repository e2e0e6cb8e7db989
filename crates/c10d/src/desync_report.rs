//! A desync report as one rank sees it: which ranks are missing after a failure, and which called another operation.
//! [`reporter`](crate::reporter) collects the answers.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use lockstep_contract::desync_report::RankState;

use crate::Rank;

/// How long the asking rank waits for answers: several polls, so that a live rank on a busy machine does not count as
/// dead.
pub(crate) const PATIENCE: Duration = Duration::from_secs(3);

/// The answers of all ranks, as one rank sees them. Ranks are those of the whole job.
#[derive(Clone, Debug)]
pub struct DesyncReport {
    pub(crate) own: RankState,
    pub(crate) answers: BTreeMap<Rank, Option<RankState>>,
    pub(crate) store_error: Option<String>,
}

impl DesyncReport {
    /// The ranks that did not answer: dead, stopped, or not a program of this project.
    pub fn missing(&self) -> Vec<Rank> {
        self.answers.iter().filter(|(_, answer)| answer.is_none()).map(|(&rank, _)| rank).collect()
    }

    /// Each other rank's answer; `None` if it did not answer.
    pub fn answers(&self) -> &BTreeMap<Rank, Option<RankState>> {
        &self.answers
    }

    /// Returns true if a rank did not answer or has left. False if the store itself does not answer, since then nothing
    /// is known.
    pub(crate) fn shows_a_loss(&self) -> bool {
        let gone = |state: &Option<RankState>| {
            matches!(state, None | Some(RankState::Left { .. } | RankState::Aborted { .. }))
        };
        self.store_error.is_none() && self.answers.values().any(gone)
    }

    /// Returns true if a rank was in another operation at the same call number.
    pub(crate) fn shows_a_mismatch(&self) -> bool {
        self.answers.values().flatten().any(|state| self.contradicts(state))
    }

    /// Returns true if the rank is in, or failed in, a call with the same number as this rank's but another operation.
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
