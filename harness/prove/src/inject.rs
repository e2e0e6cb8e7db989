//! `lockstep inject`: breaks a training run on purpose, and requires the same result as without the fault.

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use clap::Args;
use lockstep_contract::events::{Event, Record};
use lockstep_contract::foreign::escaped;

use crate::exit::{Code, Refused};
use crate::report::history::RunEvents;
use crate::report::{Finding, Report, ReportCase, Screen, Stdout, Target, Verdict, counts};
use crate::scenario::{RunSpec, Scenario};
use crate::scenario_file::parse;
use crate::suite::{ScenarioOutcome, SeriesOptions, SuiteRunner, case, figures, finish, job_runner};
use crate::{library, soak};

/// Break training runs on purpose, and check that they end with the same bits as an undisturbed run
#[derive(Args)]
pub struct InjectOptions {
    /// Scenarios of the library by name, or files that end in .toml
    #[arg(value_name = "SCENARIO")]
    scenarios: Vec<String>,
    /// Every scenario of the library
    #[arg(long, conflicts_with_all = ["scenarios", "soak"])]
    all: bool,
    /// List the library
    #[arg(long, exclusive = true)]
    list: bool,
    /// Print a scenario's file, as a starting point for your own
    #[arg(long, value_name = "NAME", exclusive = true)]
    show: Option<String>,
    /// Run this many random scenarios, drawn from the seed
    #[arg(long, value_name = "COUNT", conflicts_with = "scenarios")]
    soak: Option<u64>,
    /// Seed of the random scenarios
    #[arg(long, default_value_t = 0, requires = "soak", conflicts_with_all = ["scenarios", "all"])]
    seed: u64,
    /// Random scenarios to skip first
    #[arg(long, value_name = "COUNT", default_value_t = 0, requires = "soak", conflicts_with_all = ["scenarios", "all"])]
    skip: u64,
    /// Ranks of the random scenarios
    #[arg(long, default_value_t = 2, requires = "soak", conflicts_with_all = ["scenarios", "all"], value_parser = clap::value_parser!(u16).range(1..=64))]
    ranks: u16,
    /// Nodes that share them, each with its own agent; with several, agents, nodes, disks and networks fail, too
    #[arg(long, default_value_t = 1, requires = "soak", conflicts_with_all = ["scenarios", "all"], value_parser = clap::value_parser!(u16).range(1..=16))]
    nodes: u16,
    /// Stop the job by signals at random moments, in place of faults, and start it again until it succeeds
    #[arg(long, requires = "soak", conflicts_with_all = ["scenarios", "all"])]
    stops: bool,
    /// Change the number of ranks of a training with virtual ranks: nodes are lost for good, leave and come, on 3 nodes or --nodes
    #[arg(long, requires = "soak", conflicts_with_all = ["scenarios", "all", "stops", "ranks"])]
    elastic: bool,
    /// Continue after a random scenario that failed
    #[arg(long, requires = "soak", conflicts_with_all = ["scenarios", "all"])]
    keep_going: bool,
    /// Time limit of one run in seconds, instead of the scenarios' own
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: Option<u64>,
    #[command(flatten)]
    series: SeriesOptions,
}

impl InjectOptions {
    pub fn exec(self) -> anyhow::Result<Code> {
        if self.list {
            return list();
        }
        if let Some(name) = &self.show {
            return print(library::text(name)?);
        }
        let entries = self.entries()?;
        let needs_lab =
            entries.iter().any(|entry| entry.scenario.run.program.is_none() && entry.scenario.run.lab.is_none());
        let runner = job_runner(self.series.launcher.clone(), self.timeout.map(Duration::from_secs), needs_lab)?;
        let suite = SuiteRunner::open(runner, self.series.keep.as_deref())?;
        let series = InjectSeries::new(self.series.takes_stdout(), suite);
        series.run(entries, self.soak.map(|_| self.keep_going), &self.series.reports)
    }

    fn entries(&self) -> anyhow::Result<Vec<Entry>> {
        if let Some(count) = self.soak {
            if self.stops && self.nodes > 1 {
                return Err(Refused("--stops is for one node: leave --nodes out".into()).into());
            }
            if !self.elastic && !self.ranks.is_multiple_of(self.nodes) {
                let message =
                    format!("--ranks is {} and --nodes {}: each node has equally many ranks", self.ranks, self.nodes);
                return Err(Refused(message).into());
            }
            let places = self.skip..self.skip.saturating_add(count);
            return Ok(places.map(|index| self.drawn(index)).collect());
        }
        let named: Vec<String> =
            if self.all { library::names().map(str::to_owned).collect() } else { self.scenarios.clone() };
        if named.is_empty() {
            return Err(Refused(
                "name a scenario, or --all, or --soak COUNT; `lockstep inject --list` lists them".into(),
            )
            .into());
        }
        let entry = |name: &String| {
            find(name).map(|scenario| Entry { scenario, replay: format!("lockstep inject {name}"), seed: None })
        };
        Ok(named.iter().map(entry).collect::<Result<_, _>>()?)
    }

    fn drawn(&self, index: u64) -> Entry {
        let (ranks, nodes) = (usize::from(self.ranks), usize::from(self.nodes));
        let nodes = if self.elastic && nodes == 1 { 3 } else { nodes };
        let series = soak::RandomSeries { seed: self.seed, ranks, nodes, stops: self.stops, elastic: self.elastic };
        let replay = format!("lockstep inject {}", soak::replay(series, index));
        Entry { scenario: soak::draw(series, index), replay, seed: Some(self.seed) }
    }
}

