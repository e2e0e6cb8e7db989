//! How the nodes find each other.

use std::sync::LazyLock;

use lockstep_contract::rules::Level::{Error, Warning};
use lockstep_contract::rules::Rule;
use regex::Regex;

use super::environment::is_rank_of_a_task;
use super::launchers::{each, each_one};
use super::{RULE, ScriptFinding, Scripts, finding, head_node, own, port};
use crate::render::evaluate::mentions;
use crate::render::script::{Around, Command, Launch, Script, flag};
use crate::render::words::{is_plain, range, shown};

pub(super) const MEETING: &[Rule<Scripts>] = &[
    Rule {
        name: "master-is-each-node",
        level: Error,
        why: "it is evaluated on each node, so each node takes itself for the head node and waits there alone",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\nsrun bash -c 'export MASTER_ADDR=$(hostname); exec ./train'\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\
            MASTER_ADDR=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | sed -n 1p)\nexport MASTER_ADDR\nsrun ./train\n",
        find: |script| {
            let far = script.commands.iter().filter(|command| {
                command.far.is_some() && command.far.as_deref() != Some("ssh") && script.has_several_nodes()
            });
            let names_itself =
                |text: &str| text.contains("$(hostname") || text.contains("`hostname") || text.contains("$HOSTNAME");
            let assigned = |command: &Command| {
                command.assignments.iter().any(|(name, value)| name == "MASTER_ADDR" && names_itself(&value.text))
            };
            let passed = |command: &Command| {
                ["rdzv-endpoint", "master-addr"].iter().any(|name| command.flag(name).is_some_and(names_itself))
            };
            let found = far.filter(|command| assigned(command) || passed(command));
            found
                .map(|command| finding(command.line, "each node names itself as the head node", head_node(script)))
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "unexpanded-nodelist",
        level: Error,
        why: "the list has Slurm's short form, such as n[01-04]: its first line is the whole list, and its first comma stands in a bracket",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\nhead=$(echo \"$SLURM_JOB_NODELIST\" | head -1)\n\
            srun ./train \"$head\"\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\
            head=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | sed -n 1p)\nsrun ./train \"$head\"\n",
        find: |script| {
            let cut = |line: &str| {
                (line.contains("| head") || line.contains("| cut") || line.contains("| awk") || line.contains("| tr"))
                    && !line.contains("hostname")
            };
            let inside = |line: &str| {
                ["SLURM_NODELIST", "SLURM_JOB_NODELIST"]
                    .iter()
                    .any(|name| line.contains(&format!("${{{name}%")) || line.contains(&format!("${{{name}:")))
            };
            let found = script.code().filter(|(_, line)| line.contains("NODELIST") && (cut(line) || inside(line)));
            found
                .map(|(line, _)| {
                    finding(
                        line,
                        "a part of the node list is taken before it is expanded",
                        "scontrol show hostnames \"$SLURM_JOB_NODELIST\" | sed -n 1p",
                    )
                })
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "no-rendezvous",
        level: Error,
        why: "without an endpoint each node looks for the others on itself (127.0.0.1)",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\nsrun torchrun --nnodes=2 --nproc_per_node=4 train.py\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\
            srun torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=\"$head:29400\" train.py\n",
        find: |script| {
            // With c10d, torchrun ignores --master-addr.
            let named = |launch: &Launch<'_>| {
                let elastic = launch.flag("rdzv-backend").is_some_and(|backend| backend != "static");
                let names: &[&str] = match launch.name {
                    "accelerate launch" => &["master-addr", "config-file"],
                    "torchrun" if elastic => &["rdzv-endpoint"],
                    _ => &["rdzv-endpoint", "master-addr", "hostfile"],
                };
                names.iter().any(|name| launch.flag(name).is_some()) || launch.is_open()
            };
            let finds = |launch: &Launch<'_>| {
                launch.name == "lockstep run" && matches!(launch.starter(), Some("srun" | "mpirun" | "mpiexec"))
            };
            each(
                script,
                |launch| {
                    script.has_several_nodes()
                        && !launch.has("standalone")
                        && launch.nnodes() != Some(1)
                        && (launch.name != "accelerate launch" || launch.nnodes().is_some())
                        && !named(launch)
                        && !finds(launch)
                },
                |launch| {
                    (
                        format!("{} is not told where the nodes meet", launch.name),
                        "--rdzv-backend=c10d --rdzv-endpoint=\"$head:$port\"; for lockstep run --hostfile=FILE will do"
                            .into(),
                    )
                },
            )
        },
        ..RULE
    },
    Rule {
        name: "endpoint-without-port",
        level: Error,
        why: "the static rendezvous has no default port for an endpoint; c10d takes 29400, where another job may be",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\
            head=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | sed -n 1p)\n\
            srun torchrun --nnodes=2 --node_rank=\"$r\" --rdzv_endpoint=\"$head\" train.py\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\
            srun torchrun --nnodes=2 --node_rank=\"$r\" --rdzv_endpoint=\"$head:$port\" train.py\n",
        find: |script| {
            each_one(
                script,
                |launch| {
                    launch.flag("rdzv-endpoint").is_some_and(|endpoint| {
                        // An endpoint from elsewhere may already have its port.
                        let known = || origin(script, endpoint).is_some_and(|origin| !origin.contains(':'));
                        !endpoint.contains(':') && !endpoint.is_empty() && (is_plain(endpoint) || known())
                    }) && launch.flag("rdzv-backend") != Some("c10d")
                },
                |launch| {
                    let endpoint = launch.flag("rdzv-endpoint").unwrap_or_default();
                    (format!("the endpoint {endpoint} has no port"), format!("--rdzv-endpoint=\"{endpoint}:$port\""))
                },
            )
        },
        ..RULE
    },
    Rule {
        name: "same-node-rank",
        level: Error,
        why: "all nodes claim the same number, and the others never appear",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\
            srun torchrun --nnodes=2 --node_rank=0 --master_addr=\"$head\" --master_port=\"$port\" train.py\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\
            srun bash -c 'torchrun --nnodes=2 --node_rank=\"$SLURM_NODEID\" --master_addr=\"$0\" --master_port=\"$1\" train.py' \"$head\" \
            \"$port\"\n",
        find: |script| {
            each_one(
                script,
                |launch| {
                    // In a loop over hosts; one that is started apart, or after a test of the host's name, has a number of its own.
                    let loops = || matches!(launch.command.around.last(), Some(Around::Loop { over, .. }) if over.contains('$'));
                    let elastic = launch.flag("rdzv-backend").is_some_and(|backend| backend != "static");
                    let everywhere = match launch.starter() {
                        Some("ssh") => loops() && !elastic,
                        Some(starter) => {
                            ["srun", "mpirun", "mpiexec", "pbsdsh", "pdsh", "clush", "parallel", "blaunch"]
                                .contains(&starter)
                        }
                        None => false,
                    };
                    launch.flag("node-rank").is_some_and(|rank| rank.parse::<u32>().is_ok()) && everywhere
                },
                |launch| {
                    (
                        format!("--node-rank={} on every node", launch.flag("node-rank").unwrap_or_default()),
                        "--rdzv-backend=c10d, which needs no node rank".into(),
                    )
                },
            )
        },
        ..RULE
    },
    Rule {
        name: "head-is-not-rank-0",
        level: Error,
        why: "with the static rendezvous the node of rank 0 opens the port where the nodes meet, and the others look for it on the head node",
        wrong: "#!/bin/bash\n#PBS -l select=2:ncpus=4:mpiprocs=1,walltime=1:00:00\nset -e\nhead=$(sort -u \"$PBS_NODEFILE\" | tail -n 1)\n\
            pbsdsh -- bash -c 'torchrun --nnodes=2 --node_rank=\"$PBS_NODENUM\" --master_addr=\"$0\" --master_port=29400 train.py' \"$head\"\n",
        right: "#!/bin/bash\n#PBS -l select=2:ncpus=4:mpiprocs=1,walltime=1:00:00\nset -e\nhead=$(sed -n 1p \"$PBS_NODEFILE\")\n\
            pbsdsh -- bash -c 'torchrun --nnodes=2 --node_rank=\"$PBS_NODENUM\" --master_addr=\"$0\" --master_port=29400 train.py' \"$head\"\n",
        find: head_elsewhere,
        ..RULE
    },
    Rule {
        name: "id-differs-between-nodes",
        level: Error,
        why: "each node draws its own number and waits for others with the same id",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\
            srun bash -c 'torchrun --nnodes=2 --rdzv_id=$RANDOM --rdzv_backend=c10d --rdzv_endpoint=\"$0:29400\" train.py' \"$head\"\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\
            srun bash -c 'torchrun --nnodes=2 --rdzv_id=$SLURM_JOB_ID --rdzv_backend=c10d --rdzv_endpoint=\"$0:29400\" train.py' \"$head\"\n",
        find: |script| {
            let on_each = |launch: &Launch<'_>| launch.command.far.is_some() || launch.starter().is_none();
            each(
                script,
                |launch| {
                    launch
                        .flag("rdzv-id")
                        .is_some_and(|id| id.contains("RANDOM") || id.contains("$$") || id.contains("$(date"))
                        && on_each(launch)
                        && script.has_several_nodes()
                },
                |_| {
                    (
                        "the id is drawn wherever the launcher starts".into(),
                        own(
                            script,
                            ["--rdzv-id=\"$SLURM_JOB_ID\"", "--rdzv-id=\"$PBS_JOBID\"", "--rdzv-id=\"$LSB_JOBID\""],
                        )
                        .into(),
                    )
                },
            )
        },
        ..RULE
    },
    Rule {
        name: "fixed-port",
        level: Warning,
        why: "two jobs that share a node meet at the same port, and one of them fails or joins the other",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\
            srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=\"$head:29500\" train.py\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\nport=$((20000 + SLURM_JOB_ID % 10000))\n\
            srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=\"$head:$port\" train.py\n",
        find: |script| {
            let alone = script.slurm("exclusive", '\0').is_some()
                || script.directives.iter().any(|directive| directive.text.contains("excl"));
            let is_number = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_digit());
            let given = |launch: &Launch<'_>| {
                let endpoint =
                    launch.flag("rdzv-endpoint").and_then(|endpoint| Some(endpoint.rsplit_once(':')?.1.to_owned()));
                endpoint.or_else(|| launch.flag("master-port").map(str::to_owned)).filter(|port| is_number(port))
            };
            // By hand, outside a job, it is as good as any.
            let by_hand =
                |launch: &Launch<'_>| launch.conditions().any(|text| text.starts_with('[') && text.contains("JOB"));
            each_one(
                script,
                |launch| {
                    let fixed = given(launch).is_some_and(|port| port != "0") && !by_hand(launch);
                    !alone && script.scheduler().is_some() && fixed
                },
                |launch| (format!("port {} for every job", given(launch).unwrap_or_default()), port(script).into()),
            )
        },
        ..RULE
    },
    Rule {
        name: "port-out-of-range",
        level: Error,
        why: "ports go from 1024 to 65535, and bash reads a number that begins with 0 as octal: the job fails for some job ids and runs \
            for others",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\nexport MASTER_PORT=$((10000 + SLURM_JOB_ID % 60000))\nsrun ./train\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\nexport MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))\nsrun ./train\n",
        find: port_out_of_range,
        ..RULE
    },
    Rule {
        name: "several-addresses",
        level: Warning,
        why: "the command prints all addresses of the host, or the one that its name resolves to, which can be a loopback address",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\nhead=$(hostname -I)\nport=$((20000 + SLURM_JOB_ID % 10000))\n\
            srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=\"$head:$port\" train.py\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\nhead=$(hostname)\nport=$((20000 + SLURM_JOB_ID % 10000))\n\
            srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=\"$head:$port\" train.py\n",
        find: several_addresses,
        ..RULE
    },
    Rule {
        name: "flag-without-effect",
        level: Warning,
        why: "torchrun reads --master-addr, --master-port and --node-rank with the static rendezvous alone, and --standalone replaces the \
            endpoint",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\
            srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=\"$head:$port\" --master_addr=\"$head\" train.py\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\
            srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=\"$head:$port\" train.py\n",
        find: |script| {
            let inert = |launch: &Launch<'_>| {
                let elastic = launch.flag("rdzv-backend").is_some_and(|backend| backend == "c10d");
                let names: &[&str] = match launch.name {
                    "torchrun" if launch.has("standalone") => &["rdzv-endpoint", "master-addr", "master-port"],
                    "torchrun" if elastic => &["master-addr", "master-port", "node-rank"],
                    _ => &[],
                };
                names.iter().copied().find(|name| launch.flag(name).is_some())
            };
            each_one(
                script,
                |launch| inert(launch).is_some(),
                |launch| (format!("--{} does nothing here", inert(launch).unwrap_or_default()), "remove it".into()),
            )
        },
        ..RULE
    },
    Rule {
        name: "fixed-head-node",
        level: Warning,
        why: "the next job gets other nodes",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\
            srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=172.16.0.9:29500 train.py\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\
            srun torchrun --nnodes=2 --rdzv_backend=c10d --rdzv_endpoint=\"$head:$port\" train.py\n",
        find: |script| {
            let address = |launch: &Launch<'_>| {
                let all = ["rdzv-endpoint", "master-addr"].into_iter().filter_map(|name| launch.flag(name));
                all.map(|text| text.split(':').next().unwrap_or_default().to_owned())
                    .find(|host| !host.is_empty() && is_plain(host) && !is_loopback(host))
            };
            each_one(
                script,
                |launch| address(launch).is_some(),
                |launch| {
                    (
                        format!("the head node is always {}", address(launch).unwrap_or_default()),
                        head_node(script).into(),
                    )
                },
            )
        },
        ..RULE
    },
    Rule {
        name: "loopback-head-node",
        level: Error,
        why: "each node reaches only itself at this address",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\nexport MASTER_ADDR=127.0.0.1\nsrun ./train\n",
        right: "#!/bin/bash\n#SBATCH --nodes=1 --time=1:00:00\nset -e\nexport MASTER_ADDR=127.0.0.1\nsrun ./train\n",
        find: |script| {
            if !script.has_several_nodes() {
                return vec![];
            }
            let flag = |launch: &Launch<'_>| {
                ["rdzv-endpoint", "master-addr"].iter().any(|name| {
                    launch.flag(name).is_some_and(|host| is_loopback(host.split(':').next().unwrap_or_default()))
                })
            };
            let mut findings: Vec<ScriptFinding> = each(script, flag, |_| {
                ("a loopback address for several nodes".into(), "--rdzv-endpoint=\"$head:$port\"".into())
            });
            let variable =
                script.variable("MASTER_ADDR").filter(|set| is_loopback(&set.value.text) && !set.conditional);
            findings.extend(variable.map(|set| {
                finding(
                    set.line,
                    format!("MASTER_ADDR={} for several nodes", set.value.text),
                    format!("{}, then MASTER_ADDR=$head", head_node(script)),
                )
            }));
            findings
        },
        ..RULE
    },
    Rule {
        name: "fallback-to-this-node",
        level: Warning,
        why: "where the first way finds nothing (scontrol is missing in a container, the variable did not arrive) each node takes itself for the \
            head node: it trains a model alone, or waits for others that never come",
        wrong: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\
            srun bash -c 'export MASTER_ADDR=${MASTER_ADDR:-localhost}; exec ./train'\n",
        right: "#!/bin/bash\n#SBATCH --nodes=2 --time=1:00:00\nset -e\n\
            srun bash -c 'export MASTER_ADDR=${MASTER_ADDR:?is not set}; exec ./train'\n",
        find: fallback,
        ..RULE
    },
];

