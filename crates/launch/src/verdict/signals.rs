//! Signals: from the scheduler, from somebody else, and those by which the processor or a library ends a program.

use lockstep_contract::foreign::quotation;

use super::rules::Class::Cause;
use super::rules::Rule;
use super::worker_end::{Case, Error, Form, Found};
use crate::config::signal_name;

const SCHEDULER: [&str; 2] = ["slurmstepd: error: ***", "=>> pbs: job killed:"];

pub(super) const SIGNALS: &[Rule] = &[
    Rule {
        name: "time-limit",
        class: Cause,
        evidence: "the scheduler's line, or SIGTERM or SIGKILL after the job's end time (SLURM_JOB_END_TIME)",
        advice: "ask for more time (Slurm: --time), or save before the end: --signal=B:USR1@120 --requeue",
        example: (-15, "slurmstepd: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-11-22T10:00:00 DUE TO TIME LIMIT ***"),
        find: |case| {
            let line = case.line_anywhere(&["due to time limit", "pbs: job killed: walltime"]);
            if let Some(line) = line.filter(|_| case.signal().is_some()) {
                return Some(Found::new(
                    "the job's time was over",
                    format!("the scheduler's line, \"{}\"", quotation(line)),
                ));
            }
            let end = case.evidence.job_end.filter(|end| case.failure.death.at >= *end)?;
            let name = case.signal().filter(|signal| [9, 15].contains(signal)).and_then(signal_name)?;
            let late = case.failure.death.at.duration_since(end).unwrap_or_default().as_secs();
            Some(Found::new("the job's time was over", format!("{name}, {late} s after SLURM_JOB_END_TIME")))
        },
    },
    Rule {
        name: "cancelled",
        class: Cause,
        evidence: "the scheduler's line",
        advice: "`sacct -j JOB` says who cancelled or preempted it; --requeue runs it again",
        example: (-15, "slurmstepd: error: *** STEP 17.0 ON n1 CANCELLED AT 2026-11-22T10:00:00 ***"),
        find: |case| {
            let line = case.line_anywhere(&SCHEDULER).filter(|_| case.signal().is_some())?;
            Some(Found::new("the scheduler ended the job", format!("its line, \"{}\"", quotation(line))))
        },
    },
    Rule {
        name: "killed",
        class: Cause,
        evidence: "SIGKILL without any trace of the memory killer; the sender, where the audit log has it; otherwise who is excluded: the \
                   memory killer, this launcher, the job's time limit",
        advice: "somebody else sent SIGKILL: a person, the scheduler, a monitor; ask on the node with `dmesg` and `journalctl`; \
                 `auditctl -a always,exit -F arch=b64 -S kill -F a1=9` as root lets the audit log name the sender next time",
        example: (-9, ""),
        find: |case| {
            let what = match &case.evidence.sender {
                Some(sender) => format!("{sender} killed it"),
                None if case.evidence.memory.is_some() => "somebody else killed it".to_owned(),
                None => "it was killed".to_owned(),
            };
            let known = if case.evidence.sender.is_some() { "SIGKILL, and the audit log" } else { "SIGKILL" };
            (case.signal() == Some(9))
                .then(|| Found::new(format!("{what} ({})", by(case)), format!("{known}; {}", excluded(case))))
        },
    },
    Rule {
        name: "asked-to-end",
        class: Cause,
        evidence: "SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 or SIGALRM that this launcher did not send",
        advice: "somebody else sent the signal: a person, the scheduler, or the program itself; a program that wants to live on needs a handler",
        example: (-15, ""),
        find: |case| {
            let signal = case.signal().filter(|signal| [1, 2, 3, 10, 12, 14, 15].contains(signal))?;
            let name = signal_name(signal)?;
            Some(Found::new(format!("a signal that this launcher did not send ended it: {name}"), by(case)))
        },
    },
    Rule {
        name: "illegal-instruction",
        class: Cause,
        evidence: "SIGILL, and the processor's model",
        advice: "the program was built for a newer processor (such as AVX-512): build it without `-C target-cpu=native`, `-march=native`, or on \
                 this node's kind",
        example: (-4, ""),
        find: |case| by_signal(case, 4, "it used an instruction that this node's processor does not have"),
    },
    Rule {
        name: "bus-error",
        class: Cause,
        evidence: "SIGBUS",
        advice: "a mapped file became shorter or its disk is full or gone; or huge pages are used up",
        example: (-7, ""),
        find: |case| by_signal(case, 7, "it read or wrote mapped memory without a file behind it"),
    },
    Rule {
        name: "heap-corrupt",
        class: Cause,
        evidence: "SIGABRT and the C library's message",
        advice: "an extension in C or C++ writes beyond its memory: run it under valgrind or -fsanitize=address",
        example: (-6, "free(): invalid pointer"),
        find: |case| {
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
            let line = case.line_anywhere(&marks).filter(|_| case.signal() == Some(6))?;
            Some(Found::new(
                "its memory was corrupted by its own code",
                format!("SIGABRT, and \"{}\"", quotation(line)),
            ))
        },
    },
    Rule {
        name: "uncaught-exception",
        class: Cause,
        evidence: "SIGABRT and the C++ runtime's message",
        advice: "the message is the exception's own; a stack: `gdb --args PROGRAM …`, then `catch throw`",
        example: (-6, "terminate called after throwing an instance of 'std::runtime_error'\n  what():  no such layer"),
        find: |case| {
            let error = case.error.as_ref().filter(|error| error.form == Form::Terminate)?;
            Some(Found::new(
                format!("a C++ exception that nobody caught: {}", error.text()),
                format!("SIGABRT, and {}", error.source),
            ))
        },
    },
    Rule {
        name: "assertion-failed",
        class: Cause,
        evidence: "SIGABRT and the C library's message",
        advice: "the message names the file and line of the assertion",
        example: (-6, "lab: src/data.c:7: load: Assertion `count > 0' failed."),
        find: |case| {
            let line = case.line_anywhere(&["assertion `", "assertion '"]).filter(|line| line.contains("failed"))?;
            (case.signal() == Some(6))
                .then(|| Found::new("an assertion failed", format!("SIGABRT, and \"{}\"", quotation(line))))
        },
    },
    Rule {
        name: "segmentation-fault",
        class: Cause,
        evidence: "SIGSEGV; with PYTHONFAULTHANDLER=1 the Python line, and the kernel's log where it is readable",
        advice: "a bug in native code, or in an extension of another version: PYTHONFAULTHANDLER=1 shows the Python line, gdb the native one",
        example: (-11, ""),
        find: |case| {
            let python = frame(case).map(|frame| format!(", in {frame}")).unwrap_or_default();
            let found = by_signal(case, 11, &format!("it accessed memory that is not its own{python}"))?;
            Some(found.and(case.kernel("segfault at").map(|line| format!("the kernel's log, \"{line}\""))))
        },
    },
    Rule {
        name: "division-by-zero",
        class: Cause,
        evidence: "SIGFPE",
        advice: "an integer division by zero in native code: gdb shows the line",
        example: (-8, ""),
        find: |case| by_signal(case, 8, "it divided an integer by zero"),
    },
    Rule {
        name: "reader-gone",
        class: Cause,
        evidence: "SIGPIPE",
        advice: "it wrote to a pipe or socket whose reader had ended: look at that program",
        example: (-13, ""),
        find: |case| by_signal(case, 13, "it wrote to a pipe or socket whose reader had ended"),
    },
    Rule {
        name: "forbidden-call",
        class: Cause,
        evidence: "SIGSYS",
        advice: "the container's seccomp profile forbids a system call: run it with a wider profile",
        example: (-31, ""),
        find: |case| by_signal(case, 31, "it made a system call that its sandbox forbids"),
    },
    Rule {
        name: "aborted",
        class: Cause,
        evidence: "SIGABRT",
        advice: "its last lines say more, if there are any; gdb shows who called abort()",
        example: (-6, "Fatal Python error: init_sys_streams"),
        find: |case| {
            let is_exception = |error: &Error| error.form == Form::Python;
            let found =
                by_signal(case, 6, "it aborted itself").filter(|_| !case.error.as_ref().is_some_and(is_exception))?;
            let last = case.failure.death.tail.iter().rev().find(|line| !line.trim().is_empty());
            Some(found.and(last.map(|line| format!("its last line, \"{}\"", quotation(line)))))
        },
    },
];

