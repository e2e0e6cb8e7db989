//! What a report says.

use std::time::{Duration, SystemTime};

use super::{Finding, HostInfo, Timeline, Verdict, overall};

/// What a command ran and found.
#[derive(Clone, Debug)]
pub(crate) struct Report {
    /// A short title: `Lockstep inject: 20 scenarios`.
    pub(crate) title: String,
    /// The command line, as one could type it.
    pub(crate) command: String,
    /// When the command began.
    pub(crate) started: SystemTime,
    /// How long it took.
    pub(crate) took: Duration,
    /// The machine.
    pub(crate) machine: HostInfo,
    /// What this machine could not run at all, each with its reason. Gaps are never silent.
    pub(crate) not_verified: Vec<String>,
    /// In the order in which they ran.
    pub(crate) cases: Vec<Case>,
}

/// One thing that ran: a scenario, a lab, a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct Case {
    /// Unique in the report, as on the command line: `kill-one`.
    pub(crate) name: String,
    /// What it shows, as a sentence without its full stop.
    pub(crate) shows: String,
    /// The claims, with their verdicts.
    pub(crate) findings: Vec<Finding>,
    /// How long it took.
    pub(crate) took: Duration,
    /// The seed of its random numbers.
    pub(crate) seed: Option<u64>,
    /// The command that runs only this case again.
    pub(crate) replay: Option<String>,
    /// The history of its ranks.
    pub(crate) timeline: Option<Timeline>,
    /// Additional tables of numbers.
    pub(crate) tables: Vec<Table>,
    /// The last lines of its output.
    pub(crate) log: Vec<String>,
}

/// A table of numbers.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub(crate) struct Table {
    /// The table's title.
    pub(crate) title: String,
    /// One for each column.
    pub(crate) headings: Vec<String>,
    /// Each row has as many cells as there are headings.
    pub(crate) rows: Vec<Vec<String>>,
}

impl Report {
    /// The verdict on all cases together. A report without cases shows nothing.
    pub(crate) fn verdict(&self) -> Verdict {
        overall(self.cases.iter().map(Case::verdict))
    }
}

impl Case {
    /// The verdict on all findings together. A case without findings shows nothing.
    pub(crate) fn verdict(&self) -> Verdict {
        overall(self.findings.iter().map(|finding| finding.verdict))
    }
}
