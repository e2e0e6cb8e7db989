//! Checks of libtorch and of containers.

use super::found::{Check, each, unequal};
use crate::report::Level;

/// The release that the course is built for.
const LIBTORCH: &str = "2.11";

pub(super) const CHECKS: &[Check] = &[
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
