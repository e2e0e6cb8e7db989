//! Checks that a run learned: its losses are numbers and fall, and all ranks report the same evaluation over all held-out samples.
//!
//! Each check shows its claim with numbers, or says what contradicts it, or says why this run cannot decide it. No check relies on the
//! lab's own output, and missing evidence contradicts a claim.

use crate::evidence::{Evidence, Tensor};
use crate::report::{Finding, Unproven, grouped};
use crate::trace::{Eval, Trace};

/// Compares the loss over the last epoch with that over the first, after checking that every loss is a number.
pub(crate) fn learns(run: &Evidence) -> Finding {
    Finding::of("The network learns".into(), learned(run))
}

fn learned(run: &Evidence) -> Result<String, Unproven> {
    let trace = Trace::of(run)?;
    check_losses(&trace)?;
    check_weights(run)?;
    let mut last = None;
    for (number, epoch) in trace.epochs.iter().enumerate() {
        let eval = check_eval(&epoch.evals, run.plan.sizes.test).map_err(|flaw| format!("in epoch {number} {flaw}"))?;
        last = Some(eval);
    }
    if trace.last_evals.iter().any(Option::is_some) {
        let eval = check_eval(&trace.last_evals, run.plan.sizes.test);
        last = Some(eval.map_err(|flaw| format!("after the last epoch {flaw}"))?);
    }
    let (Some(first), Some(final_), Some(eval)) = (trace.epochs.first(), trace.epochs.last(), last) else {
        return Err(Unproven::NotVerified("no epoch was asked for".into()));
    };
    let (before, after) = (first.loss(), final_.loss());
    let right = format!("{:.2} % of {} held-out samples right", eval.accuracy * 100.0, grouped(eval.samples));
    match trace.epochs.len() {
        1 => Err(Unproven::NotVerified(format!("one epoch shows no fall: its loss is {before:.4}; {right}"))),
        _ if after < before => Ok(format!("loss {before:.4} in the first epoch, {after:.4} in the last; {right}")),
        _ => Err(Unproven::Failed(format!(
            "loss {before:.4} in the first epoch, {after:.4} in the last: it did not fall"
        ))),
    }
}

pub(crate) fn check_losses(trace: &Trace) -> Result<(), String> {
    for (number, epoch) in trace.epochs.iter().enumerate() {
        for (step, ranks) in epoch.steps.iter().enumerate() {
            if let Some(rank) = ranks.iter().position(|step| !step.loss.is_finite()) {
                let loss = ranks[rank].loss;
                return Err(format!("rank {rank}'s loss is {loss} in step {step} of epoch {number}"));
            }
        }
    }
    Ok(())
}

fn check_weights(run: &Evidence) -> Result<(), String> {
    for (rank, weights) in run.weights.iter().enumerate() {
        let finite =
            |tensor: &Tensor| tensor.values().is_none_or(|values| values.iter().all(|value| value.is_finite()));
        if let Some((name, _)) = weights.as_ref().map_err(String::clone)?.iter().find(|(_, tensor)| !finite(tensor)) {
            return Err(format!("rank {rank} ends with a value in {name} that is not finite"));
        }
    }
    Ok(())
}

/// The one evaluation that all ranks report.
fn check_eval(evals: &[Option<Eval>], samples: u64) -> Result<Eval, String> {
    let mut found: Option<Eval> = None;
    for (rank, eval) in evals.iter().enumerate() {
        let eval = eval.ok_or_else(|| format!("rank {rank} reports no evaluation"))?;
        if eval.samples != samples {
            return Err(format!("rank {rank} evaluated {} samples of {samples}", eval.samples));
        }
        if !(0.0..=1.0).contains(&eval.accuracy) || !eval.loss.is_finite() {
            return Err(format!("rank {rank} reports an accuracy of {} and a loss of {}", eval.accuracy, eval.loss));
        }
        if *found.get_or_insert(eval) != eval {
            return Err(format!("rank {rank} reports another evaluation than rank 0: each must be of all ranks"));
        }
    }
    found.ok_or_else(|| "no rank reports an evaluation".into())
}

/// Compares the loss over the last epoch with that over the first; every loss must be a number.
pub(crate) fn loss_falls(run: &Evidence) -> Finding {
    Finding::of("The loss falls".into(), fallen(run))
}

fn fallen(run: &Evidence) -> Result<String, Unproven> {
    let trace = Trace::of(run)?;
    check_losses(&trace)?;
    let losses: Vec<f64> = trace.epochs.iter().map(|epoch| epoch.loss()).collect();
    match losses.as_slice() {
        [] => Err(Unproven::NotVerified("no epoch was asked for".into())),
        [one] => Err(Unproven::NotVerified(format!("one epoch shows no fall: its loss is {one:.4}"))),
        [first, .., last] if last < first => Ok(format!("{first:.4} in the first epoch, {last:.4} in the last")),
        [first, .., last] => Err(Unproven::Failed(format!("{first:.4} in the first epoch, {last:.4} in the last"))),
    }
}

