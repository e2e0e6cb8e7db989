//! What was observed of a run.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use lockstep_contract::fault;

use super::nodes::Nodes;
use crate::history::{History, Restarts, RunEvents};
use crate::lab_run::{Results, Weights, read_results, read_weights};
use crate::report::Timeline;
use crate::runner::scenario::{Scenario, Who};

/// What was observed of a run, and the files that it left.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    /// The exit code of each agent that the harness did not kill, by node; `None` for a signal.
    pub(crate) codes: BTreeMap<usize, Option<i32>>,
    /// The time limit, if the run was ended because it exceeded it.
    pub(crate) timed_out: Option<Duration>,
    /// The duration of the run.
    pub(crate) seconds: f64,
    pub(crate) events: RunEvents,
    /// What failed, and how much time and how many steps it cost.
    pub(crate) restarts: Restarts,
    /// The attempts of every rank.
    pub(crate) timeline: Timeline,
    /// The final weights of rank 0, rank 1, ….
    pub(crate) weights: Vec<Result<Weights, String>>,
    /// The results of rank 0, rank 1, … of a lab without weights, by lesson.
    pub(crate) results: Vec<Result<Results, String>>,
    /// Other saved models, by file name.
    pub(crate) models: BTreeMap<String, Result<Weights, String>>,
    /// What the nodes printed, one after the other.
    pub(crate) output: String,
    /// What the harness did, with the time since the Unix epoch.
    pub(crate) injections: Vec<Injection>,
    /// Numbers of the scenario's faults that were never injected.
    pub(crate) missed: Vec<usize>,
    /// Processes, ports and files that should be gone and are not, a sentence each.
    pub(crate) leaks: Vec<String>,
}

/// Something that the harness did.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Injection {
    pub(crate) t: f64,
    /// The fault's number in the scenario; `None` for an action that follows from a fault.
    pub(crate) fault: Option<usize>,
    pub(crate) who: Who,
    pub(crate) what: String,
    /// Why it failed.
    pub(crate) failed: Option<String>,
}

impl Injection {
    /// Returns true if the whole job was started again.
    pub(crate) fn is_requeue(&self) -> bool {
        self.fault.is_none() && self.what.starts_with(STARTED_AGAIN)
    }
}

/// What the harness does with a job that has failed, as a batch system would.
pub(super) const STARTED_AGAIN: &str = "the job is started again";

impl Observed {
    /// Reads the files that the run left.
    pub(super) fn gather(scenario: &Scenario, nodes: &Nodes<'_>) -> Self {
        let folder = &nodes.folder;
        let events = RunEvents::read(&folder.events());
        let weight = |rank| read_weights(&folder.weights().join(format!("rank-{rank}.safetensors")));
        let inside = scenario.plan().faults.into_iter();
        let missed = inside.filter(|one| !fault::fired(&folder.faults(), &one.name).exists());
        Observed {
            codes: nodes.codes(),
            timeline: Timeline::of(&events),
            restarts: Restarts::of(&History::of(&events)),
            events,
            weights: (0..scenario.run.ranks).map(weight).collect(),
            results: (0..scenario.run.ranks).map(|rank| read_results(&folder.results(), rank)).collect(),
            models: folder.models().into_iter().map(|path| (file_name(&path), read_weights(&path))).collect(),
            output: nodes.output(),
            missed: missed.filter_map(|one| one.name.strip_prefix("fault-")?.parse().ok()).collect(),
            ..Observed::default()
        }
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}
