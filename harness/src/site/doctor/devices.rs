//! Rules on NVIDIA GPUs and how they are connected, on libtorch and on containers.

use super::facts::{Gpus, Node};
use super::rules::{Check, each, unequal};
use crate::report::Level;

/// The oldest drivers for CUDA 12 and 13 (CUDA's release notes, table "CUDA Toolkit and Minimum Required Driver Version").
const DRIVERS: [(&str, u32); 2] = [("+cu12", 525), ("+cu13", 580)];

pub(super) const GPUS: &[Check] = &[
    Check {
        name: "gpu-driver-fails",
        level: Level::Error,
        why: "there are GPUs, and the driver does not answer: CUDA does not start, or hangs",
        source: "the device files /dev/nvidia0 … and `nvidia-smi`",
        find: |job| {
            each(job, |node| {
                let why = node.gpus.trouble.as_ref()?;
                let fix = if node.container.is_some() {
                    "start the container with its GPUs: apptainer exec --nv, docker run --gpus all"
                } else {
                    "`nvidia-smi` and `dmesg | grep -i nvrm`; a card that fell off the bus needs a restart of the node"
                };
                Some([format!("{} GPUs are here, and cannot be asked", node.gpus.present), why.clone(), fix.to_owned()])
            })
        },
    },
    Check {
        name: "gpu-absent",
        level: Level::Error,
        why: "the job was given GPUs that are not there, in a container mostly for want of --nv",
        source: "CUDA_VISIBLE_DEVICES, and the device files /dev/nvidia0 …",
        find: |job| {
            each(job, |node| {
                let visible = node.variable("CUDA_VISIBLE_DEVICES").filter(|value| !value.starts_with('-'))?;
                (node.gpus.present == 0).then(|| {
                    [
                        format!("CUDA_VISIBLE_DEVICES={visible}, and there is no GPU"),
                        "neither /dev/nvidia0 nor /proc/driver/nvidia/gpus exists".to_owned(),
                        "apptainer exec --nv, docker run --gpus all; without a container: unset CUDA_VISIBLE_DEVICES"
                            .to_owned(),
                    ]
                })
            })
        },
    },
    Check {
        name: "gpu-hidden",
        level: Level::Error,
        why: "programs see no GPU, although the node has some",
        source: "CUDA_VISIBLE_DEVICES, by CUDA's rules",
        find: |job| {
            each(job, |node| {
                let Gpus { present, visible, .. } = node.gpus;
                (present > 0 && visible == 0).then(|| {
                    [
                        format!("no GPU is visible, of {present}"),
                        format!(
                            "CUDA_VISIBLE_DEVICES={:?}",
                            node.variables.get("CUDA_VISIBLE_DEVICES").map_or("", String::as_str)
                        ),
                        "unset CUDA_VISIBLE_DEVICES, or ask the scheduler for GPUs: sbatch --gpus-per-node".to_owned(),
                    ]
                })
            })
        },
    },
    Check {
        name: "gpu-driver-old",
        level: Level::Error,
        why: "CUDA says `the provided driver is too old`, and no GPU is used",
        source: "the version of libtorch, `nvidia-smi`, and CUDA's release notes",
        find: |job| {
            each(job, |node| {
                let (driver, version) = (node.gpus.driver.as_ref()?, node.libtorch.as_ref()?.version.as_ref()?);
                let (_, least) = DRIVERS.iter().find(|(cuda, _)| version.contains(cuda))?;
                let major = driver.split('.').next()?.parse::<u32>().ok()?;
                (major < *least).then(|| [
                format!("the driver {driver} is too old for libtorch {version}"),
                format!("it needs {least} or newer"),
                "ask the administrator for a newer driver, or install a libtorch for an older CUDA (scripts/setup.sh --use-libtorch)".to_owned(),
            ])
            })
        },
    },
    Check {
        name: "gpu-driver-differs",
        level: Level::Warning,
        why: "nodes with different drivers may choose different algorithms, or fail at a feature that one lacks",
        source: "`nvidia-smi` on each node",
        find: |job| {
            unequal(
                job,
                "the nodes have different NVIDIA drivers",
                "choose nodes of one kind: sbatch --constraint, or another partition",
                |node| node.gpus.driver.clone(),
            )
        },
    },
    Check {
        name: "gpu-differs",
        level: Level::Warning,
        why: "all ranks wait for the slowest card, and the smallest memory limits the batch",
        source: "`nvidia-smi` on each node",
        find: |job| {
            unequal(
                job,
                "the nodes have different GPUs",
                "choose nodes of one kind: sbatch --constraint, --gpus-per-node=TYPE:N",
                |node| {
                    let card = node.gpus.cards.first()?;
                    Some(format!("{} × {} ({} MiB)", node.gpus.cards.len(), card.name, card.memory))
                },
            )
        },
    },
    Check {
        name: "gpu-divided",
        level: Level::Warning,
        why: "NCCL does not join the parts of a divided card (MIG)",
        source: "`nvidia-smi`",
        find: |job| {
            each(job, |node| {
                let divided = node.gpus.cards.iter().filter(|card| card.divided).count();
                (divided > 0).then(|| {
                    [
                        format!("{divided} of {} GPUs are divided (MIG)", node.gpus.cards.len()),
                        "mig.mode.current is Enabled".to_owned(),
                        "nvidia-smi -mig 0, as an administrator; or one rank on each node".to_owned(),
                    ]
                })
            })
        },
    },
    Check {
        name: "nvlink-partial",
        level: Level::Warning,
        why: "a ring over all GPUs is as slow as its slowest way",
        source: "`nvidia-smi topo -m`: some pairs have NVLink, others do not",
        find: |job| {
            each(job, |node| {
                let slow = paths(node, |tier| !tier.starts_with("NV"));
                (!slow.is_empty() && slow.len() < node.gpus.paths.len()).then(|| [
                "not all GPUs are joined by NVLink".to_owned(),
                shortened(&slow),
                "`nvidia-smi nvlink --status` shows a broken link; otherwise use the GPUs of one group: CUDA_VISIBLE_DEVICES".to_owned(),
            ])
            })
        },
    },
    Check {
        name: "gpu-paths-slow",
        level: Level::Note,
        why: "GPUs on different sockets, without NVLink, exchange data through the processors",
        source: "`nvidia-smi topo -m`: pairs with SYS or NODE, and no NVLink anywhere",
        find: |job| {
            each(job, |node| {
                let far = paths(node, is_far);
                let none = node.gpus.paths.iter().all(|path| !path.tier.starts_with("NV"));
                (none && !far.is_empty()).then(|| [
                "GPUs reach each other only across the host".to_owned(),
                shortened(&far),
                "bind each rank to the socket of its GPU (srun --gpu-bind=closest), and expect less of large all-reduces".to_owned(),
            ])
            })
        },
    },
    Check {
        name: "gpu-topology-differs",
        level: Level::Warning,
        why: "the nodes are not equal: a link is broken on one, or it is another model",
        source: "`nvidia-smi topo -m` on each node",
        find: |job| {
            unequal(
                job,
                "the ways between GPUs differ between nodes",
                "`nvidia-smi topo -m` and `nvidia-smi nvlink --status` on each",
                tiers,
            )
        },
    },
];

