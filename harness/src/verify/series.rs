//! Runs labs one after the other, and checks each.

use std::path::PathBuf;
use std::time::Instant;

use lockstep_contract::foreign::escaped;
use lockstep_grading::exercise::Checks;

use super::labs::VerifiedLab;
use crate::checks::{
    collectives_hold, each_sample_once, learns, loss_falls, messages_arrive, same_training, same_weights,
};
use crate::lab_run::{Evidence, Plan, Results};
use crate::report::{Case, Finding, Screen, Verdict, findings_table, overall};
use crate::runner::scenario::{Expect, Scenario};
use crate::runner::{Launcher, Observed, ScenarioOutcome, SuiteRunner, case, expectations, library};

/// Samples in a batch of one rank, if there are several.
pub(super) const BATCH: usize = 32;
/// Ranks of the runs with threads: more than two, so that a ring is a real one.
const THREADS: usize = 4;

/// Labs that are verified one after the other.
pub(super) struct Series {
    pub(super) suite: SuiteRunner,
    pub(super) launcher: Launcher,
    pub(super) ranks: usize,
    pub(super) screen: Screen,
}

impl Series {
    pub(super) fn verify(&mut self, lab: &VerifiedLab, program: anyhow::Result<PathBuf>) -> anyhow::Result<Case> {
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
    pub(super) fn run_lab(
        &mut self,
        lab: &VerifiedLab,
        plan: Plan,
        program: PathBuf,
    ) -> anyhow::Result<(Evidence, Case)> {
        let (outcome, made) = self.run_scenario(lab.scenario(&plan, program), &lab.launcher(&self.launcher))?;
        Ok((evidence(plan, outcome), made))
    }

    pub(super) fn run_scenario(
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
pub(super) fn merged(one: Vec<Finding>, other: Vec<Finding>) -> Vec<Finding> {
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

pub(super) fn evidence(plan: Plan, outcome: ScenarioOutcome) -> Evidence {
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
