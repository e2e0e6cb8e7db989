//! Rules on the machine: files and disks; memory, time, processes, open files, stack and CPU time. They also explain errors of the
//! launcher. GPUs, by the words of CUDA, NCCL and PyTorch, and by the driver's Xid in the kernel's log.

use std::time::Duration;

use lockstep_contract::rules::{Finding, Rule};

use super::rules::{Causes, RULE, WorkerFinding, between, ended, last_quoted};
use super::worker_end::WorkerEnd;

/// Where shared memory is.
const SHM: &str = "/dev/shm";

pub(super) const FILES: &[Rule<Causes>] = &[
    Rule {
        name: "shared-memory-full",
        source: "SIGBUS or the data loader's words, and how much of /dev/shm is free",
        fix: "give the container more (--shm-size=8g, or --ipc=host), or use fewer loader workers",
        wrong: ended(
            1,
            "RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
        ),
        right: ended(1, "OSError: [Errno 28] No space left on device: '/scratch/run/7.pt'"),
        find: |worker| {
            let shm = worker.file_system(SHM);
            let marks = [
                "out of shared memory",
                "unable to allocate shared memory",
                "unable to write to file </torch_",
                "insufficient shared memory",
                "error while creating shared memory segment",
            ];
            if let Some(line) = worker.line(&marks) {
                return Some(worker.found("/dev/shm, where processes share memory, is full", line).and(shm));
            }
            let full = shm.filter(|shm| shm.is_full())?;
            match (worker.signal(), worker.line(&["no space left on device"])) {
                (_, Some(line)) => {
                    let here = last_quoted(line).is_none_or(|path| path.starts_with(SHM));
                    here.then(|| worker.found("/dev/shm, where processes share memory, is full", line).and(Some(full)))
                }
                (Some(7), None) => {
                    Some(Finding::new("/dev/shm, where processes share memory, is full", format!("SIGBUS; {full}")))
                }
                _ => None,
            }
        },
        ..RULE
    },
    Rule {
        name: "disk-full",
        source: "the exception, and how much of its file system is free",
        fix: "`df -h` and `df -i` show what is full; logs and snapshots are written there",
        wrong: ended(1, "OSError: [Errno 28] No space left on device: '/scratch/run/7.pt'"),
        right: ended(1, "OSError: [Errno 122] Disk quota exceeded: '/home/ada/run/7.pt'"),
        find: |worker| on_disk(worker, &["no space left on device", "enospc"], "a disk is full"),
        ..RULE
    },
    Rule {
        name: "quota-exceeded",
        source: "the exception",
        fix: "`quota -s`, or the site's own command, shows yours; remove old snapshots and caches",
        wrong: ended(1, "OSError: [Errno 122] Disk quota exceeded: '/home/ada/run/7.pt'"),
        right: ended(1, "OSError: [Errno 28] No space left on device: '/scratch/run/7.pt'"),
        find: |worker| on_disk(worker, &["disk quota exceeded"], "your quota on a disk is used up"),
        ..RULE
    },
    Rule {
        name: "disk-read-only",
        source: "the exception, and the mount",
        fix: "write to another folder; a disk that became read-only is defective: `dmesg` on that node, and tell its operator",
        wrong: ended(1, "OSError: [Errno 30] Read-only file system: '/data/run/7.pt'"),
        right: ended(1, "PermissionError: [Errno 13] Permission denied: '/data/1.tar'"),
        find: |worker| on_disk(worker, &["read-only file system"], "a file system is read-only"),
        ..RULE
    },
    Rule {
        name: "disk-defective",
        source: "the exception",
        fix: "`dmesg` on that node; if the path is on a network, its server: tell the operator, and run elsewhere",
        wrong: ended(1, "OSError: [Errno 5] Input/output error: '/data/3.tar'"),
        right: ended(1, "OSError: [Errno 30] Read-only file system: '/data/run/7.pt'"),
        find: |worker| {
            on_disk(
                worker,
                &["input/output error", "stale file handle", "remote i/o error"],
                "a disk or file server does not read or write",
            )
        },
        ..RULE
    },
    Rule {
        name: "file-too-large",
        source: "SIGXFSZ, or the exception",
        fix: "`ulimit -f` is too low for what is written, or the file system has a limit for one file",
        wrong: ended(-25, ""),
        right: ended(-24, ""),
        find: |worker| {
            let word = worker.words(&["file too large"], "a file grew over its limit");
            word.or_else(|| {
                (worker.signal() == Some(25))
                    .then(|| Finding::new("a file grew over the limit of `ulimit -f`", "SIGXFSZ"))
            })
        },
        ..RULE
    },
    Rule {
        name: "file-not-allowed",
        source: "the exception",
        fix: "`ls -ld` the file and its folder, and `id`: on this node the user or a group may differ",
        wrong: ended(1, "PermissionError: [Errno 13] Permission denied: '/data/1.tar'"),
        right: ended(1, "FileNotFoundError: [Errno 2] No such file or directory: '/data/1.tar'"),
        find: |worker| {
            on_disk(worker, &["permissionerror:", "permission denied (os error 13)"], "a file may not be opened")
        },
        ..RULE
    },
    Rule {
        name: "file-missing",
        source: "the exception",
        fix: "check the path on this very node: it may exist on the others only, or be relative to another folder",
        wrong: ended(1, "FileNotFoundError: [Errno 2] No such file or directory: '/data/1.tar'"),
        right: ended(1, "PermissionError: [Errno 13] Permission denied: '/data/1.tar'"),
        find: |worker| {
            on_disk(worker, &["filenotfounderror:", "no such file or directory (os error 2)"], "a file does not exist")
        },
        ..RULE
    },
    Rule {
        name: "snapshot-refused",
        source: "the exception",
        fix: "if you trust who wrote the file: `torch.serialization.add_safe_globals` with that class, or `weights_only=False`; otherwise save \
              tensors, numbers and texts only",
        wrong: ended(
            1,
            "_pickle.UnpicklingError: Weights only load failed. This file can still be loaded, to do so you have two options\n\tWeightsUnpickler error: Unsupported global: GLOBAL datetime.timedelta was not an allowed global by default.",
        ),
        right: ended(
            1,
            "_pickle.UnpicklingError: Weights only load failed.\n\tWeightsUnpickler error: Unsupported operand 103",
        ),
        find: |worker| {
            let line = worker.line(&["unsupported global: global "])?;
            let class = between(line, "Unsupported global: GLOBAL ", " was not")?;
            Some(worker.found(format!("torch.load refused a snapshot that has a {class}"), line))
        },
        ..RULE
    },
    Rule {
        name: "snapshot-torn",
        source: "the exception",
        fix: "take the snapshot before it: this file was not written to its end, or was overwritten by two writers",
        wrong: ended(
            1,
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        ),
        right: ended(1, "EOFError: the answer is missing"),
        find: |worker| {
            let marks =
                ["pytorchstreamreader failed", "unpicklingerror", "eoferror: ran out of input", "safetensorerror"];
            worker.words(&marks, "a snapshot cannot be read: its file is torn")
        },
        ..RULE
    },
];

