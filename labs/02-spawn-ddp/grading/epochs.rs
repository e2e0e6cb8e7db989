//! Task `epochs`: four epochs on three ranks, two of them in a run that begins later, and four with another seed.

use std::collections::BTreeMap;

use lockstep_grading::{Claim, Stage, Verdict};

const RANKS: usize = 3;
const EPOCHS: u64 = 4;
/// Where the second run begins.
const LATER: u64 = 2;

/// What one rank visits, by epoch.
type Visited = Vec<Vec<usize>>;

pub(crate) fn grade(stage: &mut Stage) -> anyhow::Result<()> {
    let mut random = stage.random();
    // Nothing is left over, so nothing is padded.
    let (samples, seed) = (RANKS * random.below(8..14), random.below(0..1000) as u64);
    let inputs = [(samples, seed, 0, EPOCHS), (samples, seed, LATER, EPOCHS), (samples, seed + 1000, 0, EPOCHS)];
    let outputs = stage.call::<_, Visited>(RANKS, &inputs)?;
    let given = format!("{samples} samples, {RANKS} ranks, seed {seed}");
    for rank in 0..RANKS {
        for (case, input) in inputs.iter().enumerate() {
            complete(rank, &given, (input.3 - input.2) as usize, samples / RANKS, outputs.of(rank, case))?;
        }
        all_differ(rank, &given, outputs.of(rank, 0))?;
    }
    for epoch in 0..EPOCHS as usize {
        let shares: Vec<&[usize]> = outputs.all(0).map(|visited| &visited[epoch][..]).collect();
        dealt_out(&format!("{given}, epoch {epoch}"), samples, &shares)?;
    }
    for rank in 0..RANKS {
        let [whole, later, other] = [0, 1, 2].map(|case| outputs.of(rank, case));
        resumed(rank, &given, whole, later)?;
        Claim::that(whole != other, "another order with another seed", "the same order")
            .on_rank(rank)
            .given(format!("{given}, then seed {}", seed + 1000))
            .otherwise("the seed has no part in the order")?;
    }
    Ok(())
}

fn complete(rank: usize, given: &str, epochs: usize, each: usize, visited: &Visited) -> anyhow::Result<()> {
    let lengths: Vec<usize> = visited.iter().map(Vec::len).collect();
    Claim::equal(&vec![each; epochs], &lengths)
        .on_rank(rank)
        .given(format!("{given}; how many samples in each of {epochs} epochs"))
        .otherwise("a rank visits its share in every epoch, and each share is one of equal parts of all samples")
}

fn all_differ(rank: usize, given: &str, visited: &Visited) -> anyhow::Result<()> {
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
        .knows(
            same_pairs.len() == pairs().count(),
            "every epoch has the same order, and so the same batches: nobody tells the sampler which epoch it is",
        )
        .knows(
            same_pairs == [(0, 1)],
            "the sampler lags an epoch behind: it is told the epoch when its order is drawn already",
        )
        .otherwise("some epochs have the same order")
}

/// That the ranks' shares of one epoch are all samples, once.
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
        .knows(alike, "all ranks visit the same samples: each must take its own share of the order")
        .knows(
            often.is_some() && never.is_some(),
            "the ranks have not shuffled alike: each takes its places in another order, so some samples are visited by \
             several and others by nobody. The rank has no part in the shuffle, and all begin it in the same state",
        )
        .otherwise("the shares of the ranks are not the samples of the data set")
}

fn resumed(rank: usize, given: &str, whole: &Visited, later: &Visited) -> anyhow::Result<()> {
    let begin = LATER as usize;
    Claim::equal(&whole[begin..], later)
        .on_rank(rank)
        .given(format!("{given}, epochs {LATER} to {} alone", EPOCHS - 1))
        .knows(
            later[..] == whole[..later.len()],
            "the epochs are counted from the begin of the run, so a run that is resumed visits the first orders again: take \
             the number from the range",
        )
        .otherwise("the order depends on what the run did before, so a run that is resumed does not go on as it would have")
}
