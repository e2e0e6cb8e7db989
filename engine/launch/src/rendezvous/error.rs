//! What an agent reports of a rendezvous: errors of `join`, changes that end a running round, and reasons for waiting, with their texts.

use std::fmt;
use std::time::Duration;

use lockstep_contract::counted;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::state::{Closing, Difference, Lost, Node, SeenNode};

/// Why no round formed, or why this node cannot join.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RendezvousError {
    /// This node must not take part.
    #[error("{0}")]
    Refused(Box<Refusal>),
    /// A node has ended the job.
    #[error("the rendezvous is closed: {}", .0.text())]
    Closed(Box<Closing>),
    /// The workers of all nodes have already succeeded.
    #[error(
        "the rendezvous has ended: the workers of all its nodes have succeeded; to run the job again, give it another --rdzv-id"
    )]
    Finished,
    /// Too few nodes came in time.
    #[error("{0}")]
    Timeout(Box<Absence>),
    /// The store does not answer.
    #[error("{0}")]
    StoreLost(Box<StoreLost>),
    /// The round ended while it was being set up.
    #[error("the round ended before its workers' store was known: {0}")]
    Changed(Box<Change>),
    /// Group rank 0 did not publish the address of the workers' store in time.
    #[error("{host} (group rank 0) did not publish the address of the workers' store within {}", seconds(*.waited))]
    NoMaster {
        /// Group rank 0.
        host: Box<Node>,
        /// How long this node waited.
        waited: Duration,
    },
}

/// Why a node cannot join at all.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Error, Serialize, Deserialize)]
pub enum Refusal {
    /// The agents of another job are there.
    #[error(
        "another job uses this rendezvous ({}); give each job its own --rdzv-id, or its own port in --rdzv-endpoint",
        join(.0)
    )]
    OtherJob(Vec<Difference>),
    /// The agents there have another version.
    #[error("the rendezvous is of schema {theirs}, this agent is of schema {ours}: run the same version on all nodes")]
    Schema {
        /// The schema of this agent.
        ours: u32,
        /// The schema in the store.
        theirs: u32,
    },
    /// The store holds other data under our key.
    #[error(
        "the rendezvous holds data of another program ({why}; it starts with `{head}`): does another program use this port?"
    )]
    Corrupt {
        /// What is wrong with it.
        why: String,
        /// Its first characters.
        head: String,
    },
    /// The store is not one of this project.
    #[error(
        "what answers at {0} is a store of PyTorch, not a rendezvous of this launcher: torchrun, or a training, was started there; start all \
         nodes with `lockstep run`, or give this job a port of its own in --rdzv-endpoint"
    )]
    ForeignStore(String),
    /// Another live node requests the same rank.
    #[error("--node-rank={rank} is taken: {holder} has it, and {mine} requests it; give each node its own --node-rank")]
    RankTaken {
        /// The rank.
        rank: usize,
        /// The node that has it.
        holder: Box<Node>,
        /// This node.
        mine: Box<Node>,
    },
    /// The rank does not exist.
    #[error("--node-rank is {rank}, but with --nnodes={nodes} it must be less than {nodes}")]
    RankTooLarge {
        /// The rank.
        rank: usize,
        /// The number of nodes.
        nodes: usize,
    },
    /// The job's parameters are impossible.
    #[error("{0}")]
    BadJob(String),
}

/// What was observed when too few nodes came in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Absence {
    /// How long this node waited.
    pub waited: Duration,
    /// The round that did not form.
    pub round: u64,
    /// The job's minimum of nodes.
    pub min_nodes: usize,
    /// The job's maximum of nodes.
    pub max_nodes: usize,
    /// The nodes that came, including this one.
    pub came: Vec<SeenNode>,
    /// Members of the previous round that are alive but did not come back.
    pub expected: Vec<SeenNode>,
    /// Nodes that were removed.
    pub lost: Vec<Lost>,
}

