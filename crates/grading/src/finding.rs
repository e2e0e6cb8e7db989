//! Findings: what is wrong with an answer, as the learner reads it.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The result of grading a task: no finding, or the first one.
pub type Found = Result<(), Box<Finding>>;

/// The kind of finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// The learner has not written an answer yet.
    NotStarted,
    /// A result is wrong.
    WrongValue,
    /// Ranks that must agree have different results.
    RanksDisagree,
    /// The answer did not end before the deadline.
    Hang,
    /// A panic, an error, or a process that ended without an answer.
    Crash,
    /// The answer left processes behind.
    LeakedProcess,
    /// The answer used more memory, processes, output or disk than any right answer does.
    OutOfBounds,
}

/// One finding about an answer: what was expected, what was observed, and what that means.
///
/// It is an error, so a grading function stops at the first finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The kind of finding.
    pub verdict: Verdict,
    /// The rank on which it was observed.
    pub rank: Option<usize>,
    /// The number of the call's input, from 0, in which an answer crashed or hung.
    #[serde(default)]
    pub input: Option<usize>,
    /// A description of the input.
    pub given: Option<String>,
    /// The right result.
    pub expected: Option<String>,
    /// The answer's result.
    pub observed: Option<String>,
    /// How much a number may differ from the expected one.
    pub tolerance: Option<f64>,
    /// What is wrong.
    pub diagnosis: String,
    /// Where each rank was, one line per rank.
    pub table: Vec<String>,
    /// The last lines that the ranks printed.
    pub printed: Vec<String>,
}

impl Verdict {
    /// The verdict as the learner reads it.
    pub fn words(self) -> &'static str {
        match self {
            Verdict::NotStarted => "not started",
            Verdict::WrongValue => "wrong value",
            Verdict::RanksDisagree => "ranks disagree",
            Verdict::Hang => "hang",
            Verdict::Crash => "crash",
            Verdict::LeakedProcess => "leaked process",
            Verdict::OutOfBounds => "out of bounds",
        }
    }
}

impl Finding {
    /// A finding with a diagnosis only. All other fields are empty.
    pub fn new(verdict: Verdict, diagnosis: impl Into<String>) -> Self {
        Finding {
            verdict,
            rank: None,
            input: None,
            given: None,
            expected: None,
            observed: None,
            tolerance: None,
            diagnosis: diagnosis.into(),
            table: Vec::new(),
            printed: Vec::new(),
        }
    }

    /// Sets the rank.
    #[must_use]
    pub fn on_rank(self, rank: usize) -> Self {
        Finding { rank: Some(rank), ..self }
    }

    /// Sets the description of the input.
    #[must_use]
    pub fn given(self, given: impl Into<String>) -> Self {
        Finding { given: Some(given.into()), ..self }
    }

    /// The fields that are set, as pairs of a name and a text.
    pub fn lines(&self) -> Vec<(&'static str, String)> {
        let expected = self.expected.clone().map(|expected| match self.tolerance {
            Some(tolerance) => format!("{expected} (within {tolerance:e})"),
            None => expected,
        });
        let fields = [("given", self.given.clone()), ("expected", expected), ("observed", self.observed.clone())];
        let mut lines: Vec<_> = fields.into_iter().filter_map(|(name, text)| Some((name, text?))).collect();
        lines.push(("diagnosis", self.diagnosis.clone()));
        lines.extend(self.table.iter().map(|line| ("ranks", line.clone())));
        lines.extend(self.printed.iter().map(|line| ("printed", line.clone())));
        lines
    }
}

/// Replaces the diagnosis of a [`Finding`] if `why` returns a better one, such as why ranks hang, from where they were.
pub fn explain(mut error: anyhow::Error, why: impl FnOnce(&Finding) -> Option<String>) -> anyhow::Error {
    if let Some(finding) = error.downcast_mut::<Finding>()
        && let Some(diagnosis) = why(finding)
    {
        finding.diagnosis = diagnosis;
    }
    error
}

/// Describes the input in which an answer crashed or hung. Other errors stay as they are.
pub fn given(mut error: anyhow::Error, input: impl FnOnce(usize) -> String) -> anyhow::Error {
    if let Some(finding) = error.downcast_mut::<Finding>()
        && let Some(number) = finding.input
    {
        finding.given = Some(input(number));
    }
    error
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.verdict.words())?;
        if let Some(rank) = self.rank {
            write!(f, " on rank {rank}")?;
        }
        write!(f, ": {}", self.diagnosis)
    }
}

impl std::error::Error for Finding {}
