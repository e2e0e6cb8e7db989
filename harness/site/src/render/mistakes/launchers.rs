//! Rules on launchers, their flags, and containers.

use std::sync::LazyLock;

use lockstep_contract::rules::Level::{Error, Warning};
use lockstep_contract::rules::Rule;
use regex::Regex;

use super::{RULE, ScriptFinding, Scripts, finding, own, starter_of};
use crate::render::script::{Around, Assigned, Command, Launch, STARTERS, Scheduler, Script, base};

pub(super) const LAUNCHERS: &[Rule<Scripts>] = &[
    Rule {
        name: "launcher-on-the-head-node-only",
        level: Error,
        why: "a batch script runs on the first node alone; its launcher waits for others that nobody starts, until RendezvousTimeoutError",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\
            lockstep run --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=\"$head:29400\" train\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\
            srun lockstep run --nnodes=2 --nproc-per-node=2 --rdzv-backend=c10d --rdzv-endpoint=\"$head:29400\" train\n",
        find: |script| {
            let launches = script.launches();
            // This node's own launcher, next to those that it starts on the others.
            let others = launches
                .iter()
                .any(|launch| matches!(launch.starter(), Some("ssh" | "pdsh" | "clush" | "parallel" | "blaunch")));
            if script.scheduler().is_none() || others {
                return vec![];
            }
            let starter = starter_of(script);
            each(
                script,
                |launch| {
                    let alone = launch.name == "accelerate launch" && launch.nnodes().is_none_or(|nodes| nodes < 2);
                    script.has_several_nodes() && launch.starter().is_none() && !launch.is_open() && !alone
                },
                |launch| {
                    (format!("{} starts on the first node only", launch.name), format!("{starter} {} …", launch.name))
                },
            )
        },
        ..RULE
    },
    Rule {
        name: "several-launchers-on-a-node",
        level: Error,
        why: "the launcher starts the workers by itself; with one launcher for each GPU there are GPUs × GPUs workers, and the launchers \
            wait for too few nodes",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=4 --gres=gpu:4 --time=1:00:00\nset -e\n\
            srun lockstep run --nproc-per-node=4 train\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --gres=gpu:4 --time=1:00:00\nset -e\n\
            srun lockstep run --nproc-per-node=4 train\n",
        find: |script| {
            let Some((line, tasks)) = script.tasks_per_node().filter(|(_, tasks)| *tasks > 1) else { return vec![] };
            let alone = |launch: &Launch<'_>| {
                let own = launch.is_started_with("--ntasks-per-node")
                    || launch
                        .before()
                        .iter()
                        .any(|word| word.text.contains("ppr:1:") || ["--ppn", "-ppn", "-u"].contains(&&*word.text));
                matches!(launch.starter(), None | Some("ssh" | "pdsh" | "clush" | "parallel" | "blaunch")) || own
            };
            let mut findings = one_for_each_slot(script, tasks);
            if !script.launches().iter().all(alone) {
                let fix = ["#SBATCH --ntasks-per-node=1", "mpiprocs=1 in `select=`", "#BSUB -R \"span[ptile=1]\""];
                findings.push(finding(line, format!("{tasks} tasks on each node, each a launcher"), own(script, fix)));
            }
            findings
        },
        ..RULE
    },
    Rule {
        name: "nnodes-differ",
        level: Error,
        why: "the launchers wait for another number of nodes than the job has",
        wrong: "#!/bin/bash\n#SBATCH --nodes=4 --time=1:00:00\nset -e\n\
            srun lockstep run --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=\"$head:29400\" train\n",
        right: "#!/bin/bash\n#SBATCH --nodes=4 --time=1:00:00\nset -e\n\
            srun lockstep run --nnodes=\"$SLURM_NNODES\" --rdzv-backend=c10d --rdzv-endpoint=\"$head:29400\" train\n",
        find: |script| {
            let Some((_, nodes)) = script.nodes() else { return vec![] };
            each(
                script,
                |launch| launch.nnodes().is_some_and(|named| named > 1 && named != nodes) && !launch.is_elastic(),
                |launch| {
                    (
                        format!("--nnodes={} in a job of {nodes} nodes", launch.flag("nnodes").unwrap_or_default()),
                        format!("--nnodes={nodes}"),
                    )
                },
            )
        },
        ..RULE
    },
    Rule {
        name: "node-loss-ends-all",
        level: Warning,
        why: "when a node fails, the scheduler ends the launchers on all others, too, although they could go on without it",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2-4 --time=1:00:00 --requeue\nset -e\n\
            srun lockstep run --nnodes=2:\"$SLURM_JOB_NUM_NODES\" --nproc-per-node=1 train --snapshots /scratch/run\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2-4 --time=1:00:00 --requeue --no-kill\nset -e\n\
            srun --no-kill lockstep run --nnodes=2:\"$SLURM_JOB_NUM_NODES\" --nproc-per-node=1 train --snapshots /scratch/run\n",
        find: |script| {
            let tolerates = |launch: &Launch<'_>| match script.scheduler() {
                Some(Scheduler::Slurm) => {
                    tolerates_loss(script) && (launch.starter() != Some("srun") || is_kept(launch))
                }
                Some(Scheduler::Pbs) => tolerates_loss(script),
                Some(Scheduler::Lsf) | None => true,
            };
            let fix = match tolerates_loss(script) {
                true => "srun --no-kill …",
                false => own(script, ["#SBATCH --no-kill", "#PBS -W tolerate_node_failures=all", ""]),
            };
            each(
                script,
                |launch| launch.is_elastic() && !tolerates(launch),
                |_| ("--nnodes=MIN:MAX in a job that ends with the first lost node".into(), fix.into()),
            )
        },
        ..RULE
    },
    Rule {
        name: "no-kill-without-range",
        level: Warning,
        why: "the job outlives a lost node, but its launchers wait for this node, which nobody starts again",
        wrong: "#!/bin/bash\n#SBATCH --nodes=4 --time=1:00:00 --requeue --no-kill\nset -e\n\
            srun --no-kill lockstep run --nproc-per-node=1 train --snapshots /scratch/run\n",
        right: "#!/bin/bash\n#SBATCH --nodes=4 --time=1:00:00 --requeue --no-kill\nset -e\n\
            srun --no-kill lockstep run --nnodes=1:4 --nproc-per-node=1 train --snapshots /scratch/run\n",
        find: |script| {
            each(
                script,
                |launch| {
                    tolerates_loss(script) && !launch.is_elastic() && !launch.is_open() && script.has_several_nodes()
                },
                |launch| {
                    (
                        format!("{} needs all nodes in a job that goes on without some", launch.name),
                        "--nnodes=MIN:MAX".into(),
                    )
                },
            )
        },
        ..RULE
    },
    Rule {
        name: "standalone-on-several-nodes",
        level: Error,
        why: "each node trains a model of its own, and all of them write the same files",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\nsrun torchrun --standalone --nproc_per_node=4 train.py\n",
        right: "#!/bin/bash\n#SBATCH --nodes=1 --time=1:00:00\nset -e\nsrun torchrun --standalone --nproc_per_node=4 train.py\n",
        find: |script| {
            let several = script.nodes().is_some_and(|(_, nodes)| nodes > 1);
            each(
                script,
                |launch| several && (launch.has("standalone") || launch.nnodes() == Some(1) && !launch.is_elastic()),
                |launch| {
                    (
                        format!("{} for one node in a job of several", launch.name),
                        "--nnodes=N --rdzv-backend=c10d --rdzv-endpoint=HEAD:PORT".into(),
                    )
                },
            )
        },
        ..RULE
    },
    Rule {
        name: "deprecated-launch",
        level: Warning,
        why: "torch.distributed.launch is deprecated; it passes --local-rank to programs that do not expect it",
        wrong: "#!/bin/bash\nset -e\npython -m torch.distributed.launch --nproc_per_node=2 --nnodes=1 train.py\n",
        right: "#!/bin/bash\nset -e\ntorchrun --standalone --nproc_per_node=2 train.py\n",
        find: |script| {
            each_one(
                script,
                |launch| launch.name == "torch.distributed.launch",
                |_| {
                    (
                        "torch.distributed.launch".into(),
                        "torchrun or `lockstep run`; read LOCAL_RANK from the environment".into(),
                    )
                },
            )
        },
        ..RULE
    },
    Rule {
        name: "launchers-share-a-node",
        level: Error,
        why: "mpirun fills the slots of the first node before it goes to the next, so two launchers fight for its GPUs",
        wrong: "#!/bin/bash\nset -e\n\
            mpirun -np 2 --bind-to none torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=\"$head:29400\" \
            train.py\n",
        right: "#!/bin/bash\nset -e\n\
            mpirun -np 2 --map-by ppr:1:node --bind-to none torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d \
            --rdzv_endpoint=\"$head:29400\" train.py\n",
        find: |script| {
            // A chunk of PBS has one process if it does not say how many.
            let one_task = script.tasks_per_node().map_or(script.select().is_some(), |(_, tasks)| tasks == 1);
            let spread = |launch: &Launch<'_>| {
                launch.before().iter().any(|word| {
                    ["ppr:1:", "-npernode", "--npernode", "-ppn", "--ppn", "-perhost", "--perhost", "-N"]
                        .iter()
                        .any(|option| word.text.starts_with(option))
                })
            };
            each_one(
                script,
                |launch| by_mpi(launch) && !one_task && !spread(launch),
                |_| {
                    (
                        "nothing spreads the launchers over the nodes".into(),
                        own(
                            script,
                            [
                                "mpirun --map-by ppr:1:node …, or --ntasks-per-node=1 in the job",
                                "mpirun --map-by ppr:1:node …, or mpiprocs=1 in `select=`",
                                "mpirun --map-by ppr:1:node …, or span[ptile=1] in the job",
                            ],
                        )
                        .into(),
                    )
                },
            )
        },
        ..RULE
    },
    Rule {
        name: "bound-to-one-core",
        level: Warning,
        why: "Open MPI binds what it starts to one core, or to one socket if there are more than two; all workers of the node then share it",
        wrong: "#!/bin/bash\nset -e\n\
            mpirun -np 2 --map-by ppr:1:node torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=\"$head:29400\" \
            train.py\n",
        right: "#!/bin/bash\nset -e\n\
            mpirun -np 2 --map-by ppr:1:node --bind-to none torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d \
            --rdzv_endpoint=\"$head:29400\" train.py\n",
        find: |script| {
            each_one(
                script,
                |launch| {
                    launch.starter() == Some("mpirun")
                        && by_mpi(launch)
                        && !launch.is_started_with("--bind-to")
                        && !launch.is_started_with("--cpu-bind")
                },
                |_| ("mpirun binds the launcher to a core".into(), "mpirun --bind-to none …".into()),
            )
        },
        ..RULE
    },
    Rule {
        name: "deepspeed-in-starter",
        level: Error,
        why: "deepspeed starts its launchers on the nodes by itself, over ssh: started on each node, it starts as many jobs, or each node \
            trains alone",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --time=1:00:00\nset -e\nsrun deepspeed --hostfile hosts train.py\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=1 --time=1:00:00\nset -e\ndeepspeed --hostfile hosts train.py\n",
        find: |script| {
            let several = script.has_several_nodes();
            let one = |command: &Command| {
                let options = ["-N1", "--nodes=1", "-n1", "--ntasks=1"];
                command.texts().any(|word| options.contains(&word)) || command.flag("nodes") == Some("1")
            };
            let by_starter = |command: &&Command| {
                let starter = command.far.as_deref().unwrap_or(command.program());
                let deepspeed = command.texts().any(|word| base(word) == "deepspeed");
                deepspeed && ["srun", "mpirun", "mpiexec"].contains(&starter) && !command.has("no-ssh") && !one(command)
            };
            let found = script.commands.iter().filter(by_starter).filter(|_| several);
            found
                .map(|command| {
                    finding(command.line, "deepspeed under another starter", "deepspeed alone, or with --no_ssh")
                })
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "other-nodes-idle",
        level: Warning,
        why: "a batch script runs on the first node alone, and nothing in it starts anything on the others",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\npython train.py\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\nsrun python train.py\n",
        find: |script| {
            let python = |command: &&Command| base(command.program()).starts_with("python") && !command.substituted;
            let starts =
                |word: &str| STARTERS.contains(&base(word)) || ["deepspeed", "ray", "parallel"].contains(&base(word));
            let open = script.commands.iter().any(|command| command.words.first().is_some_and(|word| word.open));
            let any = script.commands.iter().any(|command| command.texts().any(starts));
            let several = script.nodes().is_some_and(|(_, nodes)| nodes > 1);
            let first = script
                .commands
                .iter()
                .find(python)
                .filter(|_| several && !any && !open && script.launches().is_empty());
            first
                .map(|command| {
                    let what = format!("{} runs on the first node only", command.program());
                    finding(
                        command.line,
                        what,
                        own(script, ["srun …", "mpirun …, or pbsdsh -- …", "mpirun …, or blaunch …"]),
                    )
                })
                .into_iter()
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "starter-in-starter",
        level: Error,
        why: "each task of the outer one starts a whole job of the inner one, or the inner one waits for resources that the outer one holds",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\nmpirun -np 2 srun ./train\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\nsrun ./train\n",
        find: |script| {
            let inner = |word: &str| ["srun", "mpirun", "mpiexec"].contains(&base(word));
            let found = script.commands.iter().filter(|command| {
                inner(command.program())
                    && command.far.as_deref().map_or_else(|| command.texts().skip(1).any(inner), |far| far != "ssh")
            });
            found
                .map(|command| {
                    finding(
                        command.line,
                        format!(
                            "{} within another starter",
                            command.texts().skip(1).find(|word| inner(word)).unwrap_or(command.program())
                        ),
                        "keep one of them",
                    )
                })
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "cpus-not-passed-to-srun",
        level: Warning,
        why: "srun of Slurm 22.05 to 23.02 does not take --cpus-per-task from sbatch, and from 23.11 on takes it in part only: then a task \
            can get one CPU for all its workers. Before 22.05 it takes it",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --cpus-per-task=32 --time=1:00:00\nset -e\nsrun lockstep run --nproc-per-node=4 train\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --cpus-per-task=32 --time=1:00:00\nset -e\n\
            export SRUN_CPUS_PER_TASK=\"$SLURM_CPUS_PER_TASK\"\nsrun lockstep run --nproc-per-node=4 train\n",
        find: |script| {
            let passed = script.variable("SRUN_CPUS_PER_TASK").is_some() || script.exports("SRUN_CPUS_PER_TASK");
            let asked = script.slurm("cpus-per-task", 'c').is_some() && !passed;
            let own = |launch: &Launch<'_>| {
                launch.is_started_with("--cpus-per-task")
                    || launch.before().iter().any(|word| word.text.starts_with("-c"))
            };
            each_one(
                script,
                |launch| asked && launch.starter() == Some("srun") && !own(launch),
                |_| {
                    (
                        "srun without the job's --cpus-per-task".into(),
                        "export SRUN_CPUS_PER_TASK=\"$SLURM_CPUS_PER_TASK\"".into(),
                    )
                },
            )
        },
        ..RULE
    },
    Rule {
        name: "cpus-per-task-differ",
        level: Error,
        why: "from Slurm 23.11 on sbatch also hands the number on as SLURM_TRES_PER_TASK, and srun ends with `fatal: cpus-per-task set by two \
            different environment variables`; older versions take SRUN_CPUS_PER_TASK",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --cpus-per-task=32 --time=1:00:00\nset -e\nexport SRUN_CPUS_PER_TASK=16\n\
            srun lockstep run --nproc-per-node=1 train\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --cpus-per-task=32 --time=1:00:00\nset -e\n\
            export SRUN_CPUS_PER_TASK=\"$SLURM_CPUS_PER_TASK\"\nsrun lockstep run --nproc-per-node=1 train\n",
        find: cpus_differ,
        ..RULE
    },
    Rule {
        name: "sleep-decides-the-order",
        level: Warning,
        why: "launchers wait for each other anyway, and on a busy machine the pause is too short",
        wrong: "#!/bin/bash\nset -e\nssh -n node1 lockstep run --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=node1:29400 train &\n\
            sleep 10\nlockstep run --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=node1:29400 train\nwait $!\n",
        right: "#!/bin/bash\nset -e\nssh -n node1 lockstep run --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=node1:29400 train &\n\
            lockstep run --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=node1:29400 train\nwait $!\n",
        find: |script| {
            let last = script.launches().iter().map(Launch::line).max().unwrap_or(0);
            // In a loop it is for something else: a file that has to appear.
            let pauses = |command: &&Command| command.program() == "sleep" && command.line < last && !command.repeated;
            let waits = script.commands.iter().filter(pauses);
            waits
                .map(|command| {
                    finding(
                        command.line,
                        format!("`sleep {}` before a launcher", command.texts().nth(1).unwrap_or_default()),
                        "remove it: --rdzv-conf=join_timeout=600 gives slow nodes time",
                    )
                })
                .collect()
        },
        ..RULE
    },
];

/// SRUN_CPUS_PER_TASK or SLURM_CPUS_PER_TASK with another number than the job's.
fn cpus_differ(script: &Script) -> Vec<ScriptFinding> {
    let names = ["SRUN_CPUS_PER_TASK", "SLURM_CPUS_PER_TASK"];
    let asked = script.slurm("cpus-per-task", 'c').and_then(|(_, value)| value.parse::<u32>().ok());
    let set: Vec<_> = script.assigned.iter().filter(|set| names.contains(&set.name.as_str())).collect();
    let other = |set: &Assigned| set_number(set).zip(asked).is_some_and(|(set, asked)| set != asked);
    let computed = |set: &Assigned| {
        let value = &set.value.raw;
        value.contains("((") && value.contains("SLURM_CPUS_PER_TASK") && value.contains(['/', '*', '+', '-'])
    };
    let apart = |set: &Assigned| {
        let before = set_number(set).filter(|_| asked.is_none());
        before.is_some_and(|value| {
            script.assigned.iter().any(|first| {
                first.name != set.name
                    && names.contains(&first.name.as_str())
                    && set_number(first).is_some_and(|first| first != value)
            })
        })
    };
    let found = set.into_iter().filter(|set| other(set) || computed(set) || apart(set));
    found
        .map(|set| {
            let asked = asked.map_or_else(|| "the other".into(), |asked| format!("--cpus-per-task={asked} of the job"));
            finding(
                set.line,
                format!("{}={}, against {asked}", set.name, set.value.raw),
                "export SRUN_CPUS_PER_TASK=\"$SLURM_CPUS_PER_TASK\"",
            )
        })
        .collect()
}

fn set_number(set: &Assigned) -> Option<u32> {
    set.value.text.parse().ok()
}

fn by_mpi(launch: &Launch<'_>) -> bool {
    matches!(launch.starter(), Some("mpirun" | "mpiexec"))
}

/// Launchers that a loop over a file with several lines for a node starts: all of them but the first of a node are too many.
fn one_for_each_slot(script: &Script, tasks: u32) -> Vec<ScriptFinding> {
    let nodes = script.nodes().map(|(_, nodes)| nodes);
    let keeps_seen =
        script.code().any(|(_, line)| ["declare -A", "local -A", "typeset -A"].iter().any(|set| line.contains(set)));
    let slots = |launch: &Launch<'_>| {
        let mut around = launch.command.around.iter();
        let at = around
            .rposition(|around| matches!(around, Around::Loop { over, .. } if slot_list(script, over).is_some()))?;
        let chosen = launch.command.around[at..].iter().any(|around| matches!(around, Around::Condition(_)));
        // One launcher for each slot, each with one worker.
        let each_its_own = nodes.is_some_and(|nodes| launch.nnodes() == Some(nodes * tasks));
        match &launch.command.around[at] {
            Around::Loop { over, .. } if !chosen && !each_its_own => slot_list(script, over),
            _ => None,
        }
    };
    each_one(
        script,
        |launch| launch.starter() == Some("ssh") && !keeps_seen && slots(launch).is_some(),
        |launch| {
            let (list, fix) = slots(launch).unwrap_or_default();
            (format!("{} starts for each line of {list}, which names a node {tasks} times", launch.name), fix.into())
        },
    )
}

