//! Claims about a result: it is right, or it is wrong in a way that has its own diagnosis.

use std::fmt::Debug;

use crate::{Finding, Verdict};

/// Longer values are cut off at this many bytes.
const SHOWN: usize = 400;

/// Claims that a result is the expected one. Common wrong results have their own diagnoses; the first one that applies is
/// reported.
///
/// ```ignore
/// Claim::equal(&expected, &observed)
///     .on_rank(rank)
///     .given(format!("{samples} samples, {ranks} ranks"))
///     .diagnose_if(observed == blocks, "you took a block of neighbours, not every third sample")
///     .or_fail("the shares of the ranks are …")?;
/// ```
#[must_use = "a claim checks nothing until `or_fail` is called"]
pub struct Claim {
    holds: bool,
    finding: Finding,
    known: Option<String>,
}

impl Claim {
    /// Claims that both values are equal.
    pub fn equal<T: PartialEq + Debug + ?Sized>(expected: &T, observed: &T) -> Self {
        Self::of(expected == observed, expected, observed)
    }

    /// Claims that both lists have the same length and that no number differs by more than `tolerance`.
    pub fn close(expected: &[f64], observed: &[f64], tolerance: f64) -> Self {
        let mut claim = Self::of(close(expected, observed, tolerance), expected, observed);
        claim.finding.tolerance = Some(tolerance);
        claim
    }

    /// Claims that `holds` is true. `expected` and `observed` describe it for the learner.
    pub fn that(holds: bool, expected: impl Into<String>, observed: impl Into<String>) -> Self {
        let mut finding = Finding::new(Verdict::WrongValue, "");
        (finding.expected, finding.observed) = (Some(expected.into()), Some(observed.into()));
        Claim { holds, finding, known: None }
    }

    fn of<T: Debug + ?Sized>(holds: bool, expected: &T, observed: &T) -> Self {
        Self::that(holds, shown(expected), shown(observed))
    }

    /// Sets the rank that the result came from.
    pub fn on_rank(self, rank: usize) -> Self {
        Claim { finding: self.finding.on_rank(rank), ..self }
    }

    /// Describes the input.
    pub fn given(self, given: impl Into<String>) -> Self {
        Claim { finding: self.finding.given(given), ..self }
    }

    /// Sets the kind of finding. The default is a wrong value.
    pub fn verdict(mut self, verdict: Verdict) -> Self {
        self.finding.verdict = verdict;
        self
    }

    /// Uses this diagnosis if `condition` is true and no earlier condition was.
    pub fn diagnose_if(mut self, condition: bool, diagnosis: impl Into<String>) -> Self {
        if condition && self.known.is_none() {
            self.known = Some(diagnosis.into());
        }
        self
    }

    /// Fails if the claim does not hold, with this diagnosis if no condition was true.
    ///
    /// # Errors
    /// The [`Finding`].
    pub fn or_fail(self, diagnosis: impl Into<String>) -> anyhow::Result<()> {
        if self.holds {
            return Ok(());
        }
        Err(Finding { diagnosis: self.known.unwrap_or_else(|| diagnosis.into()), ..self.finding }.into())
    }
}

/// Returns true if both lists have the same length and no number differs by more than `tolerance`. NaN always differs.
pub fn close(expected: &[f64], observed: &[f64], tolerance: f64) -> bool {
    let near = |(expected, observed): (&f64, &f64)| (expected - observed).abs() <= tolerance;
    expected.len() == observed.len() && expected.iter().zip(observed).all(near)
}

fn shown<T: Debug + ?Sized>(value: &T) -> String {
    let mut text = format!("{value:?}");
    if text.len() > SHOWN {
        let end = (0..=SHOWN).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        text.truncate(end);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finding(claim: Claim, diagnosis: &str) -> Finding {
        claim.or_fail(diagnosis).unwrap_err().downcast().unwrap()
    }

    #[test]
    fn reports_the_first_diagnosis_whose_condition_is_true() {
        let claim =
            || Claim::close(&[1.0, 2.0], &[2.0, 4.0], 1e-9).diagnose_if(false, "not this").diagnose_if(true, "doubled");
        let known = finding(claim().diagnose_if(true, "nor this"), "wrong");
        assert_eq!((known.diagnosis.as_str(), known.verdict), ("doubled", Verdict::WrongValue));
        assert_eq!(known.expected.as_deref(), Some("[1.0, 2.0]"));
        assert_eq!(finding(Claim::equal(&1, &2), "wrong").diagnosis, "wrong");
        assert!(Claim::equal("a", "a").diagnose_if(true, "doubled").or_fail("wrong").is_ok());
    }

    #[test]
    fn rejects_nan_and_lists_of_different_length() {
        assert!(close(&[1.0], &[1.05], 0.1));
        assert!(
            !close(&[1.0], &[f64::NAN], 0.1) && !close(&[1.0], &[1.0, 1.0], 0.1) && !close(&[f64::NAN], &[1.0], 9.0)
        );
    }

    #[test]
    fn shortens_long_values_between_two_characters() {
        let long = finding(Claim::equal("", &*"ü".repeat(SHOWN)), "long");
        assert!(long.observed.is_some_and(|text| text.len() <= SHOWN + 3 && text.ends_with('…')));
    }
}
