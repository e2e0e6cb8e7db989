//! The lab of many nodes: the same ranks on one node, on several, and started by others than this launcher, end with the same bits.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::{BATCH, Series, VerifiedLab, evidence};
use crate::checks::{each_sample_once, loss_falls, same_weights, same_weights_as};
use crate::lab_run::Evidence;
use crate::report::{Case, Finding, Verdict};
use crate::runner::Launcher;
use crate::runner::scenario::Scenario;

/// Ranks of all runs: only then are the sums of their gradients the same.
const RANKS: usize = 4;
/// Two nodes by hand.
const BY_HAND: [(&str, &[usize]); 2] =
    [("Two nodes of 2 ranks", &[2, 2]), ("Unequal nodes, of 1 and 3 ranks", &[1, 3])];
const SLURM: &str = "Three nodes under Slurm, of 1, 1 and 2 ranks";
const SAME: &str = "the weights are bit for bit those of one node";

impl Series {
    /// One node against several, by hand and under Slurm.
    pub(super) fn prove_nodes(&mut self, lab: &VerifiedLab, program: PathBuf) -> anyhow::Result<Case> {
        let (one, mut made) = self.run_lab(lab, lab.plan(RANKS, BATCH), program.clone())?;
        made.findings.extend([same_weights(&one), each_sample_once(&[("one node", &one)]), loss_falls(&one)]);
        for (title, workers) in BY_HAND {
            let mut scenario = self.scenario_of(lab, title, &program);
            (scenario.run.nodes, scenario.run.workers) = (workers.len(), workers.to_vec());
            let launcher = lab.launcher(&self.launcher);
            self.compare(lab, title, scenario, &launcher, &one, &mut made)?;
        }
        self.under_slurm(lab, &program, &one, &mut made)?;
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
        made: &mut Case,
    ) -> anyhow::Result<()> {
        let (outcome, case) = self.run_scenario(scenario, launcher)?;
        let failed = case.findings.into_iter().filter(|finding| finding.verdict == Verdict::Failed);
        made.findings.extend(failed);
        let several = evidence(lab.plan(RANKS, BATCH), outcome);
        made.findings.push(same_weights_as(&format!("{title}: {SAME}"), one, &several));
        Ok(())
    }

    fn under_slurm(
        &mut self,
        lab: &VerifiedLab,
        program: &Path,
        one: &Evidence,
        made: &mut Case,
    ) -> anyhow::Result<()> {
        if let Some(why) = crate::cluster::why_no_slurm() {
            let (claim, verdict) = (format!("{SLURM}: {SAME}"), Verdict::NotVerified);
            made.findings.push(Finding { claim, verdict, evidence: why });
            return Ok(());
        }
        let mut scenario = self.scenario_of(lab, SLURM, Path::new("sh"));
        let own = std::env::current_exe().context("cannot find this program")?;
        let words = [&own, program].map(|path| path.to_string_lossy().into_owned());
        let script = ["-c", IN_A_CLUSTER, "sh", "{folder}"].map(str::to_owned).into_iter().chain(words);
        scenario.run.args = script.chain(scenario.run.args).collect();
        self.compare(lab, SLURM, scenario, &Launcher::Direct, one, made)
    }
}

/// Starts a cluster that sees the run's folder, runs the job in it, and ends it.
const IN_A_CLUSTER: &str = r#"folder=$1 lockstep=$2; shift 2
"$lockstep" cluster up --nodes=3 --share "$folder" || exit 1
"$lockstep" cluster exec ctl -- srun --nodes=3 --ntasks-per-node=1 sh -c \
  'exec "$0" run --nproc-per-node=$((SLURM_NODEID == 2 ? 2 : 1)) "$@"' "$lockstep" "$@"
code=$?
"$lockstep" cluster down && exit $code"#;
