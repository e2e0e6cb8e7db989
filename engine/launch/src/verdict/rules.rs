//! What is known about the causes of failures: each rule has the evidence that it needs, its advice, and examples. The verdict and
//! the book's page are made from this. The rules on the program's own errors are here; the others are in a file for each subject.

use std::fmt;

use lockstep_contract::foreign::quotation;
use lockstep_contract::rules::{Finding, Rule, Subject};

use super::worker_end::{Form, WorkerEnd};
use super::{Evidence, FileSystem, communication, machine, signals, start};
use crate::report::Failure;

/// What a finding says about the worker that it was found for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// It failed by itself.
    Cause,
    /// It lost another rank: a consequence of that rank's end.
    PeerGone,
    /// It waited for another rank until a deadline.
    Waiting,
    /// Nothing is known except for its exit code or signal.
    Unknown,
}

impl Class {
    /// Returns true if the cause is in another rank.
    pub fn is_consequence(self) -> bool {
        matches!(self, Class::PeerGone | Class::Waiting)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Class::Cause => "cause",
            Class::PeerGone => "consequence",
            Class::Waiting => "wait",
            Class::Unknown => "unknown",
        })
    }
}

/// The subject of these rules: the causes of a worker's end.
pub struct Causes;

impl Subject for Causes {
    type Facts<'a> = WorkerEnd<'a>;
    type Level = Class;
    /// The rank at fault, if the evidence names another one than the worker's own.
    type Place = Option<usize>;
    type Found = Option<WorkerFinding>;
    type Example = Example;
}

pub(super) type WorkerFinding = Finding<Option<usize>>;

/// An end of a worker as an example.
pub struct Example {
    /// Its exit code, or minus its signal.
    pub exitcode: i32,
    /// Its last lines.
    pub output: &'static str,
    /// What else was seen.
    pub facts: fn(&mut Failure, &mut Evidence),
}

/// A worker's end that is known only by its exit code, or minus its signal, and its last lines.
pub(super) const fn ended(exitcode: i32, output: &'static str) -> Example {
    Example { exitcode, output, facts: |_, _| {} }
}

impl Example {
    /// The same with these facts.
    pub(super) const fn with(self, facts: fn(&mut Failure, &mut Evidence)) -> Self {
        Example { facts, ..self }
    }
}

/// What most rules have in common: the worker itself is at fault, and the finding says why.
pub(super) const RULE: Rule<Causes> = Rule {
    name: "",
    level: Class::Cause,
    why: "",
    source: "",
    fix: "",
    wrong: ended(0, ""),
    right: ended(0, ""),
    find: |_| None,
};

/// The families of rules with their titles. Specific rules come before general ones. What they may look at is decided before, by the
/// order of evidence in the [module's documentation](super).
pub const FAMILIES: &[(&str, &[Rule<Causes>])] = &[
    ("It cannot start", start::START),
    ("GPUs", machine::GPU),
    ("Files", machine::FILES),
    ("Limits of the machine", machine::LIMITS),
    ("The network", communication::NETWORK),
    ("Hangs", communication::HANGS),
    ("Consequences", communication::PEERS),
    ("Signals", signals::SIGNALS),
    ("Errors of the program", ERRORS),
];

/// Returns true for rules that only repeat what the program itself said.
pub(super) fn is_general(rule: &Rule<Causes>) -> bool {
    ERRORS.iter().any(|general| general.name == rule.name)
}

/// All rules, in order.
pub(super) fn all() -> impl Iterator<Item = &'static Rule<Causes>> {
    FAMILIES.iter().flat_map(|(_, rules)| rules.iter())
}

/// Those about the machine, which also explain errors of the launcher.
pub(super) fn of_machine() -> impl Iterator<Item = &'static Rule<Causes>> {
    machine::FILES.iter().chain(machine::LIMITS)
}

/// The rule that needs no evidence.
pub(super) fn last() -> &'static Rule<Causes> {
    &UNKNOWN
}

/// What it finds.
pub(super) fn unknown(worker: &WorkerEnd<'_>) -> WorkerFinding {
    let death = &worker.failure.death;
    let left = match death.unread {
        true => "it left no error file, and what it printed is on the terminal alone (--tee=3 keeps a copy)",
        false if death.tail.is_empty() => "it left no error and no output",
        false => "it left no error",
    };
    Finding::new(format!("unknown: {left}"), crate::report::describe_exit(death.exitcode))
}

/// The text between two others.
pub(super) fn between<'a>(line: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(before)?;
    rest.split_once(after).map(|(text, _)| text).filter(|text| !text.is_empty())
}

/// The last text of a line in single quotation marks, as Python names a file.
pub(super) fn last_quoted(line: &str) -> Option<&str> {
    let (rest, _) = line.rsplit_once('\'')?;
    rest.rsplit_once('\'').map(|(_, text)| text).filter(|text| !text.is_empty())
}

