//! Grades `mean`: shards of unequal length on 3 ranks, one of them empty in the last case.

use lockstep_grading::{Claim, Finding, Runner, Verdict, causes, counted, explain, given};

/// Wide enough for single precision. Wrong results are off by more than 0.1.
const TOLERANCE: f64 = 1e-4;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // Longer shards have greater losses, so the mean of means is always too small.
    let mut shard = |rank: usize, samples: usize| -> Vec<f64> {
        random.numbers(samples).iter().map(|value| 10.0 * (rank + 1) as f64 + value).collect()
    };
    // The numbers of samples of all ranks, 23 and 19, are prime, and no shard's length is a product of 2 and 3, the numbers of ranks with samples:
    // so a divisor that is a product of other counts never gives one rank the mean by chance.
    let cases = [vec![shard(0, 5), shard(1, 7), shard(2, 11)], vec![shard(0, 5), Vec::new(), shard(2, 14)]];
    let outputs = runner.call::<_, Option<f64>>(3, &cases).map_err(|error| {
        let lengths = |case: usize| cases[case].iter().map(Vec::len).collect::<Vec<_>>();
        given(explain(error, absent), |case| format!("shards of {:?} samples", lengths(case)))
    })?;
    let all = [0, 1].map(|case| outputs.all(case).map(|mean| mean.unwrap_or(f64::NAN)).collect::<Vec<_>>());
    let seen = || cases.iter().zip(&all);
    // Whether all ranks have what this mistake gives in all cases. What a rank without samples returns depends on how it divides by 0.
    let all_are = |mistake: Mistake| {
        seen().all(|(shards, observed)| {
            shards.iter().zip(observed).filter(|(own, _)| !own.is_empty()).all(|(own, seen)| {
                let wrong = mistake(shards, own);
                is(wrong, *seen) || (wrong.is_nan() && seen.is_nan())
            })
        })
    };
    let causes = causes(&CAUSES, |mistake| all_are(*mistake));
    let right_rank = (0..3).find(|rank| seen().all(|(shards, observed)| is(observed[*rank], mean_of_all(shards))));
    for (shards, observed) in seen() {
        for rank in 0..shards.len() {
            check(rank, shards, observed, &causes, right_rank)?;
        }
    }
    Ok(())
}

fn is(one: f64, other: f64) -> bool {
    (one - other).abs() <= TOLERANCE
}

/// The result that a mistake gives on a rank with samples, of the shards and the rank's own one.
type Mistake = fn(&[Vec<f64>], &[f64]) -> f64;

fn sum(shards: &[Vec<f64>]) -> f64 {
    shards.iter().flatten().sum()
}

fn mean_of(shard: &[f64]) -> f64 {
    shard.iter().sum::<f64>() / shard.len() as f64
}

fn count(shards: &[Vec<f64>]) -> usize {
    shards.iter().map(Vec::len).sum()
}

fn mean_of_all(shards: &[Vec<f64>]) -> f64 {
    sum(shards) / count(shards) as f64
}

fn with_samples(shards: &[Vec<f64>]) -> usize {
    shards.iter().filter(|shard| !shard.is_empty()).count()
}

fn longest(shards: &[Vec<f64>]) -> usize {
    shards.iter().map(Vec::len).max().unwrap_or(0)
}

/// The sum of the means of all ranks with samples.
fn means(shards: &[Vec<f64>]) -> f64 {
    shards.iter().filter(|shard| !shard.is_empty()).map(|shard| mean_of(shard)).sum()
}

const OF_MEANS: &str = "this is the mean of the ranks' means, in which a sample on a rank with few samples counts more: add up sums and counts over the \
                        ranks, and divide once";

