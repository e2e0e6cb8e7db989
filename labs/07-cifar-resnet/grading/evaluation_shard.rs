//! Task `evaluation_shard`: the shares of all ranks, whose sizes rarely divide.

use lockstep_grading::{Claim, Stage};

pub(crate) fn grade(stage: &mut Stage) -> anyhow::Result<()> {
    let mut random = stage.random();
    // Between multiples of the ranks: something is left over.
    let uneven = |random: &mut lockstep_grading::stage::Inputs, ranks: usize| {
        let (times, rest) = (random.below(5..20), random.below(2..ranks));
        (times * ranks + rest, ranks)
    };
    let mut worlds = vec![(11, 4), (9, 3), (2, 4), (random.below(5..50), 1)];
    worlds.extend([3, 4, 5].map(|ranks| uneven(&mut random, ranks)));
    let of_all_ranks = |&(samples, ranks): &(usize, usize)| (0..ranks).map(move |rank| (samples, ranks, rank));
    let inputs: Vec<_> = worlds.iter().flat_map(of_all_ranks).collect();
    let outputs = stage.call::<_, Vec<usize>>(1, &inputs)?;
    let mut case = 0;
    for (samples, ranks) in worlds {
        let shares: Vec<&Vec<usize>> = (case..case + ranks).map(|case| outputs.of(0, case)).collect();
        judge(samples, &shares)?;
        case += ranks;
    }
    Ok(())
}

fn judge(samples: usize, shares: &[&Vec<usize>]) -> anyhow::Result<()> {
    let ranks = shares.len();
    let given = format!("{samples} pictures, {ranks} ranks");
    let total: usize = shares.iter().map(|share| share.len()).sum();
    let count = |picture: usize| shares.iter().flat_map(|share| share.iter()).filter(|one| **one == picture).count();
    let beyond = shares.iter().flat_map(|share| share.iter()).find(|picture| **picture >= samples);
    let twice: Vec<usize> = (0..samples).filter(|picture| count(*picture) > 1).collect();
    let missing: Vec<usize> = (0..samples).filter(|picture| count(*picture) == 0).collect();
    let observed = format!("{shares:?}");
    let everything = |share: &&Vec<usize>| share.iter().copied().eq(0..samples);
    Claim::that(beyond.is_none(), format!("numbers below {samples}"), &observed)
        .given(&given)
        .otherwise("a picture that does not exist: the last share goes beyond the end")?;
    Claim::that(twice.is_empty(), "each picture once", &observed)
        .given(&given)
        .knows(
            shares.iter().all(everything),
            "every rank evaluates everything: the work is not shared, and a sum over ranks counts each picture once a rank",
        )
        .knows(
            total == samples.div_ceil(ranks) * ranks,
            format!(
                "padded: the shares are equally long, since pictures {twice:?} count twice. That is for training, where all ranks must \
                 take equally many steps; an evaluation need not"
            ),
        )
        .otherwise(format!("pictures {twice:?} count more than once"))?;
    Claim::that(missing.is_empty(), "each picture once", &observed)
        .given(&given)
        .knows(
            total == samples / ranks * ranks,
            format!("what is left over is dropped: nobody evaluates pictures {missing:?}"),
        )
        .otherwise(format!("nobody evaluates pictures {missing:?}"))?;
    let lengths: Vec<usize> = shares.iter().map(|share| share.len()).collect();
    let (longest, shortest) = (lengths.iter().max().copied().unwrap_or(0), lengths.iter().min().copied().unwrap_or(0));
    let others = &lengths[1..];
    Claim::that(longest - shortest <= 1, "lengths that differ by one at most", format!("lengths {lengths:?}"))
        .given(&given)
        .knows(
            longest == samples,
            "one rank evaluates everything: the others enter the next epoch and wait for it, or time out",
        )
        .knows(
            others.last() == Some(&longest),
            "the last rank takes all that is left over: the others wait for it. Deal it out, one each",
        )
        .otherwise("the shares are not equally long: the others wait for the longest")
}