/// A failure on a path, with the state of its file system.
fn on_disk(worker: &WorkerEnd<'_>, marks: &[&str], what: &str) -> Option<WorkerFinding> {
    let line = worker.line(marks)?;
    let path = last_quoted(line).filter(|path| path.contains('/'));
    let cause = path.map_or_else(|| what.to_owned(), |path| format!("{what}: {path}"));
    // Only a file system in the gathered facts counts.
    let system = path.and_then(|path| worker.file_system(path)).filter(|system| system.is_full() || system.read_only);
    Some(worker.found(cause, line).and(system))
}

// ---- limits

/// What a process that is about to end prints if it was refused memory.
const REFUSED: [&str; 7] = [
    "memoryerror",
    "cannot allocate memory",
    "can't allocate memory",
    "std::bad_alloc",
    "memory allocation of ",
    "not enough memory",
    "out of memory (os error 12)",
];
const MEMORY: &str = "ask for more memory (Slurm: --mem), or use less: smaller batches, fewer loader workers, data that is not \
                      held whole";

pub(super) const LIMITS: &[Rule<Causes>] = &[
    Rule {
        name: "oom-killer",
        source: "SIGKILL, and one of: the cgroup's counter `oom_kill` (v2 `memory.events`, v1 `memory.oom_control`) rose; the kernel's \
                   log names the process; Slurm's daemon says so",
        fix: MEMORY,
        wrong: ended(
            -9,
            "slurmstepd: error: Detected 1 oom_kill event in StepId=17.0. Some of the step tasks have been OOM Killed.",
        ),
        right: ended(-9, ""),
        find: |worker| {
            let killed = worker.signal() == Some(9);
            let evidence = memory_kill(worker).filter(|_| killed)?;
            Some(Finding::new(
                "the kernel's OOM killer ended it: memory was used up",
                format!("SIGKILL, and {evidence}"),
            ))
        },
        ..RULE
    },
    Rule {
        name: "timeout",
        source: "the worker's program is timeout(1), and it ended with 124, or by the SIGKILL of its -k or -s, after at least its limit",
        fix: "raise the limit on timeout's command line, or leave it out: `--time-limit` of the launcher asks for a snapshot before the end",
        wrong: ended(124, "").with(|failure, evidence| {
            failure.death.started = failure.death.at - Duration::from_secs(8);
            evidence.command = vec!["timeout".into(), "7s".into(), "python".into()];
        }),
        right: ended(124, "")
            .with(|_, evidence| evidence.command = vec!["timeout".into(), "1h".into(), "python".into()]),
        find: |worker| {
            let (death, found) = (&worker.failure.death, TimeOut::of(&worker.evidence.command)?);
            let ran = death.at.duration_since(death.started).ok().filter(|ran| *ran >= found.limit)?;
            let how = match (death.exitcode, worker.signal()) {
                (124, _) => "exit code 124".to_owned(),
                (_, Some(9)) if found.kills => "SIGKILL, which it sends its whole group".to_owned(),
                _ => return None,
            };
            let how = format!("{how}, {:.1} s after the start of `timeout {}`", ran.as_secs_f64(), found.text);
            Some(Finding::new(format!("timeout(1) ended it at its limit of {}", found.text), how))
        },
        ..RULE
    },
    Rule {
        name: "loader-worker-killed",
        source: "the data loader's words, and the evidence of the OOM killer, if there is any",
        fix: MEMORY,
        wrong: ended(1, "RuntimeError: DataLoader worker (pid 7134) is killed by signal: Killed."),
        right: ended(1, "RuntimeError: DataLoader worker (pid(s) 7134) exited unexpectedly"),
        find: |worker| {
            let line = worker.line(&["is killed by signal: killed"])?;
            let what = match memory_kill(worker) {
                Some(_) => "the kernel's OOM killer ended a loader worker: memory was used up",
                None => "a loader worker was killed; it is unknown by whom",
            };
            Some(worker.found(what, line).and(memory_kill(worker)))
        },
        ..RULE
    },
    Rule {
        name: "loader-worker-died",
        source: "the data loader's words",
        fix: "run with num_workers=0 to see the error itself",
        wrong: ended(1, "RuntimeError: DataLoader worker (pid(s) 7134) exited unexpectedly"),
        right: ended(1, "RuntimeError: DataLoader worker (pid 7134) is killed by signal: Killed."),
        find: |worker| {
            let line = worker.line(&["dataloader worker (pid"])?;
            Some(worker.found("a loader worker of this rank died", line))
        },
        ..RULE
    },
    Rule {
        name: "memory-refused",
        source: "the exception, or the allocator's message",
        fix: MEMORY,
        wrong: ended(1, "MemoryError"),
        right: ended(1, "torch.OutOfMemoryError: CUDA out of memory."),
        find: |worker| worker.words(&REFUSED, "the system refused more memory"),
        ..RULE
    },
    Rule {
        name: "too-many-processes",
        source: "the exception, or a shell's message",
        fix: "`ulimit -u` and the cgroup's pids.max limit processes and threads together: use fewer loader workers and threads \
                 (OMP_NUM_THREADS)",
        wrong: ended(1, "RuntimeError: can't start new thread"),
        right: ended(1, "OSError: [Errno 24] Too many open files: '/data/1.tar'"),
        find: |worker| {
            let marks = [
                "can't start new thread",
                "fork: retry",
                "cannot fork",
                "pthread_create failed",
                "failed to spawn thread",
                "blockingioerror: [errno 11] resource temporarily unavailable",
                "libgomp: thread creation failed",
                "more processes and threads, and the system has room for",
            ];
            let what = "the limit of processes and threads is reached";
            // C++ has no other message for this. With a number the message is Rust's, and may be about a socket.
            let starts = || worker.line(&["failed to start", "cannot start", "spawn"]).is_some();
            let line = worker.line(&["resource temporarily unavailable"]);
            let plain = || line.filter(|line| !line.contains("os error") || starts());
            worker.words(&marks, what).or_else(|| Some(worker.found(what, plain()?)))
        },
        ..RULE
    },
    Rule {
        name: "too-many-open-files",
        source: "the exception",
        fix: "raise `ulimit -n`; in PyTorch, torch.multiprocessing.set_sharing_strategy('file_system') needs fewer",
        wrong: ended(1, "OSError: [Errno 24] Too many open files: '/data/1.tar'"),
        right: ended(1, "RuntimeError: can't start new thread"),
        find: |worker| worker.words(&["too many open files"], "the limit of open files is reached"),
        ..RULE
    },
    Rule {
        name: "stack-overflow",
        source: "Rust's or Python's message with SIGABRT; for SIGSEGV, the kernel's log: the address is at the stack's end",
        fix: "look for an endless recursion; if it is deep on purpose, `ulimit -s unlimited`, or RUST_MIN_STACK for threads",
        wrong: ended(-6, "thread 'main' (7) has overflowed its stack\nfatal runtime error: stack overflow, aborting"),
        right: ended(-11, ""),
        find: |worker| {
            let marks = ["has overflowed its stack", "cannot recover from stack overflow", "stack overflow detected"];
            let found = worker.line_anywhere(&marks).filter(|_| worker.signal().is_some());
            let what = "its stack overflowed";
            if let Some(line) = found {
                return Some(worker.found(what, line));
            }
            let line = worker.kernel("segfault at").filter(|line| at_the_stacks_end(line))?;
            (worker.signal() == Some(11))
                .then(|| Finding::new(what, format!("SIGSEGV, and the kernel's log, \"{line}\"")))
        },
        ..RULE
    },
    Rule {
        name: "python-recursion",
        source: "the exception",
        fix: "look for an endless recursion; sys.setrecursionlimit raises the limit",
        wrong: ended(1, "RecursionError: maximum recursion depth exceeded"),
        right: ended(1, "RuntimeError: maximum depth of the model"),
        find: |worker| worker.words(&["recursionerror"], "a Python function calls itself endlessly"),
        ..RULE
    },
    Rule {
        name: "cpu-time-used-up",
        source: "SIGXCPU",
        fix: "`ulimit -t` is too low for this program",
        wrong: ended(-24, ""),
        right: ended(-25, ""),
        find: |worker| {
            (worker.signal() == Some(24)).then(|| Finding::new("it used up the CPU time of `ulimit -t`", "SIGXCPU"))
        },
        ..RULE
    },
];

