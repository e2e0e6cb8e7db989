//! The command: its options, and what it does.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use clap::Args;
use lockstep_contract::foreign::escaped;

use super::shown::Shown;
use crate::checks::{counted, grouped, learns};
use crate::exit::{Code, Refused};
use crate::lab_run::{Evidence, Plan, Sizes};
use crate::report::{Screen, Target};
use crate::runner::scenario::{RunSpec, Scenario, When, Who};
use crate::runner::{ScenarioOutcome, SuiteRunner, finish, job_runner, library, report};

/// The scenario that it runs.
const SCENARIO: &str = "kill-one-worker";
/// Samples in a batch of one rank.
const BATCH: usize = 32;
/// The default name of the page.
const PAGE: &str = "lockstep-tour.html";

/// Train MNIST on several ranks, kill one of them, and show that the result is the same to the bit
#[derive(Args)]
pub(crate) struct Options {
    /// Ranks
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=64))]
    nprocs: u16,
    /// Number of epochs
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    epochs: u64,
    /// Digits to draw for training; a quarter as many are drawn for the test
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(8..=1_000_000))]
    samples: u64,
    /// Seed of drawn digits, order and initial weights
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// A folder with MNIST's four files; without one, digits are drawn
    #[arg(long, value_name = "DIR", conflicts_with = "samples")]
    data: Option<PathBuf>,
    /// Keep event files, snapshots and weights in this folder, which must be new or empty
    #[arg(long, value_name = "DIR", value_parser = lockstep_paths::parse_folder)]
    keep: Option<PathBuf>,
    /// Time limit of one run in seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Where to write the page with the picture of both runs
    #[arg(long, value_name = "FILE", value_parser = lockstep_paths::parse_file)]
    html: Option<PathBuf>,
    /// Print the report as JSON on stdout, and everything else on stderr
    #[arg(long)]
    json: bool,
    /// Another launcher with torchrun's flags, in place of `lockstep run`
    #[arg(long, value_name = "PROGRAM")]
    launcher: Option<PathBuf>,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let (begin, started) = (Instant::now(), SystemTime::now());
        let targets = self.targets()?;
        let sizes = self.sizes()?;
        let scenario = self.scenario(sizes)?;
        let mut runner = job_runner(self.launcher.clone(), Some(Duration::from_secs(self.timeout)), true)?;
        let (json, screen) = (self.json, Screen::new(self.json));
        runner.listener = Some(Box::new(move |line| Screen::new(json).line(escaped(plain(line)))));
        let mut suite = SuiteRunner::open(runner, self.keep.as_deref())?;
        self.introduce(&screen, sizes);
        screen.line("\nRun A: nothing happens");
        let undisturbed = suite.undisturbed(&scenario.run)?;
        screen.line(format!("\nRun B: the same, but {}", plan_of(&scenario)));
        let killed = suite.run(scenario)?;
        let mut shown = Shown::new(&undisturbed.outcome, &killed);
        shown.case.findings.push(learns(&evidence(&undisturbed.outcome, sizes)));
        shown.show(&screen);
        let report = report("Lockstep tour", started, begin.elapsed(), vec![shown.case]);
        let code = finish(&screen, suite, &report, &targets)?;
        screen.line(format!("the same as a page, with a picture: {}", self.page().display()));
        Ok(code)
    }

    /// The page, and JSON if requested.
    fn targets(&self) -> anyhow::Result<Vec<Target>> {
        let page = self.page().to_string_lossy().into_owned();
        let names = std::iter::once(page).chain(self.json.then(|| "-".to_owned()));
        let target =
            |name: String| name.parse().map_err(|why| Refused(format!("cannot write the page to {name}: {why}")));
        Ok(names.map(target).collect::<Result<_, _>>()?)
    }

    /// The number of digits.
    fn sizes(&self) -> anyhow::Result<Sizes> {
        let Some(folder) = &self.data else { return Ok(Sizes::drawn(self.samples)) };
        Ok(Sizes::of_folder(folder).map_err(|error| Refused(format!("cannot use --data: {error:#}")))?)
    }

    /// The library's scenario with this job: the last rank is killed well after the last snapshot.
    fn scenario(&self, sizes: Sizes) -> anyhow::Result<Scenario> {
        let mut scenario = library::scenario(SCENARIO)?;
        let mut run = RunSpec {
            ranks: usize::from(self.nprocs),
            epochs: self.epochs,
            batch_size: BATCH,
            samples: sizes.train,
            seed: self.seed,
            ..scenario.run
        };
        let steps = run.steps_per_epoch();
        run.save_every_steps = (steps / 2).max(1);
        if let Some(data) = &self.data {
            let data = data.canonicalize().context("cannot resolve --data")?;
            run.args = vec!["--data".into(), data.to_string_lossy().into_owned()];
        }
        let (epoch, step) = (self.epochs / 2, steps * 5 / 8);
        for fault in &mut scenario.faults {
            fault.who = Who::Rank(run.ranks - 1);
            fault.when = When { epoch: Some(epoch), step: Some(step), ..When::default() };
        }
        scenario.expect.root_cause = Some(run.ranks - 1);
        // A snapshot that is still being written when the kill happens does not count.
        scenario.expect.steps_repeated_at_most = Some(2 * run.save_every_steps);
        scenario.run = run;
        Ok(scenario)
    }

    fn introduce(&self, screen: &Screen, Sizes { train, test }: Sizes) {
        let (train, test) = (grouped(train), grouped(test));
        let drawn = if self.data.is_some() { "" } else { "drawn " };
        let ranks = counted(usize::from(self.nprocs), "rank");
        screen.line(format!("Lockstep tour: {ranks} learn {train} {drawn}digits, {test} more held out"));
        screen.line("Twice from one seed; the second time a rank is killed. The result must be the same, to the bit.");
    }

    /// Next to the build's other products if there is a build, so that git ignores it.
    fn page(&self) -> PathBuf {
        let built = || {
            let this = std::env::current_exe().ok()?;
            let target = this.parent()?.parent()?;
            (target.file_name()? == "target").then(|| target.join(PAGE))
        };
        self.html.clone().or_else(built).unwrap_or_else(|| PAGE.into())
    }
}

