//! `lockstep verify`: runs the labs and checks what they promise.
//!
//! [`checks`](crate::checks) has the checks; [`runner`](crate::runner) starts a run, supervises it, and looks for leaks.
//! [`labs`] defines the runs of each lab.

mod labs;
mod nodes;
mod scaling;

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use lockstep_grading::exercise::Checks;

use crate::checks::{
    collectives_hold, each_sample_once, learns, loss_falls, messages_arrive, same_training, same_weights,
};
use crate::exit::Code;
use crate::lab_run::{Evidence, Plan, Results, program_beside};
use crate::report::{Case, Finding, Screen, Target, Verdict, counts, findings_table, overall};
use crate::runner::scenario::{Expect, Scenario};
use crate::runner::{
    Launcher, Observed, ScenarioOutcome, SuiteRunner, case, expectations, finish, job_runner, library, report,
};
use labs::VerifiedLab;

/// Samples in a batch of one rank, if there are several.
const BATCH: usize = 32;
/// Ranks of the runs with threads: more than two, so that a ring is a real one.
const THREADS: usize = 4;

/// Runs the labs and checks what each promises
#[derive(Args)]
pub(crate) struct Options {
    /// Labs by number or name [default: all that are built]
    #[arg(value_name = "LAB")]
    labs: Vec<String>,
    /// Ranks of the runs with several
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=64))]
    nprocs: u16,
    /// Keep the files of all runs in this folder, which must be new or empty; those of failed runs are always kept
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
    /// Time limit of one run in seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    /// Another launcher with torchrun's flags, in place of `lockstep run`
    #[arg(long, value_name = "PROGRAM")]
    launcher: Option<PathBuf>,
    /// Write a report: a page (.html), .json, JUnit's .xml, .txt, or JSON on stdout (-); may be repeated
    #[arg(long = "report", value_name = "FILE")]
    reports: Vec<Target>,
}

impl Options {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let labs = VerifiedLab::find_all(&self.labs)?;
        // A lab that was requested by name must be built; of the others, those that are.
        let program = |lab: VerifiedLab| (program_beside(&lab.program()), lab);
        let programs: Vec<_> = labs.into_iter().map(program).collect();
        if !self.labs.is_empty() || programs.iter().all(|(program, _)| program.is_err()) {
            programs.iter().try_for_each(|(program, _)| match program {
                Ok(_) => Ok(()),
                Err(error) => Err(anyhow::Error::from(crate::exit::Refused(error.to_string()))),
            })?;
        }
        let (begin, started) = (Instant::now(), SystemTime::now());
        let runner = job_runner(self.launcher.clone(), Some(Duration::from_secs(self.timeout)), false)?;
        let launcher = runner.launcher.clone();
        let suite = SuiteRunner::open(runner, self.keep.as_deref())?;
        let mut series = Series {
            suite,
            launcher,
            ranks: usize::from(self.nprocs),
            screen: Screen::new(self.reports.iter().any(Target::is_stdout)),
        };
        let cases = programs.into_iter().map(|(program, lab)| series.verify(&lab, program));
        let cases = cases.collect::<anyhow::Result<Vec<_>>>()?;
        let Series { suite, screen, .. } = series;
        let report = report("Lockstep verify", started, begin.elapsed(), cases);
        let verdicts: Vec<_> = report.cases.iter().map(Case::verdict).collect();
        screen.line(format!("labs: {} in {:.1} s", counts(&verdicts), report.took.as_secs_f64()));
        finish(&screen, suite, &report, &self.reports)
    }
}

/// Labs that are verified one after the other.
struct Series {
    suite: SuiteRunner,
    launcher: Launcher,
    ranks: usize,
    screen: Screen,
}

impl Series {
    fn verify(&mut self, lab: &VerifiedLab, program: anyhow::Result<PathBuf>) -> anyhow::Result<Case> {
        let begin = Instant::now();
        let mut made = match program {
            Ok(program) => self.prove(lab, program)?,
            Err(error) => Case { findings: vec![missing(&error)], ..Case::default() },
        };
        made.name = lab.name().into();
        made.shows = lab.verify.shows.clone();
        made.took = begin.elapsed();
        made.replay = Some(format!("lockstep verify {}", lab.name()));
        self.tell(&made);
        Ok(made)
    }

    fn prove(&mut self, lab: &VerifiedLab, program: PathBuf) -> anyhow::Result<Case> {
        match lab.verify.checks {
            Checks::OneDevice => self.prove_one_device(lab, program),
            Checks::Training => self.prove_training(lab, program),
            Checks::Nodes => self.prove_nodes(lab, program),
            Checks::Scaling => self.prove_scaling(lab, program),
            Checks::Messages => self.prove_messages(lab, program, messages_arrive),
            Checks::Collectives => self.prove_messages(lab, program, collectives_hold),
        }
    }

    fn prove_one_device(&mut self, lab: &VerifiedLab, program: PathBuf) -> anyhow::Result<Case> {
        let (run, mut made) = self.run_lab(lab, lab.plan(1, BATCH), program)?;
        made.findings.extend([each_sample_once(&[("its run", &run)]), loss_falls(&run)]);
        Ok(made)
    }

