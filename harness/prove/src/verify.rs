//! `lockstep verify`: runs the labs and checks what the `[verify]` of their `lab.toml` promises.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use anyhow::Context;
use clap::Args;
use lockstep_contract::foreign::escaped;
use lockstep_grading::exercise::Checks;
use lockstep_process::find_program;

use crate::check_learning::{learns, loss_falls, loss_is_near};
use crate::check_same::{same_training, same_training_as, same_weights, same_weights_as};
use crate::check_values::{collectives_hold, each_sample_once, messages_arrive};
use crate::checkout::program_beside;
use crate::evidence::{Evidence, Plan, Results};
use crate::exit::{Code, Refused};
use crate::job_runner::Observed;
use crate::launch::Launcher;
use crate::report::{Finding, Report, ReportCase, Screen, Verdict, counts, findings_table, overall};
use crate::scenario::{Expect, Scenario};
use crate::suite::{ScenarioOutcome, SeriesOptions, SuiteRunner, case, finish, job_runner};
use crate::verify_labs::VerifiedLab;
use crate::{expectations, library};

/// Run the labs and check what each promises
#[derive(Args)]
pub struct VerifyOptions {
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
    /// `why_no_slurm` says in words why there can be no cluster with Slurm on this machine.
    pub fn exec(self, why_no_slurm: fn() -> Option<String>) -> anyhow::Result<Code> {
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
        let mut series = VerifySeries {
            suite,
            launcher,
            ranks: usize::from(self.nprocs),
            screen: Screen::new(self.series.takes_stdout()),
            why_no_slurm,
        };
        let cases = programs.into_iter().map(|(program, lab)| series.verify(&lab, program));
        let cases = cases.collect::<anyhow::Result<Vec<_>>>()?;
        let VerifySeries { suite, screen, .. } = series;
        let report = Report::here("Lockstep verify", started, begin.elapsed(), cases);
        let verdicts: Vec<_> = report.cases.iter().map(ReportCase::verdict).collect();
        screen.line(format!("labs: {} in {:.1} s", counts(&verdicts), report.took.as_secs_f64()));
        finish(&screen, suite, &report, &self.series.reports)
    }
}

/// Samples in a batch of one rank, if there are several.
pub(crate) const BATCH: usize = 32;
/// Ranks of the runs with threads: more than two, so that a ring is a real one.
const THREADS: usize = 4;

/// Labs that are verified one after the other.
pub(crate) struct VerifySeries {
    pub(crate) suite: SuiteRunner,
    pub(crate) launcher: Launcher,
    pub(crate) ranks: usize,
    pub(crate) screen: Screen,
    why_no_slurm: fn() -> Option<String>,
}

impl VerifySeries {
    pub(crate) fn verify(&mut self, lab: &VerifiedLab, program: anyhow::Result<PathBuf>) -> anyhow::Result<ReportCase> {
        let begin = Instant::now();
        let mut made = match program {
            Ok(program) => self.prove(lab, program)?,
            Err(error) => ReportCase { findings: vec![missing(&error)], ..ReportCase::default() },
        };
        made.name = lab.name().into();
        made.shows = lab.verify.shows.clone();
        made.took = begin.elapsed();
        made.replay = Some(format!("lockstep verify {}", lab.name()));
        self.tell(&made);
        Ok(made)
    }

