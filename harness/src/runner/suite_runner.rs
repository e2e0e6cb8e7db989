//! Runs scenarios one after the other. The undisturbed run for the comparison is made once, and folders of successful runs are
//! removed.

use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use anyhow::Context;
use lockstep_contract::foreign;
use lockstep_paths::temporary_folder;
use tempfile::TempDir;

use super::expectations::{self, Reference};
use super::job_run::{JobRunner, Launcher, NoRun, Observed};
use super::scenario::{Expect, RunSpec, Scenario};
use crate::exit::{Interrupted, Refused};
use crate::report::{Finding, Verdict, overall};

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
    /// Its weights, or what is wrong with it.
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
    ///
    /// # Errors
    /// The folder cannot be created, or is not empty.
    pub(crate) fn open(runner: JobRunner, keep: Option<&Path>) -> anyhow::Result<Self> {
        Ok(SuiteRunner { runner, root: Root::open(keep)?, undisturbed: Vec::new(), count: 0 })
    }

    /// From now on, the lab of scenarios without their own program.
    pub(crate) fn set_lab(&mut self, program: PathBuf) {
        self.runner.lab = program;
    }

    /// Runs one scenario and checks it.
    ///
    /// # Errors
    /// A signal arrived or the machine failed; a scenario that fails is not an error.
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
        self.run_with(&launcher, scenario, |scenario, seen| expectations::check(scenario, seen, reference))
    }

    /// The same under another launcher, and checked by `check`.
    ///
    /// # Errors
    /// As [`SuiteRunner::run`].
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
    ///
    /// # Errors
    /// As [`SuiteRunner::run`].
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

    /// # Errors
    /// [`Interrupted`] when a signal arrived that no run has handled.
    pub(crate) fn check_signals(&self) -> Result<(), Interrupted> {
        self.runner.signals.arrived().map_or(Ok(()), |signal| Err(Interrupted { signal }))
    }

    /// Ends the series: removes the private folder if nothing in it is worth keeping.
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
    RunSpec {
        max_restarts: plain.max_restarts,
        keep: plain.keep,
        nodes: plain.nodes,
        workers: plain.workers,
        sockets: spec.over_sockets(),
        disks: plain.disks,
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runner::scenario::Disks;

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
}
