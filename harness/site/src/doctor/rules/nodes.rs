//! Rules on the job as a whole: who did not answer, and what must be the same everywhere; and on variables that training reads, other
//! than those of networks with RDMA.

use std::net::IpAddr;

use lockstep_contract::rules::Level::{Error, Note, Warning};
use lockstep_contract::rules::Rule;

use super::{NodeFinding, Nodes, RULE, each, found, unequal};
use crate::doctor::examples;
use crate::doctor::facts::{JobFacts, Missing, Node, Outcome, Resolved, Silent};

pub(super) const NODES: &[Rule<Nodes>] = &[
    Rule {
        name: "node-silent",
        level: Error,
        why: "a node of the job did not join, so training would wait for it, too",
        source: "half of the deadline, then a TCP connection from the first node",
        wrong: |job| examples::silent(job, Missing::Facts, Outcome::TimedOut(6)),
        find: |job| missing(job, Missing::Facts),
        ..RULE
    },
    Rule {
        name: "node-stopped",
        level: Error,
        why: "a node joined and then stopped answering: it is overloaded, paused, or lost",
        source: "the deadline, then a TCP connection from the first node",
        wrong: |job| examples::silent(job, Missing::Results, Outcome::Refused),
        find: |job| missing(job, Missing::Results),
        ..RULE
    },
    Rule {
        name: "head-unreachable",
        level: Error,
        why: "this node cannot reach the first one, where all meet, so it cannot take part in a job",
        source: "a connection to the first node",
        wrong: |job| examples::silent(job, Missing::Head, Outcome::Failed("no route to host".into())),
        find: |job| missing(job, Missing::Head),
        ..RULE
    },
    Rule {
        name: "host-name-twice",
        level: Error,
        why: "Gloo and the launcher give other nodes the host name, which then leads to the wrong node",
        source: "uname(2) on each node",
        wrong: |job| job.nodes[2].host = "n2".into(),
        find: |job| {
            let same = |at: usize| job.nodes[..at].iter().find(|other| other.host == job.nodes[at].host);
            let twice = (0..job.nodes.len()).filter_map(|at| Some((&job.nodes[at], same(at)?)));
            let twice = twice.map(|(node, other)| {
                found(
                    &node.name,
                    [
                        format!("{} and {} have the same host name {}", other.name, node.name, node.host),
                        format!("`uname -n` on both is {}", node.host),
                        "hostnamectl set-hostname NAME, another one on each node; start one doctor on each node"
                            .to_owned(),
                    ],
                )
            });
            twice.collect()
        },
        ..RULE
    },
    Rule {
        name: "program-differs",
        level: Error,
        why: "launchers of different builds may not understand each other",
        source: "the version and the CRC-32 of the program that runs on each node",
        wrong: |job| job.nodes[2].program.checksum = Some("00000000".into()),
        find: |job| {
            unequal(
                job,
                "the nodes run different builds of lockstep",
                "start the same file on all nodes, from a shared folder; `which -a lockstep` shows what PATH leads to",
                |node| {
                    let program = &node.program;
                    Some(format!("{} ({})", program.version, program.checksum.as_ref()?))
                },
            )
        },
        ..RULE
    },
    Rule {
        name: "architecture-differs",
        level: Error,
        why: "a program is built for one architecture",
        source: "uname(2) on each node",
        wrong: |job| job.nodes[2].architecture = "aarch64".into(),
        find: |job| {
            let fix = "build on each architecture, and choose nodes of one: sbatch --constraint, or another partition";
            unequal(job, "the nodes have different architectures", fix, |node| Some(node.architecture.clone()))
        },
        ..RULE
    },
    Rule {
        name: "clock-differs",
        level: Warning,
        why: "make builds too much or too little, munge and TLS refuse connections, and the times in logs of several nodes do not match",
        source: "the answers to TCP probes, which contain the time; the offset must exceed the uncertainty by 1 s",
        wrong: |job| {
            for link in job.links.iter_mut().filter(|link| link.to == "n3") {
                link.outcome = Outcome::Answered { by: "n3".into(), ahead: -3_200_000, uncertain: 400 };
            }
        },
        find: clocks,
        ..RULE
    },
];

