//! Runs scenarios one after the other, and makes cases of a report from them. The undisturbed run for the comparison is made once, and
//! folders of successful runs are removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use lockstep_contract::events::Event;
use lockstep_contract::foreign;
use lockstep_paths::temporary_folder;
use lockstep_process::Signals;
use tempfile::TempDir;

use crate::checkout::program_beside;
use crate::exit::{Code, Interrupted, Refused};
use crate::expectations::{self, Reference, in_turn};
use crate::job_runner::{JobRunner, Observed};
use crate::launch::{LAB, Launcher};
use crate::nodes::NoRun;
use crate::report::history::RunEvents;
use crate::report::{Finding, Report, ReportCase, Screen, Table, Target, Verdict, counted, overall};
use crate::scenario::{Expect, RunSpec, Scenario};

/// Runs scenarios.
pub(crate) struct SuiteRunner {
    runner: JobRunner,
    root: Root,
    undisturbed: Vec<(RunSpec, Rc<Undisturbed>)>,
    /// The number of runs so far, for the names of folders.
    count: usize,
}

/// A scenario and its result.
pub(crate) struct ScenarioOutcome {
    pub(crate) scenario: Scenario,
    /// `None` if it could not run.
    pub(crate) seen: Option<Observed>,
    pub(crate) findings: Vec<Finding>,
    /// Where its files are, if they were kept.
    pub(crate) folder: Option<PathBuf>,
}

/// The undisturbed run.
pub(crate) struct Undisturbed {
    pub(crate) outcome: ScenarioOutcome,
    /// The undisturbed run's weights, or why there are none.
    pub(crate) weights: Result<Reference, String>,
}

/// Where runs write their files.
enum Root {
    /// A private folder; the files of failed runs stay in it.
    Private(TempDir),
    /// A folder named by the user: all files stay.
    Kept(PathBuf),
}

impl SuiteRunner {
    /// With files under `keep`, which must be new or empty, or in a private folder.
    pub(crate) fn open(runner: JobRunner, keep: Option<&Path>) -> anyhow::Result<Self> {
        Ok(SuiteRunner { runner, root: Root::open(keep)?, undisturbed: Vec::new(), count: 0 })
    }

    /// From now on, the lab of scenarios without their own program.
    pub(crate) fn set_lab(&mut self, program: PathBuf) {
        self.runner.lab = program;
    }

    /// Runs one scenario and checks it.
    ///
    /// Errors: a signal arrived or the machine failed; a scenario that fails is not an error.
    pub(crate) fn run(&mut self, scenario: Scenario) -> anyhow::Result<ScenarioOutcome> {
        let undisturbed = match scenario.expect.same_weights() {
            true => Some(self.undisturbed(&scenario.run)?),
            false => None,
        };
        let reference = match &undisturbed {
            Some(undisturbed) => undisturbed.weights.as_ref().map_err(String::as_str),
            None => Err("none was needed"),
        };
        let launcher = self.runner.launcher.clone();
        self.run_with(&launcher, scenario, |scenario, seen| expectations::check_expectations(scenario, seen, reference))
    }

    /// As `run`, under another launcher, and checked by `check`.
    pub(crate) fn run_with(
        &mut self,
        launcher: &Launcher,
        scenario: Scenario,
        check: impl FnOnce(&Scenario, &Observed) -> Vec<Finding>,
    ) -> anyhow::Result<ScenarioOutcome> {
        let folder = self.folder(&scenario.name);
        let seen = match self.runner.run(launcher, &scenario, &folder) {
            Ok(seen) => seen,
            Err(NoRun::Failed(error)) => return Err(error.context(format!("cannot run {}", scenario.name))),
            Err(NoRun::NotHere(why)) => return self.not_here(scenario, why, &folder),
        };
        let findings = check(&scenario, &seen);
        let failed = overall(findings.iter().map(|finding| finding.verdict)) == Verdict::Failed;
        if failed {
            // Saved so that exactly this scenario can run again, including a random one.
            fs::write(folder.join("scenario.toml"), scenario.to_toml()).context("cannot keep the scenario")?;
        }
        let folder = self.keep_or_remove(folder, failed)?;
        Ok(ScenarioOutcome { scenario, seen: Some(seen), findings, folder })
    }

