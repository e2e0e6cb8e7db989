//! Task `shard`: the shares of all ranks, against the rule of `DistributedSampler` (`torch/utils/data/distributed.py`).

use lockstep_grading::{Claim, Stage};

pub(crate) fn grade(stage: &mut Stage) -> anyhow::Result<()> {
    let mut random = stage.random();
    let mut worlds = vec![(7, 3), (8, 2), (random.below(20..60), 1)];
    worlds.extend((0..4).map(|_| (random.below(20..60), random.below(2..6))));
    let of_all_ranks = |&(samples, ranks): &(usize, usize)| (0..ranks).map(move |rank| (samples, ranks, rank));
    let inputs: Vec<_> = worlds.iter().flat_map(of_all_ranks).collect();
    let outputs = stage.call::<_, Vec<usize>>(1, &inputs)?;
    for (case, &(samples, ranks, rank)) in inputs.iter().enumerate() {
        let (right, observed) = (right(samples, ranks, rank), outputs.of(0, case));
        let block: Vec<usize> = (rank * right.len()..(rank + 1) * right.len()).map(|place| place % samples).collect();
        let without_padding: Vec<usize> = (rank..samples).step_by(ranks).collect();
        let dropped = &right[..samples / ranks];
        Claim::equal(&right, observed)
            .on_rank(rank)
            .given(format!("{samples} samples, {ranks} ranks"))
            .knows(
                *observed == block,
                "each rank takes a block of neighbours, not every sample whose number is its own plus a multiple of the \
                 world size",
            )
            .knows(
                *observed == without_padding,
                "the samples that are left over make some ranks take one more than others, which will wait for them for ever: \
                 the shorter shares go on from the first sample",
            )
            .knows(*observed == dropped, "the samples that are left over are dropped, so some are never seen")
            .knows(
                observed.first() != Some(&(rank % samples)),
                "the first sample of a rank is the one of its own number",
            )
            .otherwise("the shares are not those of DistributedSampler without shuffling")?;
    }
    Ok(())
}

fn right(samples: usize, ranks: usize, rank: usize) -> Vec<usize> {
    (0..samples.div_ceil(ranks)).map(|turn| (turn * ranks + rank) % samples).collect()
}