/// The number after a text.
pub(super) fn number_after(line: &str, before: &str) -> Option<u64> {
    let rest = &line[line.find(before)? + before.len()..];
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}

// ---- errors of the program, and ends without any message

pub(super) const ERRORS: &[Rule<Causes>] = &[
    Rule {
        name: "interrupted",
        source: "the exception KeyboardInterrupt",
        fix: "somebody pressed Ctrl-C or sent SIGINT to this rank",
        wrong: ended(
            1,
            "Traceback (most recent call last):\n  File \"train.py\", line 9, in <module>\n    step()\nKeyboardInterrupt",
        ),
        right: ended(1, "ValueError: KeyboardInterrupt"),
        find: |worker| {
            let line = worker
                .error
                .as_ref()
                .map(|error| error.original())
                .filter(|text| text.starts_with("KeyboardInterrupt"))?;
            Some(worker.found("it was interrupted", line))
        },
        ..RULE
    },
    Rule {
        name: "exception",
        source: "the error file, or the traceback on stderr: the exception, what caused it, and the innermost line in the user's own code",
        fix: "start at that line",
        wrong: ended(
            1,
            "Traceback (most recent call last):\n  File \"train.py\", line 9, in step\n    raise ValueError('x')\nValueError: x",
        ),
        right: ended(1, "error: training failed"),
        find: |worker| error_of(worker, Form::Python, ""),
        ..RULE
    },
    Rule {
        name: "panic",
        source: "the error file, or the panic's message on stderr",
        fix: "start at that line; RUST_BACKTRACE=1 shows the calls that led there",
        wrong: ended(
            101,
            "thread 'main' (7) panicked at src/main.rs:3:5:\nindex out of bounds\nnote: run with `RUST_BACKTRACE=1`",
        ),
        right: ended(101, ""),
        find: |worker| error_of(worker, Form::Panic, "it panicked: "),
        ..RULE
    },
    Rule {
        name: "error",
        source: "the error file, or `error: …` with its causes at the end of stderr",
        fix: "the message is the program's own",
        wrong: ended(1, "error: training failed\n  caused by: the loss is NaN"),
        right: ended(1, "training failed"),
        find: |worker| error_of(worker, Form::Chain, ""),
        ..RULE
    },
    Rule {
        name: "logs-disk-full",
        source: "an exit code without an error, and how much of the file system is free to which the worker wrote its output (--redirects)",
        fix: "make room there, or name another folder in --log-dir; `df -h` and `df -i` show what is full",
        wrong: ended(1, "").with(|failure, evidence| {
            failure.death.log = Some("/logs/0/stderr.log".into());
            let full = FileSystem {
                path: "/logs/0/stderr.log".into(),
                free: 0,
                size: 1 << 30,
                free_files: None,
                read_only: false,
            };
            evidence.file_systems = vec![full];
        }),
        right: ended(1, "").with(|failure, _| failure.death.log = Some("/logs/0/stderr.log".into())),
        find: |worker| {
            let death = &worker.failure.death;
            let log = death.log.as_ref().filter(|_| death.exitcode > 0 && worker.error.is_none())?;
            let full = worker.file_system(&log.to_string_lossy()).filter(|system| system.is_full())?;
            let what = "the disk of its logs is full, so that what it printed last is lost";
            Some(Finding::new(what, format!("exit code {}; {full}", death.exitcode)))
        },
        ..RULE
    },
    Rule {
        name: "exit-with-message",
        source: "the exit code, and the last line of output (`sys.exit(\"text\")`, a shell's message)",
        fix: "the program ended itself: look for the message in its source",
        wrong: ended(1, "no data in /data"),
        right: ended(1, ""),
        find: |worker| {
            let code = worker.failure.death.exitcode;
            let line = worker.last_line().filter(|_| code > 0)?;
            let mut text = format!("it ended itself with exit code {code} after \"{}\"", quotation(line));
            let Some(doubt) = &worker.doubt else { return Some(Finding::new(text, "its exit code and its last line")) };
            text += &format!(", or by the exception further up: {}", doubt.text());
            let how =
                "its exit code; what follows the traceback is either later, or was held back by Python until the end";
            let fix = "PYTHONUNBUFFERED=1, or `--tee=3`, shows which of the two was last";
            Some(Finding { fix: fix.to_owned(), ..Finding::new(text, how) })
        },
        ..RULE
    },
    UNKNOWN,
];

/// The last rule.
pub(super) const UNKNOWN: Rule<Causes> = Rule {
    name: "unknown",
    level: Class::Unknown,
    source: "the exit code or signal alone",
    fix: "nothing else is known: @record or an error file says more",
    wrong: ended(3, ""),
    right: ended(1, "no data in /data"),
    find: |worker| Some(unknown(worker)),
    ..RULE
};

fn error_of(worker: &WorkerEnd<'_>, form: Form, before: &str) -> Option<WorkerFinding> {
    let error = worker.error.as_ref().filter(|error| error.form == form)?;
    Some(Finding::new(format!("{before}{}", error.text()), error.source))
}
