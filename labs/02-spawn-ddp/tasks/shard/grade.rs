//! Grades `shard`: compares the shares of all ranks with the rule of `DistributedSampler` (`torch/utils/data/distributed.py`).

use lockstep_grading::{Claim, Runner, counted, given};

pub(crate) fn grade(runner: &mut Runner) -> anyhow::Result<()> {
    let mut random = runner.random();
    let mut worlds = vec![(7, 3), (8, 2), (random.below(20..60), 1)];
    // One sample for all, and fewer samples than ranks: the padding begins over and over.
    worlds.extend([(1, 3), (random.below(2..4), random.below(4..7))]);
    worlds.extend((0..4).map(|_| (random.below(20..60), random.below(2..6))));
    let of_all_ranks = |&(samples, ranks): &(usize, usize)| (0..ranks).map(move |rank| (samples, ranks, rank));
    let inputs: Vec<_> = worlds.iter().flat_map(of_all_ranks).collect();
    let shown = |(samples, ranks, rank): (usize, usize, usize)| format!("{}, rank {rank}", sizes(samples, ranks));
    let outputs = runner.call::<_, Vec<usize>>(1, &inputs).map_err(|error| given(error, |case| shown(inputs[case])))?;
    // Whether all shares are those that this mistake gives, of samples, ranks and rank.
    let all_are = |mistake: &dyn Fn(usize, usize, usize) -> Vec<usize>| {
        inputs
            .iter()
            .enumerate()
            .all(|(case, &(samples, ranks, rank))| *outputs.of(0, case) == mistake(samples, ranks, rank))
    };
    // However a block that lies beyond the samples is filled.
    let in_blocks = inputs.iter().enumerate().all(|(case, &(samples, ranks, rank))| {
        let (each, observed) = (samples.div_ceil(ranks), outputs.of(0, case));
        let block: Vec<usize> = (rank * each..((rank + 1) * each).min(samples)).collect();
        observed.len() == each && observed.starts_with(&block)
    });
    let not_filled = all_are(&|samples, ranks, rank| (rank..samples).step_by(ranks).collect());
    let dropped = all_are(&|samples, ranks, rank| right(samples, ranks, rank)[..samples / ranks].to_vec());
    for (case, &(samples, ranks, rank)) in inputs.iter().enumerate() {
        let (right, observed) = (right(samples, ranks, rank), outputs.of(0, case));
        let own: Vec<usize> = (rank..samples).step_by(ranks).collect();
        let other = right.iter().zip(observed).position(|(right, seen)| right != seen);
        Claim::equal(&right, observed)
            .on_rank(rank)
            .given(sizes(samples, ranks))
            .cause_if(
                in_blocks,
                "each rank takes a block of neighbours: let it take the samples whose number is its rank plus a multiple of the world size",
            )
            .cause_if(
                not_filled,
                "some ranks have one sample more than others, and would wait for them forever in a collective: fill the shorter shares with \
                 samples from the beginning",
            )
            .cause_if(dropped, "the remaining samples are dropped, so they are never visited")
            .diagnose_if(
                samples < ranks && observed.iter().any(|number| *number >= samples),
                format!(
                    "there is no sample {}: with fewer samples than ranks, the padding repeats the samples from 0 on",
                    observed.iter().max().unwrap_or(&0)
                ),
            )
            .diagnose_if(
                observed.first() != Some(&(rank % samples)) && rank >= samples,
                format!(
                    "there are fewer samples than ranks, so rank {rank} has padding only, and the padding repeats the samples from 0 on: \
                     its first sample is {}",
                    rank % samples
                ),
            )
            .diagnose_if(
                observed.first() != Some(&(rank % samples)),
                "the first sample of a rank is the one whose number is the rank",
            )
            .diagnose_if(
                observed.len() > right.len(),
                format!(
                    "{}, where {} are enough for equal shares: a share is samples / ranks, rounded up; if the samples divide \
                     evenly, nothing is added",
                    counted(observed.len(), "sample"),
                    right.len()
                ),
            )
            .diagnose_if(
                own.len() < right.len() && observed.len() == right.len() && observed.starts_with(&own),
                format!(
                    "the share is filled with {:?} instead of {:?}: the order continues with its beginning, one sample for each rank as \
                     before, so each rank that is short gets a different one",
                    &observed[own.len().min(observed.len())..],
                    &right[own.len()..]
                ),
            )
            .diagnose_if(
                observed.len() < right.len() && right.starts_with(observed),
                format!(
                    "{} where each rank has {}: the share ends too early",
                    counted(observed.len(), "sample"),
                    right.len()
                ),
            )
            .or_fail(match other {
                Some(place) => format!(
                    "the share differs from that of DistributedSampler without shuffling in place {place}: {} instead of {}",
                    observed[place], right[place]
                ),
                None => "the share has not the length of that of DistributedSampler without shuffling".to_owned(),
            })?;
    }
    Ok(())
}

fn sizes(samples: usize, ranks: usize) -> String {
    format!("{}, {}", counted(samples, "sample"), counted(ranks, "rank"))
}

fn right(samples: usize, ranks: usize, rank: usize) -> Vec<usize> {
    (0..samples.div_ceil(ranks)).map(|turn| (turn * ranks + rank) % samples).collect()
}
