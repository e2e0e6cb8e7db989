//! `lockstep tour`: trains live, kills a rank in the middle, and shows that the result is the same to the bit.
//!
//! It is one scenario of the library with more training, shown in detail: what happened, what was learned, and what the files prove. Without
//! a checkout, where the lab cannot be compiled, the lab's Python program takes its place: [`python_lab`](super::python_lab). With
//! `--elastic` the number of ranks changes instead: [`tour_elastic`](super::tour_elastic).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use clap::Args;
use lockstep_contract::events::Event;
use lockstep_contract::foreign::escaped;
use tempfile::TempDir;

use crate::check_learning::learns;
use crate::evidence::{Evidence, Plan, Sizes};
use crate::exit::{Code, Refused};
use crate::fault::{When, Who};
use crate::library;
#[cfg(feature = "whole")]
use crate::python_lab;
use crate::report::history::{Attempt, History, RunEvents};
use crate::report::{
    Report, ReportCase, Screen, Table, Target, Timeline, counted, counts, findings_table, grouped, numbers_table,
    picture,
};
use crate::scenario::{RunSpec, Scenario};
use crate::suite::{ScenarioOutcome, SuiteRunner, case, finish, job_runner};
use crate::tour_elastic;

/// The scenario that it runs.
const SCENARIO: &str = "kill-one-worker";
/// Samples in a batch of one rank.
pub(crate) const BATCH: usize = 32;
/// The default name of the page.
const PAGE: &str = "lockstep-tour.html";
const RANKS: usize = 2;

/// Train MNIST on several ranks, kill one of them, and show that the result is the same to the bit
#[derive(Args)]
pub struct TourOptions {
    /// Ranks [default: 2; with --elastic 4, each on a node of its own]
    #[arg(long, value_parser = clap::value_parser!(u16).range(2..=64))]
    pub(crate) nprocs: Option<u16>,
    /// Change the number of ranks instead: lose a node for good, go on with the others, and take on another
    #[arg(long)]
    elastic: bool,
    /// Number of epochs
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) epochs: u64,
    /// Digits to draw for training; a quarter as many are drawn for the test
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(8..=1_000_000))]
    samples: u64,
    /// Seed of drawn digits, order and initial weights
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// A folder with MNIST's four files; without one, digits are drawn
    #[arg(long, value_name = "DIR", conflicts_with = "samples")]
    pub(crate) data: Option<PathBuf>,
    /// Keep event files, snapshots and weights in this folder, which must be new or empty
    #[arg(long, value_name = "DIR", value_parser = lockstep_paths::parse_folder)]
    pub(crate) keep: Option<PathBuf>,
    /// Time limit of one run in seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) timeout: u64,
    /// Where to write the page with the picture of both runs
    #[arg(long, value_name = "FILE", value_parser = lockstep_paths::parse_file)]
    html: Option<PathBuf>,
    /// Print the report as JSON on stdout, and everything else on stderr
    #[arg(long)]
    pub(crate) json: bool,
    /// Another launcher with torchrun's flags, in place of `lockstep run`
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) launcher: Option<PathBuf>,
}

/// A program in the place of the lab.
pub(crate) struct StandIn {
    /// What a launcher starts.
    pub(crate) program: PathBuf,
    /// A folder with MNIST's four files.
    pub(crate) data: PathBuf,
    /// The version of PyTorch.
    pub(crate) pytorch: String,
    /// Where both are, until this value is dropped.
    pub(crate) _folder: TempDir,
}