/// For a list that names a node once for each of its slots: what it is called, and how to get each node once.
fn slot_list(script: &Script, over: &str) -> Option<(&'static str, &'static str)> {
    const LISTS: [(&str, &str, &str); 4] = [
        ("PBS_NODEFILE", "$PBS_NODEFILE", "awk '!seen[$0]++' \"$PBS_NODEFILE\""),
        ("LSB_DJOB_HOSTFILE", "$LSB_DJOB_HOSTFILE", "awk '!seen[$0]++' \"$LSB_DJOB_HOSTFILE\""),
        ("LSB_HOSTS", "$LSB_HOSTS", "awk '!seen[$0]++' \"$LSB_DJOB_HOSTFILE\""),
        ("srun hostname", "what `srun hostname` prints", "scontrol show hostnames \"$SLURM_JOB_NODELIST\""),
    ];
    static ONCE: LazyLock<Regex> = LazyLock::new(|| {
        let once = r"uniq|sort\b[^|;)]*\s-\w*u|!\s*\w+\[\$|\bhead\b|\btail\b|\bsed\s+-n|nodeset|cluset|\bset\(|\[0\]|\[-1\]|\bgrep\b|\bcomm\b";
        Regex::new(once).expect("the pattern is constant")
    });
    let all = script.with_origins(over, 4);
    let (_, list, fix) = LISTS.into_iter().find(|(name, ..)| all.contains(name))?;
    (!ONCE.is_match(&all)).then_some((list, fix))
}