/// Offsets above this are reported, in microseconds.
const CLOCK: i64 = 1_000_000;

fn missing(job: &JobFacts, what: Missing) -> Vec<NodeFinding> {
    job.silent.iter().filter(|silent| silent.missing == what).map(describe).collect()
}

fn describe(silent: &Silent) -> NodeFinding {
    let Silent { name, missing, waited, attempt } = silent;
    let what = match missing {
        Missing::Facts => format!("{name} did not join within {waited} s"),
        Missing::Results => format!("{name} joined, but had not finished after {waited} s"),
        Missing::Head => format!("the first node, {name}, cannot be reached, or has ended"),
    };
    let evidence = match attempt {
        Some(attempt) => format!("a TCP connection to {}: {}", attempt.to, attempt.outcome),
        None => format!("doctor waited {waited} s for it"),
    };
    let fix = match attempt.as_ref().map(|attempt| &attempt.outcome) {
        Some(Outcome::Refused) => format!(
            "{name} is up: see there whether doctor was started, hangs, or printed an error (`ssh {name} ps aux`)"
        ),
        Some(Outcome::TimedOut(_)) => {
            format!(
                "no packet comes back: `ip -brief address` on {name}, its cable, and firewalls on the way (`nft list ruleset`)"
            )
        }
        Some(Outcome::Failed(_)) => format!("`getent hosts {name}` and `ip route` on the node that reports it"),
        _ => format!("start doctor on {name} as well, and read what it prints there"),
    };
    found(name, [what, evidence, fix])
}

/// Offsets from the first node.
fn clocks(job: &JobFacts) -> Vec<NodeFinding> {
    let Some(first) = job.nodes.first() else { return Vec::new() };
    let from_first = job.links.iter().filter(|link| link.from == first.name);
    let offsets = from_first.filter_map(|link| match &link.outcome {
        Outcome::Answered { ahead, uncertain, .. } => Some((&link.to, *ahead, *uncertain)),
        _ => None,
    });
    let mut best: Vec<(&String, i64, i64)> = Vec::new();
    for (node, ahead, uncertain) in offsets {
        match best.iter_mut().find(|(known, ..)| *known == node) {
            Some(known) if known.2 > uncertain => *known = (node, ahead, uncertain),
            Some(_) => {}
            None => best.push((node, ahead, uncertain)),
        }
    }
    let wrong =
        best.into_iter().filter(|(_, ahead, uncertain)| ahead.saturating_abs().saturating_sub(*uncertain) > CLOCK);
    let seconds = |micros: i64| micros as f64 / 1e6;
    let wrong = wrong.map(|(node, ahead, uncertain)| {
        let word = if ahead > 0 { "ahead of" } else { "behind" };
        found(
            node,
            [
                format!(
                    "the clock of {node} is {:.1} s {word} that of {}",
                    seconds(ahead.saturating_abs()),
                    first.name
                ),
                format!("its answer to a TCP probe, ± {:.3} s", seconds(uncertain)),
                "chronyc makestep, or timedatectl set-ntp true".to_owned(),
            ],
        )
    });
    wrong.collect()
}

// ---- variables

/// Variables that may differ between nodes.
const OWN: [&str; 9] = [
    "CUDA_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "RANK",
    "TORCHELASTIC_RUN_ID",
    "LD_LIBRARY_PATH",
    "LIBTORCH",
    "MASTER_ADDR",
    "MASTER_PORT",
];