impl TourOptions {
    pub fn exec(self) -> anyhow::Result<Code> {
        if self.elastic {
            return tour_elastic::exec(&self);
        }
        let (begin, started) = (Instant::now(), SystemTime::now());
        let targets = self.targets()?;
        let sizes = self.sizes()?;
        #[cfg(feature = "whole")]
        let in_python = python_lab::where_none_is_built(self.seed, sizes, self.data.as_deref())?;
        #[cfg(not(feature = "whole"))] // only a checkout has this program
        let in_python = None::<StandIn>;
        let needs_lab = in_python.is_none();
        let mut runner = job_runner(self.launcher.clone(), Some(Duration::from_secs(self.timeout)), needs_lab)?;
        let mut data = self.data.clone();
        if let Some(lab) = &in_python {
            (runner.lab, data) = (lab.program.clone(), Some(lab.data.clone()));
        }
        let mut scenario = self.scenario(sizes, data)?;
        if in_python.is_some() {
            // Python imports PyTorch again, which may take as long as it wants on a shared file system.
            scenario.expect.recovers_within_seconds = None;
        }
        let (json, screen) = (self.json, Screen::new(self.json));
        runner.listener = Some(Box::new(move |line| Screen::new(json).line(escaped(plain(line)))));
        let mut suite = SuiteRunner::open(runner, self.keep.as_deref())?;
        self.introduce(&screen, sizes, in_python.as_ref());
        screen.line("\nRun A: nothing happens");
        let undisturbed = suite.undisturbed(&scenario.run)?;
        screen.line(format!("\nRun B: the same, but {}", plan_of(&scenario)));
        let killed = suite.run(scenario)?;
        let mut shown = Shown::new(&undisturbed.outcome, &killed);
        shown.case.findings.push(learns(&evidence(&undisturbed.outcome, sizes)));
        shown.show(&screen);
        let report = Report::here("Lockstep tour", started, begin.elapsed(), vec![shown.case]);
        let code = finish(&screen, suite, &report, &targets)?;
        screen.line(format!("the same as a page, with a picture: {}", self.page().display()));
        if !needs_lab {
            screen.line("next: the tasks, in a folder that `lockstep init` makes; there, `lockstep progress` says where to begin");
        }
        Ok(code)
    }

    fn ranks(&self) -> usize {
        self.nprocs.map_or(RANKS, usize::from)
    }

    /// The page, and JSON if requested.
    pub(crate) fn targets(&self) -> anyhow::Result<Vec<Target>> {
        let page = self.page().to_string_lossy().into_owned();
        let names = std::iter::once(page).chain(self.json.then(|| "-".to_owned()));
        let target =
            |name: String| name.parse().map_err(|why| Refused(format!("cannot write the page to {name}: {why}")));
        Ok(names.map(target).collect::<Result<_, _>>()?)
    }

    /// The number of digits.
    pub(crate) fn sizes(&self) -> anyhow::Result<Sizes> {
        let Some(folder) = &self.data else { return Ok(Sizes::drawn(self.samples)) };
        Ok(Sizes::of_folder(folder).map_err(|error| Refused(format!("cannot use --data: {error:#}")))?)
    }

