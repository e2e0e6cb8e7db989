//! Limits of the machine and of timeout(1): memory, time, processes and threads, open files, stack, CPU time.

use super::super::case::{Case, Found};
use super::super::time_out::TimeOut;
use super::Class::Cause;
use super::Rule;

/// By them a process that is about to end says that it was refused memory.
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

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "memory-killer",
        class: Cause,
        evidence: "SIGKILL, and one of: the cgroup's counter `oom_kill` (v2 `memory.events`, v1 `memory.oom_control`) rose; the kernel's \
                   log names the process; Slurm's daemon says so",
        advice: MEMORY,
        example: (
            -9,
            "slurmstepd: error: Detected 1 oom_kill event in StepId=17.0. Some of the step tasks have been OOM Killed.",
        ),
        find: |case| {
            let killed = case.signal() == Some(9);
            let evidence = memory_kill(case).filter(|_| killed)?;
            Some(Found::new(
                "the kernel's memory killer ended it: memory was used up",
                format!("SIGKILL, and {evidence}"),
            ))
        },
    },
    Rule {
        name: "timeout",
        class: Cause,
        evidence: "the worker's program is timeout(1), and it ended with 124, or by the SIGKILL of its -k or -s, after at least its limit",
        advice: "raise the limit on timeout's command line, or leave it out: `--time-limit` of the launcher asks for a snapshot before the end",
        example: (124, ""),
        find: |case| {
            let (death, found) = (&case.failure.death, TimeOut::of(&case.evidence.command)?);
            let ran = death.at.duration_since(death.started).ok().filter(|ran| *ran >= found.limit)?;
            let how = match (death.exitcode, case.signal()) {
                (124, _) => "exit code 124".to_owned(),
                (_, Some(9)) if found.kills => "SIGKILL, which it sends its whole group".to_owned(),
                _ => return None,
            };
            let how = format!("{how}, {:.1} s after the start of `timeout {}`", ran.as_secs_f64(), found.text);
            Some(Found::new(format!("timeout(1) ended it at its limit of {}", found.text), how))
        },
    },
    Rule {
        name: "loader-worker-killed",
        class: Cause,
        evidence: "the data loader's words, and the evidence of the memory killer, if there is any",
        advice: MEMORY,
        example: (1, "RuntimeError: DataLoader worker (pid 7134) is killed by signal: Killed."),
        find: |case| {
            let line = case.line(&["is killed by signal: killed"])?;
            let what = match memory_kill(case) {
                Some(_) => "the kernel's memory killer ended a loader worker: memory was used up",
                None => "a loader worker was killed, by whom is unknown",
            };
            Some(case.found(what, line).and(memory_kill(case)))
        },
    },
    Rule {
        name: "loader-worker-died",
        class: Cause,
        evidence: "the data loader's words",
        advice: "run with num_workers=0 to see the error itself",
        example: (1, "RuntimeError: DataLoader worker (pid(s) 7134) exited unexpectedly"),
        find: |case| {
            let line = case.line(&["dataloader worker (pid"])?;
            Some(case.found("a loader worker of this rank died", line))
        },
    },
    Rule {
        name: "memory-refused",
        class: Cause,
        evidence: "the exception, or the allocator's message",
        advice: MEMORY,
        example: (1, "MemoryError"),
        find: |case| case.words(&REFUSED, "the system refused more memory"),
    },
    Rule {
        name: "too-many-processes",
        class: Cause,
        evidence: "the exception, or a shell's message",
        advice: "`ulimit -u` and the cgroup's pids.max limit processes and threads together: use fewer loader workers and threads \
                 (OMP_NUM_THREADS)",
        example: (1, "RuntimeError: can't start new thread"),
        find: |case| {
            let marks = [
                "can't start new thread",
                "fork: retry",
                "cannot fork",
                "pthread_create failed",
                "failed to spawn thread",
                "blockingioerror: [errno 11] resource temporarily unavailable",
                "libgomp: thread creation failed",
            ];
            case.words(&marks, "the limit of processes and threads is reached")
        },
    },
    Rule {
        name: "too-many-open-files",
        class: Cause,
        evidence: "the exception",
        advice: "raise `ulimit -n`; in PyTorch, torch.multiprocessing.set_sharing_strategy('file_system') needs fewer",
        example: (1, "OSError: [Errno 24] Too many open files: '/data/1.tar'"),
        find: |case| case.words(&["too many open files"], "the limit of open files is reached"),
    },
    Rule {
        name: "stack-overflow",
        class: Cause,
        evidence: "Rust's or Python's message with SIGABRT; for SIGSEGV, the kernel's log: the address is at the stack's end",
        advice: "look for a recursion without an end; if it is deep on purpose, `ulimit -s unlimited`, or RUST_MIN_STACK for threads",
        example: (-6, "thread 'main' (7) has overflowed its stack\nfatal runtime error: stack overflow, aborting"),
        find: |case| {
            let marks = ["has overflowed its stack", "cannot recover from stack overflow", "stack overflow detected"];
            let found = case.line_anywhere(&marks).filter(|_| case.signal().is_some());
            let what = "its stack overflowed";
            if let Some(line) = found {
                return Some(case.found(what, line));
            }
            let line = case.kernel("segfault at").filter(|line| at_the_stacks_end(line))?;
            (case.signal() == Some(11)).then(|| Found::new(what, format!("SIGSEGV, and the kernel's log, \"{line}\"")))
        },
    },
    Rule {
        name: "python-recursion",
        class: Cause,
        evidence: "the exception",
        advice: "look for a recursion without an end; sys.setrecursionlimit raises the limit",
        example: (1, "RecursionError: maximum recursion depth exceeded"),
        find: |case| case.words(&["recursionerror"], "a Python function calls itself without an end"),
    },
    Rule {
        name: "cpu-time-used-up",
        class: Cause,
        evidence: "SIGXCPU",
        advice: "`ulimit -t` is too low for this program",
        example: (-24, ""),
        find: |case| {
            (case.signal() == Some(24)).then(|| Found::new("it used up the CPU time of `ulimit -t`", "SIGXCPU"))
        },
    },
];

/// What shows that the kernel's memory killer was at work.
fn memory_kill(case: &Case<'_>) -> Option<String> {
    let counted = case.evidence.memory.as_ref().filter(|memory| memory.after > memory.before);
    let counted = counted
        .map(|memory| format!("{} rose from {} to {} (oom_kill)", memory.file.display(), memory.before, memory.after));
    let logged = || case.kernel("Killed process").map(|line| format!("the kernel's log, \"{line}\""));
    let marks = [
        "oom_kill event",
        "oom-kill event",
        "oom killed",
        "some of your processes may have been killed by the cgroup out-of-memory",
    ];
    let said = || case.line_anywhere(&marks).map(|line| format!("\"{line}\""));
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
