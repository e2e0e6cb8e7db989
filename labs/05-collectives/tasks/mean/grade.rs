//! Grades `mean`: shards of unequal length on 3 ranks, one of them empty in the last case.

use lockstep_grading::{Claim, Finding, Runner, Verdict, counted, explain, given};

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
    for (case, shards) in cases.iter().enumerate() {
        let observed: Vec<f64> = outputs.all(case).map(|mean| mean.unwrap_or(f64::NAN)).collect();
        for rank in 0..shards.len() {
            check(rank, shards, &observed)?;
        }
    }
    Ok(())
}

/// Rank 1 has no samples in the last case.
fn absent(finding: &Finding) -> Option<String> {
    let is = |rank: usize, what: &str| finding.table.get(rank).is_some_and(|line| line.contains(what));
    let left = finding.verdict == Verdict::Hang && is(1, "has finished") && (is(0, "waits in") || is(2, "waits in"));
    left.then(|| {
        "rank 1 has no samples and did not take part, so the others wait for it in a collective: every rank must call it, even if it has \
         nothing to add"
            .into()
    })
}

fn check(rank: usize, shards: &[Vec<f64>], observed: &[f64]) -> anyhow::Result<()> {
    let sum: f64 = shards.iter().flatten().sum();
    let count: usize = shards.iter().map(Vec::len).sum();
    let expected = sum / count as f64;
    let own = &shards[rank];
    let longest = shards.iter().map(Vec::len).max().unwrap_or(0);
    let own_mean = own.iter().sum::<f64>() / own.len() as f64;
    let means = || shards.iter().filter(|own| !own.is_empty()).map(|own| own.iter().sum::<f64>() / own.len() as f64);
    let near = |wrong: f64| (wrong - observed[rank]).abs() <= TOLERANCE;
    let means_by = |by: usize| near(means().sum::<f64>() / by as f64);
    let right = |of: usize| (observed[of] - expected).abs() <= TOLERANCE;
    let right_rank = (0..shards.len()).find(|of| right(*of));
    let agree = observed
        .iter()
        .all(|mean| (mean - observed[rank]).abs() <= TOLERANCE || (mean.is_nan() && observed[rank].is_nan()));
    Claim::close(&[expected], &observed[rank..=rank], TOLERANCE)
        .on_rank(rank)
        .given(format!("{} on rank {rank}, by rank: {shards:?}", counted(own.len(), "sample")))
        .verdict(if agree { Verdict::WrongValue } else { Verdict::RanksDisagree })
        .diagnose_if(
            means_by(shards.len()) || means_by(means().count()),
            "this is the mean of the ranks' means, in which a sample on a rank with few samples counts more: add up sums and counts \
             over the ranks, and divide once",
        )
        .diagnose_if(
            observed.iter().all(|mean| mean.is_nan()) && shards.iter().any(Vec::is_empty),
            "this is NaN on every rank, because a rank without samples has put NaN into the sum: its mean is 0 / 0, which is NaN, and so is \
             NaN times 0. Its sum is 0: add up sums, not means",
        )
        .diagnose_if(
            observed[rank].is_nan() && own.is_empty(),
            "a rank without samples has divided by its own count, 0 / 0: divide only by the count of all ranks",
        )
        .diagnose_if(near(sum), "this is the sum over all samples: divide it by the number of samples on all ranks")
        .diagnose_if(
            near(sum / own.len() as f64),
            "the sum of all ranks was divided by this rank's own number of samples: reduce the count as well",
        )
        .diagnose_if(
            near(sum / (longest * shards.len()) as f64),
            format!(
                "the sum was divided as if each rank had {longest} samples, as many as the longest shard: a padded position is not a \
                 sample. Add up the counts"
            ),
        )
        .diagnose_if(
            !agree && observed.iter().zip(shards).all(|(mean, own)| (mean * (own.len().max(1) * shards.len()) as f64 - sum).abs() <= 1e-3),
            "the sum of all ranks was divided by this rank's count times the number of ranks, as if all shards were as long as its own: \
             add up the counts, too",
        )
        .diagnose_if(near(sum / shards.len() as f64), "the sum was divided by the number of ranks, not of samples")
        .diagnose_if(
            right_rank.is_some(),
            format!(
                "rank {} has the mean over all ranks, and this rank does not: use all_reduce if all ranks need the result",
                right_rank.unwrap_or(0)
            ),
        )
        .diagnose_if(near(own_mean), "this is the mean of the rank's own samples: nothing was reduced")
        .or_fail("this is not the mean over the samples of all ranks")
}
