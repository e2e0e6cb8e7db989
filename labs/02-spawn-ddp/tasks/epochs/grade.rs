//! Grades `epochs`: four epochs on three ranks, the last two of them in a resumed run, and four epochs with another seed.

use std::collections::BTreeMap;

use lockstep_grading::{Claim, Runner, Verdict};

const RANKS: usize = 3;
const EPOCHS: u64 = 4;
/// The first epoch of the resumed run.
const LATER: u64 = 2;

/// The samples that one rank visits, by epoch.
type Visited = Vec<Vec<usize>>;

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    // The ranks divide the samples evenly, so there is no padding.
    let (samples, seed) = (RANKS * random.below(8..14), random.below(0..1000) as u64);
    let inputs = [
        (samples, seed, 0, EPOCHS),
        (samples, seed, LATER, EPOCHS),
        (samples, seed + 1000, 0, EPOCHS),
        (samples + RANKS - 1, seed, 0, 1),
    ];
    let outputs = runner.call::<_, Visited>(RANKS, &inputs)?;
    let given = format!("{samples} samples, {RANKS} ranks, seed {seed}");
    for rank in 0..RANKS {
        for (case, input) in inputs[..3].iter().enumerate() {
            complete(rank, &given, (input.3 - input.2) as usize, samples / RANKS, outputs.of(rank, case))?;
        }
        let others_differ = outputs.all(0).any(|visited| visited.windows(2).any(|pair| pair[0] != pair[1]));
        all_differ(rank, &given, outputs.of(rank, 0), outputs.of(rank, 1), others_differ)?;
    }
    for epoch in 0..EPOCHS as usize {
        let shares: Vec<&[usize]> = outputs.all(0).map(|visited| &visited[epoch][..]).collect();
        dealt_out(&format!("{given}, epoch {epoch}"), samples, &shares)?;
    }
    let shares: Vec<&[usize]> = outputs.all(3).map(|visited| visited.first().map_or(&[][..], |share| share)).collect();
    rest(samples + RANKS - 1, &shares)?;
    other_shares(&given, outputs.all(0).map(|visited| &visited[..]).collect())?;
    for rank in 0..RANKS {
        let [whole, later, other] = [0, 1, 2].map(|case| outputs.of(rank, case));
        resumed(rank, &given, whole, later)?;
        Claim::that(whole != other, "another order with another seed", "the same order")
            .on_rank(rank)
            .given(format!("{given}, then seed {}", seed + 1000))
            .or_fail("the order does not depend on the seed")?;
    }
    Ok(())
}

/// Checks that samples which the ranks cannot divide evenly are visited, too.
fn rest(samples: usize, shares: &[&[usize]]) -> anyhow::Result<()> {
    let visited: Vec<usize> = shares.iter().flat_map(|share| share.iter().copied()).collect();
    let missing = (0..samples).filter(|sample| !visited.contains(sample)).count();
    Claim::that(
        missing == 0 && visited.len() == samples,
        "every sample once, over all ranks",
        format!("samples never visited: {missing}; visits in all: {}", visited.len()),
    )
    .given(format!("{samples} samples, which {RANKS} ranks cannot share equally"))
    .verdict(Verdict::RanksDisagree)
    .diagnose_if(
        missing > 0 && shares.iter().all(|share| share.len() == samples / RANKS),
        "the shares have equal lengths, and the remaining samples are not visited in this epoch: a rank takes the positions rank, rank + \
         world size, and so on, to the end of the order",
    )
    .or_fail("without padding no sample is visited twice: some ranks have one sample more than others")
}

fn complete(rank: usize, given: &str, epochs: usize, each: usize, visited: &Visited) -> anyhow::Result<()> {
    let lengths: Vec<usize> = visited.iter().map(Vec::len).collect();
    Claim::equal(&vec![each; epochs], &lengths)
        .on_rank(rank)
        .given(format!("{given}; how many samples in each of {epochs} epochs"))
        .or_fail("a rank must visit its share in every epoch, and all shares have the same length")
}

