//! `lockstep verify`: runs the labs and checks what the `[verify]` of their `lab.toml` promises.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use lockstep_contract::foreign::escaped;
use lockstep_grading::exercise::Checks;

use crate::exit::{Code, Refused};
use crate::labs::program_beside;
use crate::prove::check_learning::{learns, loss_falls, loss_is_near};
use crate::prove::check_same::{same_training, same_training_as, same_weights};
use crate::prove::check_values::{collectives_hold, each_sample_once, messages_arrive};
use crate::prove::evidence::{Evidence, Plan, Results};
use crate::prove::job_runner::Observed;
use crate::prove::launch::Launcher;
use crate::prove::scenario::{Expect, Scenario};
use crate::prove::suite::{ScenarioOutcome, SeriesOptions, SuiteRunner, case, finish, job_runner, report};
use crate::prove::verify_labs::VerifiedLab;
use crate::prove::{expectations, library};
use crate::report::{Case, Finding, Screen, Verdict, counts, findings_table, overall};

/// Run the labs and check what each promises
#[derive(Args)]
pub(crate) struct VerifyOptions {
    /// Labs by number or name [default: all that are built]
    #[arg(value_name = "LAB")]
    labs: Vec<String>,
    /// Ranks of the runs with several
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(2..=64))]
    nprocs: u16,
    /// Time limit of one run in seconds
    #[arg(long, default_value_t = 600, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..))]
    timeout: u64,
    #[command(flatten)]
    series: SeriesOptions,
}

impl VerifyOptions {
    pub(crate) fn exec(self) -> anyhow::Result<Code> {
        let labs = VerifiedLab::find_all(&self.labs)?;
        // A lab that was requested by name must be built; of the others, those that are.
        let program = |lab: VerifiedLab| (program_beside(&lab.program()), lab);
        let programs: Vec<_> = labs.into_iter().map(program).collect();
        if !self.labs.is_empty() || programs.iter().all(|(program, _)| program.is_err()) {
            programs.iter().try_for_each(|(program, _)| match program {
                Ok(_) => Ok(()),
                Err(error) => Err(anyhow::Error::from(Refused(error.to_string()))),
            })?;
        }
        let (begin, started) = (Instant::now(), SystemTime::now());
        let runner = job_runner(self.series.launcher.clone(), Some(Duration::from_secs(self.timeout)), false)?;
        let launcher = runner.launcher.clone();
        let suite = SuiteRunner::open(runner, self.series.keep.as_deref())?;
        let mut series = Series {
            suite,
            launcher,
            ranks: usize::from(self.nprocs),
            screen: Screen::new(self.series.takes_stdout()),
        };
        let cases = programs.into_iter().map(|(program, lab)| series.verify(&lab, program));
        let cases = cases.collect::<anyhow::Result<Vec<_>>>()?;
        let Series { suite, screen, .. } = series;
        let report = report("Lockstep verify", started, begin.elapsed(), cases);
        let verdicts: Vec<_> = report.cases.iter().map(Case::verdict).collect();
        screen.line(format!("labs: {} in {:.1} s", counts(&verdicts), report.took.as_secs_f64()));
        finish(&screen, suite, &report, &self.series.reports)
    }
}

/// Samples in a batch of one rank, if there are several.
pub(crate) const BATCH: usize = 32;
/// Ranks of the runs with threads: more than two, so that a ring is a real one.
const THREADS: usize = 4;

/// Labs that are verified one after the other.
pub(crate) struct Series {
    pub(crate) suite: SuiteRunner,
    pub(crate) launcher: Launcher,
    pub(crate) ranks: usize,
    pub(crate) screen: Screen,
}

