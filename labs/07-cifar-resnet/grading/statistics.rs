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
                .diagnose_if(
                    near(&own[rank][which], &pair[which]),
                    format!("each rank has the {name} of its own batch, so each trains a different network"),
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
        let samples: usize = lengths.iter().sum();
        let unweighted = mean_of(&|_| 1.0 / lengths.len() as f64);
        let weighted = mean_of(&|rank| lengths[rank] as f64 / samples as f64);
        let unbiased: Vec<f64> = right[1].iter().map(|value| value * samples as f64 / (samples - 1) as f64).collect();
        Claim::close(&right[which], &pair[which], TOLERANCE)
            .on_rank(rank)
            .given(&input)
            .diagnose_if(
                near(&own[0][which], &pair[which]),
                format!("all ranks have the {name} of rank 0's batch: the samples of the other ranks are ignored"),
            )
            .diagnose_if(
                near(&unweighted, &pair[which]),
                format!("the mean of the ranks' {name}s: the batches have different lengths, so sum first and divide once"),
            )
            .diagnose_if(
                which == 1 && near(&weighted, &pair[1]),
                "the mean of the ranks' variances: it ignores the variance between the ranks' means. Sum the squares, too",
            )
            .diagnose_if(
                which == 1 && near(&unbiased, &pair[1]),
                "divided by n - 1: batch norm normalizes with the variance over n",
            )
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
    let distance = |at: usize| channel(at).map(|value| (value - mean[at]).powi(2)).sum::<f64>() / count;
    let variance = (0..mean.len()).map(distance).collect();
    [mean, variance]
}
