//! The mistakes that are known: each with its reason, a script that makes it, and one that does not. The tests and the book's page
//! are made of this.

mod containers;
mod directives;
mod ends;
mod environment;
mod launchers;
mod meeting;
mod shell;

use super::script::{Scheduler, Script};
use super::word::shown;
use crate::report::Level;

/// A kind of mistake.
pub(crate) struct Rule {
    /// Unique; people look it up.
    pub(crate) name: &'static str,
    /// How bad it is.
    pub(crate) level: Level,
    /// What happens, in one sentence.
    pub(crate) why: &'static str,
    /// A script that makes the mistake.
    pub(crate) wrong: &'static str,
    /// A script that does not.
    pub(crate) right: &'static str,
    /// Where a script makes it.
    pub(super) find: fn(&Script) -> Vec<Hit>,
}

/// A place where a script makes a mistake.
#[derive(Debug)]
pub(super) struct Hit {
    /// From 1.
    pub(super) line: usize,
    /// What is wrong, with the script's own words.
    pub(super) what: String,
    /// The line that fixes it.
    pub(super) fix: String,
}

fn hit(line: usize, what: impl Into<String>, fix: impl Into<String>) -> Hit {
    Hit { line, what: shown(&what.into()), fix: shown(&fix.into()) }
}

/// The text for the script's own scheduler.
fn own<'a>(script: &Script, slurm: &'a str, pbs: &'a str) -> &'a str {
    if script.scheduler() == Some(Scheduler::Pbs) { pbs } else { slurm }
}

/// How a batch script finds the head node.
fn head_node(script: &Script) -> &'static str {
    own(
        script,
        "head=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | sed -n 1p)",
        "head=$(sed -n 1p \"$PBS_NODEFILE\")",
    )
}

/// All rules, by subject.
pub(crate) const RULES: &[&[Rule]] = &[
    directives::RULES,
    launchers::RULES,
    meeting::RULES,
    environment::RULES,
    containers::RULES,
    ends::RULES,
    shell::RULES,
];
