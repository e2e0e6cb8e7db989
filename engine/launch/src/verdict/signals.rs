//! Signals: from the scheduler, from somebody else, and those by which the processor or a library ends a program.

use lockstep_contract::foreign::quotation;
use lockstep_contract::rules::{Finding, Rule};

use super::rules::{Causes, RULE, WorkerFinding, ended};
use super::worker_end::{Error, Form, WorkerEnd};
use crate::config::signal_name;

const SCHEDULER: [&str; 2] = ["slurmstepd: error: ***", "=>> pbs: job killed:"];

pub(super) const SIGNALS: &[Rule<Causes>] = &[
    Rule {
        name: "time-limit",
        source: "the scheduler's line, or SIGTERM or SIGKILL after the job's end time (SLURM_JOB_END_TIME)",
        fix: "ask for more time (Slurm: --time), or save before the end: --signal=B:USR1@120 --requeue",
        wrong: ended(
            -15,
            "slurmstepd: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-11-22T10:00:00 DUE TO TIME LIMIT ***",
        ),
        right: ended(-15, "slurmstepd: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-11-22T10:00:00 ***"),
        find: |worker| {
            let line = worker.line_anywhere(&["due to time limit", "pbs: job killed: walltime"]);
            if let Some(line) = line.filter(|_| worker.ended_from_outside()) {
                return Some(Finding::new(
                    "the job's time limit was reached",
                    format!("the scheduler's line, \"{}\"", quotation(line)),
                ));
            }
            let end = worker.evidence.job_end.filter(|end| worker.failure.death.at >= *end)?;
            let name = worker.signal().filter(|signal| [9, 15].contains(signal)).and_then(signal_name)?;
            let late = worker.failure.death.at.duration_since(end).unwrap_or_default().as_secs();
            Some(Finding::new("the job's time limit was reached", format!("{name}, {late} s after SLURM_JOB_END_TIME")))
        },
        ..RULE
    },
    Rule {
        name: "cancelled",
        source: "the scheduler's line",
        fix: "`sacct -j JOB` says who cancelled or preempted it; --requeue runs it again",
        wrong: ended(-15, "slurmstepd: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-11-22T10:00:00 ***"),
        right: ended(
            -15,
            "slurmstepd: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-11-22T10:00:00 DUE TO TIME LIMIT ***",
        ),
        find: |worker| {
            let line = worker.line_anywhere(&SCHEDULER).filter(|_| worker.ended_from_outside())?;
            Some(Finding::new("the scheduler ended the job", format!("its line, \"{}\"", quotation(line))))
        },
        ..RULE
    },
    Rule {
        name: "killed",
        source: "SIGKILL without any trace of the OOM killer; the sender, where the audit log has it; otherwise who is excluded: the \
                   OOM killer, this launcher, the job's time limit",
        fix: "somebody else sent SIGKILL: a person, the scheduler, a monitor; ask on the node with `dmesg` and `journalctl`; \
                 `auditctl -a always,exit -F arch=b64 -S kill -F a1=9` as root lets the audit log name the sender next time",
        wrong: ended(-9, ""),
        right: ended(-15, ""),
        find: |worker| {
            let what = match &worker.evidence.sender {
                Some(sender) => format!("{sender} killed it"),
                None if worker.evidence.memory.is_some() => "somebody else killed it".to_owned(),
                None => "it was killed".to_owned(),
            };
            let known = if worker.evidence.sender.is_some() { "SIGKILL, and the audit log" } else { "SIGKILL" };
            (worker.signal() == Some(9))
                .then(|| Finding::new(format!("{what} ({})", by(worker)), format!("{known}; {}", excluded(worker))))
        },
        ..RULE
    },
    Rule {
        name: "asked-to-end",
        source: "SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 or SIGALRM that this launcher did not send",
        fix: "somebody else sent the signal: a person, the scheduler, or the program itself; a program that is to continue needs a handler",
        wrong: ended(-15, ""),
        right: ended(-9, ""),
        find: |worker| {
            let signal = worker.signal().filter(|signal| [1, 2, 3, 10, 12, 14, 15].contains(signal))?;
            let name = signal_name(signal)?;
            Some(Finding::new(format!("a signal that this launcher did not send ended it: {name}"), by(worker)))
        },
        ..RULE
    },
    Rule {
        name: "illegal-instruction",
        source: "SIGILL, and the processor's model",
        fix: "the program was built for a newer processor (such as AVX-512): build it without `-C target-cpu=native`, `-march=native`, or on \
                 this node's kind",
        wrong: ended(-4, ""),
        right: ended(-8, ""),
        find: |worker| by_signal(worker, 4, "it used an instruction that this node's processor does not support"),
        ..RULE
    },
    Rule {
        name: "bus-error",
        source: "SIGBUS",
        fix: "a mapped file became shorter or its disk is full or gone; or huge pages are used up",
        wrong: ended(-7, ""),
        right: ended(-11, ""),
        find: |worker| by_signal(worker, 7, "it read or wrote mapped memory without a file behind it"),
        ..RULE
    },
    Rule {
        name: "heap-corrupt",
        source: "SIGABRT and the C library's message",
        fix: "an extension in C or C++ writes beyond its memory: run it under valgrind or -fsanitize=address",
        wrong: ended(-6, "free(): invalid pointer"),
        right: ended(1, "free(): invalid pointer"),
        find: |worker| {
            let marks = [
                "double free",
                "free(): invalid",
                "malloc(): ",
                "malloc_consolidate",
                "corrupted size vs. prev_size",
                "munmap_chunk(): invalid pointer",
                "stack smashing detected",
                "corrupted double-linked list",
                "realloc(): invalid",
            ];
            let line = worker.line_anywhere(&marks).filter(|_| worker.signal() == Some(6))?;
            Some(Finding::new(
                "its memory was corrupted by its own code",
                format!("SIGABRT, and \"{}\"", quotation(line)),
            ))
        },
        ..RULE
    },
    Rule {
        name: "uncaught-exception",
        source: "SIGABRT and the C++ runtime's message",
        fix: "the message is the exception's own; a stack: `gdb --args PROGRAM …`, then `catch throw`",
        wrong: ended(
            -6,
            "terminate called after throwing an instance of 'std::runtime_error'\n  what():  no such layer",
        ),
        right: ended(-6, "free(): invalid pointer"),
        find: |worker| {
            let error = worker.error.as_ref().filter(|error| error.form == Form::Terminate)?;
            Some(Finding::new(
                format!("a C++ exception that nobody caught: {}", error.text()),
                format!("SIGABRT, and {}", error.source),
            ))
        },
        ..RULE
    },
    Rule {
        name: "assertion-failed",
        source: "SIGABRT and the C library's message",
        fix: "the message names the file and line of the assertion",
        wrong: ended(-6, "lab: src/data.c:7: load: Assertion `count > 0' failed."),
        right: ended(1, "lab: src/data.c:7: load: Assertion `count > 0' failed."),
        find: |worker| {
            let line = worker.line_anywhere(&["assertion `", "assertion '"]).filter(|line| line.contains("failed"))?;
            (worker.signal() == Some(6))
                .then(|| Finding::new("an assertion failed", format!("SIGABRT, and \"{}\"", quotation(line))))
        },
        ..RULE
    },
    Rule {
        name: "segmentation-fault",
        source: "SIGSEGV; with PYTHONFAULTHANDLER=1 the Python line, and the kernel's log where it is readable",
        fix: "a bug in native code, or in an extension of another version: PYTHONFAULTHANDLER=1 shows the Python line, gdb the native one",
        wrong: ended(-11, ""),
        right: ended(-7, ""),
        find: |worker| {
            let python = frame(worker).map(|frame| format!(", in {frame}")).unwrap_or_default();
            let found = by_signal(worker, 11, &format!("it accessed memory that is not its own{python}"))?;
            Some(found.and(worker.kernel("segfault at").map(|line| format!("the kernel's log, \"{line}\""))))
        },
        ..RULE
    },
    Rule {
        name: "division-by-zero",
        source: "SIGFPE",
        fix: "an integer division by zero in native code: gdb shows the line",
        wrong: ended(-8, ""),
        right: ended(-4, ""),
        find: |worker| by_signal(worker, 8, "it divided an integer by zero"),
        ..RULE
    },
    Rule {
        name: "reader-gone",
        source: "SIGPIPE",
        fix: "it wrote to a pipe or socket whose reader had ended: look at that program",
        wrong: ended(-13, ""),
        right: ended(-15, ""),
        find: |worker| by_signal(worker, 13, "it wrote to a pipe or socket whose reader had ended"),
        ..RULE
    },
    Rule {
        name: "forbidden-call",
        source: "SIGSYS",
        fix: "the container's seccomp profile forbids a system call: run it with a wider profile",
        wrong: ended(-31, ""),
        right: ended(-4, ""),
        find: |worker| by_signal(worker, 31, "it made a system call that its sandbox forbids"),
        ..RULE
    },
    Rule {
        name: "aborted",
        source: "SIGABRT",
        fix: "its last lines say more, if there are any; gdb shows who called abort()",
        wrong: ended(-6, "Fatal Python error: init_sys_streams"),
        right: ended(-11, ""),
        find: |worker| {
            let is_exception = |error: &Error| error.form == Form::Python;
            let found = by_signal(worker, 6, "it aborted itself")
                .filter(|_| !worker.error.as_ref().is_some_and(is_exception))?;
            let last = worker.last_line();
            Some(found.and(last.map(|line| format!("its last line, \"{}\"", quotation(line)))))
        },
        ..RULE
    },
];