    fn not_here(&self, scenario: Scenario, evidence: String, folder: &Path) -> anyhow::Result<ScenarioOutcome> {
        self.keep_or_remove(folder.to_owned(), false)?;
        let claim = "This machine can do what the scenario needs".into();
        let findings = vec![Finding { claim, verdict: Verdict::NotVerified, evidence }];
        Ok(ScenarioOutcome { scenario, seen: None, findings, folder: None })
    }

    /// The undisturbed run of the same job; one serves all scenarios that differ only in their faults.
    pub(crate) fn undisturbed(&mut self, spec: &RunSpec) -> anyhow::Result<Rc<Undisturbed>> {
        let run = undisturbed(spec);
        if let Some((_, known)) = self.undisturbed.iter().find(|(known, _)| *known == run) {
            return Ok(Rc::clone(known));
        }
        let scenario = Scenario {
            name: "undisturbed".into(),
            title: "Nothing happens".into(),
            shows: String::new(),
            run: run.clone(),
            expect: Expect { restarts: Some(0), same_weights: Some(false), ..Expect::default() },
            faults: Vec::new(),
        };
        let outcome = self.run(scenario)?;
        let made = Rc::new(Undisturbed { weights: weights_of(&outcome), outcome });
        self.undisturbed.push((run, Rc::clone(&made)));
        Ok(made)
    }

    fn folder(&mut self, name: &str) -> PathBuf {
        self.count += 1;
        self.root.path().join(format!("{:03}-{name}", self.count))
    }

    fn keep_or_remove(&self, folder: PathBuf, failed: bool) -> anyhow::Result<Option<PathBuf>> {
        if failed || matches!(self.root, Root::Kept(_)) {
            return Ok(Some(folder));
        }
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", foreign::path(&folder)))?;
        Ok(None)
    }

    pub(crate) fn check_signals(&self) -> Result<(), Interrupted> {
        self.runner.signals.arrived().map_or(Ok(()), |signal| Err(Interrupted { signal }))
    }

    /// Ends the series: removes the private folder if it is empty.
    pub(crate) fn close(self) -> Option<PathBuf> {
        match self.root {
            Root::Kept(folder) => Some(folder),
            Root::Private(folder) => {
                let empty = fs::read_dir(folder.path()).is_ok_and(|mut entries| entries.next().is_none());
                if empty { None } else { Some(folder.keep()) }
            }
        }
    }
}

fn weights_of(ScenarioOutcome { seen, findings, folder, .. }: &ScenarioOutcome) -> Result<Reference, String> {
    let flaws = findings.iter().filter(|finding| finding.verdict == Verdict::Failed);
    let flaws: Vec<_> = flaws.map(|finding| format!("{}: {}", finding.claim, finding.evidence)).collect();
    let kept = folder.as_ref().map_or(String::new(), |folder| format!(" (files in {})", folder.display()));
    match seen {
        Some(seen) if flaws.is_empty() => {
            let models = seen.models.iter().map(|(name, model)| Ok((name.clone(), model.clone()?)));
            let weights = seen.weights.iter().cloned().collect::<Result<_, String>>()?;
            Ok(Reference { weights, models: models.collect::<Result<_, String>>()? })
        }
        _ => Err(format!("{}{kept}", flaws.join("; "))),
    }
}

/// The same run without settings that differ from scenario to scenario and do not affect the result.
fn undisturbed(spec: &RunSpec) -> RunSpec {
    let plain = RunSpec::default();
    let on_one_rank = spec.virtual_ranks.is_some();
    RunSpec {
        ranks: if on_one_rank { 1 } else { spec.ranks },
        min_nodes: None,
        max_restarts: plain.max_restarts,
        keep: plain.keep,
        nodes: plain.nodes,
        workers: plain.workers,
        sockets: spec.over_sockets(),
        disks: plain.disks,
        rdzv_conf: plain.rdzv_conf,
        requeues: plain.requeues,
        requeue_order: plain.requeue_order,
        late_seconds: plain.late_seconds,
        stop_timeout_seconds: plain.stop_timeout_seconds,
        snapshot_on: plain.snapshot_on,
        loader_processes: plain.loader_processes,
        timeout_seconds: plain.timeout_seconds,
        ..spec.clone()
    }
}

