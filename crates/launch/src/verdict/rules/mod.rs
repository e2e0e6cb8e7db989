//! What is known about the causes of failures: each rule has the evidence that it needs, its advice, and an example.
//! The verdict and the book's page are made of this.

mod errors;
mod files;
mod gpu;
mod hangs;
mod limits;
mod network;
mod peers;
mod signals;
mod start;

use super::case::{Case, Found};
pub(super) use hangs::NOT_IN_TIME;

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
    ("It cannot start", start::RULES),
    ("GPUs", gpu::RULES),
    ("Files", files::RULES),
    ("Limits of the machine", limits::RULES),
    ("The network", network::RULES),
    ("Hangs", hangs::RULES),
    ("Consequences", peers::RULES),
    ("Signals", signals::RULES),
    ("Errors of the program", errors::RULES),
];

/// All rules, in order.
pub(super) fn all() -> impl Iterator<Item = &'static Rule> {
    FAMILIES.iter().flat_map(|(_, rules)| rules.iter())
}

/// Those about the machine, which also explain errors of the launcher.
pub(super) fn of_machine() -> impl Iterator<Item = &'static Rule> {
    files::RULES.iter().chain(limits::RULES)
}

/// The rule that needs no evidence.
pub(super) fn last() -> &'static Rule {
    &errors::UNKNOWN
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
fn between<'a>(line: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(before)?;
    rest.split_once(after).map(|(text, _)| text).filter(|text| !text.is_empty())
}

/// The last text of a line in single quotation marks, as Python names a file.
fn last_quoted(line: &str) -> Option<&str> {
    let (rest, _) = line.rsplit_once('\'')?;
    rest.rsplit_once('\'').map(|(_, text)| text).filter(|text| !text.is_empty())
}

/// The number after a text.
fn number_after(line: &str, before: &str) -> Option<u64> {
    let rest = &line[line.find(before)? + before.len()..];
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok()
}
