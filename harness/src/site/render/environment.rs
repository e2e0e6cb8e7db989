//! Variables: of NCCL and others, and whether they reach the workers.

use lockstep_contract::rules::Level::{Error, Warning};
use lockstep_contract::rules::Rule;

use super::check::{RULE, ScriptFinding, Scripts, finding};
use super::evaluate::mentions;
use super::launchers::each;
use super::script::{Command, Exported, SHELLS, STARTERS, Script, base};
use super::words::made_outside;
use crate::report::count;

/// Variables that programs read from their environment: set without `export` they do nothing.
const READ_BY_PROGRAMS: [&str; 12] = [
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "APPTAINER_CACHEDIR",
    "SINGULARITY_CACHEDIR",
    "LD_LIBRARY_PATH",
    "FI_PROVIDER",
    "http_proxy",
    "https_proxy",
    "GLOO_SOCKET_IFNAME",
    "SRUN_CPUS_PER_TASK",
];

pub(super) const ENVIRONMENT: &[Rule<Scripts>] = &[
    Rule {
        name: "not-exported",
        level: Error,
        why: "the shell does not pass it on, so no program sees it",
        wrong: "#!/bin/bash\nset -e\nAPPTAINER_CACHEDIR=/scratch/cache\napptainer pull docker://pytorch/pytorch\n",
        right: "#!/bin/bash\nset -e\nexport APPTAINER_CACHEDIR=/scratch/cache\napptainer pull docker://pytorch/pytorch\n",
        find: not_exported,
        ..RULE
    },
    Rule {
        name: "rank-of-the-batch-script",
        level: Error,
        why: "the batch script's shell evaluates it, once and on the first node, so all tasks get the same number, 0 or none",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4 --time=1:00:00\nset -e\n\
            export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID\nsrun python train.py\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4 --time=1:00:00\nset -e\n\
            srun bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; exec python train.py'\n",
        find: rank_of_the_batch_script,
        ..RULE
    },
    Rule {
        name: "variable-of-a-step",
        level: Error,
        why: "only what srun, pbsdsh, blaunch or mpirun starts has this variable: in the batch script it is empty, or, with `set -u`, ends it",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\nexport MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR\nsrun ./train\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\
            srun bash -c 'export MASTER_ADDR=$SLURM_LAUNCH_NODE_IPADDR; exec ./train'\n",
        find: variables_of_steps,
        ..RULE
    },
    Rule {
        name: "loopback-interface",
        level: Error,
        why: "other nodes cannot be reached through lo",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\nexport GLOO_SOCKET_IFNAME=lo\nsrun ./train\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\nexport GLOO_SOCKET_IFNAME=eth0\nsrun ./train\n",
        find: |script| {
            set_to(
                script,
                |name, value| {
                    script.has_several_nodes() && name.ends_with("_SOCKET_IFNAME") && (value == "lo" || value == "=lo")
                },
                "the interface that `ip -brief address` shows with the nodes' own addresses",
            )
        },
        ..RULE
    },
    Rule {
        name: "fast-network-off",
        level: Warning,
        why: "NCCL then uses plain TCP, or no direct path between GPUs: often ten times slower. It is meant for debugging",
        wrong: "#!/bin/bash\nset -e\nexport NCCL_IB_DISABLE=1\n./train\n",
        right: "#!/bin/bash\nset -e\nexport NCCL_IB_HCA=mlx5\n./train\n",
        find: |script| {
            set_to(
                script,
                |name, value| {
                    ["NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_NET_GDR_DISABLE"].contains(&name)
                        && value == "1"
                },
                "remove it once the fault is found",
            )
        },
        ..RULE
    },
    Rule {
        name: "debug-output-left-on",
        level: Warning,
        why: "every rank prints hundreds of lines, and real errors are lost in them",
        wrong: "#!/bin/bash\nset -e\nexport NCCL_DEBUG=INFO\n./train\n",
        right: "#!/bin/bash\nset -e\nexport NCCL_DEBUG=WARN\n./train\n",
        find: |script| {
            set_to(
                script,
                |name, value| {
                    name == "NCCL_DEBUG" && ["INFO", "TRACE"].contains(&value)
                        || name == "TORCH_DISTRIBUTED_DEBUG" && value == "DETAIL"
                },
                "export NCCL_DEBUG=WARN",
            )
        },
        ..RULE
    },
    Rule {
        name: "provider-of-another-network",
        level: Error,
        why: "efa is the network of a cloud; interfaces called hsn are Slingshot's, whose libfabric provider is cxi",
        wrong: "#!/bin/bash\nset -e\nexport FI_PROVIDER=efa\nexport NCCL_SOCKET_IFNAME=hsn0\n./train\n",
        right: "#!/bin/bash\nset -e\nexport FI_PROVIDER=cxi\nexport NCCL_SOCKET_IFNAME=hsn0\n./train\n",
        find: |script| {
            let slingshot = script.code().any(|(_, line)| line.contains("hsn"));
            set_to(script, |name, value| slingshot && name == "FI_PROVIDER" && value == "efa", "export FI_PROVIDER=cxi")
        },
        ..RULE
    },
    Rule {
        name: "threads-not-set",
        level: Warning,
        why: "launchers then set OMP_NUM_THREADS=1, and most of the node's CPUs stay idle",
        wrong: "#!/bin/bash\n#SBATCH --nodes=1 --time=1:00:00 --exclusive\nset -e\nsrun lockstep run --nproc-per-node=4 train\n",
        right: "#!/bin/bash\n#SBATCH --nodes=1 --time=1:00:00 --exclusive\nset -e\nexport OMP_NUM_THREADS=8\n\
            srun lockstep run --nproc-per-node=4 train\n",
        find: |script| {
            let set = script.variable("OMP_NUM_THREADS").is_some();
            let launches = script.launches();
            let several = launches.iter().find(|launch| launch.workers().is_some_and(|workers| workers != "1"));
            several
                .filter(|_| !set && script.scheduler().is_some())
                .map(|launch| {
                    finding(
                        launch.line(),
                        "OMP_NUM_THREADS is not set",
                        "export OMP_NUM_THREADS=N, the CPUs of a node divided by its workers",
                    )
                })
                .into_iter()
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "exports-do-not-travel",
        level: Error,
        why: "a program that pbsdsh, ssh or pdsh starts does not get the variables that this script exported",
        wrong: "#!/bin/bash\n#PBS -l select=2:ncpus=4:mpiprocs=1,walltime=1:00:00\nset -e\n\
            export MASTER_ADDR=$(head -n 1 \"$PBS_NODEFILE\")\npbsdsh -- /project/train.sh\n",
        right: "#!/bin/bash\n#PBS -l select=2:ncpus=4:mpiprocs=1,walltime=1:00:00\nset -e\nhead=$(head -n 1 \"$PBS_NODEFILE\")\n\
            pbsdsh -- /project/train.sh \"$head\"\n",
        find: exports_do_not_travel,
        ..RULE
    },
    Rule {
        name: "mpirun-takes-no-exports",
        level: Warning,
        why: "Open MPI's mpirun passes on variables that begin with OMPI_ and those that -x names; whether others arrive depends on the site",
        wrong: "#!/bin/bash\nset -e\nexport NCCL_IB_GID_INDEX=3\nmpirun -np 2 ./train\n",
        right: "#!/bin/bash\nset -e\nexport NCCL_IB_GID_INDEX=3\nmpirun -np 2 -x NCCL_IB_GID_INDEX ./train\n",
        find: |script| {
            let Some(run) = script.commands.iter().find(|command| command.program() == "mpirun") else { return vec![] };
            let read = |name: &str| {
                name.starts_with("NCCL_")
                    || name.starts_with("GLOO_")
                    || READ_BY_PROGRAMS.contains(&name) && name != "LD_LIBRARY_PATH"
            };
            let handed = |name: &str| run.texts().any(|word| word == name || word.starts_with(&format!("{name}=")));
            let lost = script
                .exported
                .iter()
                .filter(|set| set.line < run.line && !set.is_far && read(&set.name) && !handed(&set.name));
            lost.map(|Exported { name, .. }| {
                finding(run.line, format!("mpirun is not asked to pass on {name}"), format!("mpirun -x {name} …"))
            })
            .collect()
        },
        ..RULE
    },
    Rule {
        name: "devices-fixed",
        level: Warning,
        why: "the scheduler sets it to the job's GPUs; others belong to other jobs",
        wrong: "#!/bin/bash\n#SBATCH --gres=gpu:2 --time=1:00:00\nset -e\nCUDA_VISIBLE_DEVICES=2,3 srun ./train\n",
        right: "#!/bin/bash\n#SBATCH --gres=gpu:2 --time=1:00:00\nset -e\nsrun ./train\n",
        find: |script| {
            let batch = script.scheduler().is_some();
            set_to(
                script,
                |name, value| {
                    batch && name == "CUDA_VISIBLE_DEVICES" && value.starts_with(|c: char| c.is_ascii_digit())
                },
                "remove it",
            )
        },
        ..RULE
    },
    Rule {
        name: "fewer-devices-than-workers",
        level: Error,
        why: "each worker takes the visible device of its local rank, so the other workers have no device",
        wrong: "#!/bin/bash\nset -e\nCUDA_VISIBLE_DEVICES=0 torchrun --standalone --nproc_per_node=2 train.py\n",
        right: "#!/bin/bash\nset -e\nCUDA_VISIBLE_DEVICES=0,1 torchrun --standalone --nproc_per_node=2 train.py\n",
        find: |script| {
            let Some(devices) = script.variable("CUDA_VISIBLE_DEVICES").map(|set| &set.value) else { return vec![] };
            let visible = devices.text.split(',').filter(|device| !device.is_empty()).count();
            let listed = devices.text.chars().all(|c| c.is_ascii_digit() || c == ',');
            each(
                script,
                |launch| {
                    listed
                        && launch
                            .workers()
                            .and_then(|workers| workers.parse::<usize>().ok())
                            .is_some_and(|workers| workers > visible)
                },
                |launch| {
                    (
                        format!(
                            "{} workers, but {}",
                            launch.workers().unwrap_or_default(),
                            count(visible, "visible device")
                        ),
                        format!("--nproc-per-node={visible}"),
                    )
                },
            )
        },
        ..RULE
    },
];

/// A finding for each variable for which this holds.
fn set_to(script: &Script, holds: impl Fn(&str, &str) -> bool, fix: &str) -> Vec<ScriptFinding> {
    let found = script.assigned.iter().filter(|set| holds(&set.name, &set.value.text));
    found.map(|set| finding(set.line, format!("{}={}", set.name, set.value.text), fix)).collect()
}

fn not_exported(script: &Script) -> Vec<ScriptFinding> {
    let read = |name: &str| name.starts_with("NCCL_") || READ_BY_PROGRAMS.contains(&name);
    let mut findings = Vec::new();
    for set in script.assigned.iter().filter(|set| !set.elsewhere && !script.exports(&set.name)) {
        // A variable that was exported before is exported with its new value, too.
        let inherited = mentions(&set.value.raw, &set.name);
        if read(&set.name) && !inherited && !is_used(script, &set.name) {
            let what = format!("{} is set, but not exported", set.name);
            findings.push(finding(set.line, what, format!("export {}={}", set.name, set.value.raw)));
        }
    }
    for (line, name) in script.lost.iter().filter(|(_, name)| !inherited(name)) {
        let what = format!("{name} is set in the script, but not exported, and this is read by another shell");
        findings.push(finding(*line, what, format!("export {name}, before it")));
    }
    findings.dedup_by(|one, other| one.place == other.place && one.what == other.what);
    findings
}

/// Variables that a job has from its scheduler or its user: what is assigned to them is exported.
const INHERITED: [&str; 8] = ["HOME", "LANG", "PBS_", "PWD", "SLURM_", "TERM", "TMPDIR", "USER"];

pub(super) fn inherited(name: &str) -> bool {
    name.ends_with("PATH") || INHERITED.iter().any(|known| name.starts_with(known))
}

/// The script's own shell puts the variable into words or other variables, so that it has its effect without being exported.
fn is_used(script: &Script, name: &str) -> bool {
    let told = ["echo", "printf"];
    let raw = |raw: &str| !raw.starts_with('\'') && mentions(raw, name);
    script
        .commands
        .iter()
        .any(|command| !told.contains(&command.program()) && command.words.iter().any(|word| raw(&word.raw)))
        || script.assigned.iter().any(|set| set.name != name && raw(&set.value.raw))
}

fn exports_do_not_travel(script: &Script) -> Vec<ScriptFinding> {
    let far = |program: &str| ["pbsdsh", "ssh", "pdsh", "clush"].contains(&program);
    let read = |name: &str| name.starts_with("NCCL_") || name.starts_with("GLOO_") || READ_BY_PROGRAMS.contains(&name);
    let launches = script.launches();
    let is_launch = |line: usize| launches.iter().any(|launch| launch.command.line == line);
    let starts = script.commands.iter().filter(|command| far(base(command.program())) && !command.substituted);
    let mut findings = Vec::new();
    for command in starts.filter(|command| command.program() == "pbsdsh" || is_launch(command.line)) {
        let handed = |name: &str| command.words.iter().any(|word| word.raw.contains(name) || word.text.contains(name));
        let lost: Vec<&str> = script
            .exported
            .iter()
            .filter(|set| set.line < command.line && !set.is_far && read(&set.name) && !handed(&set.name))
            .map(|set| set.name.as_str())
            .collect();
        if !lost.is_empty() {
            findings.push(finding(
                command.line,
                format!("{} does not pass on {}", command.program(), lost.join(", ")),
                "give them as arguments, or set them in a script in a shared folder",
            ));
        }
    }
    findings
}

const RANK_OF_NODE: [&str; 4] = ["--node_rank", "--node-rank", "--machine_rank", "--machine-rank"];

/// Who sets a variable for each task that it starts.
struct Started {
    by: &'static str,
    /// What differs from task to task.
    numbers: &'static [&'static str],
    /// The batch script has these, too: those of its own process.
    in_batch: bool,
}