pub(super) const VARIABLES: &[Rule<Nodes>] = &[
    Rule {
        name: "master-is-loopback",
        level: Error,
        why: "each node would wait for itself: the others never come to its loopback address",
        source: "MASTER_ADDR, and getaddrinfo(3), in a job of several nodes",
        wrong: |job| {
            examples::set_all(job, "MASTER_ADDR", "localhost");
            job.nodes.iter_mut().for_each(|node| node.names.master = Some(examples::at([127, 0, 0, 1])));
        },
        find: |job| {
            each(job, |node| {
                let master = node.variable("MASTER_ADDR").filter(|_| job.has_several())?;
                let Some(Resolved::Addresses(found)) = &node.names.master else { return None };
                (!found.is_empty() && found.iter().all(IpAddr::is_loopback)).then(|| {
                    [
                        format!("MASTER_ADDR={master} leads to loopback"),
                        format!("{master} is {}", found[0]),
                        format!("export MASTER_ADDR={}", job.nodes[0].name),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "master-unknown",
        level: Error,
        why: "no rank finds rank 0",
        source: "MASTER_ADDR, and getaddrinfo(3)",
        wrong: |job| {
            examples::set_all(job, "MASTER_ADDR", "n9");
            job.nodes[1].names.master = Some(Resolved::Failed("unknown".into()));
        },
        find: |job| {
            each(job, |node| {
                let master = node.variable("MASTER_ADDR")?;
                let Some(Resolved::Failed(why)) = &node.names.master else { return None };
                Some([
                    format!("MASTER_ADDR={master} does not resolve"),
                    why.clone(),
                    format!("`getent hosts {master}`; export MASTER_ADDR={}", job.nodes[0].name),
                ])
            })
        },
        ..RULE
    },
    Rule {
        name: "master-differs",
        level: Error,
        why: "nodes that look for rank 0 at different places never meet",
        source: "MASTER_ADDR and MASTER_PORT on each node",
        wrong: |job| examples::set(job, "MASTER_PORT", "29501"),
        find: |job| {
            let fix = format!(
                "export MASTER_ADDR={} MASTER_PORT=29500 on all nodes, and not $(hostname), which differs from node to node",
                job.nodes.first().map_or("NODE", |node| &node.name)
            );
            unequal(job, "MASTER_ADDR or MASTER_PORT differs between nodes", &fix, |node| {
                let value = |name| node.variable(name).unwrap_or("unset");
                Some(format!("{}:{}", value("MASTER_ADDR"), value("MASTER_PORT")))
            })
        },
        ..RULE
    },
    Rule {
        name: "master-port-invalid",
        level: Error,
        why: "ranks refuse to start",
        source: "MASTER_PORT",
        wrong: |job| examples::set_all(job, "MASTER_PORT", "x"),
        find: |job| {
            each(job, |node| {
                let port = node.variable("MASTER_PORT")?;
                let bad = port.parse::<u16>().is_ok_and(|port| port > 0);
                (!bad).then(|| {
                    [
                        format!("MASTER_PORT={port} is not a port"),
                        "a port is a number from 1 to 65535".to_owned(),
                        "export MASTER_PORT=29500".to_owned(),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "rank-left-over",
        level: Warning,
        why: "RANK or WORLD_SIZE from an experiment makes programs believe that a launcher started them",
        source: "RANK and WORLD_SIZE without TORCHELASTIC_RUN_ID",
        wrong: |job| examples::set(job, "RANK", "0"),
        find: |job| {
            each(job, |node| {
                let left: Vec<String> = ["RANK", "WORLD_SIZE"]
                    .iter()
                    .filter_map(|name| Some(format!("{name}={}", node.variable(name)?)))
                    .collect();
                let stale = !left.is_empty() && node.variable("TORCHELASTIC_RUN_ID").is_none();
                stale.then(|| {
                    [
                        format!("{} without a launcher", left.join(" and ")),
                        "the variables of this process".to_owned(),
                        "unset RANK WORLD_SIZE".to_owned(),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "variables-differ",
        level: Warning,
        why: "a variable that only some nodes have was not passed on: mpirun needs -x, ssh and pbsdsh pass on none",
        source: "NCCL_*, GLOO_*, FI_*, TORCH_*, OMP_NUM_THREADS and proxies on each node",
        wrong: |job| examples::set(job, "NCCL_DEBUG", "INFO"),
        find: |job| {
            let names: std::collections::BTreeSet<&String> =
                job.nodes.iter().flat_map(|node| node.variables.keys()).collect();
            let shared = names.into_iter().filter(|name| !OWN.contains(&name.as_str()));
            let fix = |name: &str| {
                format!("srun --export=ALL, mpirun -x {name}, or set it in the script that runs on each node")
            };
            shared
                .flat_map(|name| {
                    unequal(job, &format!("{name} differs between nodes"), &fix(name), |node| {
                        Some(node.variable(name).unwrap_or("unset").to_owned())
                    })
                })
                .collect()
        },
        ..RULE
    },
    Rule {
        name: "omp-threads-invalid",
        level: Warning,
        why: "OpenMP ignores it, and every rank takes all processors",
        source: "OMP_NUM_THREADS",
        wrong: |job| examples::set(job, "OMP_NUM_THREADS", "all"),
        find: |job| {
            each(job, |node| {
                let value = node.variable("OMP_NUM_THREADS")?;
                let good = value.split(',').all(|part| part.trim().parse::<u32>().is_ok_and(|threads| threads > 0));
                (!good).then(|| {
                    [
                        format!("OMP_NUM_THREADS={value} is not a number of threads"),
                        "OpenMP 5.2, 21.2: a positive number, or several separated by commas".to_owned(),
                        "unset OMP_NUM_THREADS; `lockstep run` sets it".to_owned(),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "omp-threads-exceed",
        level: Warning,
        why: "one rank alone has more threads than processors: the threads take turns, and each collective waits for the slowest",
        source: "OMP_NUM_THREADS, sched_getaffinity(2) and the control group",
        wrong: |job| examples::set(job, "OMP_NUM_THREADS", "64"),
        find: |job| {
            each(job, |node| {
                let threads = node.variable("OMP_NUM_THREADS")?.split(',').next()?.trim().parse::<usize>().ok()?;
                let processors = node.processors();
                (threads > processors).then(|| {
                    [
                        format!("OMP_NUM_THREADS={threads} on {processors} processors"),
                        "this process may not use more".to_owned(),
                        "unset OMP_NUM_THREADS, or set it to the processors of a node divided by its workers"
                            .to_owned(),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "cuda-launch-blocking",
        level: Warning,
        why: "the program waits for every kernel, so computation and communication do not overlap",
        source: "CUDA_LAUNCH_BLOCKING",
        wrong: |job| examples::set(job, "CUDA_LAUNCH_BLOCKING", "1"),
        find: |job| {
            each(job, |node| is_on(node, "CUDA_LAUNCH_BLOCKING").then(|| setting(node, "CUDA_LAUNCH_BLOCKING")))
        },
        ..RULE
    },
    Rule {
        name: "nccl-hangs-unnoticed",
        level: Warning,
        why: "a collective that hangs does so forever: PyTorch's watchdog does not end the process",
        source: "TORCH_NCCL_ASYNC_ERROR_HANDLING",
        wrong: |job| examples::set(job, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "0"),
        find: |job| {
            each(job, |node| {
                let name = "TORCH_NCCL_ASYNC_ERROR_HANDLING";
                (node.variable(name) == Some("0")).then(|| setting(node, name))
            })
        },
        ..RULE
    },
    Rule {
        name: "proxy-incomplete",
        level: Note,
        why: "the store and the collectives use no proxy, but registries of containers are reached by https",
        source: "http_proxy and https_proxy, in either spelling",
        wrong: |job| {
            examples::set_all(job, "http_proxy", "http://proxy:3128");
            job.nodes.iter_mut().for_each(|node| node.runtimes = vec!["apptainer".into()]);
        },
        find: |job| {
            let one = |node: &Node| node.variable("http_proxy").is_some() && node.variable("https_proxy").is_none();
            let lacking = job.nodes.iter().filter(|node| one(node) && !node.runtimes.is_empty());
            let lacking = lacking.map(|node| {
                found(
                    &node.name,
                    [
                        "http_proxy is set, and https_proxy is not".to_owned(),
                        "the variables of this process".to_owned(),
                        "export https_proxy=$http_proxy".to_owned(),
                    ],
                )
            });
            lacking.collect()
        },
        ..RULE
    },
];

/// As NCCL, CUDA and PyTorch read switches.
pub(super) fn is_on(node: &Node, name: &str) -> bool {
    node.variable(name).is_some_and(|value| !["0", "false", "no", "off"].contains(&value.to_lowercase().as_str()))
}

/// A finding of a variable that should not be set.
pub(super) fn setting(node: &Node, name: &str) -> [String; 3] {
    let value = node.variable(name).unwrap_or_default();
    [format!("{name}={value}"), "the variables of this process".to_owned(), format!("unset {name}")]
}