/// A file, or a scenario of the library.
fn find(name: &str) -> Result<Scenario, Refused> {
    if !name.ends_with(".toml") {
        return library::scenario(name);
    }
    let text = std::fs::read_to_string(Path::new(name));
    parse(name, &text.map_err(|error| Refused(format!("cannot read the scenario {name}: {error}")))?)
}

fn list() -> anyhow::Result<Code> {
    let scenarios = library::names().map(|name| Ok((name, library::scenario(name)?.title)));
    let scenarios = scenarios.collect::<Result<Vec<_>, Refused>>()?;
    let entries: Vec<_> = scenarios.iter().map(|(name, title)| (*name, title.as_str())).collect();
    Screen::new(false).listing(&entries);
    Ok(Code::Success)
}

fn print(text: &str) -> anyhow::Result<Code> {
    Stdout.write_all(text.as_bytes()).context("cannot write to stdout")?;
    Ok(Code::Success)
}

/// A scenario to run, and the command that repeats only this one.
pub(crate) struct Entry {
    pub(crate) scenario: Scenario,
    pub(crate) replay: String,
    pub(crate) seed: Option<u64>,
}

/// Scenarios that run one after the other, with a line of output for each.
pub(crate) struct InjectSeries {
    screen: Screen,
    suite: SuiteRunner,
    cases: Vec<ReportCase>,
}

impl InjectSeries {
    pub(crate) fn new(stdout_is_taken: bool, suite: SuiteRunner) -> Self {
        InjectSeries { screen: Screen::new(stdout_is_taken), suite, cases: Vec::new() }
    }

    /// Runs all scenarios; for random ones, `soak` decides whether to continue after a failure.
    pub(crate) fn run(mut self, entries: Vec<Entry>, soak: Option<bool>, reports: &[Target]) -> anyhow::Result<Code> {
        let (begin, started, count) = (Instant::now(), SystemTime::now(), entries.len());
        let (stops_at_failure, mut soaked) = (soak == Some(false), Soaked::default());
        for (number, Entry { scenario, replay, seed }) in (1..).zip(entries) {
            let outcome = self.suite.run(scenario)?;
            soaked.add(&outcome);
            let made = case(&outcome, Some(replay), seed);
            self.print(&outcome, &made, number, count);
            let failed = made.verdict() == Verdict::Failed;
            self.cases.push(made);
            if failed && stops_at_failure {
                break;
            }
        }
        let InjectSeries { screen, suite, cases } = self;
        let report = Report::here("Lockstep inject", started, begin.elapsed(), cases);
        let verdicts: Vec<_> = report.cases.iter().map(ReportCase::verdict).collect();
        screen.line(format!("{} in {:.1} s", counts(&verdicts), report.took.as_secs_f64()));
        if soak.is_some() {
            soaked.lines().into_iter().for_each(|line| screen.line(line));
        }
        finish(&screen, suite, &report, reports)
    }

    fn print(&self, outcome: &ScenarioOutcome, made: &ReportCase, number: usize, count: usize) {
        let (verdict, title, figures) = (made.verdict(), &outcome.scenario.title, figures(outcome));
        let symbol = verdict.symbol();
        let line = |text: String| self.screen.line(escaped(&text));
        line(format!("{number:>3}/{count} {symbol} {verdict}  {}: {title}  ({figures})", made.name));
        for Finding { claim, verdict, evidence } in &made.findings {
            if *verdict != Verdict::Passed {
                line(format!("        {verdict}: {claim}: {evidence}"));
            }
        }
        if let (Some(replay), Verdict::Failed) = (&made.replay, verdict) {
            line(format!("        again: {replay}"));
        }
    }
}

/// The number of snapshots besides those at the usual interval; 0 where no signal asks for one.
fn asked(run: &RunSpec, events: &RunEvents) -> usize {
    let of_signal = |record: &&Record| match &record.event {
        Event::Snapshot { step, .. } => run.snapshot_on.is_some() && !step.is_multiple_of(run.save_every_steps),
        _ => false,
    };
    events.records().filter(of_signal).count()
}

/// The totals of a series of random scenarios.
#[derive(Default)]
struct Soaked {
    scenarios: Vec<Scenario>,
    /// Faults that came too late to have an effect.
    missed: usize,
    /// How often a whole job was restarted.
    requeues: usize,
    /// How often a job went over to another number of ranks.
    resized: usize,
    /// Snapshots that were saved because a signal asked for them.
    asked: usize,
}

impl Soaked {
    fn add(&mut self, ScenarioOutcome { scenario, seen, .. }: &ScenarioOutcome) {
        self.scenarios.push(scenario.clone());
        for injection in seen.iter().flat_map(|seen| &seen.injections) {
            self.missed += usize::from(injection.fault.is_some() && injection.failed.is_some());
            self.requeues += usize::from(injection.is_requeue());
        }
        self.resized += seen.as_ref().map_or(0, |seen| seen.world_sizes.len().saturating_sub(1));
        self.missed += seen.as_ref().map_or(0, |seen| seen.missed.len());
        self.asked += seen.as_ref().map_or(0, |seen| asked(&scenario.run, &seen.events));
    }

    /// The number of faults of each kind.
    fn lines(&self) -> Vec<String> {
        let kinds = soak::kinds(self.scenarios.iter()).into_iter();
        let more = [
            ("of these faults came too late", self.missed),
            ("the whole job started again", self.requeues),
            ("the job went on with another number of ranks", self.resized),
            ("a signal made the job save a snapshot", self.asked),
        ];
        let more = more.into_iter().filter(|(_, count)| *count > 0).map(|(what, count)| (what.to_owned(), count));
        kinds.chain(more).map(|(kind, count)| format!("{count:>7} × {kind}")).collect()
    }
}
