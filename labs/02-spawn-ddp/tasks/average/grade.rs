//! Grades `average`: gradients of several shapes on 2 and 3 ranks.

use lockstep_grading::{Claim, Runner};

/// The values of one rank's gradients.
type Gradients = Vec<Vec<f64>>;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    for ranks in [2, 3] {
        let mut random = runner.random();
        let lengths = [3, 1, random.below(4..40)];
        let of_rank = |_| lengths.map(|length| random.numbers(length)).to_vec();
        let given: Vec<Gradients> = (0..ranks).map(of_rank).collect();
        let outputs = runner.call::<_, Gradients>(ranks, &[&given])?;
        let sums: Gradients = (0..lengths.len()).map(|which| sum(&given, which)).collect();
        for (rank, observed) in outputs.all(0).enumerate() {
            check(rank, &given, &sums, observed, outputs.of(0, 0))?;
        }
    }
    Ok(())
}

fn check(
    rank: usize,
    given: &[Gradients],
    sums: &Gradients,
    observed: &Gradients,
    of_rank_0: &Gradients,
) -> anyhow::Result<()> {
    let ranks = given.len() as f64;
    let divided = |all: &[Vec<f64>], by: f64| -> Gradients {
        all.iter().map(|values| values.iter().map(|value| value / by).collect()).collect()
    };
    let (means, twice) = (divided(sums, ranks), divided(sums, ranks * ranks));
    let own_share = divided(&given[rank], ranks);
    for which in 0..sums.len() {
        let near = |of: &Gradients| lockstep_grading::close(&of[which], &observed[which], 1e-9);
        let first_is_right = lockstep_grading::close(&means[which], &of_rank_0[which], 1e-9);
        let factor = factor(&sums[which], &observed[which]);
        let of_ranks: Vec<_> = given.iter().map(|gradients| &gradients[which]).collect();
        Claim::close(&means[which], &observed[which], 1e-9)
            .on_rank(rank)
            .given(format!("gradient {which} of {ranks} ranks: {of_ranks:?}"))
            .diagnose_if(
                near(sums),
                "summed, not averaged: divide by the number of ranks, or the step becomes too large by that factor",
            )
            .diagnose_if(
                rank > 0 && first_is_right,
                "rank 0 has the mean, and this rank does not: `reduce` leaves the result on one rank. All ranks need it: all_reduce, or a \
                 broadcast after the reduce",
            )
            .diagnose_if(
                near(&given[rank]),
                "never reduced: this is the rank's own gradient, so the ranks' models drift apart. If the mean was computed, it went \
                 into a copy: the caller reads the tensors of `gradients`",
            )
            .diagnose_if(
                near(&own_share),
                "this is the rank's own gradient, divided by the number of ranks: the gradients of the others were never added, or were \
                 added into a copy. `all_reduce` leaves the sum in the tensor that it is given",
            )
            .diagnose_if(near(&twice), "divided by the number of ranks twice")
            .diagnose_if(
                factor.is_some_and(|by| by.round() == sums.len() as f64 && by != ranks),
                format!("the sum was divided by {}, the number of gradients: divide by the number of ranks, {ranks}", sums.len()),
            )
            .diagnose_if(
                factor.is_some(),
                format!(
                    "the sum was divided by {:.3}, and there are {ranks} ranks: `group.size()` says how many",
                    factor.unwrap_or_default()
                ),
            )
            .or_fail("the result is not the mean of the ranks' gradients")?;
    }
    Ok(())
}

/// What all sums were divided by, if they were divided by one number.
fn factor(sums: &[f64], observed: &[f64]) -> Option<f64> {
    let place = sums.iter().position(|sum| sum.abs() > 1e-6)?;
    let by = sums[place] / observed.get(place)?;
    let divided: Vec<f64> = sums.iter().map(|sum| sum / by).collect();
    (by.is_finite() && lockstep_grading::close(&divided, observed, 1e-9)).then_some(by)
}

fn sum(given: &[Gradients], which: usize) -> Vec<f64> {
    let add = |sum: Vec<f64>, of: &Gradients| sum.iter().zip(&of[which]).map(|(sum, value)| sum + value).collect();
    given.iter().fold(vec![0.0; given[0][which].len()], add)
}