/// A change that ends this node's part in a running round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A node stopped its heartbeat: stop the workers and join again. This does not count as a restart.
    NodeLost {
        /// The lost node.
        node: Node,
        /// Why it counts as lost.
        why: String,
    },
    /// A node left voluntarily: stop the workers and join again. This does not count as a restart.
    NodeLeft {
        /// The node that left.
        node: Node,
        /// Its reason.
        why: String,
    },
    /// New nodes want to join: stop the workers and join again. This does not count as a restart.
    Newcomers {
        /// The first of them.
        node: Node,
    },
    /// Workers of another node failed: stop the workers and join again. This does not count as a restart of this agent.
    PeerRestarts {
        /// The node with the failed workers.
        node: Node,
        /// Its reason.
        reason: String,
    },
    /// The others removed this node: stop the workers and join again. This does not count as a restart.
    Evicted {
        /// The reason, if known.
        why: String,
    },
    /// A node ended the job: stop the workers, and fail.
    Closed(Closing),
    /// The workers of all nodes have succeeded.
    AllDone,
    /// The store does not answer: stop the workers, and fail.
    StoreLost(StoreLost),
}

/// The store does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreLost {
    /// Its address, as configured.
    pub address: String,
    /// The node that hosted it, if known.
    pub host: Option<Node>,
    /// How long ago it last answered.
    pub since: Duration,
    /// The error of the last request.
    pub error: String,
}

impl From<Refusal> for RendezvousError {
    fn from(refusal: Refusal) -> Self {
        RendezvousError::Refused(Box::new(refusal))
    }
}

impl Closing {
    /// A text that names the node, the reason, and the worker at fault.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!("{} ended the job: {}", self.by, self.reason);
        if let Some(root) = &self.root_cause {
            let how = match root.exit_code {
                code if code < 0 => format!("was ended by signal {}", code.unsigned_abs()),
                code => format!("exited with code {code}"),
            };
            text += &format!(
                "; root cause: rank {} (local_rank {}, pid {}) on {} {how}",
                root.rank, root.local_rank, root.pid, root.host
            );
            if !root.message.is_empty() {
                text += &format!(": {}", root.message);
            }
        }
        text
    }
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let needed = match self.min_nodes == self.max_nodes {
            true => self.min_nodes.to_string(),
            false => format!("{} to {}", self.min_nodes, self.max_nodes),
        };
        let waited = seconds(self.waited);
        write!(f, "round {} did not form within {waited}: {} of {needed} nodes came", self.round, self.came.len())?;
        list(f, "came", &self.came)?;
        list(f, "expected back", &self.expected)?;
        for lost in &self.lost {
            write!(f, "; lost in round {}: {}: {}", lost.round, lost.node, lost.why)?;
        }
        Ok(())
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::NodeLost { node, why } => write!(f, "{node} was lost: {why}"),
            Change::NodeLeft { node, why } => write!(f, "{node} left: {why}"),
            Change::Newcomers { node } => write!(f, "{node} joined"),
            Change::PeerRestarts { node, reason } => write!(f, "{node} starts its workers again: {reason}"),
            Change::Evicted { why } => write!(f, "the others removed this node: {why}"),
            Change::Closed(closing) => f.write_str(&closing.text()),
            Change::AllDone => f.write_str("the workers of all nodes have succeeded"),
            Change::StoreLost(lost) => lost.fmt(f),
        }
    }
}

impl fmt::Display for StoreLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the rendezvous' store at {} does not answer", self.address)?;
        match &self.host {
            Some(host) => write!(f, "; it was hosted by {host}")?,
            None => f.write_str("; which agent hosted it is not known")?,
        }
        write!(f, "; it last answered {} ago ({})", seconds(self.since), self.error)?;
        f.write_str(
            "; see that agent's own output for why it ended, then start the job again: it resumes from its snapshot",
        )
    }
}