fn all_differ(
    rank: usize,
    given: &str,
    visited: &Visited,
    resumed: &Visited,
    others_differ: bool,
) -> anyhow::Result<()> {
    let same = |a: usize, b: usize| visited[a] == visited[b];
    let pairs = || (0..visited.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
    let same_pairs: Vec<(usize, usize)> = pairs().filter(|(a, b)| same(*a, *b)).collect();
    let observed = match same_pairs.first() {
        Some((a, b)) => format!("epochs {a} and {b} both visit {:?}", visited[*a]),
        None => "all differ".to_owned(),
    };
    Claim::that(same_pairs.is_empty(), "another order in each epoch", observed)
        .on_rank(rank)
        .given(given)
        .diagnose_if(
            same_pairs.len() == pairs().count() && others_differ,
            "every epoch has the same order on this rank, but not on all others: each rank has a sampler of its own, which must know the number \
             of the epoch",
        )
        .diagnose_if(
            same_pairs.len() == pairs().count(),
            "every epoch has the same order, and so the same batches: the sampler must know the number of each epoch before it draws",
        )
        .diagnose_if(
            // A resumed run, too, begins with the order of epoch 0, and has that of its first epoch then.
            same_pairs == [(0, 1)] && resumed[..] == [&visited[0], &visited[LATER as usize + 1]].map(Clone::clone),
            "the sampler is one epoch behind: its epoch is set only after the order was drawn",
        )
        .or_fail("some epochs have the same order: each needs its own")
}

/// Checks that the ranks do not have the same share in all epochs, in another order.
fn other_shares(given: &str, visited: Vec<&[Vec<usize>]>) -> anyhow::Result<()> {
    let sorted = |share: &Vec<usize>| {
        let mut share = share.clone();
        share.sort_unstable();
        share
    };
    let fixed = visited.iter().all(|epochs| epochs.windows(2).all(|pair| sorted(&pair[0]) == sorted(&pair[1])));
    Claim::that(!fixed, "another share in each epoch", format!("rank 0 has {:?} in every epoch", sorted(&visited[0][0])))
        .on_rank(0)
        .given(given)
        .or_fail(
            "each rank visits the same samples in all epochs, in a different order: it takes its share first and shuffles that. Shuffle the \
             numbers of all samples first, so that a rank sees other samples in the next epoch",
        )
}

/// Checks that the ranks' shares of one epoch contain every sample once.
fn dealt_out(given: &str, samples: usize, shares: &[&[usize]]) -> anyhow::Result<()> {
    let mut times: BTreeMap<usize, usize> = (0..samples).map(|sample| (sample, 0)).collect();
    shares.iter().flat_map(|share| share.iter()).for_each(|sample| *times.entry(*sample).or_default() += 1);
    let often = times.iter().find(|(_, times)| **times > 1);
    let never = times.iter().find(|(_, times)| **times == 0);
    let observed = match (often, never) {
        (Some((often, times)), Some((never, _))) => format!("sample {often} {times} times, sample {never} never"),
        _ => format!("the shares {shares:?}"),
    };
    let sorted = |share: &&[usize]| {
        let mut share = share.to_vec();
        share.sort_unstable();
        share
    };
    let alike = shares.windows(2).all(|pair| sorted(&pair[0]) == sorted(&pair[1]));
    Claim::that(times.values().all(|times| *times == 1), "every sample once, over all ranks", observed)
        .given(given)
        .verdict(Verdict::RanksDisagree)
        .diagnose_if(alike, "all ranks visit the same samples: each must take its own share of the order")
        .diagnose_if(
            often.is_some() && never.is_some(),
            "several ranks visit some samples, and others are left out: the ranks must take different places of one order. Is it the same \
             on all ranks? The shuffle must not depend on the rank: all start it with the same seed",
        )
        .or_fail("the ranks' shares are not the samples of the data set")
}

fn resumed(rank: usize, given: &str, whole: &Visited, later: &Visited) -> anyhow::Result<()> {
    let begin = LATER as usize;
    Claim::equal(&whole[begin..], later)
        .on_rank(rank)
        .given(format!("{given}, epochs {LATER} to {} alone", EPOCHS - 1))
        .diagnose_if(
            later[..] == whole[..later.len()],
            "the epochs are counted from the start of the run, so a resumed run repeats the first orders: take the epoch's \
             number from the range",
        )
        .or_fail("the order depends on what the run did before, so a resumed run continues with other orders")
}
