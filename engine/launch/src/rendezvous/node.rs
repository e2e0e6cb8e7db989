//! The identity of an agent and of its job.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A node's id, which the authority assigns when the node first joins. Ids are never reused. An agent that was restarted,
/// or that was removed and comes back, gets a new one.
pub type NodeId = u64;

/// What an agent publishes about itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Node {
    /// Its id; 0 until the authority has assigned one.
    pub id: NodeId,
    /// The host's name.
    pub host: String,
    /// The address at which other nodes reach it.
    pub addr: String,
    /// The process id of the agent.
    pub pid: u32,
    /// The number of its workers; at least 1.
    pub local_world_size: usize,
    /// torchrun's `--role`.
    pub role: String,
    /// True if this agent hosts the store. Such a node becomes group rank 0 if possible.
    #[serde(default)]
    pub hosts_store: bool,
    /// The group rank that it requests (`--node-rank` of a static rendezvous).
    #[serde(default)]
    pub node_rank: Option<usize>,
    /// The port at which it can take over from a lost authority, if it listens for that.
    #[serde(default)]
    pub port: Option<u16>,
}

/// The identity of a job. Agents of different jobs at the same endpoint refuse each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct JobIdentity {
    /// `--rdzv-id`.
    pub run_id: String,
    /// The lower bound of `--nnodes`.
    pub min_nodes: usize,
    /// The upper bound of `--nnodes`.
    pub max_nodes: usize,
    /// `static` or `c10d`.
    pub backend: String,
    /// The name of the user who started it.
    pub user: String,
    /// The batch system's id of the job, like `SLURM_JOB_ID=17`, if there is one.
    #[serde(default)]
    pub batch: Option<String>,
    /// The command line of the workers by role: different roles may run different programs.
    pub commands: BTreeMap<String, String>,
}

/// A difference between two jobs.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Difference {
    /// The name of the property.
    pub what: String,
    /// The value of this agent.
    pub ours: String,
    /// The value in the rendezvous.
    pub theirs: String,
}

impl JobIdentity {
    /// The differences between `theirs` and this job; empty for the same job. If one side has no batch id, that is not
    /// a difference: agents may be started by hand inside a job.
    #[must_use]
    pub fn differences(&self, theirs: &JobIdentity) -> Vec<Difference> {
        let nodes = |job: &JobIdentity| format!("{}:{}", job.min_nodes, job.max_nodes);
        let mut pairs = vec![
            ("run id", self.run_id.clone(), theirs.run_id.clone()),
            ("nnodes", nodes(self), nodes(theirs)),
            ("rendezvous backend", self.backend.clone(), theirs.backend.clone()),
            ("user", self.user.clone(), theirs.user.clone()),
        ];
        if let (Some(ours), Some(theirs)) = (&self.batch, &theirs.batch) {
            pairs.push(("batch job", ours.clone(), theirs.clone()));
        }
        // Nodes of one job may have different arguments. Only without a run id do the arguments identify the job.
        let unnamed = self.backend == "c10d" && self.run_id == "none";
        for (role, ours) in self.commands.iter().filter(|_| unnamed) {
            if let Some(theirs) = theirs.commands.get(role) {
                pairs.push(("command", ours.clone(), theirs.clone()));
            }
        }
        let differ = pairs.into_iter().filter(|(_, ours, theirs)| ours != theirs);
        differ.map(|(what, ours, theirs)| Difference { what: what.to_owned(), ours, theirs }).collect()
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not its id: nodes are counted by --node-rank alone, from 0.
        write!(f, "node {} (", self.host)?;
        if self.addr != self.host {
            write!(f, "{}, ", self.addr)?;
        }
        if let Some(rank) = self.node_rank {
            write!(f, "--node-rank={rank}, ")?;
        }
        write!(f, "pid {})", self.pid)
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ours is `{}`, theirs is `{}`", self.what, self.ours, self.theirs)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn job(min: usize, max: usize) -> JobIdentity {
        let commands = BTreeMap::from([("default".to_owned(), "train".to_owned())]);
        let (run_id, user) = ("none".to_owned(), "ada".to_owned());
        JobIdentity { run_id, min_nodes: min, max_nodes: max, backend: "c10d".into(), user, batch: None, commands }
    }

    pub(crate) fn node(id: NodeId, host: &str) -> Node {
        let (host, addr, role) = (host.to_owned(), host.to_owned(), "default".to_owned());
        Node { id, host, addr, pid: 100, local_world_size: 1, role, hosts_store: false, node_rank: None, port: None }
    }

    #[test]
    fn names_each_difference_with_both_sides() {
        let mut theirs = job(1, 2);
        assert_eq!(job(1, 2).differences(&theirs), []);
        theirs.user = "bob".into();
        theirs.commands.insert("default".into(), "other".into());
        let text: Vec<_> = job(1, 2).differences(&theirs).iter().map(ToString::to_string).collect();
        assert_eq!(text, ["user: ours is `ada`, theirs is `bob`", "command: ours is `train`, theirs is `other`"]);
    }

    #[test]
    fn lets_roles_run_different_programs_and_batch_ids_be_unknown() {
        let (mut ours, mut theirs) = (job(2, 2), job(2, 2));
        ours.commands = BTreeMap::from([("reader".into(), "read".into())]);
        ours.batch = Some("SLURM_JOB_ID=1".into());
        assert_eq!(ours.differences(&theirs), []);
        theirs.batch = Some("SLURM_JOB_ID=2".into());
        assert_eq!(ours.differences(&theirs).len(), 1);
    }

    #[test]
    fn describes_a_node_in_one_phrase() {
        let mut one = node(3, "gpu01");
        assert_eq!(one.to_string(), "node gpu01 (pid 100)");
        (one.addr, one.node_rank) = ("10.0.0.1".into(), Some(2));
        assert_eq!(one.to_string(), "node gpu01 (10.0.0.1, --node-rank=2, pid 100)");
    }
}
