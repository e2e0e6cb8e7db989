//! One run of a scenario: starts, watches and ends agents, injects faults, and collects what it observes in an [`Observed`].
//!
//! No process of a run is left when [`JobRunner::run`] returns, even with an error.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use lockstep_contract::{fault, foreign};
use lockstep_process::Signals;

use crate::checkout::program_beside;
use crate::evidence::{Results, Weights, read_results, read_weights};
use crate::exit::Interrupted;
use crate::fault::{Who, awaited_name};
use crate::fault_schedule::{FaultOrder, FaultSchedule, Progress};
use crate::launch::{Launcher, RunFolder};
use crate::nodes::{NoRun, Nodes};
use crate::processes::Process;
use crate::report::Timeline;
use crate::report::history::{History, RunEvents};
use crate::report::recovery::Restarts;
use crate::scenario::{RunSpec, Scenario};

/// How often the run is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);
/// How often its listening ports are read.
const PORTS_INTERVAL: Duration = Duration::from_millis(250);

/// How long the other agents may run after one has ended without a replacement, before they are killed, as by a batch system.
const NOTICE_LIMIT: Duration = Duration::from_secs(30);

/// What all runs share.
pub(crate) struct JobRunner {
    pub(crate) launcher: Launcher,
    /// The lab's program.
    pub(crate) lab: PathBuf,
    pub(crate) signals: Signals,
    /// Replaces the scenarios' own time limit.
    pub(crate) timeout: Option<Duration>,
    /// Called with every line that is printed.
    pub(crate) listener: Option<Listener>,
}

/// Called with a printed line.
type Listener = Box<dyn Fn(&str)>;

impl JobRunner {
    /// Runs `scenario` in `folder`, which must not exist, under `launcher`.
    pub(crate) fn run(&self, launcher: &Launcher, scenario: &Scenario, folder: &Path) -> Result<Observed, NoRun> {
        let folder =
            RunFolder::make(folder.to_owned()).with_context(|| format!("cannot make {}", foreign::path(folder)))?;
        let plan = scenario.plan();
        let text = serde_json::to_vec(&plan).context("cannot write the faults")?;
        fs::write(folder.faults(), text).context("cannot write the faults")?;
        let program = self.program(&scenario.run)?;
        let nodes = Nodes::start(launcher, scenario, &program, folder)?;
        self.watch(scenario, nodes)
    }

    fn program(&self, run: &RunSpec) -> Result<PathBuf, NoRun> {
        match (&run.program, &run.lab) {
            (Some(program), _) => Ok(program.clone()),
            (None, Some(lab)) => {
                program_beside(&format!("lab-{lab}")).map_err(|error| NoRun::NotHere(error.to_string()))
            }
            (None, None) => Ok(self.lab.clone()),
        }
    }

    fn watch(&self, scenario: &Scenario, mut nodes: Nodes<'_>) -> Result<Observed, NoRun> {
        let begin = Instant::now();
        let limit = self.timeout.unwrap_or_else(|| Duration::from_secs_f64(scenario.run.timeout_seconds));
        let (mut schedule, mut injections, mut looked) = (FaultSchedule::new(scenario), Vec::new(), None::<Instant>);
        let (mut listeners, mut requeues, mut missing) = (BTreeSet::new(), scenario.run.requeues, None::<Instant>);
        let timed_out = loop {
            nodes.wait(CHECK_INTERVAL)?;
            if let Some(signal) = self.signals.arrived() {
                return Err(anyhow::Error::from(Interrupted { signal }).into());
            }
            let lines = nodes.new_lines();
            if let Some(listener) = &self.listener {
                // The name of the private folder is of no use to the reader.
                let folder = format!("{}/", nodes.folder.path().display());
                lines.iter().for_each(|line| listener(&line.replace(&folder, "")));
            }
            if nodes.some_succeeded() {
                // Agents that start now would wait for a job that has ended.
                schedule.cancel_agent_starts();
            }
            if !schedule.is_done() {
                // Read only if a fault waits for it, since this loop runs a hundred times a second.
                let steps = schedule.awaits_step().then(|| RunEvents::read(&nodes.folder.events()).last_step());
                let progress = Progress { lines, steps: steps.flatten(), running: nodes.running() };
                let orders = schedule.due(begin.elapsed(), &progress);
                injections.extend(carry_out_all(&mut nodes, orders));
            }
            if looked.is_none_or(|at| at.elapsed() >= PORTS_INTERVAL) {
                looked = Some(Instant::now());
                listeners.extend(nodes.listeners());
            }
            if nodes.ended().into_iter().all(|node| schedule.will_start(node)) {
                missing = None;
            } else if missing.get_or_insert_with(Instant::now).elapsed() >= NOTICE_LIMIT {
                nodes.end_others();
            }
            if nodes.all_ended() && nodes.failed() && requeues > 0 {
                (requeues, missing) = (requeues - 1, None);
                schedule.cancel_agent_starts();
                injections.push(requeue(&mut nodes));
            } else if nodes.all_ended() && !schedule.has_agents_to_start() {
                break None;
            }
            if begin.elapsed() >= limit {
                break Some(limit);
            }
        };
        let seconds = begin.elapsed().as_secs_f64();
        let leaks = if timed_out.is_none() { nodes.leaks(&listeners) } else { Vec::new() };
        nodes.end();
        let mut observed = Observed { timed_out, seconds, injections, leaks, ..Observed::gather(scenario, &nodes) };
        let injected = |index: &usize| observed.injections.iter().any(|injection| injection.fault == Some(*index));
        let missed = scenario.outside().map(|(index, _)| index).filter(|index| !injected(index));
        observed.missed.extend(missed.collect::<Vec<_>>());
        Ok(observed)
    }
}