/// Which of the job's hosts is the head node, and which one has rank 0, where both are known: the first or the last.
fn head_elsewhere(script: &Script) -> Vec<ScriptFinding> {
    /// `--name value`, or `NAME=value` before or among a command's words.
    fn given<'a>(command: &'a Command, flags: &[&str], names: &[&str]) -> Option<&'a str> {
        let flagged = || flags.iter().find_map(|name| flag(&command.words, name));
        let set = |name: &&str| {
            let own = command.assignments.iter().find(|(set, _)| set == name).map(|(_, value)| value.text.as_str());
            own.or_else(|| command.texts().find_map(|word| word.strip_prefix(*name)?.strip_prefix('=')))
        };
        flagged().or_else(|| names.iter().find_map(set))
    }
    let rank = |command| given(command, &["node-rank", "machine-rank"], &["NODE_RANK", "RANK"]);
    let mut findings: Vec<ScriptFinding> = Vec::new();
    // A launcher that is started apart.
    if script.commands.iter().filter_map(rank).any(|rank| rank == "0") {
        return findings;
    }
    for command in &script.commands {
        let elastic = flag(&command.words, "rdzv-backend").is_some_and(|backend| backend != "static");
        let Some(rank) = rank(command).filter(|_| !elastic) else { continue };
        let head = given(command, &["master-addr", "main-process-ip", "rdzv-endpoint"], &["MASTER_ADDR"]);
        let exported = || script.variable("MASTER_ADDR").filter(|set| !set.conditional && script.exports(&set.name));
        let head = head.map(|head| (command.line, head.to_owned()));
        let Some((line, head)) = head.or_else(|| exported().map(|set| (set.line, set.value.raw.clone()))) else {
            continue;
        };
        let Some(head) = is_last(&script.with_origins(&shown(&head), 4)) else { continue };
        let Some(first) = rank_0_is_last(script, command, &shown(rank)) else { continue };
        if head != first && findings.iter().all(|finding| finding.place != line) {
            let name = |last| if last { "last" } else { "first" };
            let what = format!("the head node is the {} host, and node rank 0 the {}", name(head), name(first));
            findings.push(finding(line, what, if first { "the same end for both" } else { head_node(script) }));
        }
    }
    findings
}

