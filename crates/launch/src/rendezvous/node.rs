//! Who takes part, and in which job: what an agent says of itself.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// A node's number, given by the store when it first joins, never given twice. An agent that is started anew, or that was
/// struck out and comes back, has a new one.
pub type NodeId = u64;

/// One agent: what it tells the others of itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Node {
    /// Its number; 0 until the store has given one.
    pub id: NodeId,
    /// The host's name, as people know it.
    pub host: String,
    /// The address under which other nodes reach it.
    pub addr: String,
    /// The agent's process.
    pub pid: u32,
    /// How many workers it runs; at least 1.
    pub local_world_size: usize,
    /// torchrun's `--role`.
    pub role: String,
    /// Whether the store lives in this agent. Such a node becomes group rank 0 where it can.
    #[serde(default)]
    pub hosts_store: bool,
    /// The group rank that it insists on (`--node-rank` of a static rendezvous).
    #[serde(default)]
    pub node_rank: Option<usize>,
}

/// What makes two agents agents of one job. Agents of different jobs on one endpoint refuse each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Job {
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
    /// The batch system's name for the job, like `SLURM_JOB_ID=17`, where there is one.
    #[serde(default)]
    pub batch: Option<String>,
    /// The command line of the workers of each role: different roles may run different programs.
    pub commands: BTreeMap<String, String>,
}

/// An agent as the machine sees itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Me {
    /// What it tells of itself.
    pub node: Node,
    /// The job that it was started for.
    pub job: Job,
}

/// One thing in which two jobs differ.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Difference {
    /// The name of the thing.
    pub what: String,
    /// What this agent has.
    pub ours: String,
    /// What the rendezvous has.
    pub theirs: String,
}

impl Job {
    /// In what `theirs` is another job than this one; empty when both are the same job. A batch id that one side lacks does
    /// not count: agents may be started by hand inside a job.
    #[must_use]
    pub fn differences(&self, theirs: &Job) -> Vec<Difference> {
        let nodes = |job: &Job| format!("{}:{}", job.min_nodes, job.max_nodes);
        let mut pairs = vec![
            ("run id", self.run_id.clone(), theirs.run_id.clone()),
            ("nnodes", nodes(self), nodes(theirs)),
            ("rendezvous backend", self.backend.clone(), theirs.backend.clone()),
            ("user", self.user.clone(), theirs.user.clone()),
        ];
        if let (Some(ours), Some(theirs)) = (&self.batch, &theirs.batch) {
            pairs.push(("batch job", ours.clone(), theirs.clone()));
        }
        // Nodes of one job may have arguments of their own; only where nobody named the job do they tell jobs apart.
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
        write!(f, "node {} ({}", self.id, self.host)?;
        if self.addr != self.host {
            write!(f, ", {}", self.addr)?;
        }
        if let Some(rank) = self.node_rank {
            write!(f, ", node_rank {rank}")?;
        }
        write!(f, ", pid {})", self.pid)
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

    pub(crate) fn job(min: usize, max: usize) -> Job {
        let commands = BTreeMap::from([("default".to_owned(), "train".to_owned())]);
        let (run_id, user) = ("none".to_owned(), "ada".to_owned());
        Job { run_id, min_nodes: min, max_nodes: max, backend: "c10d".into(), user, batch: None, commands }
    }

    pub(crate) fn node(id: NodeId, host: &str) -> Node {
        let (host, addr, role) = (host.to_owned(), host.to_owned(), "default".to_owned());
        Node { id, host, addr, pid: 100, local_world_size: 1, role, hosts_store: false, node_rank: None }
    }

    #[test]
    fn names_each_difference_with_both_sides() {
        let mut theirs = job(1, 2);
        assert_eq!(job(1, 2).differences(&theirs), []);
        theirs.user = "bob".into();
        theirs.commands.insert("default".into(), "other".into());
        let told: Vec<_> = job(1, 2).differences(&theirs).iter().map(ToString::to_string).collect();
        assert_eq!(told, ["user: ours is `ada`, theirs is `bob`", "command: ours is `train`, theirs is `other`"]);
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
    fn tells_a_node_in_one_phrase() {
        let mut one = node(3, "gpu01");
        assert_eq!(one.to_string(), "node 3 (gpu01, pid 100)");
        (one.addr, one.node_rank) = ("10.0.0.1".into(), Some(2));
        assert_eq!(one.to_string(), "node 3 (gpu01, 10.0.0.1, node_rank 2, pid 100)");
    }
}
