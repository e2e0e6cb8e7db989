//! Why something was decided, with the numbers that decided it, and in words.

use std::fmt;
use std::time::Duration;

use super::error::seconds;
use super::node::Node;

/// Why.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the fields are their names
pub enum Reason {
    /// Nobody was there before.
    First,
    /// This node has asked in.
    Asks { leader: Option<Node> },
    /// Too few have come.
    TooFew { came: usize, min: usize },
    /// Enough have come; more may.
    LastCall { came: usize, min: usize, max: usize, left: Duration },
    /// Members of the round before have to come back.
    /// `more` of them are not named.
    Expecting { nodes: Vec<Node>, came: usize, more: usize },
    /// All have come.
    Complete { came: usize, max: usize },
    /// It is full.
    /// `more` of its members are not named.
    Spare { place: usize, max: usize, members: Vec<Node>, more: usize },
    /// Another node has the rank that this one insists on; it is not known whether it lives.
    RankHeld { rank: usize, holder: Node },
    /// Some nodes have finished already.
    Ending { done: usize, of: usize },
    /// Nodes are struck out.
    Strikes { nodes: Vec<(Node, String)> },
    /// The others struck this node out.
    StruckOut,
    /// Nothing calls for anything.
    Steady { round: u64, done: usize, of: usize },
    /// What was wanted.
    Wanted,
    /// What was found.
    Found,
}

impl Reason {
    /// Whether both tell people the same; the time that is left is no news.
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
            Reason::First => f.write_str("nobody has come yet"),
            Reason::Asks { leader: Some(leader) } => {
                write!(f, "asked to take part; {leader}, which leads, has not answered")
            }
            Reason::Asks { leader: None } => f.write_str("asked to take part; no node leads at the moment"),
            Reason::TooFew { came, min } => write!(f, "{came} of at least {min} nodes have come"),
            Reason::LastCall { came, min, max, left } => {
                let left = seconds(Duration::from_secs(left.as_secs_f64().ceil() as u64));
                write!(f, "{came} nodes have come, at least {min} are needed; up to {max} may still come for {left}")
            }
            Reason::Expecting { nodes, came, more } => {
                write!(f, "{came} nodes have come; their workers ended, these are expected: {}", names(nodes, *more))
            }
            Reason::Complete { came, max } => write!(f, "all of {came} nodes have come (at most {max})"),
            Reason::Spare { place, max, members, more } => write!(
                f,
                "all {max} places are taken by {}; this node is spare {place} and waits for one to become free (if this \
                 is another job, give it its own --rdzv-id)",
                names(members, *more)
            ),
            Reason::RankHeld { rank, holder } => {
                write!(
                    f,
                    "node_rank {rank} is held by {holder}; waiting for a sign of its life, or the end of its lease"
                )
            }
            Reason::Ending { done, of } => {
                write!(f, "the workers of {done} of {of} nodes have succeeded already: the job ends, nobody is let in")
            }
            Reason::Strikes { nodes } => {
                let told: Vec<_> = nodes.iter().map(|(node, why)| format!("{node}: {why}")).collect();
                write!(f, "struck out {}", told.join(", "))
            }
            Reason::StruckOut => f.write_str("the others gave up on this node; it joins again"),
            Reason::Steady { round, done, of } => write!(f, "round {round} runs; {done} of {of} nodes have succeeded"),
            Reason::Wanted => f.write_str("as this agent wants"),
            Reason::Found => f.write_str("as the store says"),
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