const CAUSES: [(Mistake, &str); 14] = [
    // A rank without samples has the mean 0, none, or NaN.
    (|shards, _| means(shards) / shards.len() as f64, OF_MEANS),
    (|shards, _| means(shards) / with_samples(shards) as f64, OF_MEANS),
    (|shards, _| shards.iter().map(|shard| mean_of(shard)).sum::<f64>() / shards.len() as f64, OF_MEANS),
    (|shards, _| sum(shards), "this is the sum over all samples: divide it by the number of samples on all ranks"),
    (
        |shards, own| sum(shards) / own.len() as f64,
        "the sum of all ranks was divided by this rank's own number of samples: reduce the count as well",
    ),
    (
        |shards, own| sum(shards) / (own.len() * shards.len()) as f64,
        "the sum of all ranks was divided by this rank's count times the number of ranks, as if all shards were as long as its own: add up \
         the counts, too",
    ),
    (
        |shards, _| sum(shards) / (longest(shards) * shards.len()) as f64,
        "the sum was divided as if each rank had as many samples as the longest shard: a padded position is not a sample. Add up the counts",
    ),
    (|shards, _| sum(shards) / shards.len() as f64, "the sum was divided by the number of ranks, not of samples"),
    (
        |shards, _| mean_of(&shards[0]),
        "this is the mean of rank 0's samples, on all ranks: those of the other ranks do not count",
    ),
    (|_, own| mean_of(own), "this is the mean of the rank's own samples: nothing was reduced"),
    (
        |shards, _| mean_of_all(shards) / shards.len() as f64,
        "the mean is divided by the number of ranks as well: sum and count are of all ranks already",
    ),
    (|shards, _| mean_of_all(shards).floor(), "the mean is rounded down to a whole number: divide without rounding"),
    (
        |shards, _| shards.iter().map(|shard| shard.iter().sum::<f64>().trunc()).sum::<f64>() / count(shards) as f64,
        "each rank's sum is cut to a whole number before it is added: keep the sum in double precision",
    ),
    (
        |shards, _| sum(shards) / (count(shards) + shards.len() - with_samples(shards)) as f64,
        "a rank without samples is counted as if it had one: its count is 0, and only the sum of all counts is a divisor",
    ),
];

/// Rank 1 has no samples in the last case.
fn absent(finding: &Finding) -> Option<String> {
    let is = |rank: usize, what: &str| finding.table.get(rank).is_some_and(|line| line.contains(what));
    let left = finding.verdict == Verdict::Hang
        && finding.input == Some(1)
        && is(1, "has finished")
        && (is(0, "waits in") || is(2, "waits in"));
    left.then(|| {
        "rank 1 has no samples and did not take part, so the others wait for it in a collective: every rank must call it, even if it has \
         nothing to add"
            .into()
    })
}

/// `right_rank`: a rank that has the mean in all cases.
fn check(
    rank: usize,
    shards: &[Vec<f64>],
    observed: &[f64],
    causes: &[&str],
    right_rank: Option<usize>,
) -> anyhow::Result<()> {
    let expected = mean_of_all(shards);
    let (own, seen) = (&shards[rank], observed[rank]);
    let agree = observed.iter().all(|mean| is(*mean, seen) || (mean.is_nan() && seen.is_nan()));
    Claim::close(&[expected], &observed[rank..=rank], TOLERANCE)
        .on_rank(rank)
        .given(format!("{} on rank {rank}, by rank: {shards:?}", counted(own.len(), "sample")))
        .verdict(if agree { Verdict::WrongValue } else { Verdict::RanksDisagree })
        .causes(causes)
        .diagnose_if(
            observed.iter().all(|mean| mean.is_nan()) && shards.iter().any(Vec::is_empty),
            "this is NaN on every rank, because a rank without samples has put NaN into the sum: its mean is 0 / 0, which is NaN, and so is \
             NaN times 0. Its sum is 0: add up sums, not means",
        )
        .diagnose_if(
            seen.is_nan() && own.is_empty(),
            "a rank without samples has divided by its own count, 0 / 0: divide only by the count of all ranks",
        )
        .diagnose_if(
            right_rank.is_some(),
            format!(
                "rank {} has the mean over all ranks, and this rank does not: use all_reduce if all ranks need the result",
                right_rank.unwrap_or(0)
            ),
        )
        .or_fail("this is not the mean over the samples of all ranks")
}