/// From the output variables in the manuals of srun, sbatch, qsub and pbsdsh, blaunch and jsrun, and of the MPIs.
const STARTED: [Started; 7] = [
    Started {
        by: "srun",
        numbers: &["SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID", "SLURM_GTIDS", "SLURM_TASK_PID"],
        in_batch: true,
    },
    Started {
        by: "srun",
        numbers: &[
            "SLURM_LAUNCH_NODE_IPADDR",
            "SLURM_SRUN_COMM_HOST",
            "SLURM_SRUN_COMM_PORT",
            "SLURM_STEPID",
            "SLURM_STEP_GPUS",
            "SLURM_STEP_ID",
            "SLURM_STEP_LAUNCHER_PORT",
            "SLURM_STEP_NODELIST",
            "SLURM_STEP_NUM_NODES",
            "SLURM_STEP_NUM_TASKS",
            "SLURM_STEP_RESV_PORTS",
            "SLURM_STEP_TASKS_PER_NODE",
            "SLURM_CPU_BIND_LIST",
            "SLURM_CPU_BIND_TYPE",
            "SLURM_MEM_BIND_LIST",
            "SLURM_MEM_BIND_TYPE",
        ],
        in_batch: false,
    },
    Started { by: "pbsdsh", numbers: &["PBS_NODENUM", "PBS_TASKNUM", "PBS_VNODENUM"], in_batch: true },
    Started { by: "blaunch", numbers: &["LSF_PM_TASKID", "LSF_PM_XPROCID"], in_batch: false },
    Started {
        by: "jsrun",
        numbers: &["JSM_NAMESPACE_RANK", "JSM_NAMESPACE_LOCAL_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_SIZE"],
        in_batch: false,
    },
    Started { by: "mpiexec", numbers: &["PALS_RANKID", "PALS_LOCAL_RANKID", "PALS_NODEID"], in_batch: false },
    Started {
        by: "mpirun",
        numbers: &[
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_RANK",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
            "OMPI_COMM_WORLD_NODE_RANK",
            "PMI_RANK",
            "PMI_SIZE",
            "PMI_LOCAL_RANK",
            "PMIX_RANK",
            "MPI_LOCALRANKID",
            "MPI_LOCALNRANKS",
            "MV2_COMM_WORLD_RANK",
            "MV2_COMM_WORLD_SIZE",
            "MV2_COMM_WORLD_LOCAL_RANK",
        ],
        in_batch: false,
    },
];