/// Carries out what is due at one moment, one right after the other: a job reacts to the first within milliseconds. The files of the plan tell
/// the ranks that wait for it.
fn carry_out_all(nodes: &mut Nodes<'_>, orders: Vec<FaultOrder>) -> Vec<Injection> {
    // A rank that is not there any more needs no file, so that a failure is none.
    let note = |file: PathBuf| _ = fs::write(file, "");
    let plan = nodes.folder.faults();
    let awaited = |order: &FaultOrder| order.fault().map(awaited_name);
    // A rank that starts after it must not wait for it.
    orders.iter().filter_map(awaited).for_each(|name| note(fault::fired(&plan, &name)));
    // A rank that waits for a change of members is stopped by it.
    let stops =
        |order: &FaultOrder| matches!(order, FaultOrder::Inject { who, action, .. } if nodes.regroups(*who, action));
    let released: Vec<String> = orders.iter().filter(|order| !stops(order)).filter_map(awaited).collect();
    let mut listing = None;
    let injections = orders.into_iter().map(|order| carry_out(nodes, order, &mut listing)).collect();
    released.iter().for_each(|name| note(fault::came(&plan, name)));
    injections
}

/// Carries out an order. Orders of one moment share a listing of processes: it takes long enough for a job to react between two.
fn carry_out(nodes: &mut Nodes<'_>, order: FaultOrder, listing: &mut Option<Vec<Process>>) -> Injection {
    let t = now();
    let (fault, who, what, done) = match order {
        FaultOrder::Inject { fault, who, action } => {
            (Some(fault), who, action.to_string(), nodes.inject(who, &action, listing))
        }
        FaultOrder::Revert { who, action } => (None, who, format!("{action}: undone"), nodes.revert(who, &action)),
        FaultOrder::Replace { node, fresh } => {
            (None, Who::Agent(node), "an agent starts".into(), nodes.replace(node, fresh))
        }
    };
    Injection { t, fault, who, what, failed: done.err() }
}

/// Starts the whole job again, as a batch system does.
fn requeue(nodes: &mut Nodes<'_>) -> Injection {
    let (t, done) = (now(), nodes.requeue());
    let what = format!("{STARTED_AGAIN} on machines {:?}", nodes.machines);
    Injection { t, fault: None, who: Who::Node(0), what, failed: done.err() }
}

/// Seconds since the Unix epoch.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

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
    /// The numbers of ranks with which it made steps, one after the other.
    pub(crate) world_sizes: Vec<usize>,
    /// What failed, and how much time and how many steps it cost.
    pub(crate) restarts: Restarts,
    /// The attempts of every rank.
    pub(crate) timeline: Timeline,
    /// The final weights of the ranks that ran last, by rank.
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
pub(crate) const STARTED_AGAIN: &str = "the job is started again";

impl Observed {
    /// Reads the files that the run left.
    pub(crate) fn gather(scenario: &Scenario, nodes: &Nodes<'_>) -> Self {
        let folder = &nodes.folder;
        let events = RunEvents::read(&folder.events());
        let last = events.last_world_size().filter(|_| scenario.run.min_nodes.is_some());
        let ranks = last.unwrap_or(scenario.run.ranks);
        let weight = |rank| read_weights(&folder.weights().join(format!("rank-{rank}.safetensors")));
        let inside = scenario.plan().faults.into_iter();
        let missed = inside.filter(|one| !fault::fired(&folder.faults(), &one.name).exists());
        Observed {
            codes: nodes.codes(),
            timeline: Timeline::of(&events),
            restarts: Restarts::of(&History::of(&events)),
            world_sizes: events.world_sizes(),
            events,
            weights: (0..ranks).map(weight).collect(),
            results: (0..ranks).map(|rank| read_results(&folder.results(), rank)).collect(),
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