/// The line as its rank wrote it: the lab's lines already name their ranks, so the launcher's prefix, `[default0]:`, is
/// redundant.
fn plain(line: &str) -> &str {
    let rest = line.strip_prefix("[default").and_then(|rest| rest.split_once("]:"));
    rest.filter(|(number, _)| number.bytes().all(|byte| byte.is_ascii_digit())).map_or(line, |(_, rest)| rest)
}

fn plan_of(scenario: &Scenario) -> String {
    let kills = scenario.faults.iter().map(|fault| format!("{} is killed {}", fault.who, fault.when));
    kills.collect::<Vec<_>>().join(" and ")
}

fn evidence(outcome: &ScenarioOutcome, sizes: Sizes) -> Evidence {
    let RunSpec { ranks, batch_size: batch, epochs, seed, .. } = outcome.scenario.run;
    let plan = Plan { ranks, batch, epochs, seed, sizes };
    let none = "it was not run";
    match &outcome.seen {
        Some(seen) => Evidence { plan, logs: Ok(seen.events.ranks.clone()), weights: seen.weights.clone() },
        None => Evidence { plan, logs: Err(none.into()), weights: vec![Err(none.into()); ranks] },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_launchers_prefix_off_a_line() {
        let lines = ["[default12]:a]: b", "[default]:x", "[defaultx]:x", "[rank 0] x", "[default0]:"].map(plain);
        assert_eq!(lines, ["a]: b", "x", "[defaultx]:x", "[rank 0] x", ""]);
    }
}