/// The variable of [`STARTED`] that an expansion names.
fn started(made: &str) -> Option<(&'static Started, &'static str)> {
    let named = |name: &str| mentions(made, name) || made.trim_matches(['{', '}']) == name;
    STARTED.iter().find_map(|by| Some((by, by.numbers.iter().copied().find(|name| named(name))?)))
}

/// Expanded by the batch script itself, where nothing sets them.
fn variables_of_steps(script: &Script) -> Vec<ScriptFinding> {
    let mut findings: Vec<ScriptFinding> = Vec::new();
    let Some(_) = script.scheduler() else { return findings };
    let told = rank_of_the_batch_script(script);
    for (line, made, far) in &script.expanded {
        let Some((by, name)) = started(made).filter(|(by, _)| !by.in_batch) else { continue };
        // A script that asks whether it is there knows that it may be missing, and what it sets itself is there.
        let asks = |line: &str| {
            let after = line.split_once(name).and_then(|(_, after)| after.chars().next());
            after.is_some_and(|after| ":-+".contains(after))
                || after.is_some() && (line.contains(" -n ") || line.contains(" -z "))
        };
        let set = script.assigned.iter().any(|set| set.name == name) || script.code().any(|(_, line)| asks(line));
        if far.is_none() && !set && findings.iter().chain(&told).all(|finding| finding.place != *line) {
            let fix = format!("{} bash -c '… \"${name}\" …', in single quotes: then each task evaluates it", by.by);
            findings.push(finding(*line, format!("${name} is empty here: {} sets it for what it starts", by.by), fix));
        }
    }
    findings
}

