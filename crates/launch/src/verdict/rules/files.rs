//! Files and disks: full, read-only, not allowed, missing, torn.

use super::super::case::{Case, Found};
use super::Class::Cause;
use super::{Rule, last_quoted};

/// Where shared memory is.
const SHM: &str = "/dev/shm";

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "shared-memory-full",
        class: Cause,
        evidence: "SIGBUS or the data loader's words, and how much of /dev/shm is free",
        advice: "give the container more (--shm-size=8g, or --ipc=host), or use fewer loader workers",
        example: (
            1,
            "RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory. Please try to raise your shared memory limit.",
        ),
        find: |case| {
            let shm = case.file_system(SHM);
            let marks = [
                "out of shared memory",
                "unable to allocate shared memory",
                "unable to write to file </torch_",
                "insufficient shared memory",
                "error while creating shared memory segment",
            ];
            if let Some(line) = case.line(&marks) {
                return Some(case.found("/dev/shm, where processes share memory, is full", line).and(shm));
            }
            let full = shm.filter(|shm| shm.is_full())?;
            match (case.signal(), case.line(&["no space left on device"])) {
                (_, Some(line)) => {
                    let here = last_quoted(line).is_none_or(|path| path.starts_with(SHM));
                    here.then(|| case.found("/dev/shm, where processes share memory, is full", line).and(Some(full)))
                }
                (Some(7), None) => {
                    Some(Found::new("/dev/shm, where processes share memory, is full", format!("SIGBUS; {full}")))
                }
                _ => None,
            }
        },
    },
    Rule {
        name: "disk-full",
        class: Cause,
        evidence: "the exception, and how much of its file system is free",
        advice: "`df -h` and `df -i` show what is full; logs and snapshots are written there",
        example: (1, "OSError: [Errno 28] No space left on device: '/scratch/run/7.pt'"),
        find: |case| on_disk(case, &["no space left on device", "enospc"], "a disk is full"),
    },
    Rule {
        name: "quota-exceeded",
        class: Cause,
        evidence: "the exception",
        advice: "`quota -s`, or the site's own command, shows yours; remove old snapshots and caches",
        example: (1, "OSError: [Errno 122] Disk quota exceeded: '/home/ada/run/7.pt'"),
        find: |case| on_disk(case, &["disk quota exceeded"], "your quota on a disk is used up"),
    },
    Rule {
        name: "disk-read-only",
        class: Cause,
        evidence: "the exception, and the mount",
        advice: "write to another folder; a disk that became read-only is defective: `dmesg` on that node, and tell its operator",
        example: (1, "OSError: [Errno 30] Read-only file system: '/data/run/7.pt'"),
        find: |case| on_disk(case, &["read-only file system"], "a file system is read-only"),
    },
    Rule {
        name: "disk-defective",
        class: Cause,
        evidence: "the exception",
        advice: "`dmesg` on that node; if the path is on a network, its server: tell the operator, and run elsewhere",
        example: (1, "OSError: [Errno 5] Input/output error: '/data/3.tar'"),
        find: |case| {
            on_disk(
                case,
                &["input/output error", "stale file handle", "remote i/o error"],
                "a disk or file server does not read or write",
            )
        },
    },
    Rule {
        name: "file-too-large",
        class: Cause,
        evidence: "SIGXFSZ, or the exception",
        advice: "`ulimit -f` is too low for what is written, or the file system has a limit for one file",
        example: (-25, ""),
        find: |case| {
            let word = case.words(&["file too large"], "a file grew over its limit");
            word.or_else(|| {
                (case.signal() == Some(25)).then(|| Found::new("a file grew over the limit of `ulimit -f`", "SIGXFSZ"))
            })
        },
    },
    Rule {
        name: "file-not-allowed",
        class: Cause,
        evidence: "the exception",
        advice: "`ls -ld` the file and its folder, and `id`: on this node the user or a group may differ",
        example: (1, "PermissionError: [Errno 13] Permission denied: '/data/1.tar'"),
        find: |case| {
            on_disk(case, &["permissionerror:", "permission denied (os error 13)"], "a file may not be opened")
        },
    },
    Rule {
        name: "file-missing",
        class: Cause,
        evidence: "the exception",
        advice: "check the path on this very node: it may exist on the others only, or be relative to another folder",
        example: (1, "FileNotFoundError: [Errno 2] No such file or directory: '/data/1.tar'"),
        find: |case| {
            on_disk(case, &["filenotfounderror:", "no such file or directory (os error 2)"], "a file does not exist")
        },
    },
    Rule {
        name: "snapshot-torn",
        class: Cause,
        evidence: "the exception",
        advice: "take the snapshot before it: this file was not written to its end, or was overwritten by two writers",
        example: (1, "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"),
        find: |case| {
            let marks =
                ["pytorchstreamreader failed", "unpicklingerror", "eoferror: ran out of input", "safetensorerror"];
            case.words(&marks, "a snapshot cannot be read: its file is torn")
        },
    },
];

/// A failure on a path, with the state of its file system.
fn on_disk(case: &Case<'_>, marks: &[&str], what: &str) -> Option<Found> {
    let line = case.line(marks)?;
    let path = last_quoted(line).filter(|path| path.contains('/'));
    let cause = path.map_or_else(|| what.to_owned(), |path| format!("{what}: {path}"));
    // Only those that gathered facts know are in question.
    let system = path.and_then(|path| case.file_system(path)).filter(|system| system.is_full() || system.read_only);
    Some(case.found(cause, line).and(system))
}