/// Returns true if the job goes on when one of its nodes fails, as it asks the scheduler.
fn tolerates_loss(script: &Script) -> bool {
    let says = |text: &str| script.live(Scheduler::Pbs).any(|directive| directive.text.contains(text));
    script.slurm("no-kill", 'k').is_some() || says("tolerate_node_failures=all")
}

/// Returns true if srun keeps its step when a node fails.
fn is_kept(launch: &Launch<'_>) -> bool {
    ["--no-kill", "-k"].iter().any(|option| launch.is_started_with(option))
}

/// A finding for each launcher that `holds` accepts, except where a condition chooses between launchers by what the job is like.
pub(super) fn each<'a>(
    script: &'a Script,
    holds: impl Fn(&Launch<'a>) -> bool,
    describe: impl Fn(&Launch<'a>) -> (String, String),
) -> Vec<ScriptFinding> {
    // Numbers, nodes, hosts, ranks, what is installed, trials: not a user's choice between two ways to start the same job.
    static OF_THE_JOB: LazyLock<Regex> = LazyLock::new(|| {
        let asks = r"(?i)-(gt|lt|ge|le|eq|ne)\b|\(\(|[<>]|node|host|head|rank|num|count|world|size|job|single|multi|debug|test|local|dry|gpu|\$\?|^$|\b(command -v|type|which|hash)\b|-[xefdz] ";
        Regex::new(asks).expect("the pattern is constant")
    });
    let several = script.launches().len() > 1;
    let chosen = |launch: &Launch<'a>| several && launch.conditions().any(|text| OF_THE_JOB.is_match(text));
    each_one(script, |launch| !chosen(launch) && holds(launch), describe)
}

/// A finding for each launcher that `holds` accepts, under whatever condition it is started: for what is wrong in every case.
pub(super) fn each_one<'a>(
    script: &'a Script,
    holds: impl Fn(&Launch<'a>) -> bool,
    describe: impl Fn(&Launch<'a>) -> (String, String),
) -> Vec<ScriptFinding> {
    let launches = script.launches();
    let found = launches.iter().filter(|launch| holds(launch));
    let mut findings: Vec<ScriptFinding> = Vec::new();
    for launch in found {
        let (what, fix) = describe(launch);
        let found = finding(launch.line(), what, fix);
        // A function that is called twice is wrong once.
        if !findings.iter().any(|other| (other.place, &other.what) == (found.place, &found.what)) {
            findings.push(found);
        }
    }
    findings
}

// ---- containers

pub(super) const CONTAINERS: &[Rule<Scripts>] = &[
    Rule {
        name: "container-without-gpus",
        level: Error,
        why: "without --nv neither the GPUs nor their driver are in the container, and CUDA finds no device",
        wrong: "#!/bin/bash\n#SBATCH --gres=gpu:4 --time=1:00:00\nset -e\n\
            srun apptainer exec train.sif lockstep run --nproc-per-node=gpu train\n",
        right: "#!/bin/bash\n#SBATCH --gres=gpu:4 --time=1:00:00\nset -e\n\
            srun apptainer exec --nv train.sif lockstep run --nproc-per-node=gpu train\n",
        find: |script| {
            let has = |command: &Command| {
                command
                    .texts()
                    .any(|word| ["--nv", "--nvccli", "--rocm"].contains(&word) || word.contains("APPTAINER_NV"))
            };
            // AMD's driver is in the kernel alone, and images for it bring ROCm: --rocm is one way among several.
            let for_nvidia = script.is_for_gpus() && !script.is_for_amd();
            let found = script.commands.iter().filter(|command| runs_image(command) && !has(command) && for_nvidia);
            let forced = script.variable("APPTAINER_NV").is_some() || script.variable("SINGULARITY_NV").is_some();
            found
                .filter(|_| !forced)
                .map(|command| {
                    finding(command.line, "the container sees no GPU", "apptainer exec --nv …; for AMD's GPUs, --rocm")
                })
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "container-for-another-vendor",
        level: Warning,
        why: "--nv looks for NVIDIA's libraries, finds none on nodes with AMD's GPUs, and does not bring ROCm in",
        wrong: "#!/bin/bash\n#SBATCH --gpus-per-node=8 --time=1:00:00\nset -e\nexport MIOPEN_USER_DB_PATH=/tmp/miopen\n\
            srun singularity exec --nv pytorch.sif torchrun --nproc-per-node=8 train.py\n",
        right: "#!/bin/bash\n#SBATCH --gpus-per-node=8 --time=1:00:00\nset -e\nexport MIOPEN_USER_DB_PATH=/tmp/miopen\n\
            srun singularity exec --rocm pytorch.sif torchrun --nproc-per-node=8 train.py\n",
        find: |script| {
            let has = |command: &Command, flag: &str| command.texts().any(|word| word == flag);
            let found = script.commands.iter().filter(|command| {
                runs_image(command) && has(command, "--nv") && !has(command, "--rocm") && script.is_for_amd()
            });
            found
                .map(|command| finding(command.line, "--nv, but the script is for AMD's GPUs", "--rocm in its place"))
                .collect()
        },
        ..RULE
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
                    finding(
                        command.line,
                        "the image is unpacked into the home folder",
                        "export APPTAINER_CACHEDIR=/scratch/…, before it",
                    )
                })
                .collect()
        },
        ..RULE
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
                    finding(
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
        ..RULE
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