/// What shows that the kernel's OOM killer was at work.
fn memory_kill(worker: &WorkerEnd<'_>) -> Option<String> {
    let counted = worker.evidence.memory.as_ref().filter(|memory| memory.after > memory.before);
    let counted = counted
        .map(|memory| format!("{} rose from {} to {} (oom_kill)", memory.file.display(), memory.before, memory.after));
    let logged = || worker.kernel("Killed process").map(|line| format!("the kernel's log, \"{line}\""));
    let marks = [
        "oom_kill event",
        "oom-kill event",
        "oom killed",
        "some of your processes may have been killed by the cgroup out-of-memory",
    ];
    let said = || worker.line_anywhere(&marks).map(|line| format!("\"{line}\""));
    counted.or_else(logged).or_else(said)
}

/// `python[7]: segfault at 7ffc0e1fcff8 ip 000055d0 sp 00007ffc0e1fd000 error 6 in …`: the address is next to the stack pointer.
fn at_the_stacks_end(line: &str) -> bool {
    /// A guard page and a large frame, in bytes.
    const NEAR: u64 = 64 << 10;
    let hex = |name: &str| {
        let rest = line.split_once(name)?.1.split_whitespace().next()?;
        u64::from_str_radix(rest, 16).ok()
    };
    matches!((hex("segfault at "), hex(" sp ")), (Some(at), Some(sp)) if at.abs_diff(sp) < NEAR)
}

