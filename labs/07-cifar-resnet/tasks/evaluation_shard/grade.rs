//! Grades `evaluation_shard`: the shares of all ranks, mostly with a remainder.

use lockstep_grading::{Claim, Runner, counted};

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let mut worlds = vec![(11, 4), (9, 3), (2, 4), (random.below(5..50), 1)];
    for ranks in [3, 4, 5] {
        // A rest of one distinguishes blocks that are rounded up, a larger one a rank that takes the whole rest.
        for rest in [random.below(2..ranks), 1] {
            worlds.push((random.below(5..20) * ranks + rest, ranks));
        }
    }
    let of_all_ranks = |&(samples, ranks): &(usize, usize)| (0..ranks).map(move |rank| (samples, ranks, rank));
    let inputs: Vec<_> = worlds.iter().flat_map(of_all_ranks).collect();
    let outputs = runner.call::<_, Vec<usize>>(1, &inputs)?;
    let mut case = 0;
    for (samples, ranks) in worlds {
        let shares: Vec<&Vec<usize>> = (case..case + ranks).map(|case| outputs.of(0, case)).collect();
        check(samples, &shares)?;
        case += ranks;
    }
    Ok(())
}

fn check(samples: usize, shares: &[&Vec<usize>]) -> anyhow::Result<()> {
    let ranks = shares.len();
    let given = format!("{}, {}", counted(samples, "picture"), counted(ranks, "rank"));
    let total: usize = shares.iter().map(|share| share.len()).sum();
    let count = |picture: usize| shares.iter().flat_map(|share| share.iter()).filter(|one| **one == picture).count();
    let beyond = shares.iter().flat_map(|share| share.iter()).find(|picture| **picture >= samples);
    let twice: Vec<usize> = (0..samples).filter(|picture| count(*picture) > 1).collect();
    let missing: Vec<usize> = (0..samples).filter(|picture| count(*picture) == 0).collect();
    let observed = format!("{shares:?}");
    // Shares that are longer by one on the first ranks, each as if all were as long.
    let length = |rank: usize| samples / ranks + usize::from(rank < samples % ranks);
    let own_steps = shares.iter().enumerate().all(|(rank, share)| {
        let length = length(rank);
        share.iter().copied().eq(rank * length..(rank + 1) * length)
    });
    let everything = |share: &&Vec<usize>| share.iter().copied().eq(0..samples);
    Claim::that(beyond.is_none(), format!("numbers below {samples}"), &observed)
        .given(&given)
        .or_fail("a picture does not exist: the last share goes beyond the end")?;
    Claim::that(twice.is_empty(), "each picture once", &observed)
        .given(&given)
        .diagnose_if(
            shares.iter().all(everything),
            "every rank evaluates everything: the work is not shared, and a sum over ranks counts each picture once per rank",
        )
        .diagnose_if(
            shares.iter().all(|share| share.len() == samples.div_ceil(ranks)) && twice.len() == total - samples,
            format!(
                "padded: the shares have the same length because pictures {twice:?} count twice. Padding is for training, where all ranks \
                 must take the same number of steps; an evaluation does not need it"
            ),
        )
        .diagnose_if(
            own_steps,
            format!(
                "pictures {twice:?} count more than once: the shares have the right lengths, but each rank begins at its number times its \
                 own length, and the ranks before it may have longer shares"
            ),
        )
        .or_fail(format!("pictures {twice:?} count more than once"))?;
    Claim::that(missing.is_empty(), "each picture once", &observed)
        .given(&given)
        .diagnose_if(
            total == samples / ranks * ranks,
            format!("the remainder is dropped: no rank evaluates pictures {missing:?}"),
        )
        .or_fail(format!("no rank evaluates pictures {missing:?}"))?;
    let lengths: Vec<usize> = shares.iter().map(|share| share.len()).collect();
    let (longest, shortest) = (lengths.iter().max().copied().unwrap_or(0), lengths.iter().min().copied().unwrap_or(0));
    let others = &lengths[1..];
    let long = samples.div_ceil(ranks);
    let left = |rank: usize| samples.saturating_sub(rank * long).min(long);
    Claim::that(longest - shortest <= 1, "lengths that differ by at most one", format!("lengths {lengths:?}"))
        .given(&given)
        .diagnose_if(
            longest == samples,
            "one rank evaluates everything: the others enter the next epoch and wait for it there, or time out",
        )
        .diagnose_if(
            others.last() == Some(&longest),
            "the last rank takes the whole remainder, and the others wait for it: give each rank at most one sample of it",
        )
        .diagnose_if(
            lengths.iter().copied().eq((0..ranks).map(left)),
            format!(
                "rounded up: the first ranks have {long} pictures each, and the last ranks get what is left. Round down, and give one more \
                 picture to as many ranks as there are pictures left over"
            ),
        )
        .or_fail("the lengths differ too much: the other ranks wait for the longest share")
}
