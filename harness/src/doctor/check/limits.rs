//! Checks of processors, memory and limits of a process.

use super::found::{Check, GIB, MIB, bytes, each};
use crate::report::Level;

/// A launcher of a few workers, or a rank with its connections, needs some hundred.
const OPEN_FILES: u64 = 1024;
/// Each rank has some dozen threads, and each of them counts.
const PROCESSES: u64 = 1024;
/// A rank with libtorch takes some hundred MiB before there is a model.
const MEMORY: u64 = 512 * MIB;
/// Less than a small model with its optimizer on a few ranks.
const LIMIT: u64 = 2 * GIB;

pub(super) const CHECKS: &[Check] = &[
    Check {
        name: "open-files-low",
        level: Level::Error,
        why: "the launcher, data loaders and Gloo end with `Too many open files`",
        source: "getrlimit(2): the hard limit of open files is below 1024",
        find: |job| {
            each(job, |node| {
                let limit = node.limits.open_files.filter(|limit| *limit < OPEN_FILES)?;
                Some([
                format!("a process may open only {limit} files"),
                format!("`ulimit -Hn` is {limit}"),
                "LimitNOFILE= of the service, nofile in /etc/security/limits.conf, or PropagateResourceLimits of Slurm".to_owned(),
            ])
            })
        },
    },
    Check {
        name: "processes-low",
        level: Level::Error,
        why: "threads count as processes: libtorch ends with `Resource temporarily unavailable`",
        source: "getrlimit(2): a user may have less than 1024 processes",
        find: |job| {
            each(job, |node| {
                let limit = node.limits.processes.filter(|limit| *limit < PROCESSES)?;
                Some([
                    format!("a user may have only {limit} processes and threads"),
                    format!("`ulimit -u` is {limit}"),
                    "ulimit -u $(ulimit -Hu), TasksMax= of the service, or nproc in /etc/security/limits.conf"
                        .to_owned(),
                ])
            })
        },
    },
    Check {
        name: "address-space-limited",
        level: Level::Warning,
        why: "CUDA reserves far more addresses than memory, and fails under this limit",
        source: "getrlimit(2): the address space is limited",
        find: |job| {
            each(job, |node| {
                let limit = node.limits.address_space?;
                Some([
                    format!("a process may have only {} of addresses", bytes(limit)),
                    format!("`ulimit -v` is {}", limit / 1024),
                    "ulimit -v unlimited".to_owned(),
                ])
            })
        },
    },
    Check {
        name: "core-dumps-in-folder",
        level: Level::Note,
        why: "each rank that crashes writes its whole memory into the current folder",
        source: "getrlimit(2), and /proc/sys/kernel/core_pattern without a path",
        find: |job| {
            each(job, |node| {
                let relative =
                    !node.limits.core_pattern.is_empty() && !node.limits.core_pattern.starts_with(['/', '|']);
                (node.limits.core.is_none() && relative).then(|| {
                    [
                        "core dumps are unlimited, and go to the current folder".to_owned(),
                        format!("`ulimit -c` is unlimited, core_pattern is {}", node.limits.core_pattern),
                        "ulimit -c 0, unless you want to debug a crash".to_owned(),
                    ]
                })
            })
        },
    },
    Check {
        name: "memory-short",
        level: Level::Error,
        why: "a rank needs some hundred MiB before there is a model: the kernel kills it",
        source: "MemAvailable of /proc/meminfo is below 512 MiB, or the control group's limit is",
        find: |job| {
            each(job, |node| {
                let room = [node.memory.available, node.memory.limit].into_iter().flatten().min()?;
                (room < MEMORY).then(|| {
                    [
                        format!("only {} of memory are left", bytes(room)),
                        "MemAvailable of /proc/meminfo, and memory.max of the control group".to_owned(),
                        "`ps aux --sort=-rss | head`; or ask the scheduler for more: sbatch --mem".to_owned(),
                    ]
                })
            })
        },
    },
    Check {
        name: "memory-limited",
        level: Level::Warning,
        why: "the control group's limit is far below the machine's memory: the kernel kills ranks at it, with SIGKILL and no message",
        source: "memory.max, or memory.limit_in_bytes, of this process's control groups: below 2 GiB",
        find: |job| {
            each(job, |node| {
                let limit = node.memory.limit.filter(|limit| (MEMORY..LIMIT).contains(limit))?;
                Some([
                    format!("all processes of the job here may take {}", bytes(limit)),
                    format!("the control group; the machine has {}", bytes(node.memory.total.unwrap_or_default())),
                    "sbatch --mem=0 takes all of a node; docker run --memory, kubernetes limits".to_owned(),
                ])
            })
        },
    },
    Check {
        name: "processors-few",
        level: Level::Warning,
        why: "all workers of this node share one processor, as mpirun binds each process to one by default",
        source: "sched_getaffinity(2)",
        find: |job| {
            each(job, |node| {
                (node.cpu.allowed == 1 && node.cpu.online > 1).then(|| {
                    [
                        format!("this process may use 1 of {} processors", node.cpu.online),
                        "sched_getaffinity(2)".to_owned(),
                        "mpirun --bind-to none, srun --cpus-per-task=N, or sbatch --cpus-per-task=N".to_owned(),
                    ]
                })
            })
        },
    },
    Check {
        name: "processors-paid-for",
        level: Level::Warning,
        why: "threads are counted by processors and stopped by the control group: the node is slower than it looks",
        source: "cpu.max, or cpu.cfs_quota_us, of this process's control groups",
        find: |job| {
            each(job, |node| {
                let quota = node.cpu.quota.filter(|quota| *quota + 0.5 < node.cpu.allowed as f64)?;
                Some([
                    format!("{} processors are visible, and {quota:.1} are paid for", node.cpu.allowed),
                    "the control group's quota".to_owned(),
                    format!(
                        "export OMP_NUM_THREADS={}, or raise the quota (docker run --cpus)",
                        (quota as usize).max(1)
                    ),
                ])
            })
        },
    },
];
