//! A scenario: what to run, what to break in it, and what must be true at the end.
//!
//! The types are the file format: field for field the contents of a TOML file, and the output of [`Scenario::to_toml`].

use std::path::PathBuf;

use lockstep_contract::fault;
use serde::{Deserialize, Serialize};

use crate::fault::{Fault, FaultAction, Who};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Scenario {
    /// Unique in the library; letters, digits and dashes.
    pub(crate) name: String,
    /// A short description.
    pub(crate) title: String,
    pub(crate) shows: String,
    #[serde(default)]
    pub(crate) run: RunSpec,
    #[serde(default)]
    pub(crate) expect: Expect,
    #[serde(default, rename = "fault", skip_serializing_if = "Vec::is_empty")]
    pub(crate) faults: Vec<Fault>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct RunSpec {
    /// Another lab than 06, by the name of its folder: it accepts lab 06's arguments where both have them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) lab: Option<String>,
    /// Another program than a lab; `{snapshots}`, `{weights}` and `{folder}` in its arguments become folders of the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) program: Option<PathBuf>,
    /// The number of processes on all nodes together.
    pub(crate) ranks: usize,
    /// The number of agents, each with an equal share of the ranks unless `workers` says otherwise.
    pub(crate) nodes: usize,
    /// The number of ranks of each node; if empty, all nodes have equally many.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) workers: Vec<usize>,
    /// The job goes on with this many nodes or more, and takes on nodes that come; if `None`, it needs all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min_nodes: Option<usize>,
    /// The lab trains so many virtual ranks, on any number of ranks; the undisturbed run has one rank.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) virtual_ranks: Option<usize>,
    /// The ranks do not share memory, so that they sum as the same ranks on several hosts do.
    #[serde(skip)]
    pub(crate) sockets: bool,
    /// Where each node stores its snapshots.
    pub(crate) disks: Disks,
    /// The flag of `lockstep run`, for several nodes; `is_host` is the first node's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rdzv_conf: Option<String>,
    /// The flag of `lockstep run`.
    pub(crate) max_restarts: u32,
    /// How often the job is started again, with the same id, after all its agents have ended and it has failed, as a batch
    /// system does.
    pub(crate) requeues: u32,
    /// Which node takes the first position then, which the second, …; if empty, the order does not change. With `min_nodes`, nodes that it
    /// leaves out do not come back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) requeue_order: Vec<usize>,
    /// How much later than the others the agent of the last node starts.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) late_seconds: f64,
    /// The flag of `lockstep run`; its default if `None`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) stop_timeout_seconds: Option<f64>,
    /// The flag of `lockstep run`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) snapshot_on: Option<String>,
    /// How many idle processes each rank has, like those of data loaders.
    #[serde(skip_serializing_if = "is_zero")]
    pub(crate) loader_processes: usize,
    /// The number of epochs.
    pub(crate) epochs: u64,
    /// Samples in a batch of one rank, or of one virtual rank.
    pub(crate) batch_size: usize,
    /// Samples in the data set.
    pub(crate) samples: u64,
    /// Steps from one snapshot to the next.
    pub(crate) save_every_steps: u64,
    /// The number of snapshots to keep.
    pub(crate) keep: usize,
    /// Seed of data, order and initial weights.
    pub(crate) seed: u64,
    /// Additional arguments of the program.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) args: Vec<String>,
    /// The time limit of the run.
    pub(crate) timeout_seconds: f64,
}

/// Where the nodes store their snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Disks {
    /// In one folder, as on a parallel file system.
    #[default]
    Shared,
    /// Each in its own folder, as on the disks of single machines. A node that replaces a lost one has an empty one.
    OfNodes,
}

/// What must be true at the end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub(crate) struct Expect {
    /// The launcher's exit code.
    pub(crate) exit_code: i32,
    /// Every rank ends with exactly the bits of the undisturbed run; by default if the exit code must be 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) same_weights: Option<bool>,
    /// The numbers of ranks with which the job trained, one after the other.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) world_sizes: Vec<usize>,
    /// The exact number of restarts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) restarts: Option<u64>,
    /// The maximum number of restarts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) restarts_at_most: Option<u64>,
    /// The maximum number of repeated steps after a restart. Lab 06 saves in the background: a snapshot that was still being
    /// written when the fault happened does not count, so up to two intervals may be lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) steps_repeated_at_most: Option<u64>,
    /// The time from the first death to the next step of the ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recovers_within_seconds: Option<f64>,
    /// The rank that the launcher's report names as the root cause.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) root_cause: Option<usize>,
    /// Regular expressions that the output must match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) says: Vec<String>,
    /// No process, listening port or temporary file is left.
    pub(crate) nothing_leaked: bool,
    /// Whether a fault may come too late, when the job or its target has ended.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) faults_may_miss: bool,
}

