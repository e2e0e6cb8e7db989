//! Proofs: pure functions from what runs left behind to a [`Finding`].
//!
//! Each either shows its claim with numbers, or says what contradicts it, or says why it cannot be told here. None
//! trusts the lab's own words, and what is missing contradicts a claim.

mod learning;
mod same_training;
mod same_weights;
mod samples;

use serde::Serialize;

pub(crate) use learning::learns;
pub(crate) use same_training::same_training;
pub(crate) use same_weights::same_weights;
pub(crate) use samples::each_sample_once;

/// A claim, judged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Finding {
    /// What was to be shown.
    pub(crate) claim: String,
    /// Whether it was.
    pub(crate) verdict: Verdict,
    /// The numbers that show it, or what is wrong.
    pub(crate) evidence: String,
}

/// How a claim was judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Verdict {
    /// The evidence shows it.
    #[serde(rename = "passed")]
    Passed,
    /// The evidence contradicts it, or is missing although the run is over.
    #[serde(rename = "FAILED")]
    Failed,
    /// This run cannot tell.
    #[serde(rename = "not verified here")]
    NotVerified,
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

/// Why a claim was not shown.
#[derive(Debug)]
enum Doubt {
    Failed(String),
    NotVerified(String),
}

/// A contradiction is what most checks find, so `?` takes a plain sentence for one.
impl From<String> for Doubt {
    fn from(contradiction: String) -> Self {
        Doubt::Failed(contradiction)
    }
}

impl Finding {
    fn of(claim: String, proof: Result<String, Doubt>) -> Self {
        let (verdict, evidence) = match proof {
            Ok(evidence) => (Verdict::Passed, evidence),
            Err(Doubt::Failed(evidence)) => (Verdict::Failed, evidence),
            Err(Doubt::NotVerified(evidence)) => (Verdict::NotVerified, evidence),
        };
        Finding { claim, verdict, evidence }
    }
}

/// A whole number with commas: `105,866`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1 rank`, `2 ranks`.
fn counted(count: usize, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count as u64), if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_numbers_with_commas() {
        let texts = [0, 999, 1000, 105_866, 1_234_567].map(grouped);
        assert_eq!(texts, ["0", "999", "1,000", "105,866", "1,234,567"]);
    }

    #[test]
    fn tells_a_verdict_in_the_same_words_to_people_and_to_programs() {
        for verdict in [Verdict::Passed, Verdict::Failed, Verdict::NotVerified] {
            assert_eq!(serde_json::to_value(verdict).unwrap(), verdict.to_string());
        }
    }
}
