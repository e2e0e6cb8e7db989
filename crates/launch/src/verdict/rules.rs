//! What is known about the causes of failures: each rule has the evidence that it needs, its advice, and examples. The verdict and
//! the book's page are made from this. The rules on the program's own errors are here; the others are in a file for each subject.

use lockstep_contract::foreign::quotation;

use self::Class::{Cause, Unknown};
use super::worker_end::{Case, Form, Found};
use super::{communication, gpu, machine, signals, start};

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
    /// The cause is to be looked for in another rank.
    pub fn is_consequence(self) -> bool {
        matches!(self, Class::PeerGone | Class::Waiting)
    }
}

/// A kind of cause.
pub struct Rule {
    /// Unique; people look it up.
    pub name: &'static str,
    /// Whether the worker itself is at fault.
    pub class: Class,
    /// What it is known from, for the book.
    pub evidence: &'static str,
    /// What to do.
    pub advice: &'static str,
    /// An exit code, or minus a signal, and last lines by which it is known. Without lines if it takes other evidence.
    pub example: (i32, &'static str),
    /// The cause, if the evidence is there.
    pub(super) find: fn(&Case<'_>) -> Option<Found>,
}

/// The families of rules with their titles. The first rule that finds something counts: what is specific comes before what
/// is general, and words before mere signals.
pub const FAMILIES: &[(&str, &[Rule])] = &[
    ("It cannot start", start::START),
    ("GPUs", gpu::GPU),
    ("Files", machine::FILES),
    ("Limits of the machine", machine::LIMITS),
    ("The network", communication::NETWORK),
    ("Hangs", communication::HANGS),
    ("Consequences", communication::PEERS),
    ("Signals", signals::SIGNALS),
    ("Errors of the program", ERRORS),
];

/// All rules, in order.
pub(super) fn all() -> impl Iterator<Item = &'static Rule> {
    FAMILIES.iter().flat_map(|(_, rules)| rules.iter())
}

/// Those about the machine, which also explain errors of the launcher.
pub(super) fn of_machine() -> impl Iterator<Item = &'static Rule> {
    machine::FILES.iter().chain(machine::LIMITS)
}

/// The rule that needs no evidence.
pub(super) fn last() -> &'static Rule {
    &UNKNOWN
}

/// What it finds.
pub(super) fn unknown(case: &Case<'_>) -> Found {
    let death = &case.failure.death;
    let left = match death.unread {
        true => "it left no error file, and what it printed is on the terminal alone (--tee=3 keeps a copy)",
        false => "it left no error and no output",
    };
    Found::new(format!("unknown: {left}"), crate::report::describe_exit(death.exitcode))
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

pub(super) const ERRORS: &[Rule] = &[
    Rule {
        name: "interrupted",
        class: Cause,
        evidence: "the exception KeyboardInterrupt",
        advice: "somebody pressed Ctrl-C or sent SIGINT to this rank",
        example: (
            1,
            "Traceback (most recent call last):\n  File \"train.py\", line 9, in <module>\n    step()\nKeyboardInterrupt",
        ),
        find: |case| {
            let line = case
                .error
                .as_ref()
                .map(|error| error.original())
                .filter(|text| text.starts_with("KeyboardInterrupt"))?;
            Some(case.found("it was interrupted", line))
        },
    },
    Rule {
        name: "exception",
        class: Cause,
        evidence: "the error file, or the traceback on stderr: the exception, what caused it, and the innermost line in the user's own code",
        advice: "start at that line",
        example: (
            1,
            "Traceback (most recent call last):\n  File \"train.py\", line 9, in step\n    raise ValueError('x')\nValueError: x",
        ),
        find: |case| error_of(case, Form::Python, ""),
    },
    Rule {
        name: "panic",
        class: Cause,
        evidence: "the error file, or the panic's message on stderr",
        advice: "start at that line; RUST_BACKTRACE=1 shows the calls that led there",
        example: (
            101,
            "thread 'main' (7) panicked at src/main.rs:3:5:\nindex out of bounds\nnote: run with `RUST_BACKTRACE=1`",
        ),
        find: |case| error_of(case, Form::Panic, "it panicked: "),
    },
    Rule {
        name: "error",
        class: Cause,
        evidence: "the error file, or `error: …` with its causes at the end of stderr",
        advice: "the message is the program's own",
        example: (1, "error: training failed\n  caused by: the loss is NaN"),
        find: |case| error_of(case, Form::Chain, ""),
    },
    Rule {
        name: "exit-with-message",
        class: Cause,
        evidence: "the exit code, and the last line of output (`sys.exit(\"text\")`, a shell's message)",
        advice: "the program ended itself: look for the message in its source",
        example: (1, "no data in /data"),
        find: |case| {
            let code = case.failure.death.exitcode;
            let line = case.failure.death.tail.iter().rev().find(|line| !line.trim().is_empty())?;
            let text = format!("it ended itself with exit code {code} after \"{}\"", quotation(line));
            (code > 0).then(|| Found::new(text, "its exit code and its last line"))
        },
    },
    UNKNOWN,
];

/// The last rule.
pub(super) const UNKNOWN: Rule = Rule {
    name: "unknown",
    class: Unknown,
    evidence: "the exit code or signal alone",
    advice: "nothing else is known: @record or an error file says more",
    example: (3, ""),
    find: |case| Some(unknown(case)),
};

fn error_of(case: &Case<'_>, form: Form, before: &str) -> Option<Found> {
    let error = case.error.as_ref().filter(|error| error.form == form)?;
    Some(Found::new(format!("{before}{}", error.text()), error.source))
}
