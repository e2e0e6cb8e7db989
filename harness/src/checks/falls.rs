//! Checks that the losses of a run fall: for labs without held-out samples, and so without an evaluation.

use super::{Doubt, Finding};
use crate::lab_run::{Evidence, Trace};

/// Compares the loss over the last epoch with that over the first; every loss must be a number.
pub(crate) fn loss_falls(run: &Evidence) -> Finding {
    Finding::of("The loss falls".into(), evidence_for(run))
}

fn evidence_for(run: &Evidence) -> Result<String, Doubt> {
    let trace = Trace::of(run)?;
    super::learning::check_losses(&trace)?;
    let losses: Vec<f64> = trace.epochs.iter().map(|epoch| epoch.loss()).collect();
    match losses.as_slice() {
        [] => Err(Doubt::NotVerified("no epoch was asked for".into())),
        [one] => Err(Doubt::NotVerified(format!("one epoch shows no fall: its loss is {one:.4}"))),
        [first, .., last] if last < first => Ok(format!("{first:.4} in the first epoch, {last:.4} in the last")),
        [first, .., last] => Err(Doubt::Failed(format!("{first:.4} in the first epoch, {last:.4} in the last"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::Verdict;
    use crate::lab_run::testing::Run;

    #[test]
    fn passes_a_loss_that_falls_and_fails_one_that_does_not_or_is_nan() {
        let mut run = Run::of(1, 4, 2, 20);
        let checked = |run: &Run| {
            let finding = loss_falls(&run.evidence());
            (finding.verdict, finding.evidence)
        };
        assert_eq!(checked(&run), (Verdict::Passed, "1.7000 in the first epoch, 0.8500 in the last".into()));
        run.losses[1] = run.losses[0].clone();
        assert_eq!(checked(&run).0, Verdict::Failed);
        run.losses[1][0][0] = f64::NAN;
        assert!(checked(&run).1.contains("rank 0's loss is NaN"), "{}", checked(&run).1);
        assert_eq!(checked(&Run::of(1, 4, 1, 20)).0, Verdict::NotVerified);
    }
}
