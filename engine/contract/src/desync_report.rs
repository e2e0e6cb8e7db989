//! Desync reports: after a failure or in a hang, ranks publish in the job's store where they are.
//!
//! A process that requests a report adds 1 to [`ASKED`], and the result is the number of the round. Every live rank
//! then sets its [`answer_key`] for that round. A rank that leaves a group sets a [`farewell_key`] for later requests.
//! The values are [`RankState`]s as JSON. `desync_report.rs` of `c10d` writes them; other ranks and the grader read them.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{counted, foreign};

/// The key that counts the rounds of the job.
pub const ASKED: &str = "lockstep/desync_report/asked";

/// The key of a rank's answer in one round. `rank` is the rank in the whole job.
pub fn answer_key(round: i64, rank: usize) -> String {
    format!("lockstep/desync_report/{round}/{rank}")
}

/// The key that a rank sets when it leaves a group. `rank` is the rank in the whole job.
pub fn farewell_key(group: &str, rank: usize) -> String {
    format!("lockstep/desync_report/farewell/{group}/{rank}")
}

/// The name of the group of all ranks.
pub const WHOLE_JOB: &str = "0";

/// A part of the error of a rank whose call differs from other ranks' calls.
pub const DIFFERENT_CALLS: &str = "met different calls on different ranks";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RankState {
    /// It is in this operation.
    In(Call),
    Failed {
        call: Call,
        why: String,
    },
    /// It joins this group, which waits for all members.
    Joining {
        group: String,
        /// The members' ranks in the whole job.
        members: Vec<usize>,
    },
    /// It is in no operation.
    Between {
        /// The number of calls that it has finished.
        finished: u64,
    },
    /// It has left the group.
    Left {
        /// The number of calls that it has finished.
        finished: u64,
        /// True if it left because of a panic.
        panicking: bool,
    },
    /// It has aborted the group.
    Aborted {
        /// The number of calls that it has finished.
        finished: u64,
    },
}

/// A collective or message that a rank has called.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Call {
    /// The group's name; [`WHOLE_JOB`] for the group of all ranks.
    pub group: String,
    /// The number of the collective in its group, counted from 1; `None` for point-to-point messages, which ranks do
    /// not count alike.
    pub number: Option<u64>,
    /// The operation's name and shapes.
    pub operation: String,
    /// The rank in the job that the message goes to or comes from, if that is one rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer: Option<usize>,
    /// The rank's other operations that are in progress, in the order in which they began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub beside: Vec<String>,
}

impl RankState {
    /// The value in the store.
    pub fn to_bytes(&self) -> Vec<u8> {
        // Strings and numbers always have a JSON form.
        serde_json::to_vec(self).unwrap_or_default()
    }

    /// Reads a value; `None` if it is not the JSON of a state.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes).ok()
    }

    /// The call that the rank is in, or that failed.
    pub fn call(&self) -> Option<&Call> {
        match self {
            RankState::In(call) | RankState::Failed { call, .. } => Some(call),
            RankState::Joining { .. }
            | RankState::Between { .. }
            | RankState::Left { .. }
            | RankState::Aborted { .. } => None,
        }
    }
}

/// Where the rank was when it answered, in the past tense because an error message shows it later.
impl fmt::Display for RankState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            RankState::In(call) => write!(f, "was in {call}"),
            RankState::Failed { call, why } => write!(f, "failed in {call} ({})", foreign::one_line(why)),
            RankState::Joining { group, .. } if group == WHOLE_JOB => f.write_str("was joining the group of all ranks"),
            RankState::Joining { group, members } => {
                let members: Vec<String> = members.iter().map(usize::to_string).collect();
                write!(f, "was joining group {group} of ranks {}", members.join(", "))
            }
            RankState::Between { finished } => {
                write!(f, "was outside any collective, after {}", counted(*finished, "finished call"))
            }
            RankState::Left { finished, panicking: false } => {
                write!(f, "has left the group after {}", counted(*finished, "finished call"))
            }
            RankState::Left { finished, panicking: true } => {
                write!(f, "panicked after {}", counted(*finished, "finished call"))
            }
            RankState::Aborted { finished } => {
                write!(f, "has aborted the group after {}", counted(*finished, "finished call"))
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
        Call { group: group.into(), number, operation: "all_reduce of [4]".into(), peer: None, beside: Vec::new() }
    }

    fn states() -> [RankState; 7] {
        [
            RankState::In(Call { beside: vec!["isend to rank 1".into()], ..call("0", Some(3)) }),
            RankState::Failed { call: call("pair", None), why: "Timeout".into() },
            RankState::Between { finished: 2 },
            RankState::Left { finished: 2, panicking: true },
            RankState::Aborted { finished: 3 },
            RankState::Joining { group: "2".into(), members: vec![0, 3] },
            RankState::Joining { group: WHOLE_JOB.into(), members: vec![0, 1] },
        ]
    }

    #[test]
    fn reads_a_state_back_and_rejects_one_that_is_cut_or_followed_by_more() {
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
        assert_eq!(said[4], "has aborted the group after 3 finished calls");
        assert_eq!(said[5], "was joining group 2 of ranks 0, 3");
        assert_eq!(said[6], "was joining the group of all ranks");
    }
}
