//! Grades `statistics`: batches of different lengths and means, on 2 and 3 ranks.

use lockstep_grading::{Claim, Runner, Verdict, close};

type Rows = Vec<Vec<f64>>;
/// Mean and variance of each channel.
type Pair = [Vec<f64>; 2];

const NAMES: [&str; 2] = ["mean", "variance"];
const TOLERANCE: f64 = 1e-9;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    for lengths in [vec![3, 5], vec![2, 4, 7]] {
        let mut random = runner.random();
        let channels = random.below(2..5);
        // Each rank's numbers are larger than those of the ranks before it.
        let mut row =
            |rank: usize| random.numbers(channels).into_iter().map(|number| number + 12.0 * rank as f64).collect();
        let mut batch = |(rank, length): (usize, &usize)| (0..*length).map(|_| row(rank)).collect();
        let given: Vec<Rows> = lengths.iter().enumerate().map(&mut batch).collect();
        let outputs = runner.call::<_, Pair>(lengths.len(), &[&given])?;
        let all: Vec<&Pair> = outputs.all(0).collect();
        check(&given, &all)?;
    }
    Ok(())
}

fn check(given: &[Rows], observed: &[&Pair]) -> anyhow::Result<()> {
    let right = of(&given.concat());
    let own: Vec<Pair> = given.iter().map(|batch| of(batch)).collect();
    let lengths: Vec<usize> = given.iter().map(Vec::len).collect();
    let samples: usize = lengths.iter().sum();
    let of_own_length = |times: usize| {
        let of = |length: usize| {
            right[0].iter().map(|mean| mean * samples as f64 / (length * times) as f64).collect::<Vec<_>>()
        };
        observed.iter().zip(&lengths).all(|(pair, length)| near(&of(*length), &pair[0]))
    };
    let less_own_square = |rank: usize| {
        let of = |channel: usize| right[1][channel] + right[0][channel].powi(2) - own[rank][0][channel].powi(2);
        near(&(0..right[0].len()).map(of).collect::<Vec<_>>(), &observed[rank][1])
    };
    let of_own_samples = || observed.iter().zip(given).all(|(pair, batch)| near(&around(&right[0], batch), &pair[1]));
    let input = format!("batches of {lengths:?} samples, rank 0's {:?}", given[0]);
    for which in [0, 1] {
        let name = NAMES[which];
        for (rank, pair) in observed.iter().enumerate() {
            let alike = close(&observed[0][which], &pair[which], TOLERANCE);
            let expected = format!("rank 0's {name}, {:?}", observed[0][which]);
            Claim::that(alike, expected, format!("{:?}", pair[which]))
                .verdict(Verdict::RanksDisagree)
                .on_rank(rank)
                .given(&input)
                .cause_if(
                    observed.iter().zip(&own).all(|(pair, own)| near(&own[which], &pair[which])),
                    format!("each rank has the {name} of its own batch, so each trains a different network"),
                )
                .cause_if(
                    which == 0 && (of_own_length(1) || of_own_length(lengths.len())),
                    "each rank divides the sum of all ranks by the length of its own batch: add the lengths over the ranks, too",
                )
                .cause_if(
                    which == 1 && of_own_samples(),
                    "the squared distances from the right mean, but of each rank's own samples: add them over the ranks, too",
                )
                .cause_if(
                    which == 1 && (0..own.len()).all(less_own_square),
                    "the mean of all ranks' squares, minus the square of this rank's own mean: subtract the square of the mean over all \
                     samples",
                )
                .or_fail(format!("the ranks have different values of the {name}"))?;
        }
        let (rank, pair) = (0, observed[0]);
        let mean_of = |weight: &dyn Fn(usize) -> f64| {
            let channels = 0..right[which].len();
            let sum =
                |channel: usize| own.iter().enumerate().map(|(rank, own)| weight(rank) * own[which][channel]).sum();
            channels.map(sum).collect::<Vec<f64>>()
        };
        let unweighted = mean_of(&|_| 1.0 / lengths.len() as f64);
        let weighted = mean_of(&|rank| lengths[rank] as f64 / samples as f64);
        let unbiased: Vec<f64> = right[1].iter().map(|value| value * samples as f64 / (samples - 1) as f64).collect();
        let added: Vec<f64> = unweighted.iter().map(|value| value * lengths.len() as f64).collect();
        let squares: Vec<f64> = right[0].iter().zip(&right[1]).map(|(mean, variance)| variance + mean * mean).collect();
        let deviation: Vec<f64> = right[1].iter().map(|value| value.sqrt()).collect();
        Claim::close(&right[which], &pair[which], TOLERANCE)
            .on_rank(rank)
            .given(&input)
            .cause_if(
                near(&own[0][which], &pair[which]),
                format!("all ranks have the {name} of rank 0's batch: the samples of the other ranks are ignored"),
            )
            .cause_if(
                near(&unweighted, &pair[which]),
                format!("the mean of the ranks' {name}s: the batches have different lengths, so sum first and divide once"),
            )
            .cause_if(
                which == 1 && near(&weighted, &pair[1]),
                "the mean of the ranks' variances: it ignores the variance between the ranks' means. Sum the squares, too",
            )
            .cause_if(
                which == 1 && near(&unbiased, &pair[1]),
                "divided by n - 1: batch norm normalizes with the variance over n",
            )
            .cause_if(
                near(&added, &pair[which]),
                format!("the sum of the ranks' {name}s: add up what the samples contribute, and divide once, by the samples of all ranks"),
            )
            .cause_if(which == 1 && near(&squares, &pair[1]), "the mean of the squares: subtract the square of the mean")
            .cause_if(which == 1 && near(&deviation, &pair[1]), "the standard deviation: the variance is its square")
            .or_fail(format!("this is not the {name} of all ranks' samples"))?;
    }
    Ok(())
}

fn near(expected: &[f64], observed: &[f64]) -> bool {
    close(expected, observed, TOLERANCE)
}

fn of(rows: &[Vec<f64>]) -> Pair {
    let count = rows.len() as f64;
    let channel = |at: usize| rows.iter().map(move |row| row[at]);
    let mean: Vec<f64> = (0..rows[0].len()).map(|at| channel(at).sum::<f64>() / count).collect();
    let variance = around(&mean, rows);
    [mean, variance]
}

/// The mean squared distance of each channel from a centre.
fn around(centre: &[f64], rows: &[Vec<f64>]) -> Vec<f64> {
    let squares = |at: usize| rows.iter().map(|row| (row[at] - centre[at]).powi(2)).sum::<f64>();
    (0..centre.len()).map(|at| squares(at) / rows.len() as f64).collect()
}