impl Root {
    fn open(keep: Option<&Path>) -> anyhow::Result<Self> {
        let Some(folder) = keep else {
            let folder = tempfile::Builder::new().prefix("lockstep-inject-").tempdir_in(temporary_folder());
            return Ok(Root::Private(folder.context("cannot make a temporary folder (TMPDIR names another place)")?));
        };
        let refused = |reason: String| Refused(format!("cannot keep files in {}: {reason}", foreign::path(folder)));
        fs::create_dir_all(folder).map_err(|error| refused(error.to_string()))?;
        let mut entries = fs::read_dir(folder).map_err(|error| refused(error.to_string()))?;
        // Files of another run would be mistaken for this one's.
        if entries.next().is_some() {
            return Err(refused("it is not empty, name a new folder".into()).into());
        }
        Ok(Root::Kept(folder.canonicalize().context("cannot resolve --keep")?))
    }

    fn path(&self) -> &Path {
        match self {
            Root::Private(folder) => folder.path(),
            Root::Kept(folder) => folder,
        }
    }
}

/// The number of last output lines in a report.
const LINES: usize = 40;

/// The case; `replay` is the command that runs only it again, `seed` the seed from which it was drawn.
pub(crate) fn case(outcome: &ScenarioOutcome, replay: Option<String>, seed: Option<u64>) -> ReportCase {
    let scenario = &outcome.scenario;
    let seen = outcome.seen.as_ref();
    let lines: Vec<_> = seen.map_or_else(Vec::new, |seen| seen.output.lines().map(str::to_owned).collect());
    ReportCase {
        name: scenario.name.clone(),
        shows: shows(scenario),
        findings: outcome.findings.clone(),
        took: seen.map_or(Duration::ZERO, |seen| Duration::try_from_secs_f64(seen.seconds).unwrap_or_default()),
        seed,
        replay,
        timeline: seen.map(|seen| seen.timeline.clone()),
        tables: seen.and_then(|seen| memory_table(&seen.events)).into_iter().collect(),
        log: lines[lines.len().saturating_sub(LINES)..].to_vec(),
    }
}

/// On one line, without the last full stop.
fn shows(scenario: &Scenario) -> String {
    let words: Vec<_> = scenario.shows.split_whitespace().collect();
    format!("{}. {}", scenario.title, words.join(" ").trim_end_matches('.'))
}

/// `1.9 s, 1 restart, 2 steps again, back after 0.41 s`.
pub(crate) fn figures(one: &ScenarioOutcome) -> String {
    let Some(seen) = &one.seen else { return "not run".into() };
    let restarts = &seen.restarts;
    let mut parts = vec![format!("{:.1} s", seen.seconds), counted(restarts.count as usize, "restart")];
    if restarts.count > 0 {
        parts.push(format!("{} again", counted(restarts.steps_repeated as usize, "step")));
    }
    parts.extend(restarts.slowest().map(|seconds| format!("back after {seconds:.2} s")));
    if seen.world_sizes.len() > 1 {
        parts.push(format!("{} ranks", in_turn(&seen.world_sizes)));
    }
    parts.join(", ")
}

/// The options of a command that runs a series of jobs.
#[derive(Args)]
pub(crate) struct SeriesOptions {
    /// Keep the files of all runs in this folder, which must be new or empty; those of failed runs are always kept
    #[arg(long, value_name = "DIR", value_parser = lockstep_paths::parse_folder)]
    pub(crate) keep: Option<PathBuf>,
    /// Another launcher with torchrun's flags, in place of `lockstep run`
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) launcher: Option<PathBuf>,
    /// Write a report: a page (.html), .json, JUnit's .xml, .txt, or JSON on stdout (-); may be repeated
    #[arg(long = "report", value_name = "FILE")]
    pub(crate) reports: Vec<Target>,
}

impl SeriesOptions {
    /// Returns true if a report goes to stdout.
    pub(crate) fn takes_stdout(&self) -> bool {
        self.reports.iter().any(Target::is_stdout)
    }
}

/// Settings of all runs.
pub(crate) fn job_runner(
    launcher: Option<PathBuf>,
    timeout: Option<Duration>,
    needs_lab: bool,
) -> anyhow::Result<JobRunner> {
    let lab = if needs_lab { program_beside(LAB)? } else { PathBuf::new() };
    let launcher = launcher.map_or(Launcher::Own, Launcher::Other);
    Ok(JobRunner {
        launcher,
        lab,
        signals: Signals::listen().context("cannot listen for signals")?,
        timeout,
        listener: None,
    })
}

