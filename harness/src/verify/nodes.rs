//! The lab of many nodes: the same ranks on one node, on several, and started by others than this launcher, end with the same bits.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use lockstep_process::find_program;

use super::labs::VerifiedLab;
use super::series::{BATCH, Series, evidence};
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
const SAME: &str = "the weights are bit for bit those of one node";

impl Series {
    /// One node against several, by hand and under Slurm, with a launcher and without.
    pub(super) fn prove_nodes(&mut self, lab: &VerifiedLab, program: PathBuf) -> anyhow::Result<Case> {
        let (one, mut made) = self.run_lab(lab, lab.plan(RANKS, BATCH), program.clone())?;
        made.findings.extend([same_weights(&one), each_sample_once(&[("one node", &one)]), loss_falls(&one)]);
        for (title, workers) in BY_HAND {
            let mut scenario = self.scenario_of(lab, title, &program);
            (scenario.run.nodes, scenario.run.workers) = (workers.len(), workers.to_vec());
            let launcher = lab.launcher(&self.launcher);
            self.compare(lab, title, scenario, &launcher, &one, &mut made)?;
        }
        for way in BY_OTHERS {
            match way.missing() {
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
        made: &mut Case,
    ) -> anyhow::Result<()> {
        let (outcome, case) = self.run_scenario(scenario, launcher)?;
        let failed = case.findings.into_iter().filter(|finding| finding.verdict == Verdict::Failed);
        made.findings.extend(failed);
        let several = evidence(lab.plan(RANKS, BATCH), outcome);
        made.findings.push(same_weights_as(&format!("{title}: {SAME}"), one, &several));
        Ok(())
    }

    fn by_others(
        &mut self,
        lab: &VerifiedLab,
        way: &ByOthers,
        program: &Path,
        one: &Evidence,
        made: &mut Case,
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
    fn missing(&self) -> Option<String> {
        let path = std::env::var_os("PATH");
        let no_mpirun = || find_program(OsStr::new("mpirun"), path.as_deref()).is_err();
        let slurm = if self.needs_slurm { crate::cluster::why_no_slurm() } else { None };
        slurm.or_else(|| (self.needs_mpirun && no_mpirun()).then(|| "mpirun is not installed".to_owned()))
    }

    fn not_here(&self, why: String) -> Finding {
        Finding { claim: format!("{}: {SAME}", self.title), verdict: Verdict::NotVerified, evidence: why }
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
