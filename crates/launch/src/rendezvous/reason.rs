//! What an agent waits for, with its numbers, and as a text.

use std::fmt;
use std::time::Duration;

use super::error::seconds;
use super::node::Node;

/// What an agent waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names of the fields explain them
pub enum Reason {
    /// This node has asked to join.
    Asks { host: Option<Node> },
    /// Too few nodes have come.
    TooFew { came: usize, min: usize },
    /// Enough nodes have come; more may follow.
    LastCall { came: usize, min: usize, max: usize, left: Duration },
    /// Members of the previous round have not come back yet.
    /// `more` of them are not named.
    Expecting { nodes: Vec<Node>, came: usize, more: usize },
    /// All nodes have come.
    Complete { came: usize, max: usize },
    /// There is no free place.
    /// `more` of the members are not named.
    Spare { place: usize, max: usize, members: Vec<Node>, more: usize },
    /// Another node has the rank that this one requests; whether it is alive is not known yet.
    RankHeld { rank: usize, holder: Node },
    /// Some nodes have already finished.
    Ending { done: usize, of: usize },
    /// There is nothing to do.
    Steady { round: u64, done: usize, of: usize },
    /// The agent itself wants it.
    Wanted,
    /// The authority's view requires it.
    Found,
}

impl Reason {
    /// Returns true if both have the same text, apart from the remaining time.
    pub(super) fn same(&self, other: &Reason) -> bool {
        match (self, other) {
            (Reason::LastCall { came, min, max, .. }, Reason::LastCall { came: came2, min: min2, max: max2, .. }) => {
                (came, min, max) == (came2, min2, max2)
            }
            _ => self == other,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Asks { host: Some(host) } => write!(f, "asked to join; {host} has not answered"),
            Reason::Asks { host: None } => f.write_str("asked to join; there is no answer yet"),
            Reason::TooFew { came, min } => write!(f, "{came} of at least {min} nodes have come"),
            Reason::LastCall { came, min, max, left } => {
                let left = seconds(Duration::from_secs(left.as_secs_f64().ceil() as u64));
                write!(f, "{came} nodes have come, at least {min} are needed; up to {max} may still come for {left}")
            }
            Reason::Expecting { nodes, came, more } => {
                write!(f, "{came} nodes have come back; still waiting for {}", names(nodes, *more))
            }
            Reason::Complete { came, max } => write!(f, "all of {came} nodes have come (at most {max})"),
            Reason::Spare { place, max, members, more } => write!(
                f,
                "all {max} places are taken by {}; this node is spare {place} and waits for one to become free (if this \
                 is another job, give it its own --rdzv-id)",
                names(members, *more)
            ),
            Reason::RankHeld { rank, holder } => {
                write!(f, "node_rank {rank} is held by {holder}; waiting for its heartbeat, or the end of its lease")
            }
            Reason::Ending { done, of } => {
                write!(
                    f,
                    "the workers of {done} of {of} nodes have already succeeded: the job is ending, and no node can join"
                )
            }
            Reason::Steady { round, done, of } => write!(f, "round {round} runs; {done} of {of} nodes have succeeded"),
            Reason::Wanted => f.write_str("this agent wants it"),
            Reason::Found => f.write_str("the rendezvous requires it"),
        }
    }
}

fn names(nodes: &[Node], more: usize) -> String {
    let mut names: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    names.join(", ")
}
