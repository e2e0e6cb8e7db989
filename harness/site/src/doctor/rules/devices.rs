//! Rules on GPUs and how they are connected, on libtorch and on containers.

use lockstep_contract::rules::Level::{Error, Note, Warning};
use lockstep_contract::rules::Rule;
use lockstep_launch::config::GpuVendor;

use super::{Nodes, RULE, each, unequal};
use crate::doctor::examples;
use crate::doctor::facts::{Gpus, Node};

/// The oldest drivers for CUDA 12 and 13 (CUDA's release notes, table "CUDA Toolkit and Minimum Required Driver Version").
const DRIVERS: [(&str, u32); 2] = [("+cu12", 525), ("+cu13", 580)];

pub(super) const GPUS: &[Rule<Nodes>] = &[
    Rule {
        name: "gpu-driver-fails",
        level: Error,
        why: "there are GPUs, but the driver does not answer: CUDA does not start, or hangs",
        source: "the device files /dev/nvidia0 … and `nvidia-smi`; of AMD's, /dev/kfd and `rocm-smi` or `amd-smi`",
        wrong: |job| {
            examples::gpus(job, &["NV18"]);
            job.nodes[1].gpus.trouble = Some("nvidia-smi has not ended within 6 s".into());
        },
        find: |job| {
            each(job, |node| {
                let why = node.gpus.trouble.as_ref()?;
                let (program, log) = match node.gpus.vendor {
                    GpuVendor::Nvidia => ("nvidia-smi", "nvrm"),
                    GpuVendor::Amd => ("rocm-smi", "amdgpu"),
                };
                let fix = if node.container.is_some() {
                    format!("start the container with its GPUs: {}", given_to_container(node.gpus.vendor))
                } else {
                    format!(
                        "`{program}` and `dmesg | grep -i {log}`; a card that fell off the bus needs a restart of the node"
                    )
                };
                Some([format!("GPUs are here ({}), but {program} fails", node.gpus.present), why.clone(), fix])
            })
        },
        ..RULE
    },
    Rule {
        name: "gpu-absent",
        level: Error,
        why: "the job was given GPUs that do not exist here; in a container, usually because --nv or --rocm is missing",
        source: "CUDA_VISIBLE_DEVICES and ROCR_VISIBLE_DEVICES, and the device files /dev/nvidia0 … and /dev/kfd",
        wrong: |job| examples::set(job, "CUDA_VISIBLE_DEVICES", "0,1"),
        find: |job| {
            each(job, |node| {
                let set = |name| Some((name, node.variable(name).filter(|value| !value.starts_with('-'))?));
                let (name, visible) = set("ROCR_VISIBLE_DEVICES").or_else(|| set("CUDA_VISIBLE_DEVICES"))?;
                let vendor = if name.starts_with("ROCR") { GpuVendor::Amd } else { GpuVendor::Nvidia };
                (node.gpus.present == 0).then(|| {
                    [
                        format!("{name}={visible}, but there is no GPU"),
                        "none of /dev/nvidia0, /proc/driver/nvidia/gpus and /dev/kfd exists".to_owned(),
                        format!("{}; without a container: unset {name}", given_to_container(vendor)),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "gpu-hidden",
        level: Error,
        why: "programs see no GPU, although the node has some",
        source: "CUDA_VISIBLE_DEVICES, by CUDA's rules; for AMD's, ROCR_VISIBLE_DEVICES, then HIP_VISIBLE_DEVICES or CUDA's, by HIP's",
        wrong: |job| {
            examples::gpus(job, &["NV18"]);
            examples::set(job, "CUDA_VISIBLE_DEVICES", "");
            job.nodes[1].gpus.visible = 0;
        },
        find: |job| {
            each(job, |node| {
                let Gpus { present, visible, vendor, .. } = node.gpus;
                let read: &[&str] = match vendor {
                    GpuVendor::Nvidia => &["CUDA_VISIBLE_DEVICES"],
                    GpuVendor::Amd => &["ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"],
                };
                let set = read.iter().filter_map(|name| Some((*name, node.variables.get(*name)?)));
                let (names, shown): (Vec<&str>, Vec<String>) =
                    set.map(|(name, value)| (name, format!("{name}={value:?}"))).unzip();
                // A later variable counts what the first has left.
                let again = if names.len() > 1 {
                    "; with several, HIP counts from 0 what ROCR_VISIBLE_DEVICES leaves"
                } else {
                    ""
                };
                (present > 0 && visible == 0).then(|| {
                    [
                        format!("none of {present} GPUs is visible"),
                        shown.join(", "),
                        format!(
                            "unset {}, or ask the scheduler for GPUs: sbatch --gpus-per-node{again}",
                            names.join(" and ")
                        ),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "gpu-closed",
        level: Error,
        why: "this account may not use AMD's GPUs: HIP says `no ROCm-capable device is detected`",
        source: "/dev/kfd, opened as HIP opens it",
        wrong: |job| {
            examples::amd_gpus(job, &["XGMI"]);
            job.nodes[1].gpus.closed = Some("Permission denied (os error 13)".into());
        },
        find: |job| {
            each(job, |node| {
                let why = node.gpus.closed.clone()?;
                let fix = if node.container.is_some() {
                    given_to_container(GpuVendor::Amd).to_owned()
                } else {
                    "`ls -l /dev/kfd` shows the group, often render: an administrator adds your account to it"
                        .to_owned()
                };
                Some([
                    format!("{} GPUs of AMD are here, but may not be used", node.gpus.present),
                    format!("/dev/kfd: {why}"),
                    fix,
                ])
            })
        },
        ..RULE
    },
    Rule {
        name: "gpus-not-for-rust",
        level: Note,
        why: "the course's programs in Rust use NVIDIA's GPUs or the CPU; on AMD's, programs in Python train, with PyTorch for ROCm",
        source: "the version of libtorch, and /dev/kfd",
        wrong: |job| {
            examples::amd_gpus(job, &["XGMI"]);
            let found = job.nodes.iter_mut().filter_map(|node| node.libtorch.as_mut());
            found.for_each(|found| found.version = Some("2.11.0+cu130".into()));
        },
        find: |job| {
            each(job, |node| {
                let version = node.libtorch.as_ref()?.version.as_ref()?;
                (node.gpus.vendor == GpuVendor::Amd && !version.contains("+rocm")).then(|| {
                    [
                        "the GPUs are AMD's, and this libtorch does not use them".to_owned(),
                        format!("libtorch {version}"),
                        "for the GPUs: a Python with PyTorch for ROCm, and the tasks and programs in Python".to_owned(),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "rocm-differs",
        level: Warning,
        why: "nodes with different releases of ROCm may have RCCLs that do not understand each other",
        source: ".info/version in ROCM_PATH or /opt/rocm on each node",
        wrong: |job| {
            examples::amd_gpus(job, &["XGMI"]);
            job.nodes[1].gpus.runtime = Some("6.4.0".into());
        },
        find: |job| {
            unequal(
                job,
                "the nodes have different releases of ROCm",
                "one container image for all nodes, or module load rocm/VERSION in the job's script",
                |node| node.gpus.runtime.clone(),
            )
        },
        ..RULE
    },
    Rule {
        name: "gpu-driver-old",
        level: Error,
        why: "CUDA says `the provided driver is too old`, and no GPU is used",
        source: "the version of libtorch, `nvidia-smi`, and CUDA's release notes",
        wrong: |job| {
            examples::gpus(job, &["NV18"]);
            job.nodes.iter_mut().for_each(|node| node.gpus.driver = Some("550.54.15".into()));
        },
        find: |job| {
            each(job, |node| {
                let driver = node.gpus.driver.as_ref().filter(|_| node.gpus.vendor == GpuVendor::Nvidia)?;
                let version = node.libtorch.as_ref()?.version.as_ref()?;
                let (_, least) = DRIVERS.iter().find(|(cuda, _)| version.contains(cuda))?;
                let major = driver.split('.').next()?.parse::<u32>().ok()?;
                (major < *least).then(|| {
                    [
                format!("the driver {driver} is too old for libtorch {version}"),
                format!("it needs {least} or newer"),
                "ask the administrator for a newer driver, or install a libtorch for an older CUDA (scripts/setup.sh \
                 --use-libtorch)".to_owned(),
            ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "gpu-driver-differs",
        level: Warning,
        why: "nodes with different drivers may choose different algorithms, or fail at a feature that one lacks",
        source: "`nvidia-smi`, `rocm-smi` or `amd-smi` on each node",
        wrong: |job| {
            examples::gpus(job, &["NV18"]);
            job.nodes[1].gpus.driver = Some("590.1".into());
        },
        find: |job| {
            unequal(
                job,
                "the nodes have different drivers of GPUs",
                "choose nodes of one kind: sbatch --constraint, or another partition",
                |node| node.gpus.driver.clone(),
            )
        },
        ..RULE
    },
    Rule {
        name: "gpu-differs",
        level: Warning,
        why: "all ranks wait for the slowest card, and the smallest memory limits the batch",
        source: "`nvidia-smi`, `rocm-smi` or `amd-smi` on each node",
        wrong: |job| {
            examples::gpus(job, &["NV18"]);
            job.nodes[1].gpus.cards.truncate(1);
        },
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
        ..RULE
    },
    Rule {
        name: "gpu-divided",
        level: Warning,
        why: "NCCL does not connect the parts of a partitioned GPU (MIG)",
        source: "`nvidia-smi`",
        wrong: |job| {
            examples::gpus(job, &["NV18"]);
            job.nodes[1].gpus.cards[0].divided = true;
        },
        find: |job| {
            each(job, |node| {
                let divided = node.gpus.cards.iter().filter(|card| card.divided).count();
                (divided > 0).then(|| {
                    [
                        format!("{divided} of {} GPUs are partitioned (MIG)", node.gpus.cards.len()),
                        "mig.mode.current is Enabled".to_owned(),
                        "nvidia-smi -mig 0, as an administrator; or one rank on each node".to_owned(),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "nvlink-partial",
        level: Warning,
        why: "a ring over all GPUs is as slow as its slowest link",
        source: "`nvidia-smi topo -m`: some pairs have NVLink, others do not; `rocm-smi --showtopotype`: some have xGMI",
        wrong: |job| examples::gpus(job, &["NV12", "SYS"]),
        find: |job| {
            each(job, |node| {
                let slow = paths(node, |tier| !is_direct(tier));
                let (shows, hides) = match node.gpus.vendor {
                    GpuVendor::Nvidia => ("nvidia-smi nvlink --status", "CUDA_VISIBLE_DEVICES"),
                    GpuVendor::Amd => ("rocm-smi --showtopo", "ROCR_VISIBLE_DEVICES"),
                };
                (!slow.is_empty() && slow.len() < node.gpus.paths.len()).then(|| {
                    [
                        format!("not all GPUs are connected by {}", link(node.gpus.vendor)),
                        shortened(&slow),
                        format!("`{shows}` shows a broken link; otherwise use the GPUs of one group: {hides}"),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "gpu-paths-slow",
        level: Note,
        why: "GPUs on different sockets, without NVLink, exchange data through the processors",
        source: "`nvidia-smi topo -m`: pairs with SYS or NODE, and no NVLink anywhere",
        wrong: |job| examples::gpus(job, &["PIX", "SYS"]),
        find: |job| {
            each(job, |node| {
                let far = paths(node, is_far);
                let none = node.gpus.paths.iter().all(|path| !is_direct(&path.tier));
                (none && !far.is_empty()).then(|| [
                "GPUs reach each other only across the host".to_owned(),
                shortened(&far),
                "bind each rank to the socket of its GPU (srun --gpu-bind=closest), and expect less of large all-reduces".to_owned(),
            ])
            })
        },
        ..RULE
    },
    Rule {
        name: "gpu-topology-differs",
        level: Warning,
        why: "the nodes are not equal: a link is broken on one, or it is another model",
        source: "`nvidia-smi topo -m` on each node",
        wrong: |job| {
            examples::gpus(job, &["NV18", "NV18"]);
            job.nodes[1].gpus.paths[0].tier = "NV17".into();
        },
        find: |job| {
            unequal(
                job,
                "the links between GPUs differ between nodes",
                "`nvidia-smi topo -m` and `nvidia-smi nvlink --status` on each",
                tiers,
            )
        },
        ..RULE
    },
];

/// How a container gets the GPUs.
fn given_to_container(vendor: GpuVendor) -> &'static str {
    match vendor {
        GpuVendor::Nvidia => "apptainer exec --nv, docker run --gpus all",
        GpuVendor::Amd => "apptainer exec --rocm, docker run --device /dev/kfd --device /dev/dri",
    }
}

/// What connects GPUs without the processor.
pub(in crate::doctor) fn link(vendor: GpuVendor) -> &'static str {
    match vendor {
        GpuVendor::Nvidia => "NVLink",
        GpuVendor::Amd => "xGMI",
    }
}

/// The way is such a link.
pub(in crate::doctor) fn is_direct(tier: &str) -> bool {
    tier.starts_with("NV") || tier == "XGMI"
}

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

pub(super) const SOFTWARE: &[Rule<Nodes>] = &[
    Rule {
        name: "libtorch-missing",
        level: Error,
        why: "workers on this node end with `error while loading shared libraries: libtorch_cpu.so`",
        source: "LIBTORCH, .libtorch of the checkout around the program or the current folder, and LD_LIBRARY_PATH",
        wrong: |job| job.nodes[1].libtorch = None,
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
        ..RULE
    },
    Rule {
        name: "libtorch-nowhere",
        level: Warning,
        why: "labs and tasks in Rust need it; `lockstep run`, Python programs and tasks in Python do not",
        source: "LIBTORCH, .libtorch of the checkout around the program or the current folder, and LD_LIBRARY_PATH",
        wrong: |job| job.nodes.iter_mut().for_each(|node| node.libtorch = None),
        find: |job| {
            let nowhere = job.nodes.iter().all(|node| node.libtorch.is_none());
            each(job, |_| {
                nowhere.then(|| {
                    [
                        "there is no libtorch".to_owned(),
                        "neither LIBTORCH, nor .libtorch of a checkout, nor LD_LIBRARY_PATH leads to libtorch_cpu.so"
                            .to_owned(),
                        "for Rust: scripts/setup.sh, in a checkout".to_owned(),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "libtorch-differs",
        level: Error,
        why: "ranks with different versions may disagree about messages and numbers",
        source: "the version file of each node's libtorch",
        wrong: |job| job.nodes[1].libtorch.iter_mut().for_each(|found| found.version = Some("2.10.0".into())),
        find: |job| {
            unequal(
                job,
                "the nodes have different versions of libtorch",
                "scripts/setup.sh on each node, or one checkout on the shared file system",
                |node| Some(node.libtorch.as_ref()?.version.clone().unwrap_or_else(|| "an unknown version".to_owned())),
            )
        },
        ..RULE
    },
    Rule {
        name: "libtorch-shadowed",
        level: Error,
        why: "programs of the course load the libtorch of LD_LIBRARY_PATH instead of their own: they end at once, or with wrong symbols",
        source: "the first libtorch_cpu.so of LD_LIBRARY_PATH, as a module sets it for its own PyTorch",
        wrong: |job| job.nodes[1].libtorch.iter_mut().for_each(|found| found.other = Some("/opt/torch/lib".into())),
        find: |job| {
            each(job, |node| {
                let found = node.libtorch.as_ref()?;
                let other = found.other.as_ref()?.display();
                Some([
                    format!("LD_LIBRARY_PATH leads to another libtorch, in {other}"),
                    format!("the course's libtorch is in {}", found.folder.display()),
                    "`module unload` what sets it, or unset LD_LIBRARY_PATH".to_owned(),
                ])
            })
        },
        ..RULE
    },
    Rule {
        name: "libtorch-unsuitable",
        level: Warning,
        why: "the labs are built for libtorch 2.11, and do not start with another",
        source: "the version file of libtorch",
        wrong: |job| {
            let all = job.nodes.iter_mut().filter_map(|node| node.libtorch.as_mut());
            all.for_each(|found| found.version = Some("2.10.0".into()));
        },
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
        ..RULE
    },
    Rule {
        name: "container-differs",
        level: Error,
        why: "libraries and paths differ inside and outside of a container",
        source: "the marks of containers: variables, /.singularity.d, /.dockerenv, /run/.containerenv",
        wrong: |job| job.nodes[1].container = Some("apptainer".into()),
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
        ..RULE
    },
    Rule {
        name: "container-runtime-missing",
        level: Warning,
        why: "a job step that starts a container fails on this node",
        source: "PATH, for apptainer, singularity, podman, docker and enroot",
        wrong: |job| job.nodes[1].runtimes = vec!["apptainer".into()],
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
        ..RULE
    },
];
