//! The table of exit codes for people; the book's page and `--help` show it. What the subcommands return: [`lockstep_launch::exit`].
//!
//! The codes of the programs that `lockstep` starts are never passed on: the error's text contains them. Only `lockstep cluster exec` becomes
//! the program, and ends as it does.

/// The codes for people: of `lockstep` and the labs, of set-up, of the test run. The book's page is generated from it.
pub(crate) const CODES: [[&str; 4]; 6] = [
    ["0", "everything requested was done", "libtorch is in place", "every step that can run here passed"],
    [
        "1",
        "a failure of a rank, of training or of the machine; an exercise that is not right",
        "a check or the fetch failed; the error has the command that fixes it",
        "a step failed; the last lines say which",
    ],
    ["2", "usage: bad arguments or input, nothing was started", "", ""],
    [
        "75",
        "`lockstep run` or a lab has saved a snapshot and ended, because a signal or the job's time limit asked for it: start it again to \
         continue",
        "",
        "",
    ],
    ["101", "a panic: a bug", "", ""],
    ["128 + n", "ended by signal n", "the same", "the same"],
];

/// The table for `--help`.
pub(crate) const HELP: &str = "\
Exit codes: 0 nothing failed · 1 something failed · 2 usage, or something needed is missing · 128+n ended by signal n";
