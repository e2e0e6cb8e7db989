//! The runs that verify a lab: those that its `lab.toml` describes, with numbers; and those of the lab of many nodes, where the same ranks
//! on one node, on several, and started by other launchers must end with the same bits.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::Context;
use lockstep_grading::Lab;
use lockstep_grading::exercise::{Checks, Verify};
use lockstep_process::find_program;

use crate::exit::Refused;
use crate::labs::find_all;
use crate::prove::check_learning::loss_falls;
use crate::prove::check_same::{same_weights, same_weights_as};
use crate::prove::check_values::each_sample_once;
use crate::prove::evidence::{Evidence, Plan, Sizes};
use crate::prove::launch::Launcher;
use crate::prove::scenario::{Expect, RunSpec, Scenario};
use crate::prove::verify::{BATCH, Series, evidence};
use crate::report::{Case, Finding, Verdict};

/// A lab that is verified.
#[derive(Clone, Debug)]
pub(crate) struct VerifiedLab {
    lab: Lab,
    /// The entries of its `lab.toml`.
    pub(crate) verify: Verify,
}

impl VerifiedLab {
    /// The labs of these names; without names, all labs that promise something.
    ///
    /// # Errors
    /// [`Refused`] for an unknown name, and for a lab that promises nothing; an invalid `lab.toml`.
    pub(crate) fn find_all(names: &[String]) -> anyhow::Result<Vec<Self>> {
        let mut found = Vec::new();
        for lab in find_all(names)? {
            match lab.verify()? {
                Some(verify) => found.push(VerifiedLab { lab, verify }),
                None if names.is_empty() => {}
                None => {
                    let why =
                        format!("labs/{}/lab.toml has no [verify]: it promises nothing that is checked", lab.name);
                    return Err(Refused(why).into());
                }
            }
        }
        Ok(found)
    }

    /// The name of its folder.
    pub(crate) fn name(&self) -> &'static str {
        self.lab.name
    }

    pub(crate) fn program(&self) -> String {
        format!("lab-{}", self.name())
    }

    /// How its ranks are started.
    pub(crate) fn launcher(&self, usual: &Launcher) -> Launcher {
        if self.verify.starts_itself { Launcher::Direct } else { usual.clone() }
    }

    /// A run of this many ranks with batches of this size.
    pub(crate) fn plan(&self, ranks: usize, batch: usize) -> Plan {
        let Verify { epochs, samples, checks, .. } = self.verify;
        // On a single device nothing is held out.
        let sizes = if checks == Checks::OneDevice { Sizes { train: samples, test: 0 } } else { Sizes::drawn(samples) };
        Plan { ranks, batch, epochs, seed: 0, sizes }
    }

    /// The run of `plan` as a scenario without faults.
    pub(crate) fn scenario(&self, plan: &Plan, program: PathBuf) -> Scenario {
        let run = RunSpec {
            program: Some(program),
            ranks: plan.ranks,
            sockets: self.verify.checks == Checks::Nodes,
            epochs: plan.epochs,
            batch_size: plan.batch,
            samples: plan.sizes.train,
            args: self.arguments(plan),
            timeout_seconds: 600.0,
            max_restarts: 0,
            ..RunSpec::default()
        };
        Scenario {
            name: format!("{}-{}-rank", self.name(), plan.ranks),
            title: plan.to_string(),
            shows: self.verify.shows.clone(),
            run,
            expect: Expect { same_weights: Some(false), ..Expect::default() },
            faults: Vec::new(),
        }
    }

    /// The program's arguments; placeholders for folders are filled in at the start.
    fn arguments(&self, plan: &Plan) -> Vec<String> {
        let numbers = [
            ("{ranks}", plan.ranks as u64),
            ("{epochs}", plan.epochs),
            ("{batch}", plan.batch as u64),
            ("{samples}", plan.sizes.train),
            ("{seed}", plan.seed),
        ];
        let fill =
            |word: &str| numbers.iter().fold(word.to_owned(), |word, (name, n)| word.replace(name, &n.to_string()));
        self.verify.args.split_whitespace().map(fill).collect()
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
const SAME: &str = "the weights are bit for bit those of one node";

impl Series {
    /// One node against several, by hand and under Slurm, with a launcher and without.
    pub(crate) fn prove_nodes(&mut self, lab: &VerifiedLab, program: PathBuf) -> anyhow::Result<Case> {
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
        let slurm = if self.needs_slurm { crate::site::cluster::why_no_slurm() } else { None };
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

#[cfg(test)]
mod tests {
    use super::*;

    fn words(lab: &str) -> String {
        let [lab] = &VerifiedLab::find_all(&[lab.into()]).unwrap()[..] else { panic!("one lab") };
        lab.scenario(&lab.plan(2, 32), "x".into()).run.args.join(" ")
    }

    #[test]
    fn uses_each_labs_own_arguments() {
        assert_eq!(words("01"), "5 2 --batch-size 32 --checkpoint {weights}/rank-0.safetensors");
        let common = "--epochs 3 --batch-size 32 --samples 1024 --seed 0 --weights {weights}";
        assert_eq!(words("02"), format!("{common} --nprocs 2"));
        assert_eq!(words("03"), common);
        assert_eq!(words("06"), format!("{common} --snapshots {{snapshots}}"));
        assert!(words("04").starts_with("--results {results}"));
    }

    #[test]
    fn fills_in_all_numbers_of_every_lab() {
        for lab in lockstep_grading::labs::LABS {
            let left = words(lab.name).replace("{weights}", "").replace("{snapshots}", "").replace("{results}", "");
            assert!(!left.contains(['{', '}']), "{}: {left}", lab.name);
        }
    }

    #[test]
    fn kills_labs_with_existing_scenarios() {
        for lab in lockstep_grading::labs::LABS {
            let killed_by = lab.verify().unwrap().and_then(|verify| verify.killed_by);
            killed_by.iter().for_each(|scenario| drop(crate::prove::library::scenario(scenario).unwrap()));
        }
    }
}
