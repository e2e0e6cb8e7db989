//! Containers, and programs that are built for them or for the nodes.

use super::super::script::Command;
use super::{Rule, hit};
use crate::report::Level::{Error, Warning};

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "container-without-gpus",
        level: Error,
        why: "without --nv neither the GPUs nor their driver are in the container, and CUDA finds no device",
        wrong: "#!/bin/bash\n#SBATCH --gres=gpu:4 --time=1:00:00\nset -e\nsrun apptainer exec train.sif lockstep run --nproc-per-node=gpu train\n",
        right: "#!/bin/bash\n#SBATCH --gres=gpu:4 --time=1:00:00\nset -e\nsrun apptainer exec --nv train.sif lockstep run --nproc-per-node=gpu train\n",
        find: |script| {
            let has = |command: &Command| {
                command
                    .texts()
                    .any(|word| ["--nv", "--nvccli", "--rocm"].contains(&word) || word.contains("APPTAINER_NV"))
            };
            let found =
                script.commands.iter().filter(|command| runs_image(command) && !has(command) && script.is_for_gpus());
            let forced = script.variable("APPTAINER_NV").is_some() || script.variable("SINGULARITY_NV").is_some();
            found
                .filter(|_| !forced)
                .map(|command| hit(command.line, "the container sees no GPU", "apptainer exec --nv …"))
                .collect()
        },
    },
    Rule {
        name: "cache-in-the-home-folder",
        level: Warning,
        why: "unpacked images of many GB go to ~/.apptainer, and home folders are small",
        wrong: "#!/bin/bash\nset -e\napptainer pull docker://pytorch/pytorch\n",
        right: "#!/bin/bash\nset -e\nexport APPTAINER_CACHEDIR=/scratch/me/cache\napptainer pull docker://pytorch/pytorch\n",
        find: |script| {
            let elsewhere = ["APPTAINER_CACHEDIR", "SINGULARITY_CACHEDIR"].iter().any(|name| {
                script.exports(name)
                    && !script
                        .variable(name)
                        .is_some_and(|set| set.value.text.starts_with("$HOME") || set.value.text.starts_with('~'))
            });
            let fetches = |command: &&Command| {
                command.texts().any(|word| ["apptainer", "singularity"].contains(&word))
                    && command.texts().any(|word| {
                        word.starts_with("docker://") || word.starts_with("oras://") || word.starts_with("library://")
                    })
            };
            let found = script.commands.iter().filter(fetches).filter(|_| !elsewhere);
            found
                .map(|command| {
                    hit(
                        command.line,
                        "the image is unpacked into the home folder",
                        "export APPTAINER_CACHEDIR=/scratch/…, before it",
                    )
                })
                .collect()
        },
    },
    Rule {
        name: "built-on-the-login-node",
        level: Warning,
        why: "login nodes often have another processor (x86_64) than compute nodes (aarch64), and what is built there does not run",
        wrong: "#!/bin/bash\nset -e\npip install torch\nsbatch job.sh\n",
        right: "#!/bin/bash\nset -e\nsbatch --wait build.sh\nsbatch job.sh\n",
        find: |script| {
            let submits = script.commands.iter().find(|command| ["sbatch", "qsub"].contains(&command.program()));
            let found = script
                .commands
                .iter()
                .filter(|command| builds(command) && script.scheduler().is_none() && submits.is_some());
            found
                .map(|command| {
                    hit(
                        command.line,
                        format!(
                            "`{} {}` runs where the job is submitted",
                            command.program(),
                            command.texts().nth(1).unwrap_or_default()
                        ),
                        "put it into a build job: lockstep render --build",
                    )
                })
                .collect()
        },
    },
];

fn runs_image(command: &Command) -> bool {
    let words: Vec<&str> = command.texts().collect();
    words
        .windows(2)
        .any(|pair| ["apptainer", "singularity"].contains(&pair[0]) && ["exec", "run", "shell"].contains(&pair[1]))
}

fn builds(command: &Command) -> bool {
    let words: Vec<&str> = command.texts().take(2).collect();
    matches!(
        words.as_slice(),
        ["cargo" | "apptainer" | "singularity", "build"]
            | ["pip" | "pip3" | "conda" | "mamba", "install"]
            | ["make" | "cmake", ..]
    )
}