/// Returns true if this takes the last one of the job's hosts, and false if it takes the first.
fn is_last(all: &str) -> Option<bool> {
    static LAST: LazyLock<Regex> = LazyLock::new(|| {
        let last = r"\btail\s+(-n\s*)?-?1\b|\[-1\]|\[\$\{#\w+\[@\]\}\s*-\s*1\]|\[[^\[\]]*-\s*1\s*\)*\]|\bsed\s+-n\s+['\x22]?\$p|END\s*\{\s*print";
        Regex::new(last).expect("the pattern is constant")
    });
    static FIRST: LazyLock<Regex> = LazyLock::new(|| {
        let first = r"\bhead\s+(-n\s*)?-?1\b|\[0\]|\bsed\s+-n\s+['\x22]?1p|NR\s*==\s*1";
        Regex::new(first).expect("the pattern is constant")
    });
    let of_hosts = ["NODEFILE", "show hostname", "LSB_", "hosts"].iter().any(|name| all.contains(name));
    // The last one of a host's addresses.
    let of_addresses = ["hostname -I", "hostname -i", "getent", "ip addr", "ip -", "dig ", "host "]
        .iter()
        .any(|name| all.contains(name));
    let (last, first) = (LAST.is_match(all), FIRST.is_match(all));
    (of_hosts && !of_addresses && last != first).then(|| last != is_reversed(all))
}

