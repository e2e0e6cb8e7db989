//! The lab of scaling: what may change the speed of a step changes its result by rounding only, or within a stated bound.

use std::path::{Path, PathBuf};

use super::labs::VerifiedLab;
use super::series::{BATCH, Series, evidence, merged};
use crate::checks::{each_sample_once, loss_falls, loss_is_near, same_training, same_training_as, same_weights};
use crate::lab_run::Evidence;
use crate::report::{Case, Finding};

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
    pub(super) fn prove_scaling(&mut self, lab: &VerifiedLab, program: PathBuf) -> anyhow::Result<Case> {
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