/// Who did not send SIGKILL, and who may have.
fn excluded(worker: &WorkerEnd<'_>) -> String {
    let mut parts = vec![match &worker.evidence.memory {
        Some(memory) => format!("not the OOM killer: {} stayed {} (oom_kill)", memory.file.display(), memory.after),
        None => "whether it was the OOM killer cannot be known here: no cgroup counts its kills".to_owned(),
    }];
    if worker.failure.death.exitcode < 0 {
        parts.push("not this launcher: it had sent no signal".to_owned());
    }
    let left = worker.evidence.job_end.and_then(|end| end.duration_since(worker.failure.death.at).ok());
    parts.extend(left.map(|left| format!("not the job's time limit: {} s were left", left.as_secs())));
    let killers = &worker.evidence.oom_daemons;
    if !killers.is_empty() {
        parts.push(format!("perhaps {}, which kills when memory gets short", killers.join(" or ")));
    }
    parts.join("; ")
}

/// A cause that the signal alone shows.
fn by_signal(worker: &WorkerEnd<'_>, signal: i32, what: &str) -> Option<WorkerFinding> {
    (worker.signal() == Some(signal)).then(|| Finding::new(what, by(worker)))
}

/// The signal, as the kernel or a shell reported it.
fn by(worker: &WorkerEnd<'_>) -> String {
    let name = worker.signal().and_then(signal_name).unwrap_or("a signal");
    match worker.failure.death.exitcode {
        code if code > 0 => format!("exit code {code}: as a shell says that {name} ended a child"),
        _ => format!("{name} ended pid {}", worker.failure.death.pid),
    }
}

/// The innermost Python line that faulthandler printed.
fn frame(worker: &WorkerEnd<'_>) -> Option<String> {
    let lines = &worker.failure.death.tail;
    let at = lines.iter().position(|line| line.starts_with("Fatal Python error: "))?;
    let frame = lines[at..].iter().find_map(|line| line.trim_start().strip_prefix("File \""))?;
    let (file, rest) = frame.split_once("\", line ")?;
    Some(format!("{file}:{}", rest.split(' ').next().unwrap_or_default()))
}
