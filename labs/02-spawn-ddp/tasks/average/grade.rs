//! Grades `average`: a matrix and two vectors of gradients on 2 and 3 ranks.

use lockstep_grading::{Claim, Runner, causes, close};

/// The values of one rank's gradients.
type Gradients = Vec<Vec<f64>>;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    for ranks in [2, 3] {
        let mut random = runner.random();
        // The matrix comes first: in a bucket, a mistake in its length moves the others.
        let shapes = [vec![2, random.below(2..5)], vec![1], vec![random.below(4..40)]];
        let lengths = shapes.each_ref().map(|shape| shape.iter().product::<usize>());
        let of_rank = |_| lengths.map(|length| random.numbers(length)).to_vec();
        let given: Vec<Gradients> = (0..ranks).map(of_rank).collect();
        let outputs = runner.call::<_, Gradients>(ranks, &[(&shapes, &given)])?;
        let sums: Gradients = (0..lengths.len()).map(|which| sum(&given, which)).collect();
        // Whether all ranks have what this mistake gives, of a rank and the ranks' values of one number.
        let all_are = |mistake: Mistake| {
            let is = |rank: usize, which: usize| {
                let values = |at: usize| given.iter().map(|of| of[which][at]).collect::<Vec<f64>>();
                let wrong: Vec<f64> = (0..lengths[which]).map(|at| mistake(rank, &values(at))).collect();
                outputs.of(rank, 0).get(which).is_some_and(|seen| close(&wrong, seen, 1e-9))
            };
            (0..ranks).all(|rank| (0..lengths.len()).all(|which| is(rank, which)))
        };
        let causes = causes(&CAUSES, |mistake| all_are(*mistake));
        for (rank, observed) in outputs.all(0).enumerate() {
            let others_differ = outputs.all(0).skip(1).all(|of| of != outputs.of(0, 0));
            check(rank, &shapes, &given, &sums, observed, others_differ.then(|| outputs.of(0, 0)), &causes)?;
        }
    }
    Ok(())
}

type Mistake = fn(usize, &[f64]) -> f64;

const CAUSES: [(Mistake, &str); 7] = [
    (
        |_, values| values.iter().sum(),
        "summed, not averaged: divide by the number of ranks, or the step becomes too large by that factor",
    ),
    (
        |rank, values| values[rank],
        "never reduced: this is the rank's own gradient, so the ranks' models drift apart. If the mean was computed, it went into a copy: the \
         caller reads the tensors of `gradients`",
    ),
    (
        |rank, values| values[rank] / values.len() as f64,
        "this is the rank's own gradient, divided by the number of ranks: the gradients of the others were never added, or were added into a \
         copy. `all_reduce` leaves the sum in the tensor that it is given",
    ),
    (|_, values| values.iter().sum::<f64>() / values.len().pow(2) as f64, "divided by the number of ranks twice"),
    (|_, values| values[0], "these are rank 0's gradients, on all ranks: those of the other ranks do not count"),
    (
        |_, values| values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        "the greatest of the ranks' values: an all-reduce adds up unless it is told to do something else, and the mean is the sum divided by the \
         number of ranks",
    ),
    (
        |_, values| (values.iter().sum::<f64>() / values.len() as f64).floor(),
        "the means are rounded down to whole numbers: divide without rounding",
    ),
];

fn check(
    rank: usize,
    shapes: &[Vec<usize>],
    given: &[Gradients],
    sums: &Gradients,
    observed: &Gradients,
    // If no other rank has the same.
    of_rank_0: Option<&Gradients>,
    causes: &[&str],
) -> anyhow::Result<()> {
    let ranks = given.len() as f64;
    let means: Gradients = sums.iter().map(|sums| sums.iter().map(|sum| sum / ranks).collect()).collect();
    // The last gradient's place in a bucket of all means, and the place of the means that it has.
    let (bucket, last) = (means.concat(), means.len() - 1);
    let place = bucket.len() - means[last].len();
    let taken = bucket.windows(means[last].len()).position(|part| close(part, &observed[last], 1e-9)).unwrap_or(place);
    for which in 0..sums.len() {
        let first_is_right = of_rank_0.is_some_and(|first| close(&means[which], &first[which], 1e-9));
        let factor = factor(sums, observed);
        let is_own = |which: usize| close(&given[rank][which], &observed[which], 1e-9);
        let is_right = |which: usize| close(&means[which], &observed[which], 1e-9);
        let some_are_right = (0..sums.len()).any(is_right);
        let of_ranks: Vec<_> = given.iter().map(|gradients| &gradients[which]).collect();
        Claim::close(&means[which], &observed[which], 1e-9)
            .on_rank(rank)
            .given(format!("gradient {which} of {ranks} ranks, each of shape {:?}: {of_ranks:?}", shapes[which]))
            .causes(causes)
            .diagnose_if(
                rank > 0 && first_is_right,
                "rank 0 has the mean, and this rank does not: `reduce` leaves the result on one rank. All ranks need it: all_reduce, or a \
                 broadcast after the reduce",
            )
            .diagnose_if(
                taken != place,
                format!(
                    "with all means in one row, those of gradient {last} begin at place {place}, and it has those from place {taken} on: in a bucket, a \
                     gradient takes as many places as it has elements (`numel`), which its first dimension does not say"
                ),
            )
            .diagnose_if(
                some_are_right && is_own(which),
                format!("other gradients are averaged, and gradient {which} was never reduced: each needs its own all-reduce"),
            )
            .diagnose_if(
                observed[which].len() > 1 && observed[which].iter().all(|value| *value == observed[which][0]),
                "all elements of the gradient are one number: the mean is taken over the ranks, element by element, and not over the elements",
            )
            .diagnose_if(
                factor.is_some(),
                format!(
                    "the result is the sum divided by {}, and there are {ranks} ranks: `group.size()` says how many",
                    (1000.0 * factor.unwrap_or_default()).round() / 1000.0
                ),
            )
            .or_fail("the result is not the mean of the ranks' gradients")?;
    }
    Ok(())
}

/// What all sums of all gradients were divided by, if they were divided by one number.
fn factor(sums: &Gradients, observed: &Gradients) -> Option<f64> {
    let (sums, observed) = (sums.concat(), observed.concat());
    let place = sums.iter().position(|sum| sum.abs() > 1e-6)?;
    let by = sums[place] / observed.get(place)?;
    let divided: Vec<f64> = sums.iter().map(|sum| sum / by).collect();
    (by.is_finite() && close(&divided, &observed, 1e-9)).then_some(by)
}

fn sum(given: &[Gradients], which: usize) -> Vec<f64> {
    let add = |sum: Vec<f64>, of: &Gradients| sum.iter().zip(&of[which]).map(|(sum, value)| sum + value).collect();
    given.iter().fold(vec![0.0; given[0][which].len()], add)
}
