//! Desync reports: after a failure or in a hang, ranks say in the job's store where they are.
//!
//! Whoever wants to know adds 1 to [`ASKED`], which gives the number of the round. Every rank that is alive then sets its
//! [`answer_key`] of that round, and a rank that lets go of a group leaves a [`farewell_key`] for those that ask later. The
//! values are [`RankState`]s as JSON.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Counts the rounds of the job.
pub const ASKED: &str = "lockstep/desync_report/asked";

/// Where a rank of the whole job answers one round.
pub fn answer_key(round: i64, rank: usize) -> String {
    format!("lockstep/desync_report/{round}/{rank}")
}

/// What a rank of the whole job leaves behind when it lets go of a group.
pub fn farewell_key(group: &str, rank: usize) -> String {
    format!("lockstep/desync_report/farewell/{group}/{rank}")
}

/// The name of the group of all ranks.
pub const WHOLE_JOB: &str = "0";

/// What a rank says about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankState {
    /// In this operation.
    In(Call),
    /// This operation failed there.
    Failed {
        /// The operation.
        call: Call,
        /// Its error.
        why: String,
    },
    /// In none.
    Between {
        /// How many calls it has finished.
        finished: u64,
    },
    /// It has let go of the group.
    Left {
        /// How many calls it has finished.
        finished: u64,
        /// Whether a panic unwound it.
        panicking: bool,
    },
}

/// One call of one rank.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Call {
    /// The group's name; [`WHOLE_JOB`] for that of all ranks.
    pub group: String,
    /// Which of the group's collectives it is, counted from 1; `None` for messages, which ranks do not count alike.
    pub number: Option<u64>,
    /// Name and shapes.
    pub operation: String,
}

impl RankState {
    /// The value in the store.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Strings and numbers always have a JSON form.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a value; `None` if no rank has written it.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// The call that it is in, or that failed.
    pub fn call(&self) -> Option<&Call> {
        match self {
            RankState::In(call) | RankState::Failed { call, .. } => Some(call),
            RankState::Between { .. } | RankState::Left { .. } => None,
        }
    }
}

/// Where the rank was when it answered, as an error that comes later says it.
impl fmt::Display for RankState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RankState::In(call) => write!(f, "was in {call}"),
            RankState::Failed { call, why } => write!(f, "failed in {call} ({why})"),
            RankState::Between { finished } => {
                write!(f, "was outside any collective, after {finished} finished calls")
            }
            RankState::Left { finished, panicking: false } => {
                write!(f, "has left the group after {finished} finished calls")
            }
            RankState::Left { finished, panicking: true } => {
                write!(f, "panicked after {finished} finished calls")
            }
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(number) = self.number {
            write!(f, "call {number}, ")?;
        }
        f.write_str(&self.operation)?;
        if self.group != WHOLE_JOB {
            write!(f, " (group {})", self.group)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(group: &str, number: Option<u64>) -> Call {
        Call { group: group.into(), number, operation: "all_reduce of [4]".into() }
    }

    fn states() -> [RankState; 4] {
        [
            RankState::In(call("0", Some(3))),
            RankState::Failed { call: call("pair", None), why: "Timeout".into() },
            RankState::Between { finished: 2 },
            RankState::Left { finished: 2, panicking: true },
        ]
    }

    #[test]
    fn a_state_comes_back_as_it_was_written_and_not_when_it_is_cut_or_followed_by_more() {
        for state in states() {
            let bytes = state.to_bytes();
            assert_eq!(RankState::parse(&bytes), Some(state));
            assert!((0..bytes.len()).all(|end| RankState::parse(&bytes[..end]).is_none()));
            assert_eq!(RankState::parse(&[&bytes[..], b"x"].concat()), None);
        }
        assert_eq!(RankState::parse(br#"{"Asleep":{}}"#), None);
    }

    #[test]
    fn says_where_a_rank_was_and_names_groups_other_than_the_whole_job() {
        let said = states().map(|state| state.to_string());
        assert_eq!(said[0], "was in call 3, all_reduce of [4]");
        assert_eq!(said[1], "failed in all_reduce of [4] (group pair) (Timeout)");
        assert_eq!(said[2], "was outside any collective, after 2 finished calls");
        assert_eq!(said[3], "panicked after 2 finished calls");
    }
}
