//! One run of a scenario: agents are started, watched and ended, faults are injected; what was seen becomes an [`Observed`].
//!
//! [`expectations`](super::expectations) judges it. [`fault_schedule`] decides when a fault is injected, [`launch`] writes the command
//! lines, [`folder`] knows what lies where, [`places`] has networks and disks. Nothing of a run is left when [`JobRunner::run`] returns,
//! however it returns; [`processes`] and [`ports`] look for what should not be.

mod fault_schedule;
mod folder;
mod launch;
mod nodes;
mod output;
mod places;
mod ports;
mod processes;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Context;
use lockstep_contract::fault;

use super::scenario::{RunSpec, Scenario, Who};
use crate::exit::Interrupted;
use crate::history::{History, Restarts, RunEvents};
use crate::lab_run::{Results, Weights, program_beside, read_results, read_weights};
use crate::process::Signals;
use crate::report::Timeline;
use fault_schedule::{FaultSchedule, Order, Seen};
use nodes::Nodes;

pub(crate) use folder::RunFolder;
pub(crate) use launch::{LAB, Launcher};

/// How often the run is looked at.
const LOOK: Duration = Duration::from_millis(10);
/// How often its listening ports are.
const LOOK_AT_PORTS: Duration = Duration::from_millis(250);

/// How long the others may wait for an agent that has ended and that nobody replaces, before they are ended.
const TO_NOTICE: Duration = Duration::from_secs(30);

/// What all runs share.
pub(crate) struct JobRunner {
    pub(crate) launcher: Launcher,
    /// The lab's program.
    pub(crate) lab: PathBuf,
    pub(crate) signals: Signals,
    /// In place of the scenarios' own.
    pub(crate) timeout: Option<Duration>,
    /// Takes every line that is printed.
    pub(crate) listener: Option<Listener>,
}

/// What is told of a printed line.
type Listener = Box<dyn Fn(&str)>;

/// What was seen of a run, and what it left.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed {
    /// The exit code of each agent that ended by itself, by node; `None` for a signal.
    pub(crate) codes: BTreeMap<usize, Option<i32>>,
    /// It was ended because it took this long.
    pub(crate) timed_out: Option<Duration>,
    /// From start to end.
    pub(crate) seconds: f64,
    pub(crate) events: RunEvents,
    /// What failed, and what it cost.
    pub(crate) restarts: Restarts,
    /// What became of every rank.
    pub(crate) timeline: Timeline,
    /// The final weights of rank 0, rank 1, ….
    pub(crate) weights: Vec<Result<Weights, String>>,
    /// What rank 0, rank 1, … of a lab without weights held, by the lesson.
    pub(crate) results: Vec<Result<Results, String>>,
    /// Other models that were kept beside them, by the names of their files.
    pub(crate) models: BTreeMap<String, Result<Weights, String>>,
    /// What the nodes printed, one after the other.
    pub(crate) output: String,
    /// What the harness did, with the time since the Unix epoch.
    pub(crate) injections: Vec<Injection>,
    /// Numbers of the scenario's faults whose moment never came.
    pub(crate) missed: Vec<usize>,
    /// What should be gone and is not, a sentence each.
    pub(crate) leaks: Vec<String>,
}

/// Something that the harness did.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Injection {
    pub(crate) t: f64,
    /// The fault's number in the scenario; `None` for what follows from one.
    pub(crate) fault: Option<usize>,
    pub(crate) who: Who,
    pub(crate) what: String,
    /// Why it could not be done.
    pub(crate) failed: Option<String>,
}

impl Injection {
    /// Whether it is the start of the whole job once more.
    pub(crate) fn is_requeue(&self) -> bool {
        self.fault.is_none() && self.what.starts_with(STARTED_AGAIN)
    }
}

/// What is done to a job that has failed, by the harness as a batch system.
const STARTED_AGAIN: &str = "the job is started again";

/// Why there is nothing to judge.
pub(crate) enum NoRun {
    /// This machine cannot do what the scenario needs.
    NotHere(String),
    /// Something is broken, or a signal came.
    Failed(anyhow::Error),
}

impl<E: Into<anyhow::Error>> From<E> for NoRun {
    fn from(error: E) -> Self {
        NoRun::Failed(error.into())
    }
}

impl JobRunner {
    /// Runs `scenario` in `folder`, which must not exist, under `launcher`.
    pub(crate) fn run(&self, launcher: &Launcher, scenario: &Scenario, folder: &Path) -> Result<Observed, NoRun> {
        let folder = RunFolder::make(folder.to_owned()).with_context(|| format!("cannot make {}", folder.display()))?;
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
            nodes.wait(LOOK)?;
            if let Some(signal) = self.signals.arrived() {
                return Err(anyhow::Error::from(Interrupted { signal }).into());
            }
            let lines = nodes.new_lines();
            if let Some(listener) = &self.listener {
                // A private folder's name tells nobody anything.
                let folder = format!("{}/", nodes.folder.path().display());
                lines.iter().for_each(|line| listener(&line.replace(&folder, "")));
            }
            if !schedule.is_done() {
                // Read only where a fault waits for it: this is done a hundred times a second.
                let steps = schedule.awaits_step().then(|| RunEvents::read(&nodes.folder.events()).last_step());
                let seen = Seen { lines, steps: steps.flatten() };
                let orders = schedule.due(begin.elapsed(), &seen);
                injections.extend(orders.into_iter().map(|order| carry_out(&mut nodes, order)));
            }
            if looked.is_none_or(|at| at.elapsed() >= LOOK_AT_PORTS) {
                looked = Some(Instant::now());
                listeners.extend(nodes.listeners());
            }
            if nodes.host_ended() {
                // Agents that start now would wait for the host in vain, and those that do are ended, as by a batch system.
                schedule.forget_agents();
            }
            if !nodes.host_ended() && !nodes.guest_failed() {
                missing = None;
            } else if missing.get_or_insert_with(Instant::now).elapsed() >= TO_NOTICE {
                nodes.end_others();
            }
            if nodes.all_ended() && nodes.failed() && requeues > 0 {
                (requeues, missing) = (requeues - 1, None);
                schedule.forget_agents();
                injections.push(requeue(&mut nodes));
            } else if nodes.all_ended() && !schedule.owes() {
                break None;
            }
            if begin.elapsed() >= limit {
                break Some(limit);
            }
        };
        let seconds = begin.elapsed().as_secs_f64();
        let leaks = if timed_out.is_none() { nodes.leaks(&listeners) } else { Vec::new() };
        nodes.end();
        let mut observed = Observed { timed_out, seconds, injections, leaks, ..gather(scenario, &nodes) };
        let hit = |index: &usize| observed.injections.iter().any(|injection| injection.fault == Some(*index));
        let missed = scenario.outside().map(|(index, _)| index).filter(|index| !hit(index));
        observed.missed.extend(missed.collect::<Vec<_>>());
        Ok(observed)
    }
}

/// Does what the schedule says.
fn carry_out(nodes: &mut Nodes<'_>, order: Order) -> Injection {
    let t = now();
    let (fault, who, what, done) = match order {
        Order::Inject { fault, who, action } => (Some(fault), who, action.to_string(), nodes.inject(who, &action)),
        Order::Revert { who, action } => (None, who, format!("{action}: undone"), nodes.revert(who, &action)),
        Order::Replace { node, fresh } => {
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

/// What the run left in its files.
fn gather(scenario: &Scenario, nodes: &Nodes<'_>) -> Observed {
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

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Seconds since the Unix epoch.
fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}