// ---- timeout(1) between the launcher and the program

/// Programs that replace themselves by the one that their arguments name.
const PREFIXES: [&str; 8] = ["env", "nice", "ionice", "numactl", "taskset", "chrt", "stdbuf", "setsid"];

/// A worker's timeout(1).
#[derive(Clone, Debug, PartialEq)]
struct TimeOut {
    /// Its argument DURATION.
    pub(super) text: String,
    pub(super) limit: Duration,
    /// It sends SIGKILL, at once or later.
    pub(super) kills: bool,
}

impl TimeOut {
    /// Reads a worker's command line: `timeout -k 5 90m python train.py`. None without timeout(1) or a limit.
    pub(super) fn of(command: &[String]) -> Option<Self> {
        let name = |word: &String| word.rsplit('/').next().unwrap_or_default().to_owned();
        let begin = command.iter().position(|word| name(word) == "timeout")?;
        if begin > 0 && !PREFIXES.contains(&name(&command[0]).as_str()) {
            return None;
        }
        let mut words = command[begin + 1..].iter();
        let mut kills = false;
        let text = loop {
            let word = words.next()?;
            let Some(option) = word.strip_prefix('-') else { break word };
            let (flag, given) = match option.strip_prefix('-') {
                Some(long) => long.split_once('=').map_or((long, None), |(flag, value)| (flag, Some(value))),
                None => {
                    option.split_at_checked(1).map(|(flag, rest)| (flag, Some(rest).filter(|rest| !rest.is_empty())))?
                }
            };
            let mut value = || given.or_else(|| words.next().map(String::as_str));
            match flag {
                "k" | "kill-after" => kills |= value().is_some(),
                "s" | "signal" => kills |= value().is_some_and(|signal| ["KILL", "SIGKILL", "9"].contains(&signal)),
                _ => {}
            }
        };
        let limit = duration(text).filter(|limit| *limit > Duration::ZERO)?;
        Some(TimeOut { text: text.clone(), limit, kills })
    }
}

