//! A claim and its verdict: one type for checks, scenarios and labs.

use serde::Serialize;

/// A claim with its verdict.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Finding {
    /// The claim.
    pub(crate) claim: String,
    /// Its verdict.
    pub(crate) verdict: Verdict,
    /// The numbers that show it, or what is wrong, or why this run cannot decide it.
    pub(crate) evidence: String,
}

/// The verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Verdict {
    /// The evidence shows it.
    #[serde(rename = "passed")]
    Passed,
    /// The evidence contradicts it, or is missing although the run is over.
    #[serde(rename = "FAILED")]
    Failed,
    /// This run cannot decide it.
    #[serde(rename = "not verified here")]
    NotVerified,
}

/// Why a claim was not shown.
#[derive(Debug)]
pub(crate) enum Doubt {
    /// The evidence contradicts it.
    Failed(String),
    /// This run cannot decide it.
    NotVerified(String),
}

impl Verdict {
    /// All verdicts, the good one first.
    pub(crate) const ALL: [Verdict; 3] = [Verdict::Passed, Verdict::Failed, Verdict::NotVerified];

    /// A differently shaped sign for each, so that colour is never the only distinction.
    pub(crate) fn symbol(self) -> &'static str {
        match self {
            Verdict::Passed => "✓",
            Verdict::Failed => "✗",
            Verdict::NotVerified => "?",
        }
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Verdict::Passed => "passed",
            Verdict::Failed => "FAILED",
            Verdict::NotVerified => "not verified here",
        })
    }
}

/// Most checks find contradictions, so `?` converts a plain sentence into one.
impl From<String> for Doubt {
    fn from(contradiction: String) -> Self {
        Doubt::Failed(contradiction)
    }
}

impl Finding {
    /// The finding of a check of `claim`.
    pub(crate) fn of(claim: String, proof: Result<String, Doubt>) -> Self {
        let (verdict, evidence) = match proof {
            Ok(evidence) => (Verdict::Passed, evidence),
            Err(Doubt::Failed(evidence)) => (Verdict::Failed, evidence),
            Err(Doubt::NotVerified(evidence)) => (Verdict::NotVerified, evidence),
        };
        Finding { claim, verdict, evidence }
    }
}

/// Failed if any failed, otherwise not verified if any was not verified or there are no findings.
pub(crate) fn overall(verdicts: impl IntoIterator<Item = Verdict>) -> Verdict {
    let verdicts: Vec<_> = verdicts.into_iter().collect();
    let worst = [Verdict::Failed, Verdict::NotVerified].into_iter().find(|verdict| verdicts.contains(verdict));
    worst.unwrap_or(if verdicts.is_empty() { Verdict::NotVerified } else { Verdict::Passed })
}

#[cfg(test)]
mod tests {
    use super::Verdict::{Failed, NotVerified, Passed};
    use super::*;

    #[test]
    fn uses_the_same_verdicts_for_people_and_programs() {
        for verdict in Verdict::ALL {
            assert_eq!(serde_json::to_value(verdict).unwrap(), verdict.to_string());
        }
    }

    #[test]
    fn one_failure_fails_all_and_no_findings_are_not_verified() {
        assert_eq!(overall([Passed, Passed]), Passed);
        assert_eq!(overall([Passed, NotVerified, Failed]), Failed);
        assert_eq!(overall([Passed, NotVerified]), NotVerified);
        assert_eq!(overall([]), NotVerified);
    }
}
