//! Variables: of NCCL and others, and whether they reach the workers.

use lockstep_contract::rules::Level::{Error, Warning};
use lockstep_contract::rules::Rule;

use super::launchers::each;
use super::shell::trains;
use super::{RULE, ScriptFinding, Scripts, finding};
use crate::render::evaluate::mentions;
use crate::render::kept::{self, State};
use crate::render::script::{Command, Exported, SHELLS, STARTERS, Script, base, is_remote, launch, starter};
use crate::render::words::{Word, made_outside};
use crate::report::count;

/// Variables that programs read from their environment: set without `export` they do nothing.
const READ_BY_PROGRAMS: [&str; 16] = [
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMP_NUM_THREADS",
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "MIOPEN_USER_DB_PATH",
    "MIOPEN_CUSTOM_CACHE_DIR",
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
        why: "a program that pbsdsh, ssh, pdsh, clush or parallel starts elsewhere gets neither the variables that this script exported nor its \
            modules and environments",
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
            let read = |name: &str| {
                name.starts_with("NCCL_")
                    || name.starts_with("GLOO_")
                    || READ_BY_PROGRAMS.contains(&name) && name != "LD_LIBRARY_PATH"
            };
            // Other mpiruns have no -x, and pass on everything.
            let hydra = ["-genv", "-genvall", "-genvlist", "-envall", "-ppn", "-hosts", "-iface"];
            let intel = script.code().any(|(_, line)| line.contains("I_MPI_") || line.contains("module load impi"));
            let runs = script.commands.iter().filter(|command| {
                command.program() == "mpirun" && !intel && !command.texts().any(|word| hydra.contains(&word))
            });
            let mut findings: Vec<ScriptFinding> = Vec::new();
            for run in runs {
                let handed = |name: &str| run.texts().any(|word| word == name || word.starts_with(&format!("{name}=")));
                // torchrun and `lockstep run` set these for their workers.
                let launches = launch(run).is_some();
                let mut lost: Vec<&str> = Vec::new();
                for Exported { name, .. } in script.exported.iter().filter(|set| set.line < run.line && !set.is_far) {
                    let set_again = launches && name.starts_with("MASTER_");
                    if read(name) && !set_again && !handed(name) && !lost.contains(&name.as_str()) {
                        lost.push(name);
                    }
                }
                if !lost.is_empty() {
                    let what = format!("mpirun is not asked to pass on {}", lost.join(", "));
                    findings.push(finding(run.line, what, format!("mpirun -x {} …", lost.join(" -x "))));
                }
            }
            findings
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
                |name, value| batch && DEVICES.contains(&name) && value.starts_with(|c: char| c.is_ascii_digit()),
                "remove it",
            )
        },
        ..RULE
    },
    Rule {
        name: "device-of-one-task",
        level: Error,
        why: "all workers of a launcher inherit it: they see one GPU, whose number is 0, and the launcher numbers them from 0 (LOCAL_RANK), so the \
              second asks for a GPU that it does not see; and RCCL or NCCL cannot use the direct links to GPUs that a process does not see",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --gpus-per-node=8 --time=1:00:00\nset -e\n\
            export ROCR_VISIBLE_DEVICES=$SLURM_LOCALID\nexport OMP_NUM_THREADS=7\nsrun lockstep run --nproc-per-node=8 train\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --gpus-per-node=8 --time=1:00:00\nset -e\n\
            export OMP_NUM_THREADS=7\nsrun lockstep run --nproc-per-node=8 train\n",
        find: device_of_one_task,
        ..RULE
    },
    Rule {
        name: "fewer-devices-than-workers",
        level: Error,
        why: "each worker takes the visible device of its local rank, so the other workers have no device",
        wrong: "#!/bin/bash\nset -e\nCUDA_VISIBLE_DEVICES=0 torchrun --standalone --nproc_per_node=2 train.py\n",
        right: "#!/bin/bash\nset -e\nCUDA_VISIBLE_DEVICES=0,1 torchrun --standalone --nproc_per_node=2 train.py\n",
        find: |script| {
            let set = script.variable("CUDA_VISIBLE_DEVICES");
            let several = script.launches().len() > 1;
            // What one branch sets says nothing of a launcher in another.
            let Some(devices) = set.filter(|set| !(several && set.conditional)).map(|set| &set.value) else {
                return vec![];
            };
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

/// Variables that hide GPUs from programs.
const DEVICES: [&str; 3] = ["CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"];

/// A launcher of several workers gets the GPU of the task that it is.
/// What to do in place of showing each process one GPU.
const TAKES_ITS_OWN: &str = "remove it: each worker takes the GPU of its LOCAL_RANK";

fn device_of_one_task(script: &Script) -> Vec<ScriptFinding> {
    let launches = script.launches();
    let of_task = |text: &str| {
        ["SLURM_LOCALID", "SLURM_PROCID", "OMPI_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID", "PMI_LOCAL_RANK"]
            .iter()
            .any(|name| mentions(text, name))
    };
    let several = |line: usize| {
        launches
            .iter()
            .find(|launch| launch.command.line >= line && launch.workers().is_some_and(|workers| workers != "1"))
    };
    let sets = script.assigned.iter().filter(|set| DEVICES.contains(&&*set.name) && of_task(&set.value.raw));
    sets.filter_map(|set| {
        let launch = several(set.line)?;
        let workers = launch.workers().unwrap_or_default();
        let what = format!("{}={}, and {} starts {workers} workers with it", set.name, set.value.raw, launch.name);
        Some(finding(set.line, what, TAKES_ITS_OWN))
    })
    .collect()
}

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
    for (line, name, far) in script.lost.iter().filter(|(_, name, _)| !inherited(name)) {
        let (what, fix) = match far.as_deref().filter(|far| is_remote(far)) {
            Some(far) => (
                format!("{name} is set in the script, and the shell that {far} starts does not have it"),
                format!("double quotes, or <<END without quotes, so that this script puts ${name} into the text"),
            ),
            None => (
                format!("{name} is set in the script, but not exported, and this is read by another shell"),
                format!("export {name}, before it"),
            ),
        };
        findings.push(finding(*line, what, fix));
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
    let read = |name: &str| PREFIXES.iter().any(|prefix| name.starts_with(prefix)) || READ_BY_PROGRAMS.contains(&name);
    let launches = script.launches();
    let mut findings = Vec::new();
    for command in script.commands.iter().filter(|command| command.far.is_none() && !command.substituted) {
        let Some(far) = starter(&command.words).filter(|far| is_remote(far)) else { continue };
        // What the text has that it gives to a shell there.
        let inside = |line: usize, words: &[Word]| line == command.line || words.first() == command.words.first();
        let text: Vec<&Command> = script
            .commands
            .iter()
            .filter(|inner| inner.far.as_deref() == Some(far) && inside(0, &inner.starter))
            .collect();
        let is_launch = launches.iter().any(|launch| inside(launch.command.line, &launch.command.starter));
        let handed = |name: &str| {
            let names = |command: &Command| {
                let set = command.assignments.iter().any(|(set, _)| set == name);
                set || command.words.iter().any(|word| word.raw.contains(name) || word.text.contains(name))
            };
            names(command) || text.iter().any(|inner| names(inner))
        };
        let exported = || script.exported.iter().filter(|set| set.line < command.line && !set.is_far);
        if far == "pbsdsh" || is_launch {
            let mut lost: Vec<&str> = exported().map(|set| set.name.as_str()).collect();
            lost.retain(|name| read(name) && !handed(name));
            lost.dedup();
            if !lost.is_empty() {
                let what = format!("{far} does not pass on {}", lost.join(", "));
                let fix = "give them as arguments, or set them in a script in a shared folder";
                findings.push(finding(command.line, what, fix));
            }
        }
        // Programs that are looked for in the environment's folders; a container has its own.
        let direct = std::slice::from_ref(&command).iter().filter(|_| text.is_empty());
        let Some(program) = direct.chain(&text).find_map(|inner| looked_for(inner)) else { continue };
        let is_login = |word: &Word| ["-l", "-lc", "-lic", "--login", "-i", "-ic"].contains(&word.text.as_str());
        let shells = command.words.iter().skip_while(|word| !SHELLS.contains(&word.text.as_str()));
        let path = ["PATH", "bashrc", "profile"].iter().any(|name| handed(name));
        let own = text.iter().any(|inner| kept::change(inner).is_some_and(|(state, _)| state == State::Environment));
        if path || own || shells.take(3).any(is_login) || command.has("env") {
            continue;
        }
        let changes = script.commands.iter().filter(|change| change.line < command.line).filter_map(activated);
        let path = exported().rfind(|set| set.name == "PATH").map(|set| (set.line, "export PATH".to_owned()));
        if let Some((line, words)) = changes.chain(path).last() {
            findings.push(finding(
                command.line,
                format!("{far} does not pass on `{words}` of line {line}: {program} there is another one, or none"),
                format!("the path of {program}, as `which {program}` prints it; or `{words}` in what {far} starts"),
            ));
        }
    }
    findings
}

/// Beginnings of the names of variables that programs read.
const PREFIXES: [&str; 17] = [
    "NCCL_",
    "GLOO_",
    "TORCH_",
    "PYTORCH_",
    "PYTHON",
    "HF_",
    "TRANSFORMERS_",
    "WANDB_",
    "UCX_",
    "FI_",
    "HSA_",
    "HIP_",
    "MIOPEN_",
    "RCCL_",
    "ROCR_",
    "TRITON_",
    "CUDA_",
];

/// The program that is looked for in PATH and that a venv, a module or an export of PATH may bring.
fn looked_for(command: &Command) -> Option<&str> {
    let brought = |word: &&str| {
        let python =
            word.strip_prefix("python").is_some_and(|rest| rest.chars().all(|c| c.is_ascii_digit() || c == '.'));
        python || ["torchrun", "accelerate", "deepspeed", "lockstep"].contains(word)
    };
    let runs = |word: &&str| {
        ["apptainer", "singularity", "docker", "podman", "conda", "mamba", "uv", "poetry"].contains(&base(word))
    };
    let at = command.texts().position(|word| brought(&word))?;
    let in_another = command.texts().take(at).any(|word| runs(&word));
    let told = ["echo", "printf", "which", "command", "type", "pkill", "pgrep", "killall"].contains(&command.program());
    (!told && !in_another).then(|| command.words[at].text.as_str())
}

/// What a command of the script itself activates or loads, and its line.
fn activated(command: &Command) -> Option<(usize, String)> {
    // Modules of programs that this script itself runs.
    const OF_THE_SCRIPT: [&str; 8] = ["pdsh", "clustershell", "clush", "parallel", "slurm", "pbs", "openpbs", "lsf"];
    let words: Vec<&str> = command.texts().collect();
    let loads = |names: &[&str]| {
        names.iter().any(|name| {
            let name = name.split('/').next().unwrap_or_default().to_ascii_lowercase();
            !name.starts_with('-') && !OF_THE_SCRIPT.contains(&name.trim_start_matches("gnu-"))
        })
    };
    let is_change = match words[..] {
        ["module" | "ml" | "spack", "load" | "add", ref names @ ..] => loads(names),
        ["ml", first, ref names @ ..] => {
            let tells = ["av", "avail", "list", "purge", "spider", "use", "unload", "swap", "reset", "restore"];
            !tells.contains(&first) && (loads(&[first]) || loads(names))
        }
        ["conda" | "mamba" | "micromamba", "activate", ..] => true,
        ["source" | ".", file, ..] => base(file) == "activate",
        _ => false,
    };
    (is_change && command.far.is_none() && !command.substituted && command.process == 0)
        .then(|| (command.line, words.join(" ")))
}

/// How a loop numbers the nodes.
const COUNTED: &str = "rank=0 before the loop, --node-rank=\"$rank\", and rank=$((rank + 1)) at its end; or --rdzv-backend=c10d, which needs no node rank";

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

/// Returns true if this is the number that srun and the like give to each program that they start, and nothing else.
pub(super) fn is_rank_of_a_task(text: &str) -> bool {
    let number = |name: &str| {
        name.ends_with("RANK") || ["SLURM_PROCID", "SLURM_NODEID", "PBS_NODENUM", "PBS_TASKNUM"].contains(&name)
    };
    started(text).is_some_and(|(_, name)| number(name) && text.trim_start_matches('$').trim_matches(['{', '}']) == name)
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

/// The number that a starter gives to each program, which an expansion names. A step's addresses and lists have a rule of their own.
fn number_of_a_task(made: &str) -> Option<&'static str> {
    started(made).filter(|(by, _)| by.in_batch || by.by != "srun").map(|(_, name)| name)
}

/// Where such a number is in what ssh and the like start, which give none: the line, and what is wrong.
fn numbers_without_a_starter(script: &Script, ignored: impl Fn(&Command, usize) -> bool) -> Vec<(usize, String)> {
    let sets = |name: &str| script.assigned.iter().any(|set| set.name == name);
    let mut all = Vec::new();
    for command in script.commands.iter().filter(|command| !command.substituted) {
        let own = starter(&command.words).filter(|_| command.far.is_none());
        let Some(far) = command.far.as_deref().or(own).filter(|far| is_remote(far) && *far != "pbsdsh") else {
            continue;
        };
        let values =
            command.assignments.iter().filter(|(name, _)| name.ends_with("RANK")).map(|(_, value)| (usize::MAX, value));
        // A text is looked at where its shell reads it.
        let words =
            command.words.iter().enumerate().filter(|(_, word)| command.far.is_some() || !word.text.contains(' '));
        let words = words.filter(|_| trains(command));
        for (index, word) in words.chain(values) {
            let here = word.made().find_map(number_of_a_task).filter(|_| command.far.is_none());
            let before = here.or_else(|| made_outside(&word.text).find_map(number_of_a_task));
            let there = word.made().find_map(number_of_a_task).filter(|_| command.far.is_some());
            if let Some(name) = before.or(there).filter(|name| !ignored(command, index) && !sets(name)) {
                let what = match before {
                    Some(_) => format!("${name} is this script's own, the same for each program that {far} starts"),
                    None => format!("${name} is empty in what {far} starts"),
                };
                all.push((word.line, what));
            }
        }
    }
    all
}

/// In the words of a command that srun and the like start, or in a variable that it inherits.
fn rank_of_the_batch_script(script: &Script) -> Vec<ScriptFinding> {
    let mut findings: Vec<ScriptFinding> = Vec::new();
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
    let mut found = |line, what: String, fix: String| {
        if findings.iter().all(|finding| finding.place != line) {
            findings.push(finding(line, what, fix));
        }
    };
    for (line, what) in numbers_without_a_starter(script, ignored) {
        found(line, what, COUNTED.into());
    }
    let in_each = |name: &str| {
        let by = started(&format!("${name}")).map_or("srun", |(by, _)| by.by);
        format!("{by} bash -c '… \"${name}\" …', in single quotes: then each task evaluates it")
    };
    // What these start has no number of its own, wherever it is evaluated.
    let none = |far: &str| is_remote(far) && far != "pbsdsh";
    let starters = |program: &str| STARTERS.contains(&program) && !none(program);
    for command in script.commands.iter().filter(|command| !command.substituted) {
        if let Some(far) = command.far.as_deref().filter(|far| starters(far)) {
            let values = command.assignments.iter().map(|(_, value)| (usize::MAX, value));
            for (index, word) in command.words.iter().enumerate().chain(values) {
                if let Some(name) =
                    made_outside(&word.text).find_map(number_of_a_task).filter(|_| !ignored(command, index))
                {
                    found(word.line, format!("${name} is evaluated before {far} starts"), in_each(name));
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
                if let Some(name) = word.made().find_map(number_of_a_task).filter(|_| !ignored(command, index)) {
                    let what = format!("${name} is evaluated before {} starts", base(&command.words[at].text));
                    found(word.line, what, in_each(name));
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
        let is_device = DEVICES.contains(&&*set.name);
        let is_rank = set.name.ends_with("RANK") || is_device || is_whole();
        let again = || script.assigned.iter().any(|other| other.name == set.name && other.far.is_some());
        if let Some(name) =
            set.value.made().find_map(number_of_a_task).filter(|_| is_rank && starts(set.line) && !again())
        {
            let fix = if is_device { TAKES_ITS_OWN.into() } else { in_each(name) };
            found(set.line, format!("{}=${name} is evaluated once, for all tasks", set.name), fix);
        }
    }
    findings
}
