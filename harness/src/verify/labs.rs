//! The labs and how a run of each is asked for.

use std::path::PathBuf;

use crate::exit::Refused;
use crate::run::{Plan, Sizes};
use crate::runner::Launcher;
use crate::runner::scenario::{Expect, RunSpec, Scenario};

/// Samples that the tutorials' made-up data set has (lab 01 draws as many).
const TOY_SAMPLES: u64 = 2048;

/// A lab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lab {
    SingleGpu,
    SpawnDdp,
    TorchrunEnv,
    PointToPoint,
    Collectives,
    SnapshotResume,
    CifarResnet,
    ImageFolder,
}

impl Lab {
    /// All that there are, in the course's order.
    pub(super) const ALL: [Lab; 8] = [
        Lab::SingleGpu,
        Lab::SpawnDdp,
        Lab::TorchrunEnv,
        Lab::PointToPoint,
        Lab::Collectives,
        Lab::SnapshotResume,
        Lab::CifarResnet,
        Lab::ImageFolder,
    ];

    /// The name of its folder and, after `lab-`, of its program.
    pub(super) fn name(self) -> &'static str {
        match self {
            Lab::SingleGpu => "01-single-gpu",
            Lab::SpawnDdp => "02-spawn-ddp",
            Lab::TorchrunEnv => "03-torchrun-env",
            Lab::PointToPoint => "04-point-to-point",
            Lab::Collectives => "05-collectives",
            Lab::SnapshotResume => "06-snapshot-resume",
            Lab::CifarResnet => "07-cifar-resnet",
            Lab::ImageFolder => "08-image-folder",
        }
    }

    /// What it promises, in a few words.
    pub(super) fn shows(self) -> &'static str {
        match self {
            Lab::SingleGpu => "A trainer on one device goes through its samples and learns from them",
            Lab::SpawnDdp => "Processes of one program train as one would",
            Lab::TorchrunEnv => "Processes that a launcher starts train as one would",
            Lab::PointToPoint => "Messages between two ranks and around a ring bring what was sent",
            Lab::Collectives => "Each collective leaves on each rank what it promises, by hand as by the engine",
            Lab::SnapshotResume => "Training that is killed goes on from its snapshot, to the same bits",
            Lab::CifarResnet => {
                "A ResNet with batch normalisation over all ranks trains as on one, and survives a kill"
            }
            Lab::ImageFolder => "The best model on a folder of photographs is the same whatever was killed",
        }
    }

    pub(super) fn program(self) -> String {
        format!("lab-{}", self.name())
    }

    /// By its number, its name or its program's.
    pub(super) fn find(text: &str) -> Result<Lab, Refused> {
        let short = text.trim_start_matches("lab-");
        let found = Lab::ALL.into_iter().find(|lab| lab.name() == short || lab.name().split('-').next() == Some(short));
        found.ok_or_else(|| {
            let all: Vec<_> = Lab::ALL.iter().map(|lab| lab.name()).collect();
            Refused(format!("there is no lab {text:?} to verify: there are {}", all.join(", ")))
        })
    }

    /// Whether it trains on several ranks.
    pub(super) fn is_distributed(self) -> bool {
        self != Lab::SingleGpu
    }

    /// Who starts its ranks.
    pub(super) fn launcher(self, usual: &Launcher) -> Launcher {
        match self {
            Lab::SingleGpu | Lab::SpawnDdp => Launcher::Nobody,
            _ => usual.clone(),
        }
    }

    /// The scenario of the library that kills it, if it survives that.
    pub(super) fn killed_by(self) -> Option<&'static str> {
        match self {
            Lab::SnapshotResume => Some("kill-one-worker"),
            Lab::CifarResnet => Some("resnet-killed-in-an-epoch"),
            Lab::ImageFolder => Some("killed-after-the-best-model"),
            _ => None,
        }
    }

    /// A run of so many ranks with batches of this size.
    pub(super) fn plan(self, ranks: usize, batch: usize) -> Plan {
        match self {
            Lab::SingleGpu => Plan { ranks, batch, epochs: 5, seed: 0, sizes: Sizes { train: TOY_SAMPLES, test: 0 } },
            // Networks of the size that photographs take, on few of them.
            Lab::CifarResnet => Plan { ranks, batch, epochs: 2, seed: 0, sizes: Sizes::drawn(512) },
            Lab::ImageFolder => Plan { ranks, batch, epochs: 2, seed: 0, sizes: Sizes::drawn(512) },
            _ => Plan { ranks, batch, epochs: 3, seed: 0, sizes: Sizes::drawn(1024) },
        }
    }

    /// The run of `plan` as a scenario in which nothing happens.
    pub(super) fn scenario(self, plan: &Plan, program: PathBuf) -> Scenario {
        let run = RunSpec {
            program: Some(program),
            ranks: plan.ranks,
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
            shows: self.shows().into(),
            run,
            expect: Expect { same_weights: Some(false), ..Expect::default() },
            faults: Vec::new(),
        }
    }

    fn arguments(self, plan: &Plan) -> Vec<String> {
        let text = |text: &str| text.to_owned();
        let words = |text: &'static str| text.split(' ').map(str::to_owned);
        let common = || {
            let pairs = [
                ("--epochs", plan.epochs.to_string()),
                ("--batch-size", plan.batch.to_string()),
                ("--samples", plan.sizes.train.to_string()),
                ("--seed", plan.seed.to_string()),
                ("--weights", text("{weights}")),
            ];
            pairs.into_iter().flat_map(|(name, value)| [text(name), value])
        };
        match self {
            Lab::SingleGpu => {
                let checkpoint = text("{weights}/rank-0.safetensors");
                vec![
                    plan.epochs.to_string(),
                    text("2"),
                    text("--batch-size"),
                    plan.batch.to_string(),
                    text("--checkpoint"),
                    checkpoint,
                ]
            }
            Lab::SpawnDdp => common().chain([text("--nprocs"), plan.ranks.to_string()]).collect(),
            Lab::TorchrunEnv => common().collect(),
            // What is checked are the messages, not what they cost.
            Lab::PointToPoint => words("--results {results} --patience 0.3 --max-bytes 16384").collect(),
            Lab::Collectives => words("--results {results} --max-bytes 16384 --repeats 2").collect(),
            Lab::SnapshotResume => common().chain(words("--snapshots {snapshots}")).collect(),
            // Batch normalisation over all ranks is what makes several ranks train as one. The rates are so small that training does
            // not amplify rounding: with 0.005 and 0.001 whether the limits hold depends on the processor's instructions.
            Lab::CifarResnet => {
                let own = "--snapshots {snapshots} --width 8 --sync-batch-norm --lr 0.0003";
                common().chain(words(own)).collect()
            }
            Lab::ImageFolder => {
                let own = "--snapshots {snapshots} --width 8 --sync-batch-norm --image-size 32 --lr 0.0001";
                common().chain(words(own)).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_lab_by_its_number_its_name_and_its_program() {
        for text in ["02", "02-spawn-ddp", "lab-02-spawn-ddp"] {
            assert_eq!(Lab::find(text).unwrap(), Lab::SpawnDdp);
        }
        let told = Lab::find("2").unwrap_err().to_string();
        assert!(told.contains("there is no lab \"2\"") && told.contains("02-spawn-ddp"), "{told}");
    }

    #[test]
    fn asks_each_lab_in_its_own_words() {
        let words = |lab: Lab| lab.scenario(&lab.plan(2, 32), "x".into()).run.args.join(" ");
        assert_eq!(words(Lab::SingleGpu), "5 2 --batch-size 32 --checkpoint {weights}/rank-0.safetensors");
        assert!(words(Lab::SpawnDdp).ends_with("--weights {weights} --nprocs 2"));
        assert!(words(Lab::SnapshotResume).ends_with("--snapshots {snapshots}"));
        assert!(!words(Lab::TorchrunEnv).contains("nprocs"));
    }
}