fn is_reversed(all: &str) -> bool {
    static REVERSED: LazyLock<Regex> =
        LazyLock::new(|| Regex::new(r"\btac\b|\bsort\b[^|;)]*\s-\w*r|--reverse").expect("the pattern is constant"));
    REVERSED.is_match(all)
}

/// Returns true if rank 0 is the last host's, and false if it is the first one's: by the starter's own number, or by one that a loop counts.
fn rank_0_is_last(script: &Script, command: &Command, rank: &str) -> Option<bool> {
    if is_rank_of_a_task(rank) {
        return (command.far.as_deref() != Some("ssh")).then_some(false);
    }
    let name = rank.strip_prefix('$')?.trim_matches(['{', '}']);
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        return None;
    }
    let loops = |around: &Around| match around {
        Around::Loop { variable, over } => Some((variable.clone(), over.clone())),
        Around::Condition(_) => None,
    };
    let (variable, over) = command.around.iter().rev().find_map(loops)?;
    let hosts: Vec<&str> =
        command.starter.iter().map(|word| word.raw.as_str()).filter(|raw| !raw.contains(' ')).collect();
    let counts_itself = variable == name && ["seq 0 ", "{0.."].iter().any(|first| over.contains(first))
        || over.starts_with("for ((") && over.contains(&format!("{name}=0")) && over.contains("++");
    if variable == name && over.contains("${!") || counts_itself {
        return Some(is_reversed(&script.with_origins(&hosts.join(" "), 4)));
    }
    let begins = script.assigned.iter().filter(|set| set.name == name && set.value.text.parse::<u32>().is_ok());
    let begins: Vec<&str> = begins.map(|set| set.value.text.as_str()).collect();
    let more = [
        format!("{name}++"),
        format!("++{name}"),
        format!("{name}+=1"),
        format!("{name} += 1"),
        format!("{name} + 1"),
        format!("{name}+1"),
    ];
    let grows =
        script.code().any(|(line, text)| line >= command.line && more.iter().any(|more| text.contains(more.as_str())));
    let all = script.with_origins(&over, 4);
    // The others without the first or the last.
    let is_part = ["grep", "tail", "sed", "@]:", "*]:", "head "].iter().any(|part| all.contains(part));
    (begins == ["0"] && grows && !is_part).then(|| is_reversed(&all))
}