impl Series {
    pub(crate) fn verify(&mut self, lab: &VerifiedLab, program: anyhow::Result<PathBuf>) -> anyhow::Result<Case> {
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
            Checks::Ends => Ok(self.run_lab(lab, lab.plan(self.ranks, BATCH), program)?.1),
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
    pub(crate) fn run_lab(
        &mut self,
        lab: &VerifiedLab,
        plan: Plan,
        program: PathBuf,
    ) -> anyhow::Result<(Evidence, Case)> {
        let (outcome, made) = self.run_scenario(lab.scenario(&plan, program), &lab.launcher(&self.launcher))?;
        Ok((evidence(plan, outcome), made))
    }

    pub(crate) fn run_scenario(
        &mut self,
        scenario: Scenario,
        launcher: &Launcher,
    ) -> anyhow::Result<(ScenarioOutcome, Case)> {
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
        self.screen.line(format!("\n{symbol} {}: {} ({seconds:.1} s)", escaped(&made.name), escaped(&made.shows)));
        self.screen.line(findings_table(&made.findings, self.screen.look()));
    }
}

fn missing(error: &anyhow::Error) -> Finding {
    Finding { claim: "The lab is built".into(), verdict: Verdict::NotVerified, evidence: error.to_string() }
}

/// The same claims about two runs.
pub(crate) fn merged(one: Vec<Finding>, other: Vec<Finding>) -> Vec<Finding> {
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

pub(crate) fn evidence(plan: Plan, outcome: ScenarioOutcome) -> Evidence {
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

/// Flags that change how a step gets its gradient, not the gradient.
const SAME: [(&str, &[&str]); 2] = [
    ("4 passes of a quarter of the batch train as one pass of all of it", &["--accumulate", "4"]),
    ("Small buckets train as large ones", &["--bucket-mb", "0.05"]),
];
/// Compressed gradients, and by which part the loss of the last epoch may exceed that with whole ones. The chapter has what was measured,
/// in "Fewer bytes": PowerSGD begins slowly, since its first steps lose most of a gradient, and later ones make up for it.
const NEAR: [(&str, &str, f64); 3] = [("fp16", "fp16", 0.05), ("bf16", "bf16", 0.05), ("PowerSGD", "powersgd", 1.5)];

impl Series {
    /// Several ranks against one, one pass against several, whole gradients against compressed ones.
    pub(crate) fn prove_scaling(&mut self, lab: &VerifiedLab, program: PathBuf) -> anyhow::Result<Case> {
        let ranks = self.ranks;
        let (many, mut made) = self.run_lab(lab, lab.plan(ranks, BATCH), program.clone())?;
        let (one, alone) = self.run_lab(lab, lab.plan(1, ranks * BATCH), program.clone())?;
        let mut of_runs = merged(made.findings, alone.findings);
        let mut shown = vec![
            same_weights(&many),
            same_training(&many, &one),
            each_sample_once(&[("A", &many), ("B", &one)]),
            loss_falls(&many),
        ];
        for (claim, flags) in SAME {
            let (run, findings) = self.run_with(lab, flags, &program)?;
            of_runs = merged(of_runs, findings);
            shown.push(same_training_as(claim, &run, &many));
        }
        for (name, hook, limit) in NEAR {
            let (run, findings) = self.run_with(lab, &["--hook", hook], &program)?;
            of_runs = merged(of_runs, findings);
            let claim =
                format!("Training with {name} gradients ends with a loss at most {:.0} % higher", 100.0 * limit);
            shown.push(loss_is_near(&claim, &run, &many, limit));
        }
        made.findings = of_runs;
        made.findings.extend(shown);
        Ok(made)
    }

    /// A run of several ranks with more flags, and the findings that do not depend on the lab.
    fn run_with(
        &mut self,
        lab: &VerifiedLab,
        flags: &[&str],
        program: &Path,
    ) -> anyhow::Result<(Evidence, Vec<Finding>)> {
        let plan = lab.plan(self.ranks, BATCH);
        let mut scenario = lab.scenario(&plan, program.to_owned());
        scenario.title = flags.join(" ");
        scenario.run.args.extend(flags.iter().map(|flag| (*flag).to_owned()));
        let (outcome, made) = self.run_scenario(scenario, &lab.launcher(&self.launcher))?;
        Ok((evidence(plan, outcome), made.findings))
    }
}