/// How many pairs have each tier.
fn tiers(node: &Node) -> Option<String> {
    let mut counted = std::collections::BTreeMap::<&str, usize>::new();
    node.gpus.paths.iter().for_each(|path| *counted.entry(&path.tier).or_default() += 1);
    let text: Vec<String> = counted.into_iter().map(|(tier, count)| format!("{count} × {tier}")).collect();
    (!text.is_empty()).then(|| text.join(" + "))
}

/// NVIDIA's legend: the way crosses the interconnect of host bridges or of sockets.
fn is_far(tier: &str) -> bool {
    ["SYS", "NODE"].contains(&tier)
}

/// The pairs of GPUs whose way is of such a tier.
fn paths(node: &Node, is_such: impl Fn(&str) -> bool) -> Vec<String> {
    let such = node.gpus.paths.iter().filter(|path| is_such(&path.tier));
    such.map(|path| format!("{}–{} {}", path.between.0, path.between.1, path.tier)).collect()
}

fn shortened(pairs: &[String]) -> String {
    let rest = pairs.len().saturating_sub(4);
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    format!("GPUs {}{more}", pairs[..pairs.len() - rest].join(", "))
}

// ---- libtorch and containers

/// The release that the course is built for.
const LIBTORCH: &str = "2.11";

pub(super) const SOFTWARE: &[Check] = &[
    Check {
        name: "libtorch-missing",
        level: Level::Error,
        why: "workers on this node end with `error while loading shared libraries: libtorch_cpu.so`",
        source: "LIBTORCH, .libtorch of the checkout around the program or the current folder, and LD_LIBRARY_PATH",
        find: |job| {
            let some = job.nodes.iter().find(|node| node.libtorch.is_some());
            each(job, |node| {
                let there = some.filter(|_| node.libtorch.is_none())?;
                let folder = there.libtorch.as_ref()?.folder.display();
                Some([
                    "there is no libtorch here".to_owned(),
                    format!("{} has one in {folder}", there.name),
                    format!(
                        "put it where all nodes see it: a checkout on the shared file system, or `ls {folder}` here"
                    ),
                ])
            })
        },
    },
    Check {
        name: "libtorch-nowhere",
        level: Level::Warning,
        why: "the labs need it; `lockstep run` and Python programs do not",
        source: "LIBTORCH, .libtorch of the checkout around the program or the current folder, and LD_LIBRARY_PATH",
        find: |job| {
            let nowhere = job.nodes.iter().all(|node| node.libtorch.is_none());
            each(job, |_| {
                nowhere.then(|| {
                    [
                        "there is no libtorch".to_owned(),
                        "neither LIBTORCH, nor .libtorch of a checkout, nor LD_LIBRARY_PATH leads to libtorch_cpu.so"
                            .to_owned(),
                        "scripts/setup.sh, in the checkout".to_owned(),
                    ]
                })
            })
        },
    },
    Check {
        name: "libtorch-differs",
        level: Level::Error,
        why: "ranks with different versions may disagree about messages and numbers",
        source: "the version file of each node's libtorch",
        find: |job| {
            unequal(
                job,
                "the nodes have different versions of libtorch",
                "scripts/setup.sh on each node, or one checkout on the shared file system",
                |node| Some(node.libtorch.as_ref()?.version.clone().unwrap_or_else(|| "an unknown version".to_owned())),
            )
        },
    },
    Check {
        name: "libtorch-unsuitable",
        level: Level::Warning,
        why: "the labs are built for libtorch 2.11, and do not start with another",
        source: "the version file of libtorch",
        find: |job| {
            each(job, |node| {
                let libtorch = node.libtorch.as_ref()?;
                let version = libtorch.version.as_ref().filter(|version| !version.starts_with(LIBTORCH))?;
                Some([
                    format!("libtorch is version {version}"),
                    format!("{} ({})", libtorch.folder.display(), libtorch.found),
                    "unset LIBTORCH; scripts/setup.sh".to_owned(),
                ])
            })
        },
    },
    Check {
        name: "container-differs",
        level: Level::Error,
        why: "inside and outside of a container libraries differ, and so do paths",
        source: "the marks of containers: variables, /.singularity.d, /.dockerenv, /run/.containerenv",
        find: |job| {
            unequal(
                job,
                "some nodes run in a container, others do not",
                "start all in the same way: srun apptainer exec IMAGE lockstep run …",
                |node| {
                    Some(node.container.clone().map_or_else(|| "no container".to_owned(), |kind| format!("in {kind}")))
                },
            )
        },
    },
    Check {
        name: "container-runtime-missing",
        level: Level::Warning,
        why: "a job step that starts a container fails on this node",
        source: "PATH, for apptainer, singularity, podman, docker and enroot",
        find: |job| {
            let inside = job.nodes.iter().any(|node| node.container.is_some());
            if inside {
                return Vec::new();
            }
            unequal(
                job,
                "not all nodes have the same container runtimes",
                "module load apptainer, in the script that runs on each node",
                |node| Some(if node.runtimes.is_empty() { "none".to_owned() } else { node.runtimes.join(" and ") }),
            )
        },
    },
];