/// A second way to the head node that leads each node to itself: behind `:-` and its like, `||`, or a test for emptiness.
fn fallback(script: &Script) -> Vec<ScriptFinding> {
    let mut findings: Vec<ScriptFinding> = Vec::new();
    if !script.has_several_nodes() {
        return findings;
    }
    let mut found = |line: usize, what: String, name: Option<&str>| {
        if findings.iter().all(|finding| finding.place != line) {
            let fix = name.map_or("|| exit 1, so that the job ends and says why".into(), |name| {
                format!("${{{name}:?is not set}}")
            });
            findings.push(finding(line, what, fix));
        }
    };
    // The batch script's own name is right for all nodes, a task's is right for its own node alone.
    let itself = |text: &str, far: bool| {
        let text = text.trim_matches(['"', '\'', '}']);
        is_loopback(text.split(':').next().unwrap_or_default())
            || text.trim_start_matches('[').starts_with("::1")
            || far && ["$(hostname", "`hostname", "$HOSTNAME", "${HOSTNAME"].iter().any(|name| text.starts_with(name))
    };
    let is_address = |name: &str| {
        let name = name.to_ascii_uppercase();
        ["ADDR", "HOST", "HEAD", "MASTER", "_IP", "ENDPOINT", "RDZV", "NODE"].iter().any(|part| name.contains(part))
            || name == "IP"
    };
    for (line, made, far) in &script.expanded {
        let inner = made.trim_start_matches("${");
        let (name, rest) =
            inner.split_at(inner.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(inner.len()));
        let rest = rest.trim_start_matches(':');
        let Some(other) = rest.strip_prefix(['-', '=']).filter(|_| is_address(name)) else { continue };
        // What the batch script has set is there, unless a command that failed should have printed it; what srun sets is there for its tasks.
        let near = script.assigned.iter().any(|set| {
            let certain = !set.value.raw.contains(['`', '(']) && !set.conditional && !mentions(&set.value.raw, name);
            set.name == name && set.far.is_none() && !set.elsewhere && set.line < *line && certain
        });
        let given = near && (far.is_none() || script.exports(name)) || far.is_some() && name.starts_with("SLURM_");
        if itself(other, far.is_some()) && !given {
            let who = if far.is_some() { "each task takes" } else { "all tasks take" };
            found(*line, format!("where {name} is empty, {who} {}", other.trim_end_matches('}')), Some(name));
        }
    }
    for command in script.commands.iter().filter(|command| command.otherwise && command.substituted) {
        let far = command.far.is_some();
        let printed = match command.program() {
            "echo" | "printf" => command.words.last().filter(|word| itself(&word.raw, far) || itself(&word.text, far)),
            "hostname" => command.words.first().filter(|_| far),
            _ => None,
        };
        if let Some(word) = printed {
            found(command.line, format!("where the command before `||` fails, the head node is {}", word.text), None);
        }
    }
    for set in script.assigned.iter().filter(|set| set.conditional && is_address(&set.name)) {
        // For want of a value, and not because there is one node; the scheduler's own variables are always there.
        let own = |line: &str| line.contains("SLURM_") || line.contains("PBS_");
        let asks = |line: &String| {
            let empty = ["-z ", "[ ! ", "[[ ! ", "= \"\"", "\"\")"].iter().any(|test| line.contains(test));
            empty && !own(line) || line.contains("||") || line.contains("if !")
        };
        let tests = |line: usize| {
            let above = script.lines.get(line.saturating_sub(3)..line).unwrap_or_default();
            // `if [ -n "$head" ]; then … else head=localhost; fi`
            let otherwise = above.iter().any(|line| line.contains("else"));
            let given = |line: &String| line.contains("-n ") && !own(line);
            above.iter().any(asks)
                || otherwise
                    && script.lines.get(line.saturating_sub(6)..line).is_some_and(|above| above.iter().any(given))
        };
        if itself(&set.value.raw, set.far.is_some()) && tests(set.line) {
            found(set.line, format!("where {} is empty, it becomes {}", set.name, set.value.text), Some(&set.name));
        }
    }
    findings
}

