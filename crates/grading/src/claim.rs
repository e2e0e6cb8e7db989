//! Claims about a result: right, or wrong in a way that is known.

use std::fmt::Debug;

use crate::{Fault, Verdict};

/// More of a value is not shown, in bytes.
const SHOWN: usize = 400;

/// That a result is the expected one. Wrong results that people really get have a diagnosis of their own; the first that was
/// seen is told.
///
/// ```ignore
/// Claim::equal(&expected, &observed)
///     .on_rank(rank)
///     .given(format!("{samples} samples, {ranks} ranks"))
///     .knows(observed == blocks, "you took a block of neighbours, not every third sample")
///     .otherwise("the shares of the ranks are …")?;
/// ```
#[must_use = "a claim says nothing before `otherwise`"]
pub struct Claim {
    holds: bool,
    fault: Fault,
    known: Option<String>,
}

impl Claim {
    /// That the two are equal.
    pub fn equal<T: PartialEq + Debug + ?Sized>(expected: &T, observed: &T) -> Self {
        Self::of(expected == observed, expected, observed)
    }

    /// That no number is further than `tolerance` from the expected one, and there are as many.
    pub fn close(expected: &[f64], observed: &[f64], tolerance: f64) -> Self {
        let mut claim = Self::of(close(expected, observed, tolerance), expected, observed);
        claim.fault.tolerance = Some(tolerance);
        claim
    }

    /// That something holds, with what is expected and what was seen, for people.
    pub fn that(holds: bool, expected: impl Into<String>, observed: impl Into<String>) -> Self {
        let mut fault = Fault::new(Verdict::WrongValue, "");
        (fault.expected, fault.observed) = (Some(expected.into()), Some(observed.into()));
        Claim { holds, fault, known: None }
    }

    fn of<T: Debug + ?Sized>(holds: bool, expected: &T, observed: &T) -> Self {
        Self::that(holds, shown(expected), shown(observed))
    }

    /// Which rank the result is of.
    pub fn on_rank(self, rank: usize) -> Self {
        Claim { fault: self.fault.on_rank(rank), ..self }
    }

    /// What the answer was applied to.
    pub fn given(self, given: impl Into<String>) -> Self {
        Claim { fault: self.fault.given(given), ..self }
    }

    /// A fault of another kind than a wrong value.
    pub fn verdict(mut self, verdict: Verdict) -> Self {
        self.fault.verdict = verdict;
        self
    }

    /// What it means if this was `seen`.
    pub fn knows(mut self, seen: bool, diagnosis: impl Into<String>) -> Self {
        if seen && self.known.is_none() {
            self.known = Some(diagnosis.into());
        }
        self
    }

    /// The fault, if the claim does not hold, with this diagnosis if no other is known.
    ///
    /// # Errors
    /// The [`Fault`].
    pub fn otherwise(self, diagnosis: impl Into<String>) -> anyhow::Result<()> {
        if self.holds {
            return Ok(());
        }
        Err(Fault { diagnosis: self.known.unwrap_or_else(|| diagnosis.into()), ..self.fault }.into())
    }
}

/// Whether no number is further than `tolerance` from the expected one; NaN is.
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

    fn fault(claim: Claim, otherwise: &str) -> Fault {
        claim.otherwise(otherwise).unwrap_err().downcast().unwrap()
    }

    #[test]
    fn tells_the_first_known_fault_that_was_seen() {
        let claim = || Claim::close(&[1.0, 2.0], &[2.0, 4.0], 1e-9).knows(false, "not this").knows(true, "doubled");
        let known = fault(claim().knows(true, "nor this"), "wrong");
        assert_eq!((known.diagnosis.as_str(), known.verdict), ("doubled", Verdict::WrongValue));
        assert_eq!(known.expected.as_deref(), Some("[1.0, 2.0]"));
        assert_eq!(fault(Claim::equal(&1, &2), "wrong").diagnosis, "wrong");
        assert!(Claim::equal("a", "a").knows(true, "doubled").otherwise("wrong").is_ok());
    }

    #[test]
    fn nan_is_close_to_nothing_and_lengths_count() {
        assert!(close(&[1.0], &[1.05], 0.1));
        assert!(
            !close(&[1.0], &[f64::NAN], 0.1) && !close(&[1.0], &[1.0, 1.0], 0.1) && !close(&[f64::NAN], &[1.0], 9.0)
        );
    }

    #[test]
    fn shortens_long_values_at_a_letters_end() {
        let long = fault(Claim::equal("", &*"ü".repeat(SHOWN)), "long");
        assert!(long.observed.is_some_and(|text| text.len() <= SHOWN + 3 && text.ends_with('…')));
    }
}
