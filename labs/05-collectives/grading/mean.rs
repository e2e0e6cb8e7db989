//! Task `mean`: shards of unequal length on 3 ranks, and at last one without samples.

use lockstep_grading::{Claim, Fault, Stage, Verdict, explain};

/// Wide enough for single precision; what is wrong is wrong by more than 0.1.
const TOLERANCE: f64 = 1e-4;

pub(crate) fn grade(stage: &mut Stage) -> anyhow::Result<()> {
    let mut random = stage.random();
    // The longer a shard, the greater its losses: so the mean of means is always too small.
    let mut shard = |rank: usize, samples: usize| -> Vec<f64> {
        random.numbers(samples).iter().map(|value| 10.0 * (rank + 1) as f64 + value).collect()
    };
    let shards = vec![shard(0, 2), shard(1, 5), shard(2, 11)];
    let with_none = vec![shard(0, 3), Vec::new(), shard(2, 7)];
    let cases = [shards, with_none];
    let outputs = stage.call::<_, Option<f64>>(3, &cases).map_err(|error| explain(error, absent))?;
    for (case, shards) in cases.iter().enumerate() {
        let observed: Vec<f64> = outputs.all(case).map(|mean| mean.unwrap_or(f64::NAN)).collect();
        for rank in 0..shards.len() {
            judge(rank, shards, &observed)?;
        }
    }
    Ok(())
}

/// Rank 1 has no samples in the last case.
fn absent(fault: &Fault) -> Option<String> {
    let is = |rank: usize, what: &str| fault.table.get(rank).is_some_and(|line| line.contains(what));
    let left = fault.verdict == Verdict::Hang && is(1, "has finished") && (is(0, "waits in") || is(2, "waits in"));
    left.then(|| {
        "rank 1 has no samples and did not take part, and the others wait for it in a collective: every rank calls it, also \
         with nothing to add"
            .into()
    })
}

fn judge(rank: usize, shards: &[Vec<f64>], observed: &[f64]) -> anyhow::Result<()> {
    let sum: f64 = shards.iter().flatten().sum();
    let count: usize = shards.iter().map(Vec::len).sum();
    let expected = sum / count as f64;
    let own = &shards[rank];
    let own_mean = own.iter().sum::<f64>() / own.len() as f64;
    let means = || shards.iter().filter(|own| !own.is_empty()).map(|own| own.iter().sum::<f64>() / own.len() as f64);
    let near = |wrong: f64| (wrong - observed[rank]).abs() <= TOLERANCE;
    let means_by = |by: usize| near(means().sum::<f64>() / by as f64);
    let right = |of: usize| (observed[of] - expected).abs() <= TOLERANCE;
    let somebody = (0..shards.len()).find(|of| right(*of));
    let agree = observed.iter().all(|mean| (mean - observed[rank]).abs() <= TOLERANCE);
    Claim::close(&[expected], &observed[rank..=rank], TOLERANCE)
        .on_rank(rank)
        .given(format!("{} samples on rank {rank}, by rank: {shards:?}", own.len()))
        .verdict(if agree { Verdict::WrongValue } else { Verdict::RanksDisagree })
        .knows(
            means_by(shards.len()) || means_by(means().count()),
            "this is the mean of the ranks' means, in which a sample counts the more, the fewer its rank has: add up sums and \
             counts over the ranks, and divide once",
        )
        .knows(
            observed[rank].is_nan() && own.is_empty(),
            "a rank without samples has divided by its own count, 0 / 0: only the count of all ranks is to be divided by",
        )
        .knows(near(sum), "this is the sum over all samples: divide it by the number of all ranks' samples")
        .knows(
            near(sum / own.len() as f64),
            "the sum of all ranks was divided by this rank's own number of samples: reduce the count as well",
        )
        .knows(near(sum / shards.len() as f64), "the sum was divided by the number of ranks, not of samples")
        .knows(
            somebody.is_some(),
            format!(
                "rank {} has the mean over all ranks, and this rank has not: a result for all takes an all_reduce",
                somebody.unwrap_or(0)
            ),
        )
        .knows(near(own_mean), "this is the mean of the rank's own samples: nothing was reduced")
        .otherwise("not the mean over the samples of all ranks")
}
