//! Checks of variables that training reads, other than those of networks with RDMA.

use std::net::IpAddr;

use lockstep_contract::rules::Level::{Error, Note, Warning};
use lockstep_contract::rules::Rule;

use super::examples;
use super::facts::{Node, Resolved};
use super::rules::{Nodes, RULE, each, found, unequal};

/// Variables that may differ between nodes.
const OWN: [&str; 7] = [
    "CUDA_VISIBLE_DEVICES",
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
        why: "a variable that only some nodes have did not travel: mpirun needs -x, ssh and pbsdsh pass none on",
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
        why: "a collective that hangs, hangs forever: PyTorch's watchdog does not end the process",
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
