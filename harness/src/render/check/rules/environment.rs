//! Variables: of NCCL and others, and whether they reach the workers.

use super::super::script::{Script, base};
use super::launchers::each;
use super::{Hit, Rule, hit};
use crate::report::Level::{Error, Warning};

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

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "not-exported",
        level: Error,
        why: "the shell keeps it to itself, and no program sees it",
        wrong: "#!/bin/bash\nset -e\nAPPTAINER_CACHEDIR=/scratch/cache\napptainer pull docker://pytorch/pytorch\n",
        right: "#!/bin/bash\nset -e\nexport APPTAINER_CACHEDIR=/scratch/cache\napptainer pull docker://pytorch/pytorch\n",
        find: not_exported,
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
    },
    Rule {
        name: "fast-network-off",
        level: Warning,
        why: "NCCL then uses plain TCP, or no direct path between GPUs: often ten times slower. It is meant for finding faults",
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
    },
    Rule {
        name: "threads-not-set",
        level: Warning,
        why: "launchers then set OMP_NUM_THREADS=1, and most of the node's CPUs stay idle",
        wrong: "#!/bin/bash\n#SBATCH --nodes=1 --time=1:00:00 --exclusive\nset -e\nsrun lockstep run --nproc-per-node=4 train\n",
        right: "#!/bin/bash\n#SBATCH --nodes=1 --time=1:00:00 --exclusive\nset -e\nexport OMP_NUM_THREADS=8\nsrun lockstep run --nproc-per-node=4 train\n",
        find: |script| {
            let set = script.variable("OMP_NUM_THREADS").is_some();
            let launches = script.launches();
            let several = launches.iter().find(|launch| launch.workers().is_some_and(|workers| workers != "1"));
            several
                .filter(|_| !set && script.scheduler().is_some())
                .map(|launch| {
                    hit(
                        launch.line(),
                        "OMP_NUM_THREADS is not set",
                        "export OMP_NUM_THREADS=N, the CPUs of a node divided by its workers",
                    )
                })
                .into_iter()
                .collect()
        },
    },
    Rule {
        name: "exports-do-not-travel",
        level: Error,
        why: "what pbsdsh, ssh and pdsh start has an environment of its own: the variables that this script exported are not in it",
        wrong: "#!/bin/bash\n#PBS -l select=2:ncpus=4:mpiprocs=1,walltime=1:00:00\nset -e\nexport MASTER_ADDR=$(head -n 1 \"$PBS_NODEFILE\")\npbsdsh -- /project/train.sh\n",
        right: "#!/bin/bash\n#PBS -l select=2:ncpus=4:mpiprocs=1,walltime=1:00:00\nset -e\nhead=$(head -n 1 \"$PBS_NODEFILE\")\npbsdsh -- /project/train.sh \"$head\"\n",
        find: exports_do_not_travel,
    },
    Rule {
        name: "mpirun-takes-no-exports",
        level: Warning,
        why: "Open MPI's mpirun hands on what begins with OMPI_ and what -x names; whether the rest arrives depends on the site",
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
            let lost = script.exported.iter().filter(|(line, name)| *line < run.line && read(name) && !handed(name));
            lost.map(|(_, name)| {
                hit(run.line, format!("mpirun is not asked to hand on {name}"), format!("mpirun -x {name} …"))
            })
            .collect()
        },
    },
    Rule {
        name: "devices-fixed",
        level: Warning,
        why: "the scheduler sets it to the GPUs that the job has got; others belong to other jobs",
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
    },
    Rule {
        name: "fewer-devices-than-workers",
        level: Error,
        why: "each worker takes the visible device of its local rank, and the others have none",
        wrong: "#!/bin/bash\nset -e\nCUDA_VISIBLE_DEVICES=0 torchrun --standalone --nproc_per_node=2 train.py\n",
        right: "#!/bin/bash\nset -e\nCUDA_VISIBLE_DEVICES=0,1 torchrun --standalone --nproc_per_node=2 train.py\n",
        find: |script| {
            let Some((_, devices)) = script.variable("CUDA_VISIBLE_DEVICES") else { return vec![] };
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
                        format!("{} workers, but {visible} visible device(s)", launch.workers().unwrap_or_default()),
                        format!("--nproc-per-node={visible}"),
                    )
                },
            )
        },
    },
];

/// A hit for each variable of which this holds.
fn set_to(script: &Script, holds: impl Fn(&str, &str) -> bool, fix: &str) -> Vec<Hit> {
    let found = script.variables.iter().filter(|(_, name, value)| holds(name, &value.text));
    found.map(|(line, name, value)| hit(*line, format!("{name}={}", value.text), fix)).collect()
}

fn not_exported(script: &Script) -> Vec<Hit> {
    let alone = script.commands.iter().filter(|command| command.words.is_empty() && !command.substituted);
    let read = |name: &str| name.starts_with("NCCL_") || READ_BY_PROGRAMS.contains(&name);
    let exported = |name: &str| script.exported.iter().any(|(_, known)| known == name);
    let all = script
        .commands
        .iter()
        .any(|command| command.program() == "set" && command.texts().any(|word| word == "-a" || word == "allexport"));
    let inherited = ["LD_LIBRARY_PATH"];
    let assigned = alone.flat_map(|command| command.assignments.iter());
    let found =
        assigned.filter(|(name, _)| read(name) && !exported(name) && !all && !inherited.contains(&name.as_str()));
    found
        .map(|(name, value)| {
            hit(value.line, format!("{name} is set, but not exported"), format!("export {name}={}", value.raw))
        })
        .collect()
}

fn exports_do_not_travel(script: &Script) -> Vec<Hit> {
    let far = |program: &str| ["pbsdsh", "ssh", "pdsh", "clush"].contains(&program);
    let read = |name: &str| name.starts_with("NCCL_") || name.starts_with("GLOO_") || READ_BY_PROGRAMS.contains(&name);
    let launches = script.launches();
    let is_launch = |line: usize| launches.iter().any(|launch| launch.command.line == line);
    let starts = script.commands.iter().filter(|command| far(base(command.program())) && !command.substituted);
    let mut hits = Vec::new();
    for command in starts.filter(|command| command.program() == "pbsdsh" || is_launch(command.line)) {
        let handed = |name: &str| command.words.iter().any(|word| word.raw.contains(name) || word.text.contains(name));
        let lost: Vec<&str> = script
            .exported
            .iter()
            .filter(|(line, name)| *line < command.line && read(name) && !handed(name))
            .map(|(_, name)| name.as_str())
            .collect();
        if !lost.is_empty() {
            hits.push(hit(
                command.line,
                format!("{} does not hand on {}", command.program(), lost.join(", ")),
                "give them as arguments, or set them in a script in a shared folder",
            ));
        }
    }
    hits
}
