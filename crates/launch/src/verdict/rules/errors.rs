//! Errors of the program itself, of which nothing more special is known, and ends without any word.

use lockstep_contract::foreign::quotation;

use super::super::case::{Case, Form, Found};
use super::Class::{Cause, Unknown};
use super::Rule;

pub(super) const RULES: &[Rule] = &[
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
    find: |case| Some(super::unknown(case)),
};

fn error_of(case: &Case<'_>, form: Form, before: &str) -> Option<Found> {
    let error = case.error.as_ref().filter(|error| error.form == form)?;
    Some(Found::new(format!("{before}{}", error.text()), error.source))
}
