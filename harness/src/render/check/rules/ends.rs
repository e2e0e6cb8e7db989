//! How a job ends: time limits, signals, requeue, and what is left.

use super::super::script::{Command, Scheduler, Script};
use super::launchers::each;
use super::{Rule, hit};
use crate::report::Level::{Error, Warning};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "signal-without-trap",
        level: Error,
        why: "bash ends at a signal that it has no trap for, and the job with it, before the time limit and without a snapshot",
        wrong: "#!/bin/bash\n#SBATCH --time=1:00:00 --signal=B:USR1@120 --requeue\nset -e\nsrun ./train --resume\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00 --signal=B:USR1@120 --requeue\nset -e\ntrap 'scancel --signal=TERM \"$SLURM_JOB_ID\"' USR1\nsrun ./train --resume &\nwait\n",
        find: |script| {
            let signal = signal(script).filter(|(_, value)| value.contains("B:"));
            let missing = signal.filter(|(_, value)| !has_trap(script, value));
            missing
                .map(|(line, value)| {
                    hit(
                        line,
                        format!("--signal={value}, but no trap"),
                        "trap 'scancel --signal=TERM \"$SLURM_JOB_ID\"' USR1",
                    )
                })
                .into_iter()
                .collect()
        },
    },
    Rule {
        name: "signal-does-not-reach-the-trap",
        level: Error,
        why: "without B: Slurm sends the signal to the steps, not to the batch script, where the trap is",
        wrong: "#!/bin/bash\n#SBATCH --time=1:00:00 --signal=USR1@120 --requeue\nset -e\ntrap 'scontrol requeue \"$SLURM_JOB_ID\"' USR1\nsrun ./train --resume &\nwait\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00 --signal=B:USR1@120 --requeue\nset -e\ntrap 'scontrol requeue \"$SLURM_JOB_ID\"' USR1\nsrun ./train --resume &\nwait\n",
        find: |script| {
            let signal = signal(script)
                .filter(|(_, value)| !value.contains("B:") && !value.contains("B,") && has_trap(script, value));
            signal
                .map(|(line, value)| {
                    hit(
                        line,
                        format!("--signal={value} goes to the steps, and the trap is in the batch script"),
                        format!("#SBATCH --signal=B:{value}"),
                    )
                })
                .into_iter()
                .collect()
        },
    },
    Rule {
        name: "trap-waits-for-the-step",
        level: Error,
        why: "bash runs a trap only when the program in the foreground has ended: here, when the time is up",
        wrong: "#!/bin/bash\n#SBATCH --time=1:00:00 --signal=B:USR1@120 --requeue\nset -e\ntrap 'scontrol requeue \"$SLURM_JOB_ID\"' USR1\nsrun ./train --resume\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00 --signal=B:USR1@120 --requeue\nset -e\ntrap 'scontrol requeue \"$SLURM_JOB_ID\"' USR1\nsrun ./train --resume &\nwait\n",
        find: |script| {
            let Some((_, value)) = signal(script).filter(|(_, value)| value.contains("B:") && has_trap(script, value))
            else {
                return vec![];
            };
            let last = script.commands.iter().rfind(|command| ["srun", "mpirun"].contains(&command.program()));
            let found = last.filter(|command| !command.background);
            found
                .map(|command| {
                    hit(
                        command.line,
                        format!("the trap for {value} has to wait for {}", command.program()),
                        format!("{} … & wait", command.program()),
                    )
                })
                .into_iter()
                .collect()
        },
    },
    Rule {
        name: "no-requeue",
        level: Warning,
        why: "after a lost node the job does not run again by itself, although it could go on from its snapshots",
        wrong: "#!/bin/bash\n#SBATCH --time=1:00:00\nset -e\nsrun ./train --snapshots /scratch/run\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00 --requeue\nset -e\nsrun ./train --snapshots /scratch/run\n",
        find: |script| {
            let said = ["requeue", "no-requeue"].iter().any(|name| script.slurm(name, '\0').is_some());
            let found = script.commands.iter().find(|command| goes_on(command) && !command.substituted);
            found
                .filter(|_| script.scheduler() == Some(Scheduler::Slurm) && !said)
                .map(|command| hit(command.line, "it has snapshots, but is not requeued", "#SBATCH --requeue"))
                .into_iter()
                .collect()
        },
    },
    Rule {
        name: "no-resume",
        level: Warning,
        why: "the job is queued again after a failure, and then begins from nothing",
        wrong: "#!/bin/bash\n#SBATCH --time=1:00:00 --requeue\nset -e\nsrun lockstep run --nproc-per-node=1 train --epochs 90\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00 --requeue\nset -e\nsrun lockstep run --nproc-per-node=1 train --epochs 90 --snapshots /scratch/run\n",
        find: |script| {
            // PBS asks it of an array.
            let says = |text: &str| script.live(Scheduler::Pbs).any(|directive| directive.text.starts_with(text));
            let requeued = script.slurm("requeue", '\0').is_some() || says("-r y") && !says("-J");
            let resumes = script.commands.iter().any(goes_on);
            each(
                script,
                |_| requeued && !resumes,
                |_| {
                    (
                        "nothing tells the program to go on from a snapshot".into(),
                        "--snapshots DIR, --resume or what the program has for it".into(),
                    )
                },
            )
        },
    },
    Rule {
        name: "output-on-the-nodes-own-disk",
        level: Warning,
        why: "/tmp is each node's own: other nodes do not see the files, and they are deleted when the job ends",
        wrong: "#!/bin/bash\n#SBATCH --time=1:00:00 --requeue\nset -e\nsrun ./train --snapshots /tmp/run\n",
        right: "#!/bin/bash\n#SBATCH --time=1:00:00 --requeue\nset -e\nsrun ./train --out /tmp/run\ncp -r /tmp/run /scratch/\n",
        find: |script| {
            let copied = |path: &str| {
                script.commands.iter().any(|command| {
                    ["cp", "rsync", "mv", "tar"].contains(&command.program())
                        && command.texts().any(|word| word.starts_with(path))
                })
            };
            let mut hits = Vec::new();
            for command in script.commands.iter().filter(|_| script.scheduler().is_some()) {
                for name in OUTPUTS {
                    let path = command
                        .flag(name)
                        .filter(|path| (path.starts_with("/tmp") || path.starts_with("$TMPDIR")) && !copied(path));
                    hits.extend(path.map(|path| {
                        hit(
                            command.line,
                            format!("--{name} {path}, and nothing copies it away"),
                            "a folder that all nodes see; or cp -r it there at the end",
                        )
                    }));
                }
            }
            hits
        },
    },
];

/// Flags that name what a program writes.
const OUTPUTS: [&str; 8] =
    ["snapshots", "snapshot-path", "checkpoint", "checkpoint-dir", "output", "output-dir", "out", "save-dir"];

fn signal(script: &Script) -> Option<(usize, String)> {
    script.slurm("signal", '\0')
}

/// The script has a trap for the signal in `B:USR1@120`.
fn has_trap(script: &Script, signal: &str) -> bool {
    let name =
        signal.split('@').next().unwrap_or_default().rsplit(':').next().unwrap_or_default().trim_start_matches("SIG");
    script.commands.iter().any(|command| {
        command.program() == "trap" && command.texts().skip(2).any(|word| word.trim_start_matches("SIG") == name)
    })
}

/// A program with snapshots: it can be started again.
fn goes_on(command: &Command) -> bool {
    command.texts().any(|word| {
        let word = word.trim_start_matches('-');
        ["snapshot", "checkpoint", "resume", "ckpt"].iter().any(|name| word.starts_with(name))
    })
}
