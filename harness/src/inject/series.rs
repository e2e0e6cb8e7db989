//! Runs scenarios one after the other, and prints a line for each.

use std::time::{Instant, SystemTime};

use lockstep_contract::events::{Event, Record};
use lockstep_contract::foreign::escaped;

use super::soak;
use crate::exit::Code;
use crate::history::RunEvents;
use crate::report::{Case, Finding, Screen, Target, Verdict, counts};
use crate::runner::scenario::{RunSpec, Scenario};
use crate::runner::{ScenarioOutcome, SuiteRunner, case, figures, finish, report};

/// A scenario to run, and the command that repeats only this one.
pub(super) struct Entry {
    pub(super) scenario: Scenario,
    pub(super) replay: String,
    pub(super) seed: Option<u64>,
}

/// Scenarios that run one after the other, with a line of output for each.
pub(super) struct Series {
    screen: Screen,
    suite: SuiteRunner,
    cases: Vec<Case>,
}

impl Series {
    pub(super) fn new(stdout_is_taken: bool, suite: SuiteRunner) -> Self {
        Series { screen: Screen::new(stdout_is_taken), suite, cases: Vec::new() }
    }

    /// Runs all of them; for random ones, `soak` decides whether to continue after a failure.
    pub(super) fn run(mut self, entries: Vec<Entry>, soak: Option<bool>, reports: &[Target]) -> anyhow::Result<Code> {
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
        let Series { screen, suite, cases } = self;
        let report = report("Lockstep inject", started, begin.elapsed(), cases);
        let verdicts: Vec<_> = report.cases.iter().map(Case::verdict).collect();
        screen.line(format!("{} in {:.1} s", counts(&verdicts), report.took.as_secs_f64()));
        if soak.is_some() {
            soaked.lines().into_iter().for_each(|line| screen.line(line));
        }
        finish(&screen, suite, &report, reports)
    }

    fn print(&self, outcome: &ScenarioOutcome, made: &Case, number: usize, count: usize) {
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

/// The number of snapshots that are not those of the usual interval. None where signals do not ask for any.
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
        self.missed += seen.as_ref().map_or(0, |seen| seen.missed.len());
        self.asked += seen.as_ref().map_or(0, |seen| asked(&scenario.run, &seen.events));
    }

    /// The number of faults of each kind.
    fn lines(&self) -> Vec<String> {
        let kinds = soak::kinds(self.scenarios.iter()).into_iter();
        let more = [
            ("faults of these came too late", self.missed),
            ("the whole job started again", self.requeues),
            ("a signal made the job save a snapshot", self.asked),
        ];
        let more = more.into_iter().filter(|(_, count)| *count > 0).map(|(what, count)| (what.to_owned(), count));
        kinds.chain(more).map(|(kind, count)| format!("{count:>7} × {kind}")).collect()
    }
}