/// Who did not send SIGKILL, and who may have.
fn excluded(case: &Case<'_>) -> String {
    let mut parts = vec![match &case.evidence.memory {
        Some(memory) => format!("not the memory killer: {} stayed {} (oom_kill)", memory.file.display(), memory.after),
        None => "whether it was the memory killer cannot be known here: no cgroup counts its kills".to_owned(),
    }];
    if case.failure.death.exitcode < 0 {
        parts.push("not this launcher: it had sent no signal".to_owned());
    }
    let left = case.evidence.job_end.and_then(|end| end.duration_since(case.failure.death.at).ok());
    parts.extend(left.map(|left| format!("not the job's time limit: {} s were left", left.as_secs())));
    let killers = &case.evidence.memory_killers;
    if !killers.is_empty() {
        parts.push(format!("perhaps {}, which kills when memory gets short", killers.join(" or ")));
    }
    parts.join("; ")
}

/// A cause that the signal alone shows.
fn by_signal(case: &Case<'_>, signal: i32, what: &str) -> Option<Found> {
    (case.signal() == Some(signal)).then(|| Found::new(what, by(case)))
}

/// The signal, as the kernel or a shell reported it.
fn by(case: &Case<'_>) -> String {
    let name = case.signal().and_then(signal_name).unwrap_or("a signal");
    match case.failure.death.exitcode {
        code if code > 0 => format!("exit code {code}: as a shell says that {name} ended a child"),
        _ => format!("{name} ended pid {}", case.failure.death.pid),
    }
}

/// The innermost Python line that faulthandler printed.
fn frame(case: &Case<'_>) -> Option<String> {
    let lines = &case.failure.death.tail;
    let at = lines.iter().position(|line| line.starts_with("Fatal Python error: "))?;
    let frame = lines[at..].iter().find_map(|line| line.trim_start().strip_prefix("File \""))?;
    let (file, rest) = frame.split_once("\", line ")?;
    Some(format!("{file}:{}", rest.split(' ').next().unwrap_or_default()))
}
