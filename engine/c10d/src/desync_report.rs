//! A rank's record of its own calls, and a desync report as one rank sees it: which ranks are missing after a failure, and which
//! called another operation. [`reporter`](crate::reporter) collects the answers.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use lockstep_contract::desync_report::{Call, RankState};

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

    /// Returns true if a rank did not answer or has left, but false if the store itself does not answer: then nothing is
    /// known.
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

/// A call of a group's operation, as [`ProcessGroup::called`](crate::ProcessGroup::called) returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    /// The operation, with its shapes and the peer of a message, and its group.
    pub call: Call,
    /// The ranks of the job in the group.
    pub members: Vec<Rank>,
    /// True if the rank has waited for the call to end.
    pub waited: bool,
    /// The number of earlier calls whose end the rank had waited for when it made this one.
    pub waited_before: usize,
}

/// The kind of an operation, as far as reports need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CallKind {
    /// All ranks of the group call it, in the same order.
    Collective,
    /// Two ranks call it; a receiver may take any sender.
    Message,
}

/// A rank's own record of the operations that it is in.
#[derive(Debug, Default)]
pub(crate) struct CallRecord {
    pub(crate) issued: BTreeMap<String, u64>,
    pub(crate) finished: u64,
    pub(crate) open: BTreeMap<u64, Call>,
    /// The open operations whose end the rank waits for.
    pub(crate) waiting: BTreeSet<u64>,
    pub(crate) next_entry: u64,
    /// The number of the first entry after the failure, the call that failed, and why.
    pub(crate) failed: Option<(u64, Call, String)>,
    /// The calls and their entries, if calls are recorded.
    pub(crate) called: Option<Vec<(u64, Called)>>,
    /// Its state while it joins a group.
    pub(crate) joining: Option<RankState>,
    /// Groups that the rank is about to leave.
    pub(crate) leaving: Vec<Leaving>,
    /// The reporter is being dropped.
    pub(crate) stop: bool,
    /// The answering thread has ended.
    pub(crate) ended: bool,
    /// A farewell was not in the store in time, so the rank does not wait for the answering thread again.
    pub(crate) store_is_late: bool,
}

/// A group that the rank is about to leave.
#[derive(Clone, Debug)]
pub(crate) struct Leaving {
    pub(crate) group: String,
    pub(crate) farewell: RankState,
    /// The farewell is in the store.
    pub(crate) published: bool,
    /// The rank waits for ranks that are still joining.
    pub(crate) waits: bool,
}

/// Returned by [`Reporter::enter`](crate::reporter::Reporter::enter), for its `leave`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry(pub(crate) u64);

impl CallRecord {
    /// A failure without a later call is the most informative state. Otherwise the rank is blocked in joining a group, in a wait, or in
    /// the oldest open operation.
    pub(crate) fn state(&self) -> RankState {
        if let Some((_, call, why)) = &self.failed {
            return RankState::Failed { call: call.clone(), why: why.clone() };
        }
        if let Some(joining) = &self.joining {
            return joining.clone();
        }
        let waiting = self.waiting.first().filter(|entry| self.open.contains_key(entry));
        match waiting.or_else(|| self.open.keys().next()) {
            Some(entry) => RankState::In(Call { beside: self.beside(*entry), ..self.open[entry].clone() }),
            None => RankState::Between { finished: self.finished },
        }
    }

    /// The other open operations.
    fn beside(&self, entry: u64) -> Vec<String> {
        self.open.iter().filter(|(other, _)| **other != entry).map(|(_, call)| call.operation.clone()).collect()
    }

    /// The state that a rank publishes when it leaves a group.
    pub(crate) fn farewell(&self) -> RankState {
        match &self.failed {
            Some((_, call, why)) => RankState::Failed { call: call.clone(), why: why.clone() },
            None => RankState::Left { finished: self.finished, panicking: std::thread::panicking() },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_is_in_what_it_waits_for_and_otherwise_in_its_oldest_operation() {
        let call = |operation: &str| Call {
            group: "0".to_owned(),
            number: None,
            operation: operation.to_owned(),
            peer: None,
            beside: Vec::new(),
        };
        let with = |operation, beside: &str| Call { beside: vec![beside.to_owned()], ..call(operation) };
        let mut record = CallRecord::default();
        record.open.extend([(0, call("isend")), (1, call("recv"))]);
        assert_eq!(record.state(), RankState::In(with("isend", "recv")));
        record.waiting.insert(1);
        assert_eq!(record.state(), RankState::In(with("recv", "isend")));
    }
}