    fn prove(&mut self, lab: &VerifiedLab, program: PathBuf) -> anyhow::Result<ReportCase> {
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

    fn prove_one_device(&mut self, lab: &VerifiedLab, program: PathBuf) -> anyhow::Result<ReportCase> {
        let (run, mut made) = self.run_lab(lab, lab.plan(1, BATCH), program)?;
        made.findings.extend([each_sample_once(&[("its run", &run)]), loss_falls(&run)]);
        Ok(made)
    }

    /// Several ranks against one that takes the same number of samples per step; and a run that is killed, if the lab survives
    /// that.
    fn prove_training(&mut self, lab: &VerifiedLab, program: PathBuf) -> anyhow::Result<ReportCase> {
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
    ) -> anyhow::Result<ReportCase> {
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
        let mut made = cases.reduce(|one, other| ReportCase { findings: merged(one.findings, other.findings), ..one });
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
    ) -> anyhow::Result<(Evidence, ReportCase)> {
        let (outcome, made) = self.run_scenario(lab.scenario(&plan, program), &lab.launcher(&self.launcher))?;
        Ok((evidence(plan, outcome), made))
    }

    pub(crate) fn run_scenario(
        &mut self,
        scenario: Scenario,
        launcher: &Launcher,
    ) -> anyhow::Result<(ScenarioOutcome, ReportCase)> {
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
    fn kill_and_resume(&mut self, scenario: &str, program: PathBuf, made: &mut ReportCase) -> anyhow::Result<()> {
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

    fn tell(&self, made: &ReportCase) {
        let (symbol, seconds) = (made.verdict().symbol(), made.took.as_secs_f64());
        self.screen.line(format!("\n{symbol} {}: {} ({seconds:.1} s)", escaped(&made.name), escaped(&made.shows)));
        self.screen.line(findings_table(&made.findings, self.screen.style()));
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

impl VerifySeries {
    /// Several ranks against one, one pass against several, whole gradients against compressed ones.
    pub(crate) fn prove_scaling(&mut self, lab: &VerifiedLab, program: PathBuf) -> anyhow::Result<ReportCase> {
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

/// Ranks of all runs: only then are the sums of their gradients the same.
const RANKS: usize = 4;
/// Two nodes by hand.
const BY_HAND: [(&str, &[usize]); 2] =
    [("Two nodes of 2 ranks", &[2, 2]), ("Unequal nodes, of 1 and 3 ranks", &[1, 3])];
/// Runs that others start.
const BY_OTHERS: [ByOthers; 3] = [
    ByOthers {
        title: "4 ranks of mpirun, without a launcher",
        needs_slurm: false,
        needs_mpirun: true,
        script: r#"exec mpirun --allow-run-as-root --oversubscribe -np 4 "$@""#,
    },
    ByOthers {
        title: "Three nodes under Slurm, of 1, 1 and 2 ranks",
        needs_slurm: true,
        needs_mpirun: false,
        script: r#"srun --nodes=3 --ntasks-per-node=1 sh -c \
  'exec "$0" run --nproc-per-node=$((SLURM_NODEID == 2 ? 2 : 1)) "$@"' "$lockstep" "$@""#,
    },
    ByOthers {
        title: "Two nodes of 2 ranks of mpirun under Slurm, without a launcher",
        needs_slurm: true,
        needs_mpirun: true,
        script: r#"salloc --quiet --nodes=2 --ntasks-per-node=2 mpirun --allow-run-as-root "$@""#,
    },
];
const SAME_AS_ONE_NODE: &str = "the weights are bit for bit those of one node";

impl VerifySeries {
    /// One node against several, by hand and under Slurm, with a launcher and without.
    pub(crate) fn prove_nodes(&mut self, lab: &VerifiedLab, program: PathBuf) -> anyhow::Result<ReportCase> {
        let (one, mut made) = self.run_lab(lab, lab.plan(RANKS, BATCH), program.clone())?;
        made.findings.extend([same_weights(&one), each_sample_once(&[("one node", &one)]), loss_falls(&one)]);
        for (title, workers) in BY_HAND {
            let mut scenario = self.scenario_of(lab, title, &program);
            (scenario.run.nodes, scenario.run.workers) = (workers.len(), workers.to_vec());
            let launcher = lab.launcher(&self.launcher);
            self.compare(lab, title, scenario, &launcher, &one, &mut made)?;
        }
        for way in BY_OTHERS {
            match way.missing(self.why_no_slurm) {
                Some(why) => made.findings.push(way.not_here(why)),
                None => self.by_others(lab, &way, &program, &one, &mut made)?,
            }
        }
        Ok(made)
    }

    fn scenario_of(&self, lab: &VerifiedLab, title: &str, program: &Path) -> Scenario {
        Scenario { title: title.into(), ..lab.scenario(&lab.plan(RANKS, BATCH), program.to_owned()) }
    }

    /// Runs the scenario and compares its weights with those of one node.
    fn compare(
        &mut self,
        lab: &VerifiedLab,
        title: &str,
        scenario: Scenario,
        launcher: &Launcher,
        one: &Evidence,
        made: &mut ReportCase,
    ) -> anyhow::Result<()> {
        let (outcome, case) = self.run_scenario(scenario, launcher)?;
        let failed = case.findings.into_iter().filter(|finding| finding.verdict == Verdict::Failed);
        made.findings.extend(failed);
        let several = evidence(lab.plan(RANKS, BATCH), outcome);
        made.findings.push(same_weights_as(&format!("{title}: {SAME_AS_ONE_NODE}"), one, &several));
        Ok(())
    }

    fn by_others(
        &mut self,
        lab: &VerifiedLab,
        way: &ByOthers,
        program: &Path,
        one: &Evidence,
        made: &mut ReportCase,
    ) -> anyhow::Result<()> {
        let mut scenario = self.scenario_of(lab, way.title, Path::new("sh"));
        let own = std::env::current_exe().context("cannot find this program")?;
        let words = [&own, program].map(|path| path.to_string_lossy().into_owned());
        let script = way.script();
        let script = ["-c", &script, "sh", "{folder}"].map(str::to_owned).into_iter().chain(words);
        scenario.run.args = script.chain(scenario.run.args).collect();
        self.compare(lab, way.title, scenario, &Launcher::Direct, one, made)
    }
}

/// A run that another program starts.
struct ByOthers {
    title: &'static str,
    needs_slurm: bool,
    needs_mpirun: bool,
    /// Lines of shell. `"$@"` are the program and its arguments, `$lockstep` is this command.
    script: &'static str,
}

impl ByOthers {
    /// What this machine lacks, in words.
    fn missing(&self, why_no_slurm: fn() -> Option<String>) -> Option<String> {
        let path = std::env::var_os("PATH");
        let no_mpirun = || find_program(OsStr::new("mpirun"), path.as_deref()).is_err();
        let slurm = if self.needs_slurm { why_no_slurm() } else { None };
        slurm.or_else(|| (self.needs_mpirun && no_mpirun()).then(|| "mpirun is not installed".to_owned()))
    }

    fn not_here(&self, why: String) -> Finding {
        Finding { claim: format!("{}: {SAME_AS_ONE_NODE}", self.title), verdict: Verdict::NotVerified, evidence: why }
    }

    /// The lines of shell, in a cluster that sees the run's folder where they need one.
    fn script(&self) -> String {
        let script = self.script;
        if !self.needs_slurm {
            return format!("lockstep=$2; shift 2\n{script}");
        }
        format!(
            r#"folder=$1 lockstep=$2; shift 2
"$lockstep" cluster up --nodes=3 --share "$folder" || exit 1
"$lockstep" cluster exec ctl -- {script}
code=$?
"$lockstep" cluster down && exit $code"#
        )
    }
}