    /// The library's scenario with this job: the last rank is killed well after the last snapshot.
    fn scenario(&self, sizes: Sizes, data: Option<PathBuf>) -> anyhow::Result<Scenario> {
        let mut scenario = library::scenario(SCENARIO)?;
        let mut run = RunSpec {
            ranks: self.ranks(),
            epochs: self.epochs,
            batch_size: BATCH,
            samples: sizes.train,
            seed: self.seed,
            ..scenario.run
        };
        let steps = run.steps_per_epoch();
        run.save_every_steps = (steps / 2).max(1);
        train_on(&mut run, data.as_deref())?;
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

    fn introduce(&self, screen: &Screen, Sizes { train, test }: Sizes, in_python: Option<&StandIn>) {
        let (train, test) = (grouped(train), grouped(test));
        let drawn = if self.data.is_some() { "" } else { "drawn " };
        let ranks = counted(self.ranks(), "rank");
        let program = in_python.map_or(String::new(), |lab| format!(", with PyTorch {}", lab.pytorch));
        screen.line(format!("Lockstep tour: {ranks} learn {train} {drawn}digits, {test} more held out{program}"));
        screen.line("Twice from one seed; the second time a rank is killed. The result must be the same, to the bit.");
    }

    /// Next to the build's other products if there is a build, so that git ignores it.
    pub(crate) fn page(&self) -> PathBuf {
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

/// Both runs, for people.
pub(crate) struct Shown {
    pub(crate) case: ReportCase,
    moments: Vec<Moment>,
    epochs: [Vec<Epoch>; 2],
    seconds: [f64; 2],
}

impl Shown {
    pub(crate) fn new(undisturbed: &ScenarioOutcome, killed: &ScenarioOutcome) -> Self {
        let epochs =
            |outcome: &ScenarioOutcome| outcome.seen.as_ref().map_or_else(Vec::new, |seen| epochs(&seen.events));
        let seconds = |outcome: &ScenarioOutcome| outcome.seen.as_ref().map_or(0.0, |seen| seen.seconds);
        let seen = killed.seen.as_ref();
        let mut shown = Shown {
            case: case(killed, Some("lockstep tour".into()), Some(killed.scenario.run.seed)),
            moments: seen.map_or_else(Vec::new, |seen| moments(&seen.events)),
            epochs: [epochs(undisturbed), epochs(killed)],
            seconds: [seconds(undisturbed), seconds(killed)],
        };
        shown.case.tables = vec![losses(&shown.epochs)];
        shown
    }

    pub(crate) fn show(&self, screen: &Screen) {
        let style = screen.style();
        show_moments(screen, &self.moments, self.case.timeline.as_ref());
        let losses = losses(&self.epochs);
        screen.line(format!("\n{}\n{}", losses.title, numbers_table(&losses, style)));
        screen.line("\nWhat the files prove");
        screen.line(findings_table(&self.case.findings, style));
        let [a, b] = self.seconds;
        let verdicts: Vec<_> = self.case.findings.iter().map(|finding| finding.verdict).collect();
        screen.line(format!("{}; run A took {a:.1} s, run B {b:.1} s", counts(&verdicts)));
    }
}

/// Lets the run train on this folder's data.
pub(crate) fn train_on(run: &mut RunSpec, data: Option<&Path>) -> anyhow::Result<()> {
    if let Some(data) = data {
        let data = data.canonicalize().context("cannot resolve --data")?;
        run.args = vec!["--data".into(), data.to_string_lossy().into_owned()];
    }
    Ok(())
}

/// Of the runs A and B.
pub(crate) fn losses(epochs: &[Vec<Epoch>; 2]) -> Table {
    let headings = ["epoch", "loss A", "accuracy A", "loss B", "accuracy B"].map(str::to_owned).to_vec();
    let [a, b] = epochs;
    let row = |epoch: usize| {
        let cells = epochs.iter().flat_map(|run| cells(run.get(epoch)));
        std::iter::once(epoch.to_string()).chain(cells).collect()
    };
    let title = "What was learned (of steps that were done twice, the last counts)".into();
    Table { title, headings, rows: (0..a.len().max(b.len())).map(row).collect() }
}

/// Prints what happened, with the picture of it.
pub(crate) fn show_moments(screen: &Screen, moments: &[Moment], timeline: Option<&Timeline>) {
    let style = screen.style();
    screen.line("\nWhat happened in run B");
    for moment in moments {
        screen.line(format!("{:>7.2} s  {}", moment.at, escaped(&moment.what)));
    }
    if let Some(timeline) = timeline {
        screen.line(format!("\n{}", picture(timeline, style.width, style.unicode)));
    }
}

fn cells(epoch: Option<&Epoch>) -> [String; 2] {
    let dash = || "–".to_owned();
    let accuracy = |epoch: &Epoch| epoch.accuracy.map(|accuracy| format!("{:.2} %", accuracy * 100.0));
    [epoch.map_or_else(dash, |epoch| format!("{:.4}", epoch.loss)), epoch.and_then(accuracy).unwrap_or_else(dash)]
}

/// An event, in seconds since the first event of a rank.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Moment {
    pub(crate) at: f64,
    pub(crate) what: String,
}

/// Starts, deaths, restarts, resumes and the end, ordered by time.
pub(crate) fn moments(events: &RunEvents) -> Vec<Moment> {
    told(events, |history| {
        let mut moments = starts(history, events.ranks.len());
        moments.extend(deaths(history));
        moments
    })
}

/// What a tour tells, with resumes and the end.
pub(crate) fn told(events: &RunEvents, own: impl FnOnce(&History<'_>) -> Vec<(f64, String)>) -> Vec<Moment> {
    let times = || events.records().map(|record| record.t);
    let (Some(begin), Some(end)) = (times().min_by(f64::total_cmp), times().max_by(f64::total_cmp)) else {
        return Vec::new();
    };
    let history = History::of(events);
    let mut moments = own(&history);
    moments.extend(history.attempts.iter().filter_map(resume));
    moments.push((end, "the last rank is done".into()));
    moments.sort_by(|one, other| one.0.total_cmp(&other.0));
    moments.into_iter().map(|(t, what)| Moment { at: t - begin, what }).collect()
}

/// The moment at which the last rank of each generation has joined.
fn starts(history: &History<'_>, ranks: usize) -> Vec<(f64, String)> {
    let mut last = BTreeMap::new();
    for attempt in &history.attempts {
        if let Some(t) = attempt.joined() {
            let latest = last.entry(attempt.generation).or_insert(t);
            *latest = latest.max(t);
        }
    }
    let first = std::iter::once(format!("{} have joined", counted(ranks, "rank")));
    last.into_values().zip(first.chain(std::iter::repeat("all ranks run again".to_owned()))).collect()
}

/// As recorded by the agents; without agents' events, the faults that the ranks recorded themselves.
fn deaths(history: &History<'_>) -> Vec<(f64, String)> {
    let seen: Vec<_> = history.attempts.iter().filter(|attempt| attempt.started.is_some()).filter_map(death).collect();
    if !seen.is_empty() {
        return seen;
    }
    let faults = history.attempts.iter().flat_map(|attempt| {
        attempt.records.iter().filter_map(move |(t, event)| match event {
            Event::Fault { message } => {
                Some((*t, format!("rank {}: {message}{}", attempt.rank, last_step(attempt, *t))))
            }
            _ => None,
        })
    });
    faults.collect()
}

fn death(attempt: &Attempt<'_>) -> Option<(f64, String)> {
    let (rank, end) = (attempt.rank, attempt.ended?);
    let what = match (end.stopped, end.code) {
        (true, _) => format!("rank {rank} is stopped, because it cannot continue alone"),
        (false, 0) => return None,
        (false, _) => format!("rank {rank} is dead: {}{}", end.status(), last_step(attempt, end.t)),
    };
    Some((end.t, what))
}

/// The last step that it recorded before `t`.
fn last_step(attempt: &Attempt<'_>, t: f64) -> String {
    let last = attempt.steps().rfind(|(at, _)| *at <= t);
    last.map_or(String::new(), |(_, (epoch, step))| format!(" after step {step} of epoch {epoch}"))
}

/// Only rank 0 counts: all ranks resume from one snapshot.
pub(crate) fn resume(attempt: &Attempt<'_>) -> Option<(f64, String)> {
    attempt.records.iter().filter(|_| attempt.rank == 0).find_map(|(t, event)| match event {
        Event::Resume { epoch, step, .. } => {
            Some((*t, format!("training continues at step {step} of epoch {epoch}, from the newest snapshot")))
        }
        _ => None,
    })
}

/// An epoch of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Epoch {
    /// Over all samples of all ranks.
    pub(crate) loss: f64,
    /// As reported by rank 0, over all held-out samples.
    pub(crate) accuracy: Option<f64>,
}

/// Epoch 0, 1, …, up to the first without a recorded step.
pub(crate) fn epochs(events: &RunEvents) -> Vec<Epoch> {
    let (mut steps, mut accuracies) = (BTreeMap::new(), BTreeMap::new());
    for record in events.records() {
        match record.event {
            Event::Step { epoch, step, loss, samples, .. } => {
                steps.insert((epoch, step, record.rank), (loss, samples));
            }
            Event::Eval { epoch, accuracy, .. } if record.rank == 0 => {
                accuracies.insert(epoch, accuracy);
            }
            _ => {}
        }
    }
    let of = |epoch: u64| {
        let steps = steps.range((epoch, 0, 0)..(epoch.saturating_add(1), 0, 0));
        let (sum, count) =
            steps.fold((0.0, 0), |(sum, count), (_, (loss, samples))| (sum + loss * *samples as f64, count + samples));
        (count > 0).then(|| Epoch { loss: sum / count as f64, accuracy: accuracies.get(&epoch).copied() })
    };
    (0..).map_while(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::history::End;
    use crate::report::testing::{FakeRun, ended, resume, start, started, step_of};

    #[test]
    fn takes_the_launchers_prefix_off_a_line() {
        let lines = ["[default12]:a]: b", "[default]:x", "[defaultx]:x", "[rank 0] x", "[default0]:"].map(plain);
        assert_eq!(lines, ["a]: b", "x", "[defaultx]:x", "[rank 0] x", ""]);
    }

    /// Rank 1 kills itself; both are started again.
    fn ranks(run: FakeRun) -> FakeRun {
        let run = run.rank(0, 0, 10.0, start(2, 70)).rank(0, 0, 11.0, step_of(1, 5)).rank(0, 0, 13.0, start(2, 80));
        let run = run.rank(0, 0, 13.5, resume(1, 4)).rank(0, 0, 14.0, step_of(1, 7));
        let run = run.rank(1, 0, 10.5, start(2, 71)).rank(1, 0, 11.0, step_of(1, 5));
        let run = run.rank(1, 0, 11.1, Event::Fault { message: "injected: signal 9".into() });
        run.rank(1, 0, 13.2, start(2, 81)).rank(1, 0, 14.5, step_of(1, 7))
    }

    #[test]
    fn lists_starts_deaths_resumes_and_the_end_in_order() {
        let run = FakeRun::default().agent("0", 9.9, started(0, 0, 70)).agent("0", 9.9, started(0, 1, 71));
        let run = run.agent("0", 11.25, ended(0, 1, 71, -9, false)).agent("0", 11.5, ended(0, 0, 70, -15, true));
        let run = run.agent("0", 12.0, started(1, 0, 80)).agent("0", 12.0, started(1, 1, 81));
        let run = ranks(run).agent("0", 15.0, ended(1, 0, 80, 0, false));
        let found: Vec<_> = moments(&run.0).into_iter().map(|moment| (moment.at, moment.what)).collect();
        let due = [
            (0.5, "2 ranks have joined"),
            (1.25, "rank 1 is dead: SIGKILL after step 5 of epoch 1"),
            (1.5, "rank 0 is stopped, because it cannot continue alone"),
            (3.2, "all ranks run again"),
            (3.5, "training continues at step 4 of epoch 1, from the newest snapshot"),
            (4.5, "the last rank is done"),
        ];
        assert_eq!(found.len(), due.len(), "{found:?}");
        for ((at, what), (due_at, due)) in found.iter().zip(due) {
            assert!((at - due_at).abs() < 1e-6 && what == due, "{at} {what}");
        }
    }

    #[test]
    fn uses_the_ranks_own_records_without_an_agents() {
        let found = moments(&ranks(FakeRun::default()).0);
        assert!(
            found.iter().any(|moment| moment.what == "rank 1: injected: signal 9 after step 5 of epoch 1"),
            "{found:?}"
        );
        assert_eq!(moments(&RunEvents::default()), []);
    }

    #[test]
    fn names_signals_and_codes() {
        let status = |code| End { t: 0.0, code, stopped: false }.status();
        assert_eq!(
            [-11, 3, -200, i32::MIN].map(status).join(", "),
            "SIGSEGV, exit code 3, signal 200, exit code -2147483648"
        );
    }

    #[test]
    fn counts_a_repeated_step_once() {
        let step = |epoch, step, loss, samples| Event::Step { epoch, step, loss, samples, lr: None };
        let eval = Event::Eval { epoch: 0, accuracy: 0.75, loss: 0.5, samples: 8 };
        let first = [step(0, 0, 1.0, 4), step(0, 1, 9.0, 2), step(0, 1, 2.0, 2), eval, step(1, 0, 0.5, 4)];
        let second = [step(0, 0, 3.0, 4), step(0, 1, 4.0, 2)];
        let run = first.into_iter().fold(FakeRun::default(), |run, event| run.rank(0, 0, 0.0, event));
        let run = second.into_iter().fold(run, |run, event| run.rank(1, 0, 0.0, event));
        let expected = [
            Epoch { loss: (4.0 + 4.0 + 12.0 + 8.0) / 12.0, accuracy: Some(0.75) },
            Epoch { loss: 0.5, accuracy: None },
        ];
        assert_eq!(epochs(&run.0), expected);
        assert_eq!(epochs(&RunEvents::default()), []);
    }
}