    /// Several ranks against one that takes the same number of samples per step; and a run that is killed, if the lab survives
    /// that.
    fn prove_training(&mut self, lab: &VerifiedLab, program: PathBuf) -> anyhow::Result<Case> {
        let ranks = self.ranks;
        let (many, mut made) = self.run_lab(lab, lab.plan(ranks, BATCH), program.clone())?;
        let (one, alone) = self.run_lab(lab, lab.plan(1, ranks * BATCH), program.clone())?;
        made.findings = merged(made.findings, alone.findings);
        made.findings.push(same_weights(&many));
        made.findings.push(same_training(&many, &one));
        made.findings.push(each_sample_once(&[("A", &many), ("B", &one)]));
        made.findings.push(learns(&many));
        if let Some(scenario) = &lab.verify.killed_by {
            self.kill_and_resume(scenario, program, &mut made)?;
        }
        Ok(made)
    }

    /// Under the launcher, and as threads of one process.
    fn prove_messages(
        &mut self,
        lab: &VerifiedLab,
        program: PathBuf,
        prove: impl Fn(&[(&str, &[Result<Results, String>])]) -> Finding,
    ) -> anyhow::Result<Case> {
        let mut runs = Vec::new();
        for (name, ranks, launcher) in
            [("processes", self.ranks, self.launcher.clone()), ("threads", THREADS, Launcher::Direct)]
        {
            let plan = lab.plan(ranks, BATCH);
            let mut scenario = lab.scenario(&plan, program.clone());
            scenario.title = name.into();
            if matches!(launcher, Launcher::Direct) {
                scenario.run.args.extend(["--nprocs".to_owned(), ranks.to_string()]);
            }
            let (outcome, made) = self.run_scenario(scenario, &launcher)?;
            let none = || vec![Err("it was not run".into()); ranks];
            runs.push((name, outcome.seen.map_or_else(none, |seen| seen.results), made));
        }
        let results: Vec<_> = runs.iter().map(|(name, results, _)| (*name, &**results)).collect();
        let proved = prove(&results);
        let cases = runs.into_iter().map(|(_, _, made)| made);
        let mut made = cases.reduce(|one, other| Case { findings: merged(one.findings, other.findings), ..one });
        let made = made.get_or_insert_default();
        made.findings.push(proved);
        Ok(std::mem::take(made))
    }

    /// A run without faults, and the findings that do not depend on the lab.
    fn run_lab(&mut self, lab: &VerifiedLab, plan: Plan, program: PathBuf) -> anyhow::Result<(Evidence, Case)> {
        let (outcome, made) = self.run_scenario(lab.scenario(&plan, program), &lab.launcher(&self.launcher))?;
        Ok((evidence(plan, outcome), made))
    }

    fn run_scenario(&mut self, scenario: Scenario, launcher: &Launcher) -> anyhow::Result<(ScenarioOutcome, Case)> {
        let name = scenario.title.clone();
        let check = |_: &_, seen: &Observed| {
            let findings = [expectations::ended(&Expect::default(), seen), expectations::nothing_leaked(seen)];
            let of_run = |found: Finding| Finding { evidence: format!("{name}: {}", found.evidence), ..found };
            findings.into_iter().map(of_run).collect()
        };
        let outcome = self.suite.run_with(launcher, scenario, check)?;
        let made = case(&outcome, None, None);
        Ok((outcome, made))
    }

    /// Runs one scenario as an example; `lockstep inject` has the others.
    fn kill_and_resume(&mut self, scenario: &str, program: PathBuf, made: &mut Case) -> anyhow::Result<()> {
        let mut scenario = library::scenario(scenario)?;
        (scenario.run.program, scenario.run.lab) = (None, None);
        self.suite.set_lab(program);
        let outcome = self.suite.run(scenario)?;
        let killed = case(&outcome, None, None);
        made.findings.extend(killed.findings.into_iter().map(|finding| of_run("Killed", finding)));
        made.timeline = killed.timeline;
        made.log = killed.log;
        Ok(())
    }

    fn tell(&self, made: &Case) {
        let (symbol, seconds) = (made.verdict().symbol(), made.took.as_secs_f64());
        self.screen.line(format!("\n{symbol} {}: {} ({seconds:.1} s)", made.name, made.shows));
        self.screen.line(findings_table(&made.findings, self.screen.look()));
    }
}

fn missing(error: &anyhow::Error) -> Finding {
    Finding { claim: "The lab is built".into(), verdict: Verdict::NotVerified, evidence: error.to_string() }
}

/// The same claims about two runs.
fn merged(one: Vec<Finding>, other: Vec<Finding>) -> Vec<Finding> {
    one.into_iter().zip(other).map(|(one, other)| both(one, other)).collect()
}

/// The same claim about two runs.
fn both(one: Finding, other: Finding) -> Finding {
    Finding {
        verdict: overall([one.verdict, other.verdict]),
        evidence: format!("{}; {}", one.evidence, other.evidence),
        claim: one.claim,
    }
}

/// The finding, with the name of the run.
fn of_run(run: &str, finding: Finding) -> Finding {
    Finding { claim: format!("{run}: {}", lower(&finding.claim)), ..finding }
}

/// With a lower-case first letter, to follow a colon.
fn lower(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

fn evidence(plan: Plan, outcome: ScenarioOutcome) -> Evidence {
    match outcome.seen {
        Some(seen) if seen.events.unreadable.is_empty() => {
            Evidence { plan, logs: Ok(seen.events.ranks), weights: seen.weights }
        }
        Some(seen) => Evidence { plan, logs: Err(seen.events.unreadable.join("; ")), weights: seen.weights },
        None => Evidence {
            plan,
            logs: Err("it was not run".into()),
            weights: vec![Err("it was not run".into()); plan.ranks],
        },
    }
}
