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
    let shards = vec![shard(0, 2), shard(1, 5), shard(2, 11)];
    let with_none = vec![shard(0, 3), Vec::new(), shard(2, 7)];
    let cases = [shards, with_none];
    let outputs = runner.call::<_, Option<f64>>(3, &cases).map_err(|error| {
        let lengths = |case: usize| cases[case].iter().map(Vec::len).collect::<Vec<_>>();
        given(explain(error, absent), |case| format!("shards of {:?} samples", lengths(case)))
    })?;
    let all = [0, 1].map(|case| outputs.all(case).map(|mean| mean.unwrap_or(f64::NAN)).collect::<Vec<_>>());
    for (shards, observed) in cases.iter().zip(&all) {
        // Whether all ranks have what this mistake gives, of the shards and the rank's own.
        let all_are = |mistake: Mistake| {
            let is = |(own, seen): (&Vec<f64>, &f64)| {
                let wrong = mistake(shards, own);
                (wrong - seen).abs() <= TOLERANCE || (!wrong.is_finite() && !seen.is_finite())
            };
            shards.iter().zip(observed).all(is)
        };
        let causes = causes(&CAUSES, |mistake| all_are(*mistake));
        for rank in 0..shards.len() {
            check(rank, shards, observed, &causes)?;
        }
    }
    Ok(())
}

/// The result that a mistake gives, of the shards and the rank's own one.
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

fn means(shards: &[Vec<f64>]) -> f64 {
    shards.iter().filter(|shard| !shard.is_empty()).map(|shard| mean_of(shard)).sum()
}

const OF_MEANS: &str = "this is the mean of the ranks' means, in which a sample on a rank with few samples counts more: add up sums and counts over the \
                        ranks, and divide once";

const CAUSES: [(Mistake, &str); 12] = [
    (|shards, _| means(shards) / shards.len() as f64, OF_MEANS),
    // Where a rank has no samples, the two differ.
    (
        |shards, _| match shards.iter().filter(|shard| !shard.is_empty()).count() {
            all if all == shards.len() => f64::MAX,
            some => means(shards) / some as f64,
        },
        OF_MEANS,
    ),
    (|shards, _| sum(shards), "this is the sum over all samples: divide it by the number of samples on all ranks"),
    (
        |shards, own| sum(shards) / own.len() as f64,
        "the sum of all ranks was divided by this rank's own number of samples: reduce the count as well",
    ),
    (
        |shards, own| sum(shards) / (own.len().max(1) * shards.len()) as f64,
        "the sum of all ranks was divided by this rank's count times the number of ranks, as if all shards were as long as its own: add up \
         the counts, too",
    ),
    (|shards, _| sum(shards) / shards.len() as f64, "the sum was divided by the number of ranks, not of samples"),
    (
        |shards, _| mean_of(&shards[0]),
        "this is the mean of rank 0's samples, on all ranks: those of the other ranks do not count",
    ),
    (|_, own| mean_of(own), "this is the mean of the rank's own samples: nothing was reduced"),
    (
        |shards, _| sum(shards) / count(shards) as f64 / shards.len() as f64,
        "the mean is divided by the number of ranks as well: sum and count are of all ranks already",
    ),
    (
        |shards, _| (sum(shards) / count(shards) as f64).floor(),
        "the mean is rounded down to a whole number: divide without rounding",
    ),
    (
        |shards, _| shards.iter().map(|shard| shard.iter().sum::<f64>().trunc()).sum::<f64>() / count(shards) as f64,
        "each rank's sum is cut to a whole number before it is added: keep the sum in double precision",
    ),
    // Where all ranks have samples, it is the mean.
    (
        |shards, _| match count(shards) + shards.iter().filter(|shard| shard.is_empty()).count() {
            all if all == count(shards) => f64::MAX,
            more => sum(shards) / more as f64,
        },
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

fn check(rank: usize, shards: &[Vec<f64>], observed: &[f64], causes: &[&str]) -> anyhow::Result<()> {
    let expected = sum(shards) / count(shards) as f64;
    let (own, seen) = (&shards[rank], observed[rank]);
    let longest = shards.iter().map(Vec::len).max().unwrap_or(0);
    let is = |one: f64, other: f64| (one - other).abs() <= TOLERANCE;
    let right_rank = (0..shards.len()).find(|of| is(observed[*of], expected));
    let agree = observed.iter().all(|mean| is(*mean, seen) || (mean.is_nan() && seen.is_nan()));
    Claim::close(&[expected], &observed[rank..=rank], TOLERANCE)
        .on_rank(rank)
        .given(format!("{} on rank {rank}, by rank: {shards:?}", counted(own.len(), "sample")))
        .verdict(if agree { Verdict::WrongValue } else { Verdict::RanksDisagree })
        .causes(causes)
        .cause_if(
            agree && is(seen, sum(shards) / (longest * shards.len()) as f64),
            format!(
                "the sum was divided as if each rank had {longest} samples, as many as the longest shard: a padded position is not a \
                 sample. Add up the counts"
            ),
        )
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