fn is_loopback(host: &str) -> bool {
    ["localhost", "localhost.localdomain", "ip6-localhost", "0.0.0.0"].contains(&host) || host.starts_with("127.")
}

/// For a text that is one variable: what the script assigns to it, and so on.
fn origin(script: &Script, text: &str) -> Option<String> {
    let name = text.strip_prefix('$')?.trim_matches(['{', '}']);
    script.variable(name).map(|set| set.value.raw.clone())
}

fn port_out_of_range(script: &Script) -> Vec<ScriptFinding> {
    let mut ports: Vec<(usize, String)> = Vec::new();
    for set in script.assigned.iter().filter(|set| set.name == "MASTER_PORT" && !set.conditional) {
        ports.push((set.line, set.value.raw.clone()));
    }
    for launch in script.launches() {
        let endpoint = launch.flag("rdzv-endpoint").and_then(|endpoint| Some(endpoint.rsplit_once(':')?.1.to_owned()));
        let port = endpoint.or_else(|| launch.flag("master-port").map(str::to_owned));
        ports.extend(port.filter(|port| !port.contains("MASTER_PORT")).map(|port| (launch.line(), port)));
    }
    let mut findings = Vec::new();
    for (line, port) in ports {
        let Some(range) = range(&port, script) else { continue };
        let what =
            if range.most > 65_535 || range.least != 0 && range.least < 1024 || range.least == 0 && range.most > 0 {
                format!("the port can be any of {} to {}", range.least, range.most)
            } else if range.zeros {
                "digits that begin with 0, such as 0899, are an octal number here, and no number at all with an 8 or 9"
                    .into()
            } else {
                continue;
            };
        findings.push(finding(line, what, super::port(script)));
    }
    findings
}

