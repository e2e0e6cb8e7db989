//! Rules on the snapshot folder, temporary files and `/dev/shm`, and on processors, memory and limits of a process.

use lockstep_contract::rules::Level::{Error, Note, Warning};
use lockstep_contract::rules::Rule;

use super::{GIB, MIB, NodeFinding, Nodes, RULE, bytes, each, found};
use crate::doctor::facts::{JobFacts, Lock, Space, View};

/// Less free space than this counts as full.
const FULL: u64 = 256 * MIB;
/// Docker's default is 64 MiB; NCCL takes some MiB for each pair of GPUs, and data loaders take more.
const SMALL_SHM: u64 = 128 * MIB;
/// Less free space in `/dev/shm` than this counts as full.
const FULL_SHM: u64 = 32 * MIB;

pub(super) const FILES: &[Rule<Nodes>] = &[
    Rule {
        name: "folder-hangs",
        level: Error,
        why: "every access to the folder for snapshots hangs: its file server is probably down or unreachable",
        source: "statvfs(2), and a small file: no answer within three tenths of the deadline",
        wrong: |job| {
            job.nodes[1].folder.space = None;
            job.nodes[1].folder.hangs = true;
        },
        find: |job| {
            each(job, |node| {
                node.folder.hangs.then(|| {
                    [
                        format!("the folder {} does not answer", node.folder.path.display()),
                        "statvfs(2) has not returned".to_owned(),
                        "`findmnt -t nfs,nfs4,lustre,fuse` and `dmesg` name the server; mount it again: umount -l, mount".to_owned(),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "folder-absent",
        level: Error,
        why: "a rank on this node cannot write its snapshot, and none can be read after a restart",
        source: "statvfs(2) of the folder for snapshots (--folder)",
        wrong: |job| job.nodes[1].folder.space = None,
        find: |job| {
            each(job, |node| {
                (node.folder.space.is_none() && !node.folder.hangs).then(|| {
                    [
                        format!("the folder {} does not exist", node.folder.path.display()),
                        "statvfs(2)".to_owned(),
                        "mount the file system that has it, or name a folder that all nodes have: --folder".to_owned(),
                    ]
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "folder-full",
        level: Error,
        why: "a snapshot is only written in part; training goes on without it, or ends",
        source: "statvfs(2) of the folder for snapshots: less than 256 MiB, or no inode, is free",
        wrong: |job| job.nodes[1].folder.space.iter_mut().for_each(|space| space.free = 0),
        find: |job| {
            each(job, |node| {
                let space = node.folder.space.as_ref()?;
                (space.free < FULL || space.inodes == Some(0)).then(|| room(space))
            })
        },
        ..RULE
    },
    Rule {
        name: "folder-unwritable",
        level: Error,
        why: "no snapshot can be written",
        source: "a small file that doctor writes in the folder for snapshots, and removes",
        wrong: |job| job.nodes[1].folder.unwritable = Some("read-only file system".into()),
        find: |job| {
            each(job, |node| {
                let why = node.folder.unwritable.as_ref()?;
                // Another check finds a full one.
                let space = node.folder.space.as_ref().filter(|space| space.free >= FULL && space.inodes != Some(0))?;
                Some([
                    format!("nothing can be written in {}", node.folder.path.display()),
                    format!("{why} ({})", space.kind),
                    format!(
                        "`ls -ld {0}` and `findmnt -T {0}`; or name another folder: --folder",
                        node.folder.path.display()
                    ),
                ])
            })
        },
        ..RULE
    },
    Rule {
        name: "folder-in-memory",
        level: Warning,
        why: "snapshots on a tmpfs take memory and are gone with the node",
        source: "/proc/self/mountinfo",
        wrong: |job| job.nodes[1].folder.space.iter_mut().for_each(|space| space.kind = "tmpfs".into()),
        find: |job| {
            each(job, |node| {
                let space =
                    node.folder.space.as_ref().filter(|space| ["tmpfs", "ramfs"].contains(&space.kind.as_str()))?;
                Some([
                    format!("{} is in memory", space.path.display()),
                    format!("its file system is a {}", space.kind),
                    "name a folder on a disk, or on the shared file system: --folder".to_owned(),
                ])
            })
        },
        ..RULE
    },
    Rule {
        name: "folder-not-shared",
        level: Error,
        why: "each node has its own folder of this name: after a restart on other nodes there is no snapshot",
        source: "a file of the first node that the others look for, and theirs that the first looks for",
        wrong: |job| job.views[0].sees_head = false,
        find: |job| {
            views(job, |view| {
                (!view.sees_head || (view.wrote && !view.seen_by_head)).then(|| {
                    let first = &job.nodes[0].name;
                    let evidence = if view.sees_head {
                        format!("{first} does not see a file that {} wrote", view.node)
                    } else {
                        format!("{} does not see a file that {first} wrote", view.node)
                    };
                    let folder = job.nodes[0].folder.path.display();
                    (
                        format!("{folder} on {} is another folder than on {first}", view.node),
                        evidence,
                        format!("`findmnt -T {folder}` on both; use a folder on the shared file system: --folder"),
                    )
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "lock-ignored",
        level: Error,
        why: "an old job that still runs on a disconnected node would overwrite the snapshots of the new one",
        source: "flock(2) of a file that the first node has locked: it must be refused",
        wrong: |job| job.views[0].lock = Lock::Ignored,
        find: |job| {
            views(job, |view| {
                (view.lock == Lock::Ignored).then(|| {
                    (
                        "a lock that one node holds does not stop another node".to_owned(),
                        format!("flock(2) succeeded on {} while {} had the lock", view.node, job.nodes[0].name),
                        "mount NFS without nolock or local_lock (nfs(5)), Lustre with -o flock".to_owned(),
                    )
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "lock-unsupported",
        level: Error,
        why: "snapshots cannot be protected from a second writer",
        source: "flock(2) of a file that the first node has locked",
        wrong: |job| job.views[0].lock = Lock::Failed("no locks available".into()),
        find: |job| {
            views(job, |view| match &view.lock {
                Lock::Failed(why) => Some((
                    "the file system has no locks".to_owned(),
                    format!("flock(2) on {}: {why}", view.node),
                    "mount Lustre with -o flock; start the lock services of NFS (rpc.statd)".to_owned(),
                )),
                _ => None,
            })
        },
        ..RULE
    },
    Rule {
        name: "rename-not-atomic",
        level: Error,
        why: "a reader may find half a snapshot, or none, while a new one replaces it",
        source: "a file that the first node replaces over and over while the others read it 200 times",
        wrong: |job| job.views[0].torn = Some("10 of 4096 bytes".into()),
        find: |job| {
            views(job, |view| {
                view.torn.as_ref().map(|torn| {
                    (
                        "a file is not complete while it is replaced".to_owned(),
                        format!("{} read {torn}", view.node),
                        "use another file system for snapshots: --folder".to_owned(),
                    )
                })
            })
        },
        ..RULE
    },
    Rule {
        name: "temporary-full",
        level: Error,
        why: "logs of workers and sockets are made there: the launcher does not start",
        source: "statvfs(2) of the folder for temporary files (TMPDIR, or /tmp)",
        wrong: |job| job.nodes[1].temporary.iter_mut().for_each(|space| space.inodes = Some(0)),
        find: |job| {
            each(job, |node| {
                let space = node.temporary.as_ref()?;
                let same = node.folder.space.as_ref().is_some_and(|folder| folder.path == space.path);
                (!same && (space.free < FULL / 8 || space.inodes == Some(0))).then(|| room(space))
            })
        },
        ..RULE
    },
    Rule {
        name: "shm-small",
        level: Error,
        why: "NCCL and data loaders exchange data through /dev/shm: they end with a bus error, or `unable to open shared memory object`",
        source: "statvfs(2) of /dev/shm: less than 128 MiB in total, as in Docker by default",
        wrong: |job| job.nodes[1].shm.iter_mut().for_each(|shm| shm.total = 64 * MIB),
        find: |job| {
            each(job, |node| {
                let shm = node.shm.as_ref().filter(|shm| shm.total < SMALL_SHM)?;
                Some([
                    format!("/dev/shm has only {}", bytes(shm.total)),
                    "statvfs(2)".to_owned(),
                    "mount -o remount,size=50% /dev/shm; in a container: --shm-size=8g, or --ipc=host".to_owned(),
                ])
            })
        },
        ..RULE
    },
    Rule {
        name: "shm-full",
        level: Error,
        why: "NCCL and data loaders find no space in /dev/shm, usually because killed processes have left files there",
        source: "statvfs(2) of /dev/shm: less than 32 MiB is free",
        wrong: |job| job.nodes[1].shm.iter_mut().for_each(|shm| shm.free = MIB),
        find: |job| {
            each(job, |node| {
                let shm = node.shm.as_ref().filter(|shm| shm.total >= SMALL_SHM && shm.free < FULL_SHM)?;
                Some([
                    format!("/dev/shm is full: {} of {} are free", bytes(shm.free), bytes(shm.total)),
                    "statvfs(2)".to_owned(),
                    "`ls -lt /dev/shm`, then remove files that no process uses (`fuser -v /dev/shm/*`)".to_owned(),
                ])
            })
        },
        ..RULE
    },
];

fn room(space: &Space) -> [String; 3] {
    let inodes = space.inodes.map_or_else(|| "an unknown number of".to_owned(), |inodes| inodes.to_string());
    [
        format!("{} is full: {} of {} are free", space.path.display(), bytes(space.free), bytes(space.total)),
        format!("statvfs(2), which also counts {inodes} free inodes"),
        format!("`du -xsh {}/*` shows what is large", space.path.display()),
    ]
}

fn views(job: &JobFacts, wrong: impl Fn(&View) -> Option<(String, String, String)>) -> Vec<NodeFinding> {
    let all = job.views.iter().filter_map(|view| {
        let (what, evidence, fix) = wrong(view)?;
        Some(found(&view.node, [what, evidence, fix]))
    });
    all.collect()
}

// ---- processors, memory and limits

/// A launcher of a few workers, or a rank with its connections, needs some hundred.
const OPEN_FILES: u64 = 1024;
/// A lower limit on processes is too low: each rank has some dozen threads, and each counts as one.
const PROCESSES: u64 = 1024;
/// A rank with libtorch takes some hundred MiB before there is a model.
const MEMORY: u64 = 512 * MIB;
/// Less than a small model with its optimizer on a few ranks.
const LIMIT: u64 = 2 * GIB;

pub(super) const LIMITS: &[Rule<Nodes>] = &[
    Rule {
        name: "open-files-low",
        level: Error,
        why: "the launcher, data loaders and Gloo end with `Too many open files`",
        source: "getrlimit(2): the hard limit of open files is below 1024",
        wrong: |job| job.nodes[1].limits.open_files = Some(64),
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
        ..RULE
    },
    Rule {
        name: "processes-low",
        level: Error,
        why: "threads count as processes: libtorch ends with `Resource temporarily unavailable`",
        source: "getrlimit(2): a user may have less than 1024 processes",
        wrong: |job| job.nodes[1].limits.processes = Some(100),
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
        ..RULE
    },
    Rule {
        name: "group-processes-low",
        level: Error,
        why: "threads count as processes: libtorch ends with `Resource temporarily unavailable`, and libraries wait for threads for ever",
        source: "pids.max of this process's control groups, which is below 1024",
        wrong: |job| job.nodes[1].limits.group_processes = Some(12),
        find: |job| {
            each(job, |node| {
                let limit = node.limits.group_processes.filter(|limit| *limit < PROCESSES)?;
                Some([
                    format!("all programs of the control group may have only {limit} processes and threads"),
                    format!("its pids.max is {limit}"),
                    "TasksMax= of the systemd unit, --pids-limit of the container, or ask the administrator".to_owned(),
                ])
            })
        },
        ..RULE
    },
    Rule {
        name: "address-space-limited",
        level: Warning,
        why: "CUDA reserves far more addresses than memory, and fails under this limit",
        source: "getrlimit(2): the address space is limited",
        wrong: |job| job.nodes[1].limits.address_space = Some(8 * GIB),
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
        ..RULE
    },
    Rule {
        name: "core-dumps-in-folder",
        level: Note,
        why: "each rank that crashes writes its whole memory into the current folder",
        source: "getrlimit(2), and /proc/sys/kernel/core_pattern without a path",
        wrong: |job| job.nodes[1].limits.core_pattern = "core".into(),
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
        ..RULE
    },
    Rule {
        name: "memory-short",
        level: Error,
        why: "a rank needs several hundred MiB before it has a model: the kernel kills it",
        source: "MemAvailable of /proc/meminfo is below 512 MiB, or the control group's limit is",
        wrong: |job| job.nodes[1].memory.available = Some(100 * MIB),
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
        ..RULE
    },
    Rule {
        name: "memory-limited",
        level: Warning,
        why: "the control group's limit is far below the machine's memory: the kernel kills ranks at it, with SIGKILL and no message",
        source: "memory.max, or memory.limit_in_bytes, of this process's control groups: below 2 GiB",
        wrong: |job| job.nodes[1].memory.limit = Some(GIB),
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
        ..RULE
    },
    Rule {
        name: "processors-few",
        level: Warning,
        why: "all workers of this node share one processor, as mpirun binds each process to one by default",
        source: "sched_getaffinity(2)",
        wrong: |job| job.nodes[1].cpu.allowed = 1,
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
        ..RULE
    },
    Rule {
        name: "cpu-quota-low",
        level: Warning,
        why: "libraries start a thread for each visible processor, and the CPU quota stops them: the node is slower than it looks",
        source: "cpu.max, or cpu.cfs_quota_us, of this process's control groups",
        wrong: |job| job.nodes[1].cpu.quota = Some(1.5),
        find: |job| {
            each(job, |node| {
                let quota = node.cpu.quota.filter(|quota| *quota + 0.5 < node.cpu.allowed as f64)?;
                Some([
                    format!("{} processors are visible, but the CPU quota is {quota:.1}", node.cpu.allowed),
                    "the control group's CPU quota".to_owned(),
                    format!(
                        "export OMP_NUM_THREADS={}, or raise the quota (docker run --cpus)",
                        (quota as usize).max(1)
                    ),
                ])
            })
        },
        ..RULE
    },
];
