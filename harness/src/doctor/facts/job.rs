//! A job: its nodes, those that are silent, and what each saw of the others.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::Node;

/// A job, or one machine: what is checked.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(in super::super) struct Job {
    /// `this machine`, `Slurm job 17.0`.
    pub(in super::super) title: String,
    /// A launcher started doctor, and holds the launcher's ports.
    pub(in super::super) launched: bool,
    /// The number of its nodes.
    pub(in super::super) size: usize,
    /// Those that answered, in the job's order.
    pub(in super::super) nodes: Vec<Node>,
    /// Those that did not.
    pub(in super::super) silent: Vec<Silent>,
    pub(in super::super) links: Vec<Link>,
    /// What each node saw of the shared folder.
    pub(in super::super) views: Vec<View>,
}

/// A node from which something is missing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in super::super) struct Silent {
    pub(in super::super) name: String,
    pub(in super::super) missing: Missing,
    /// How long it was waited for, in seconds.
    pub(in super::super) waited: u64,
    /// What a TCP connection to it says; `None` where it has no name to connect to.
    pub(in super::super) knock: Option<Knock>,
}

/// What is missing from a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum Missing {
    /// It never came.
    Facts,
    /// It came, but did not say what it can reach.
    Results,
    /// It is the node where all meet, and this node cannot reach it.
    Head,
}

/// A connection to a node that is silent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(in super::super) struct Knock {
    pub(in super::super) to: String,
    pub(in super::super) outcome: Outcome,
}

/// A TCP connection from one node to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct Link {
    /// A node's name.
    pub(in super::super) from: String,
    /// A node's name.
    pub(in super::super) to: String,
    pub(in super::super) address: IpAddr,
    pub(in super::super) port: u16,
    /// The port is a well-known one.
    pub(in super::super) known: bool,
    /// What uses the address.
    pub(in super::super) users: Vec<User>,
    pub(in super::super) outcome: Outcome,
}

/// What uses an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum User {
    /// The node's name leads to it.
    Name,
    Gloo,
    Nccl,
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum Outcome {
    /// Doctor answered.
    Answered {
        /// The name of the node that did.
        by: String,
        /// Its clock minus this node's, in microseconds.
        ahead: i64,
        /// The offset may be wrong by this much, in microseconds.
        uncertain: i64,
    },
    /// Somebody accepted the connection, and it was not doctor.
    Stranger,
    Refused,
    /// After this many seconds.
    TimedOut(u64),
    /// The system's error.
    Failed(String),
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Answered { by, .. } => write!(f, "{by} answered"),
            Outcome::Stranger => f.write_str("another program answered"),
            Outcome::Refused => f.write_str("connection refused"),
            Outcome::TimedOut(seconds) => write!(f, "no answer within {seconds} s"),
            Outcome::Failed(error) => f.write_str(error),
        }
    }
}

/// What a node saw of the shared folder while the head node had a lock in it and replaced a file over and over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in super::super) struct View {
    pub(in super::super) node: String,
    /// It saw the file of the head node.
    pub(in super::super) sees_head: bool,
    /// It could write a file of its own there.
    pub(in super::super) wrote: bool,
    /// The head node saw that file; known only to the head node.
    pub(in super::super) seen_by_head: bool,
    pub(in super::super) lock: Lock,
    /// What it read while the file was replaced, if that was not a whole file.
    pub(in super::super) torn: Option<String>,
}

/// What came of an attempt to take the head node's lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in super::super) enum Lock {
    /// It was not tried, since the file cannot be opened for writing.
    Untried,
    /// It was refused, as it must be.
    Honoured,
    /// Both have it.
    Ignored,
    /// The file system has no locks.
    Failed(String),
}

impl Job {
    /// There is more than one node.
    pub(in super::super) fn has_several(&self) -> bool {
        self.size > 1
    }

    /// The node that has this address, other than by loopback.
    pub(in super::super) fn owner(&self, address: IpAddr) -> Option<&Node> {
        self.nodes.iter().find(|node| !address.is_loopback() && node.has(address))
    }
}