/// In the words of a command that srun and the like start, or in a variable that it inherits.
fn rank_of_the_batch_script(script: &Script) -> Vec<ScriptFinding> {
    // A step's addresses and lists have a rule of their own.
    let is_number = |by: &Started| by.in_batch || by.by != "srun";
    let per_task = |made: &str| started(made).filter(|(by, _)| is_number(by)).map(|(_, name)| name);
    let mut findings: Vec<ScriptFinding> = Vec::new();
    let mut found = |line, name: &str, what: String| {
        if findings.iter().all(|finding| finding.place != line) {
            let by = started(&format!("${name}")).map_or("srun", |(by, _)| by.by);
            let fix = format!("{by} bash -c '… \"${name}\" …', in single quotes: then each task evaluates it");
            findings.push(finding(line, what, fix));
        }
    };
    let starters = |program: &str| STARTERS.contains(&program) && program != "ssh";
    let launches = script.launches();
    // With c10d a node's rank is not read.
    let ignored = |command: &Command, index: usize| {
        let elastic = launches.iter().any(|launch| {
            launch.command.line == command.line && launch.flag("rdzv-backend").is_some_and(|name| name == "c10d")
        });
        let names = |at: usize| {
            command.words.get(at).is_some_and(|word| RANK_OF_NODE.iter().any(|flag| word.text.starts_with(flag)))
        };
        elastic && (names(index) || index > 0 && names(index - 1))
    };
    for command in script.commands.iter().filter(|command| !command.substituted) {
        if let Some(far) = command.far.as_deref().filter(|far| starters(far)) {
            let values = command.assignments.iter().map(|(_, value)| (usize::MAX, value));
            for (index, word) in command.words.iter().enumerate().chain(values) {
                if let Some(name) = made_outside(&word.text).find_map(per_task).filter(|_| !ignored(command, index)) {
                    found(word.line, name, format!("${name} is evaluated before {far} starts"));
                }
            }
        } else if let Some(at) = command.words.iter().position(|word| starters(base(&word.text))) {
            // A shell's text has commands of its own in the list.
            let text = command.words.windows(2).position(|pair| {
                SHELLS.contains(&pair[0].text.as_str()) && pair[1].text.starts_with('-') && pair[1].text.ends_with('c')
            });
            for (index, word) in
                command.words.iter().enumerate().skip(at).filter(|(index, _)| text.map(|text| text + 2) != Some(*index))
            {
                if let Some(name) = word.made().find_map(per_task).filter(|_| !ignored(command, index)) {
                    found(
                        word.line,
                        name,
                        format!("${name} is evaluated before {} starts", base(&command.words[at].text)),
                    );
                }
            }
        }
    }
    let is_launch = |line: usize| launches.iter().any(|launch| launch.command.line == line);
    let starts = |line: usize| {
        script.commands.iter().any(|command| {
            command.line > line && !command.substituted && starters(command.program()) && !is_launch(command.line)
        })
    };
    for set in script.assigned.iter().filter(|set| set.far.is_none() && !set.elsewhere && script.exports(&set.name)) {
        let is_whole = || {
            let made = set.value.made().next().filter(|made| *made == set.value.text);
            made.and_then(started).is_some_and(|(by, _)| by.in_batch)
        };
        let is_rank = set.name.ends_with("RANK") || set.name == "CUDA_VISIBLE_DEVICES" || is_whole();
        let again = || script.assigned.iter().any(|other| other.name == set.name && other.far.is_some());
        if let Some(name) = set.value.made().find_map(per_task).filter(|_| is_rank && starts(set.line) && !again()) {
            found(set.line, name, format!("{}=${name} is evaluated once, for all tasks", set.name));
        }
    }
    findings
}
