//! What the commands hand out: one value, shown as a table, CSV, JSON, JUnit XML or one HTML page.
//!
//! - [`Report`] and its [`Case`]s: what was tried, on which [`Machine`], and what it showed.
//! - [`Finding`]: a claim, judged.
//! - [`Timeline`]: what became of every rank, from the event files.
//!
//! What is claimed, and from which evidence, is the commands' to say.

mod csv;
mod finding;
mod html;
mod json;
mod junit;
mod machine;
mod screen;
mod strip;
mod table;
#[cfg(test)]
mod testing;
mod timeline;
mod words;
mod write;

use std::time::{Duration, SystemTime};

pub(crate) use finding::{Doubt, Finding, Verdict, overall};
pub(crate) use machine::Machine;
pub(crate) use screen::{Look, Screen};
pub(crate) use strip::draw as picture;
pub(crate) use table::{findings as findings_table, numbers as numbers_table};
pub(crate) use timeline::Timeline;
pub(crate) use words::{command_line, counts, quoted};
pub(crate) use write::Target;

/// What a command tried and found.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// In a few words, for people: `Lockstep inject: 20 scenarios`.
    pub(crate) title: String,
    /// The command line, as one could type it again.
    pub(crate) command: String,
    /// When the command began.
    pub(crate) started: SystemTime,
    /// How long it took.
    pub(crate) took: Duration,
    /// Where it ran.
    pub(crate) machine: Machine,
    /// What could not be tried on this machine at all, each with its reason. Never a silent gap.
    pub(crate) not_verified: Vec<String>,
    /// In the order in which they ran.
    pub(crate) cases: Vec<Case>,
}

/// One thing that was tried: a scenario, a lab, a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Case {
    /// Unique in the report, as the command line takes it: `kill-one`.
    pub(crate) name: String,
    /// What it shows, as a sentence without its stop.
    pub(crate) shows: String,
    /// What was claimed, and whether it held.
    pub(crate) findings: Vec<Finding>,
    /// How long it took.
    pub(crate) took: Duration,
    /// What its random numbers grew from.
    pub(crate) seed: Option<u64>,
    /// The command that runs just this case again.
    pub(crate) replay: Option<String>,
    /// What became of its ranks.
    pub(crate) timeline: Option<Timeline>,
    /// Numbers worth a table of their own.
    pub(crate) tables: Vec<Table>,
    /// The last lines that it printed.
    pub(crate) log: Vec<String>,
}

/// Numbers in rows.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub(crate) struct Table {
    /// What the numbers are of.
    pub(crate) title: String,
    /// One for each column.
    pub(crate) headings: Vec<String>,
    /// Of as many cells as there are headings.
    pub(crate) rows: Vec<Vec<String>>,
}

impl Report {
    /// Of all cases together. A report without a case shows nothing.
    pub(crate) fn verdict(&self) -> Verdict {
        overall(self.cases.iter().map(Case::verdict))
    }
}

impl Case {
    /// Of all findings together. A case without a finding shows nothing.
    pub(crate) fn verdict(&self) -> Verdict {
        overall(self.findings.iter().map(|finding| finding.verdict))
    }
}