impl Scenario {
    /// The TOML file of this scenario.
    pub(crate) fn to_toml(&self) -> String {
        // Every field is a text, a number, a list or a table with text keys, which TOML can represent.
        toml::to_string(self).unwrap_or_else(|error| format!("# cannot be written as TOML: {error}\n"))
    }

    /// The faults that the ranks inject into themselves, and their waits for others, for the file in `LOCKSTEP_FAULTS`.
    pub(crate) fn plan(&self) -> fault::Plan {
        let faults = self.faults.iter().enumerate();
        let of_ranks = |(index, fault): (usize, &Fault)| fault.inside(index).or_else(|| fault.awaited(index));
        fault::Plan { faults: faults.filter_map(of_ranks).collect() }
    }

    /// The faults that the harness injects, with their indices in the list.
    pub(crate) fn outside(&self) -> impl Iterator<Item = (usize, &Fault)> {
        self.faults.iter().enumerate().filter(|(index, fault)| fault.inside(*index).is_none())
    }

    /// Returns true if the node's first agent starts only when a fault says so.
    pub(crate) fn joins_later(&self, node: usize) -> bool {
        let of_node = |fault: &&Fault| matches!(fault.who, Who::Agent(of) | Who::Node(of) if of == node);
        self.faults.iter().find(of_node).is_some_and(|fault| fault.what.0 == [FaultAction::Join])
    }

    /// Returns true if a fault of this kind exists.
    pub(crate) fn has(&self, kind: impl Fn(&FaultAction) -> bool) -> bool {
        self.faults.iter().flat_map(|fault| &fault.what.0).any(kind)
    }
}

impl RunSpec {
    /// The number of workers of a node's agent.
    pub(crate) fn workers_of(&self, node: usize) -> usize {
        self.workers.get(node).copied().unwrap_or(self.ranks / self.nodes)
    }

    /// Returns true if the ranks must not share memory. Sums of three or more ranks have other bits there than over sockets, and
    /// a run on several nodes is compared with one on a single node. Virtual ranks have the same bits over all backends.
    pub(crate) fn over_sockets(&self) -> bool {
        self.virtual_ranks.is_none() && (self.sockets || (self.nodes > 1 && self.ranks > 2))
    }

    /// The number of steps per epoch of a lab.
    pub(crate) fn steps_per_epoch(&self) -> u64 {
        let shards = self.virtual_ranks.unwrap_or(self.ranks);
        self.samples.div_ceil(shards as u64).div_ceil(self.batch_size as u64)
    }
}

impl Expect {
    /// Returns true if the weights must equal those of the undisturbed run.
    pub(crate) fn same_weights(&self) -> bool {
        self.same_weights.unwrap_or(self.exit_code == 0)
    }
}

impl Default for RunSpec {
    /// A job of a second: 2 ranks, 3 epochs of 8 steps, a snapshot every 4.
    fn default() -> Self {
        RunSpec {
            lab: None,
            program: None,
            ranks: 2,
            nodes: 1,
            workers: Vec::new(),
            min_nodes: None,
            virtual_ranks: None,
            sockets: false,
            disks: Disks::Shared,
            rdzv_conf: None,
            max_restarts: 3,
            requeues: 0,
            requeue_order: Vec::new(),
            late_seconds: 0.0,
            stop_timeout_seconds: None,
            snapshot_on: None,
            loader_processes: 0,
            epochs: 3,
            batch_size: 16,
            samples: 256,
            save_every_steps: 4,
            keep: 2,
            seed: 0,
            args: Vec::new(),
            timeout_seconds: 120.0,
        }
    }
}

impl Default for Expect {
    fn default() -> Self {
        Expect {
            exit_code: 0,
            same_weights: None,
            world_sizes: Vec::new(),
            restarts: None,
            restarts_at_most: None,
            steps_repeated_at_most: None,
            recovers_within_seconds: None,
            root_cause: None,
            says: Vec::new(),
            nothing_leaked: true,
            faults_may_miss: false,
        }
    }
}

fn is_zero<T: Default + PartialEq>(number: &T) -> bool {
    *number == T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_the_steps_of_an_epoch_as_the_sampler_pads_it() {
        let steps = |samples, ranks| RunSpec { samples, ranks, ..RunSpec::default() }.steps_per_epoch();
        assert_eq!([steps(256, 2), steps(257, 2), steps(256, 4), steps(1, 2)], [8, 9, 4, 1]);
        let elastic = RunSpec { ranks: 3, virtual_ranks: Some(4), ..RunSpec::default() };
        assert_eq!(elastic.steps_per_epoch(), steps(256, 4));
    }
}