/// Compares the losses over the last epoch: `run`'s may exceed `exact`'s by `limit` times it.
pub(crate) fn loss_is_near(claim: &str, run: &Evidence, exact: &Evidence, limit: f64) -> Finding {
    Finding::of(claim.to_owned(), near(run, exact, limit))
}

fn near(run: &Evidence, exact: &Evidence, limit: f64) -> Result<String, Unproven> {
    let (loss, exact) = (last_loss(run)?, last_loss(exact)?);
    let more = loss / exact - 1.0;
    let text = format!(
        "{loss:.4} over the last epoch, {exact:.4} with whole gradients: {:+.2} % (limit {:+.0} %)",
        100.0 * more,
        100.0 * limit
    );
    if more <= limit { Ok(text) } else { Err(Unproven::Failed(text)) }
}

fn last_loss(run: &Evidence) -> Result<f64, Unproven> {
    let trace = Trace::of(run)?;
    check_losses(&trace)?;
    let last = trace.epochs.last().ok_or_else(|| Unproven::NotVerified("no epoch was asked for".into()))?;
    Ok(last.loss())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Verdict;
    use crate::testing::{Run, weights};

    fn failure(falsify: impl FnOnce(&mut Run)) -> String {
        let mut run = Run::of(2, 4, 2, 20);
        falsify(&mut run);
        let finding = learns(&run.evidence());
        assert_eq!(finding.verdict, Verdict::Failed, "{}", finding.evidence);
        finding.evidence
    }

    #[test]
    fn passes_a_loss_that_falls() {
        let finding = learns(&Run::of(2, 4, 2, 20).evidence());
        assert_eq!(finding.verdict, Verdict::Passed);
        let evidence = "loss 1.7000 in the first epoch, 0.8500 in the last; 75.00 % of 5 held-out samples right";
        assert_eq!(finding.evidence, evidence);
    }

    #[test]
    fn shows_the_evaluation_after_the_last_epoch_if_there_is_one() {
        let mut run = Run::of(2, 4, 2, 20);
        run.evals.push(vec![Some(Eval { accuracy: 0.8, ..run.evals[1][0].unwrap() }); 2]);
        assert!(learns(&run.evidence()).evidence.contains("80.00 % of 5 held-out samples"));
        run.evals[2][1] = None;
        assert!(learns(&run.evidence()).evidence.starts_with("after the last epoch rank 1 reports no evaluation"));
    }

    #[test]
    fn cannot_decide_from_one_epoch() {
        assert_eq!(learns(&Run::of(2, 4, 1, 20).evidence()).verdict, Verdict::NotVerified);
    }

    #[test]
    fn fails_when_the_loss_stays_or_rises() {
        let message = failure(|run| run.losses[1] = run.losses[0].clone());
        assert!(message.ends_with("it did not fall"), "{message}");
    }

    #[test]
    fn fails_when_one_loss_is_nan() {
        assert_eq!(failure(|run| run.losses[1][1][2] = f64::NAN), "rank 1's loss is NaN in step 2 of epoch 1");
        assert!(
            failure(|run| run.losses[0][0][0] = f64::INFINITY).contains("rank 0's loss is inf in step 0 of epoch 0")
        );
    }

    #[test]
    fn fails_when_a_weight_is_nan() {
        let mut run = Run::of(2, 4, 2, 20).evidence();
        run.weights[1] = Ok(weights(&[1.0, f32::NAN]));
        assert!(learns(&run).evidence.starts_with("rank 1 ends with a value in fc.weight"));
    }

    #[test]
    fn fails_when_an_evaluation_is_missing_partial_or_one_ranks_own() {
        assert!(failure(|run| run.evals[1][1] = None).ends_with("in epoch 1 rank 1 reports no evaluation"));
        let partial = failure(|run| run.evals[1][0].as_mut().unwrap().samples = 3);
        assert!(partial.ends_with("rank 0 evaluated 3 samples of 5"), "{partial}");
        let own = failure(|run| run.evals[0][1].as_mut().unwrap().accuracy = 0.5);
        assert!(own.contains("rank 1 reports another evaluation than rank 0"), "{own}");
        let odd = failure(|run| run.evals[0].iter_mut().flatten().for_each(|eval| eval.accuracy = f64::NAN));
        assert!(odd.contains("an accuracy of NaN"), "{odd}");
    }

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