/// Writes the report, prints where the runs' files are, and returns the exit code. A signal that arrived after the runs is
/// handled here.
pub(crate) fn finish(screen: &Screen, suite: SuiteRunner, report: &Report, targets: &[Target]) -> anyhow::Result<Code> {
    targets.iter().try_for_each(|target| report.write(target))?;
    suite.check_signals()?;
    if let Some(folder) = suite.close() {
        screen.line(format!("files in {}", folder.display()));
    }
    Ok(if report.verdict() == Verdict::Failed { Code::Failure } else { Code::Success })
}

/// What each rank has counted last, in bytes; `None` if none has.
pub(crate) fn memory_table(events: &RunEvents) -> Option<Table> {
    let rows: Vec<_> = events
        .ranks
        .iter()
        .filter_map(|(rank, log)| {
            log.records.iter().rev().find_map(|record| match &record.event {
                Event::Memory { parameters, gradients, optimizer, activations, buckets, sent } => {
                    let total = parameters + gradients + optimizer + activations + buckets;
                    let counts = [*parameters, *gradients, *optimizer, *activations, *buckets, total, *sent];
                    Some(std::iter::once(*rank as u64).chain(counts).map(|number| number.to_string()).collect())
                }
                _ => None,
            })
        })
        .collect();
    let headings = ["rank", "parameters", "gradients", "optimizer", "activations", "buckets", "all", "sent"];
    let headings = headings.map(str::to_owned).to_vec();
    (!rows.is_empty()).then(|| Table { title: "Bytes of each rank, by kind".into(), headings, rows })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::{FakeRun, step_of};
    use crate::scenario::Disks;

    #[test]
    fn shares_one_undisturbed_run_between_runs_with_the_same_result() {
        let spec = RunSpec {
            nodes: 2,
            workers: vec![1, 1],
            max_restarts: 0,
            keep: 9,
            disks: Disks::OfNodes,
            requeues: 1,
            ..RunSpec::default()
        };
        assert_eq!(undisturbed(&spec), undisturbed(&RunSpec::default()));
        for other in [
            RunSpec { ranks: 4, ..RunSpec::default() },
            RunSpec { seed: 1, ..RunSpec::default() },
            RunSpec { epochs: 1, ..RunSpec::default() },
            RunSpec { args: vec!["--lr".into(), "1".into()], ..RunSpec::default() },
        ] {
            assert_ne!(undisturbed(&other), undisturbed(&RunSpec::default()));
        }
        let elastic =
            |ranks, nodes| RunSpec { ranks, nodes, min_nodes: Some(1), virtual_ranks: Some(4), ..RunSpec::default() };
        assert_eq!(undisturbed(&elastic(4, 2)), undisturbed(&elastic(3, 3)));
        assert_eq!(undisturbed(&elastic(4, 2)).ranks, 1);
        let four = |nodes| RunSpec { ranks: 4, nodes, ..RunSpec::default() };
        assert_eq!(undisturbed(&four(2)), undisturbed(&four(4)));
        assert_ne!(undisturbed(&four(2)), undisturbed(&four(1)), "the sums of four ranks in memory have other bits");
    }

    #[test]
    fn refuses_to_keep_files_among_others() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("x"), "").unwrap();
        let Err(error) = Root::open(Some(dir.path())) else { panic!("it was taken") };
        assert!(error.downcast::<Refused>().unwrap().to_string().contains("it is not empty"));
    }

    fn memory(sent: u64) -> Event {
        Event::Memory { parameters: 8, gradients: 8, optimizer: 16, activations: 4, buckets: 2, sent }
    }

    #[test]
    fn shows_the_last_counts_of_each_rank() {
        assert_eq!(memory_table(&FakeRun::default().rank(0, 0, 1.0, step_of(0, 0)).0), None);
        let run = FakeRun::default().rank(1, 0, 1.0, memory(5)).rank(0, 0, 1.0, step_of(0, 0));
        let run = run.rank(1, 0, 2.0, memory(90)).rank(1, 0, 3.0, step_of(0, 1));
        let found = memory_table(&run.0).unwrap();
        assert_eq!(found.headings.len(), 8);
        assert_eq!(found.rows, [["1", "8", "8", "16", "4", "2", "38", "90"]]);
    }
}
