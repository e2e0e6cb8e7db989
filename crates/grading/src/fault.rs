//! What was found wrong with an answer, and how a learner is told.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What was found: nothing, or the first fault.
pub type Found = Result<(), Box<Fault>>;

/// What kind of fault it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// There is nothing to grade yet.
    NotStarted,
    /// A result is not the right one.
    WrongValue,
    /// Ranks that must agree do not.
    RanksDisagree,
    /// It did not end before the deadline.
    Hang,
    /// A panic, an error, or a process that ended without an answer.
    Crash,
    /// It left processes behind.
    LeakedProcess,
    /// It took more memory, processes, output or disk than any right answer does.
    OutOfBounds,
}

/// The one finding about an answer: what was expected, what was seen, and what that means.
///
/// It is an error, so that a grading stops at the first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Its kind.
    pub verdict: Verdict,
    /// The rank that it was seen on.
    pub rank: Option<usize>,
    /// What the answer was applied to.
    pub given: Option<String>,
    /// The right result.
    pub expected: Option<String>,
    /// The result that came.
    pub observed: Option<String>,
    /// How far a number may be from the expected one.
    pub tolerance: Option<f64>,
    /// What is wrong, told from what was seen.
    pub diagnosis: String,
    /// Further lines, such as where each rank was.
    pub table: Vec<String>,
    /// The last lines that the ranks printed.
    pub printed: Vec<String>,
}

impl Verdict {
    /// As a learner reads it.
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

impl Fault {
    /// A fault that is known by its diagnosis alone; further fields are filled in as they are known.
    pub fn new(verdict: Verdict, diagnosis: impl Into<String>) -> Self {
        Fault {
            verdict,
            rank: None,
            given: None,
            expected: None,
            observed: None,
            tolerance: None,
            diagnosis: diagnosis.into(),
            table: Vec::new(),
            printed: Vec::new(),
        }
    }

    /// The same, seen on this rank.
    #[must_use]
    pub fn on_rank(self, rank: usize) -> Self {
        Fault { rank: Some(rank), ..self }
    }

    /// The same, with what the answer was applied to.
    #[must_use]
    pub fn given(self, given: impl Into<String>) -> Self {
        Fault { given: Some(given.into()), ..self }
    }

    /// What was found, as lines of a name and a text.
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

/// The same error, with another diagnosis if it is a [`Fault`] that `why` knows more about: a hang, from where the ranks were.
pub fn explain(mut error: anyhow::Error, why: impl FnOnce(&Fault) -> Option<String>) -> anyhow::Error {
    if let Some(fault) = error.downcast_mut::<Fault>()
        && let Some(diagnosis) = why(fault)
    {
        fault.diagnosis = diagnosis;
    }
    error
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.verdict.words())?;
        if let Some(rank) = self.rank {
            write!(f, " on rank {rank}")?;
        }
        write!(f, ": {}", self.diagnosis)
    }
}

impl std::error::Error for Fault {}
