//! The runs that verify a lab: those that its `lab.toml` describes, with numbers.

use std::path::PathBuf;

use lockstep_grading::Lab;
use lockstep_grading::exercise::{Checks, Verify};
use lockstep_grading::labs::{self, LABS};

use crate::evidence::{Plan, Sizes};
use crate::exit::Refused;
use crate::launch::Launcher;
use crate::scenario::{Expect, RunSpec, Scenario};

#[derive(Clone, Debug)]
pub(crate) struct VerifiedLab {
    lab: Lab,
    /// The entries of its `lab.toml`.
    pub(crate) verify: Verify,
}

impl VerifiedLab {
    /// The labs of these names; without names, all labs that promise something.
    pub(crate) fn find_all(names: &[String]) -> anyhow::Result<Vec<Self>> {
        let mut labs: Vec<Lab> = LABS.to_vec();
        if !names.is_empty() {
            let named: Result<_, _> = names.iter().map(|name| labs::find(name)).collect();
            labs = named.map_err(|error| Refused(error.to_string()))?;
        }
        let mut found = Vec::new();
        for lab in labs {
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
        let Verify { epochs, samples, held_out, checks, .. } = self.verify;
        let sizes = match held_out {
            Some(test) => Sizes { train: samples, test },
            // On a single device nothing is held out.
            None if checks == Checks::OneDevice => Sizes { train: samples, test: 0 },
            None => Sizes::drawn(samples),
        };
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
            killed_by.iter().for_each(|scenario| drop(crate::library::scenario(scenario).unwrap()));
        }
    }
}
