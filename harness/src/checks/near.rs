//! Checks that a run whose gradients lose something on their way ends with nearly the loss of a run whose gradients do not.

use super::learning::check_losses;
use super::{Doubt, Finding};
use crate::lab_run::{Evidence, Trace};

/// Compares the losses over the last epoch: `run`'s may exceed `exact`'s by the part `limit` of it.
pub(crate) fn loss_is_near(claim: &str, run: &Evidence, exact: &Evidence, limit: f64) -> Finding {
    Finding::of(claim.to_owned(), evidence_for(run, exact, limit))
}

fn evidence_for(run: &Evidence, exact: &Evidence, limit: f64) -> Result<String, Doubt> {
    let (loss, exact) = (last_loss(run)?, last_loss(exact)?);
    let more = loss / exact - 1.0;
    let text = format!(
        "{loss:.4} over the last epoch, {exact:.4} with whole gradients: {:+.2} % (limit {:+.0} %)",
        100.0 * more,
        100.0 * limit
    );
    if more <= limit { Ok(text) } else { Err(Doubt::Failed(text)) }
}

fn last_loss(run: &Evidence) -> Result<f64, Doubt> {
    let trace = Trace::of(run)?;
    check_losses(&trace)?;
    let last = trace.epochs.last().ok_or_else(|| Doubt::NotVerified("no epoch was asked for".into()))?;
    Ok(last.loss())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::Verdict;
    use crate::lab_run::testing::Run;

    #[test]
    fn passes_a_loss_within_the_limit_and_fails_one_beyond_it_or_nan() {
        let exact = Run::of(2, 4, 2, 24);
        let with = |change: f64| {
            let mut run = Run::of(2, 4, 2, 24);
            run.losses[1].iter_mut().flatten().for_each(|loss| *loss *= change);
            loss_is_near("near", &run.evidence(), &exact.evidence(), 0.05)
        };
        assert_eq!([with(1.04).verdict, with(0.5).verdict], [Verdict::Passed; 2], "{}", with(1.04).evidence);
        assert_eq!([with(1.06).verdict, with(f64::NAN).verdict], [Verdict::Failed; 2]);
        assert!(with(1.06).evidence.ends_with("with whole gradients: +6.00 % (limit +5 %)"), "{}", with(1.06).evidence);
    }
}