/// What an agent waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // the names of the fields explain them
pub enum Reason {
    /// This node has asked to join.
    Asks { host: Option<Node> },
    /// Too few nodes have come.
    /// `more` of those that have come are not named; the wait ends after `limit`.
    TooFew { came: usize, min: usize, nodes: Vec<Node>, more: usize, limit: Duration },
    /// Enough nodes have come; more may follow.
    LastCall { came: usize, min: usize, max: usize, left: Duration },
    /// Members of the previous round have not come back yet.
    /// `more` of them are not named.
    Expecting { nodes: Vec<Node>, came: usize, more: usize, limit: Duration },
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
            Reason::TooFew { came, min, nodes, more, limit } => {
                let (names, limit) = (names(nodes, *more), seconds(*limit));
                write!(f, "{came} of at least {min} nodes have come ({names}); the wait ends after {limit}")
            }
            Reason::LastCall { came, min, max, left } => {
                let left = seconds(Duration::from_secs(left.as_secs_f64().ceil() as u64));
                let came = nodes_have(*came);
                write!(f, "{came} come, at least {min} are needed; up to {max} may still come for {left}")
            }
            Reason::Expecting { nodes, came, more, limit } => {
                let (came, names, limit) = (nodes_have(*came), names(nodes, *more), seconds(*limit));
                write!(f, "{came} come back; still waiting for {names}; the wait ends after {limit}")
            }
            Reason::Complete { came, max } => write!(f, "all of {came} nodes have come (at most {max})"),
            Reason::Spare { place, max, members, more } => write!(
                f,
                "all {max} places are taken by {}; this node is spare {place} and waits for one to become free (if this \
                 is another job, give it its own --rdzv-id)",
                names(members, *more)
            ),
            Reason::RankHeld { rank, holder } => {
                write!(f, "--node-rank={rank} is held by {holder}; waiting for its heartbeat, or the end of its lease")
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

fn nodes_have(number: usize) -> String {
    format!("{} {}", counted(number, "node"), if number == 1 { "has" } else { "have" })
}

fn names(nodes: &[Node], more: usize) -> String {
    let mut names: Vec<String> = nodes.iter().map(ToString::to_string).collect();
    if more > 0 {
        names.push(format!("and {more} more"));
    }
    names.join(", ")
}

fn list(f: &mut fmt::Formatter<'_>, what: &str, seen: &[SeenNode]) -> fmt::Result {
    for (at, one) in seen.iter().enumerate() {
        let lead = if at == 0 { format!("; {what}: ") } else { ", ".to_owned() };
        write!(f, "{lead}{} {} ago", one.node, seconds(one.ago))?;
    }
    Ok(())
}

fn join(differences: &[Difference]) -> String {
    differences.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}

/// A duration for messages.
pub(crate) fn seconds(span: Duration) -> String {
    match span.as_millis() {
        ms if ms < 10_000 && ms % 1000 != 0 => format!("{:.1} s", span.as_secs_f64()),
        _ => format!("{} s", span.as_secs_f64().round()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::state::RootCause;
    use crate::rendezvous::state::tests::node;

    #[test]
    fn names_nodes_that_came_are_expected_and_were_lost() {
        let seen = |id, host, ago| SeenNode { node: node(id, host), ago: Duration::from_millis(ago) };
        let absence = Absence {
            waited: Duration::from_secs(600),
            round: 1,
            min_nodes: 3,
            max_nodes: 3,
            came: vec![seen(1, "a", 600_000)],
            expected: vec![seen(2, "b", 1500)],
            lost: vec![Lost { node: node(3, "c"), why: "no heartbeat for 15.2 s".into(), round: 0 }],
        };
        assert_eq!(
            absence.to_string(),
            "round 1 did not form within 600 s: 1 of 3 nodes came; came: node a (pid 100) 600 s ago; expected \
             back: node b (pid 100) 1.5 s ago; lost in round 0: node c (pid 100): no heartbeat for 15.2 s"
        );
    }

    #[test]
    fn names_the_root_cause_of_a_closing() {
        let message = "loss is NaN".to_owned();
        let root = RootCause { rank: 3, local_rank: 1, host: "b".into(), pid: 7, exit_code: -9, message };
        let closing = Closing { by: node(2, "b"), reason: "no restarts are left".into(), root_cause: Some(root) };
        assert_eq!(
            RendezvousError::Closed(Box::new(closing)).to_string(),
            "the rendezvous is closed: node b (pid 100) ended the job: no restarts are left; root cause: rank 3 \
             (local_rank 1, pid 7) on b was ended by signal 9: loss is NaN"
        );
    }

    #[test]
    fn names_the_host_of_a_lost_store_and_since_when_it_is_lost() {
        let (host, error) = (Some(node(1, "a")), "connection reset by peer".to_owned());
        let lost = StoreLost { address: "a:29500".into(), host, since: Duration::from_millis(300), error };
        assert_eq!(
            lost.to_string(),
            "the rendezvous' store at a:29500 does not answer; it was hosted by node a (pid 100); it last answered \
             0.3 s ago (connection reset by peer); see that agent's own output for why it ended, then start the job \
             again: it resumes from its snapshot"
        );
    }
}