/// A number with `s`, `m`, `h` or `d`; 0 is no limit.
fn duration(text: &str) -> Option<Duration> {
    let number = text.trim_end_matches(['s', 'm', 'h', 'd']);
    let unit = match &text[number.len()..] {
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * unit).ok()
}

/// A line of the NVIDIA driver.
const XID: &str = "NVRM: Xid (PCI:0000:3b:00): 79, pid=7134, GPU has fallen off the bus.";

pub(super) const GPU: &[Rule<Causes>] = &[
    Rule {
        name: "gpu-xid",
        source: "the NVIDIA driver's line in the kernel's log, together with a CUDA or NCCL error of the worker",
        fix: "look the Xid up in NVIDIA's list; 48, 63, 64, 74, 79, 94 and 95 are hardware: take the node out and tell its operator",
        wrong: ended(1, "RuntimeError: CUDA error: unspecified launch failure")
            .with(|_, evidence| evidence.kernel_log = vec![XID.into()]),
        right: ended(1, "ValueError: no").with(|_, evidence| evidence.kernel_log = vec![XID.into()]),
        find: |worker| {
            let line = worker.evidence.kernel_log.iter().rev().find(|line| line.contains("NVRM: Xid"))?;
            let said = worker.line(&["cuda error", "nccl error", "cublas_status", "cudnn_status", "uncorrectable"])?;
            let number = line.split("): ").nth(1).and_then(|rest| rest.split(',').next()).unwrap_or("?");
            let found = Finding::new(format!("the GPU reported Xid {number}"), format!("the kernel's log, \"{line}\""));
            Some(found.and(Some(said)))
        },
        ..RULE
    },
    Rule {
        name: "gpu-out-of-memory",
        source: "the exception",
        fix: "lower the batch size, and see with `nvidia-smi` whether another process or a second rank is on the same GPU \
                 (each rank must take the device of its LOCAL_RANK)",
        wrong: ended(
            1,
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB",
        ),
        right: ended(1, "MemoryError"),
        find: |worker| {
            let marks = [
                "cuda out of memory",
                "outofmemoryerror",
                "cublas_status_alloc_failed",
                "cudaerrormemoryallocation",
                "hip out of memory",
                "failed to cuda calloc",
                "cuda failure 2 'out of memory'",
            ];
            let line = worker.line(&marks)?;
            let wanted =
                between(line, "Tried to allocate ", ".  ").or_else(|| between(line, "Tried to allocate ", ". "));
            let wanted = wanted.map(|wanted| format!(": {wanted} more do not fit")).unwrap_or_default();
            Some(worker.found(format!("the GPU's memory is used up{wanted}"), line))
        },
        ..RULE
    },
    Rule {
        name: "gpu-not-there",
        source: "the exception",
        fix: "use LOCAL_RANK, not RANK, as the device's number, no more workers than GPUs (--nproc-per-node=gpu), and no \
              CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES that leaves each worker one GPU",
        wrong: ended(1, "RuntimeError: CUDA error: invalid device ordinal"),
        right: ended(1, "RuntimeError: CUDA error: device-side assert triggered"),
        find: |worker| {
            worker.words(&["invalid device ordinal"], "the worker asked for a GPU that this node does not have")
        },
        ..RULE
    },
    Rule {
        name: "gpu-shared-by-ranks",
        source: "NCCL's message",
        fix: "call torch.cuda.set_device(LOCAL_RANK) before anything else uses the GPU",
        wrong: ended(
            1,
            "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\nDuplicate GPU detected : rank 1 and rank 0 both on CUDA device 1000",
        ),
        right: ended(1, "ncclInvalidUsage: This usually reflects invalid usage of NCCL library."),
        find: |worker| worker.words(&["duplicate gpu detected"], "two ranks use the same GPU"),
        ..RULE
    },
    Rule {
        name: "gpu-driver-too-old",
        source: "the exception",
        fix: "install a newer NVIDIA driver on this node, or a PyTorch for its CUDA version (`nvidia-smi` shows it)",
        wrong: ended(1, "RuntimeError: The NVIDIA driver on your system is too old (found version 11040)"),
        right: ended(1, "RuntimeError: No CUDA GPUs are available"),
        find: |worker| {
            let marks = ["nvidia driver on your system is too old", "driver version is insufficient"];
            worker.words(&marks, "the NVIDIA driver of this node is too old for this CUDA")
        },
        ..RULE
    },
    Rule {
        name: "gpu-invisible",
        source: "the exception",
        fix: "`nvidia-smi` or `rocm-smi` on this node; then CUDA_VISIBLE_DEVICES or ROCR_VISIBLE_DEVICES, the scheduler's request for GPUs \
              (--gpus), the container's --nv or --rocm",
        wrong: ended(1, "RuntimeError: No CUDA GPUs are available"),
        right: ended(1, "RuntimeError: CUDA error: invalid device ordinal"),
        find: |worker| {
            let marks = [
                "no cuda gpus are available",
                "no hip gpus are available",
                "no rocm-capable device",
                "no cuda-capable device",
                "found no nvidia driver",
                "cuda driver initialization failed",
                "libcuda.so.1: cannot",
                "torch not compiled with cuda enabled",
                "only supported with gpus, no gpus found", // ProcessGroupNCCL of PyTorch 2.11
                "requires at least one cuda device",       // the same in 2.15
            ];
            worker.words(&marks, "the worker sees no GPU")
        },
        ..RULE
    },
    Rule {
        name: "gpu-too-new-or-old",
        source: "the exception",
        fix: "install a PyTorch, or rebuild the kernels (TORCH_CUDA_ARCH_LIST), for this GPU's compute capability",
        wrong: ended(1, "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
        right: ended(1, "RuntimeError: CUDA error: an illegal memory access was encountered"),
        find: |worker| {
            let marks = ["no kernel image is available", "hip error: invalid device function"];
            worker.words(&marks, "the GPU code was not built for this kind of GPU")
        },
        ..RULE
    },
    Rule {
        name: "gpu-memory-defect",
        source: "the exception",
        fix: "take the node out and tell its operator: `nvidia-smi -q -d ECC` shows the defect",
        wrong: ended(1, "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
        right: ended(1, "RuntimeError: CUDA error: no kernel image is available for execution on the device"),
        find: |worker| worker.words(&["uncorrectable ecc error"], "the GPU's memory is defective"),
        ..RULE
    },
    Rule {
        name: "gpu-assertion",
        source: "the exception",
        fix: "mostly an index out of range (a label, a token): run with CUDA_LAUNCH_BLOCKING=1, or on the CPU, to see the line",
        wrong: ended(1, "RuntimeError: CUDA error: device-side assert triggered"),
        right: ended(1, "AssertionError: the loss is NaN"),
        find: |worker| worker.words(&["device-side assert triggered"], "an assertion failed in a GPU kernel"),
        ..RULE
    },
    Rule {
        name: "gpu-wild-access",
        source: "the exception",
        fix: "run with CUDA_LAUNCH_BLOCKING=1 to see the call, or under compute-sanitizer; if it moves from node to node, it is the program",
        wrong: ended(1, "RuntimeError: CUDA error: an illegal memory access was encountered"),
        right: ended(-11, ""),
        find: |worker| {
            let marks =
                ["an illegal memory access was encountered", "unspecified launch failure", "misaligned address"];
            worker.words(&marks, "a GPU kernel accessed memory that is not its own")
        },
        ..RULE
    },
];

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Option<(f64, bool)> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        TimeOut::of(&words).map(|found| (found.limit.as_secs_f64(), found.kills))
    }

    #[test]
    fn finds_the_limit_on_a_workers_command_line() {
        assert_eq!(of("timeout 60 python train.py"), Some((60.0, false)));
        assert_eq!(of("/usr/bin/timeout -v --foreground 1.5h python -k train.py"), Some((5400.0, false)));
        assert_eq!(of("timeout -k 5 2m python"), Some((120.0, true)));
        assert_eq!(of("timeout --kill-after=5 --signal INT 2d python"), Some((172_800.0, true)));
        assert_eq!(of("timeout -sKILL 7s python"), Some((7.0, true)));
        assert_eq!(of("timeout -s TERM 7 python"), Some((7.0, false)));
        assert_eq!(of("env OMP_NUM_THREADS=1 nice -n 1 timeout 8 python"), Some((8.0, false)));
    }

    #[test]
    fn finds_no_limit_where_there_is_none() {
        for line in [
            "timeout 0 python",
            "timeout",
            "timeout -k",
            "timeout soon python",
            "timeout 5w python",
            "python timeout 5",
            "timeouts 5",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
    }
}