fn several_addresses(script: &Script) -> Vec<ScriptFinding> {
    let many = |text: &str| {
        let all = script.with_origins(text, 4);
        let chosen =
            ["awk", "cut", "head -n", "head -1", "sed", "grep", "%% *", "%% "].iter().any(|word| all.contains(word));
        let of = |names: &[&'static str]| names.iter().copied().find(|name| all.contains(name));
        of(&["hostname -I", "hostname --all-ip-addresses", "getent ahosts", "dig +short"])
            .filter(|_| !chosen)
            .or_else(|| of(&["hostname -i", "hostname --ip-address"]))
    };
    let fix = "$(hostname), or the address of the interface that the nodes share";
    let mut findings = each(
        script,
        |launch| script.has_several_nodes() && address(launch).is_some_and(|text| many(&text).is_some()),
        |launch| {
            let command = address(launch).and_then(|text| many(&text)).unwrap_or_default();
            (format!("the nodes meet at what `{command}` prints"), fix.into())
        },
    );
    let exported = script.variable("MASTER_ADDR").filter(|_| findings.is_empty() && script.has_several_nodes());
    if let Some((set, command)) = exported.and_then(|set| Some((set, many(&set.value.raw)?))) {
        findings.push(finding(set.line, format!("MASTER_ADDR is what `{command}` prints"), fix));
    }
    findings
}

fn address(launch: &Launch<'_>) -> Option<String> {
    ["rdzv-endpoint", "master-addr"].into_iter().find_map(|name| launch.flag(name)).map(str::to_owned)
}
